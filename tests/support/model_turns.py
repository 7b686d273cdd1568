"""What a model server of the tests can be told to do with a request (``model_servers`` does it)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.domain.model import Usage

PIECES = 4
"""Into how many chunks a reply is cut."""


@dataclass(frozen=True, slots=True)
class Says:
    """A reply. ``usage`` stands in for what the texts count."""

    text: str
    finish: str = "stop"
    """``stop``, ``length`` (cut short) or ``filtered`` (stopped by a content filter)."""
    reasoning: int = 0
    cached: int = 0
    usage: Usage | None = None
    unended: bool = False
    """The stream ends in order, but without a reason to stop: what proxies make of a lost connection."""


@dataclass(frozen=True, slots=True)
class Refuses:
    """A refusal, in the way of the protocol: a message (OpenAI), a blocked prompt (Gemini)."""

    text: str = "I cannot help with that."


@dataclass(frozen=True, slots=True)
class BreaksOff:
    """The connection is lost after so many chunks of the reply."""

    text: str
    after: int = 2


@dataclass(frozen=True, slots=True)
class Garbled:
    """A chunk in the middle of the reply is not what the protocol says."""

    text: str
    chunk: str = '{"choices": [{"delta"'


@dataclass(frozen=True, slots=True)
class Limited:
    """Too many requests. ``detail`` asks to wait in the body, as Gemini does; else it is the header ``Retry-After``."""

    after: float | None = None
    detail: bool = False


@dataclass(frozen=True, slots=True)
class Fails:
    """An HTTP status with the provider's own words; ``kind`` is its error code."""

    status: int = 500
    message: str = "The server had an error while processing your request."
    kind: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    details: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class FailsInside:
    """An error object inside a stream that began well."""

    message: str = "The model is overloaded."
    kind: str = "server_error"
    status: int = 503


@dataclass(frozen=True, slots=True)
class OutOfCredit:
    """Nothing left to spend; asking again is useless."""


@dataclass(frozen=True, slots=True)
class Hangs:
    """Takes the request and never answers."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """Something that answers every request, and not in this protocol."""

    body: str = "<html><body>Welcome</body></html>"


Turn = Says | Refuses | BreaksOff | Garbled | Limited | Fails | FailsInside | OutOfCredit | Hangs | Stranger


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as the protocol's own words for it were read."""

    model: str
    system: str
    user: str
    schema: Mapping[str, Any] | None
    max_output: int
    key: str
    options: frozenset[str]
    body: Mapping[str, Any]

    @property
    def tokens(self) -> int:
        return count(self.system) + count(self.user)


Script = Callable[[Asked], Turn | str] | Iterable[Turn | str]


def count(text: str) -> int:
    """Tokens of a text: its words and its other signs."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def pieces(text: str) -> list[str]:
    """A text as it is streamed."""
    size = max(1, -(-len(text) // PIECES))
    return [text[at : at + size] for at in range(0, len(text), size)]


def in_turn(script: Iterable[Turn | str]) -> Callable[[Asked], Turn | str]:
    turns = list(script)
    place = iter(range(len(turns)))
    return lambda _: turns[next(place, len(turns) - 1)]


def usage_of(asked: Asked, turn: Says, text: str) -> Usage:
    """What a reply costs after so much of its text."""
    if turn.usage is not None:
        return turn.usage
    return Usage(input=asked.tokens, cached=min(turn.cached, asked.tokens), output=count(text) + turn.reasoning)
