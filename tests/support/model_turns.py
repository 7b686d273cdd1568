"""The scripted responses of a test model server (performed by ``model_servers``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.domain.model import Usage

PIECES = 4
"""Number of chunks of a reply."""


@dataclass(frozen=True, slots=True)
class Says:
    """A reply. ``usage`` replaces the counted tokens."""

    text: str
    finish: str = "stop"
    """``stop``, ``length`` (cut short) or ``filtered`` (stopped by a content filter)."""
    reasoning: int = 0
    cached: int = 0
    usage: Usage | None = None
    unended: bool = False
    """The stream ends normally but without a stop reason, as when a proxy loses its connection."""
    counts: bool = True
    """Whether the server reports its usage."""


@dataclass(frozen=True, slots=True)
class Refuses:
    """A refusal in the protocol: a message (OpenAI), a blocked prompt (Gemini)."""

    text: str = "I cannot help with that."


@dataclass(frozen=True, slots=True)
class BreaksOff:
    """The connection is lost after so many chunks of the reply."""

    text: str
    after: int = 2


@dataclass(frozen=True, slots=True)
class Garbled:
    """A chunk in the middle of the reply violates the protocol."""

    text: str
    chunk: str = '{"choices": [{"delta"'


@dataclass(frozen=True, slots=True)
class Limited:
    """Too many requests. ``detail`` asks to wait in the body, as Gemini does; else it is the header ``Retry-After``."""

    after: float | None = None
    detail: bool = False


@dataclass(frozen=True, slots=True)
class Fails:
    """An HTTP status with the provider's message; ``kind`` is its error code."""

    status: int = 500
    message: str = "The server had an error while processing your request."
    kind: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    details: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class FailsInside:
    """An error object inside a stream that started normally."""

    message: str = "The model is overloaded."
    kind: str = "server_error"
    status: int = 503


@dataclass(frozen=True, slots=True)
class OutOfCredit:
    """The quota is used up; a retry fails, too."""


@dataclass(frozen=True, slots=True)
class Hangs:
    """Takes the request and never answers."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """A server that answers every request in another protocol."""

    body: str = "<html><body>Welcome</body></html>"
    status: int = 200
    kind: str = "text/html"


Turn = Says | Refuses | BreaksOff | Garbled | Limited | Fails | FailsInside | OutOfCredit | Hangs | Stranger


@dataclass(frozen=True, slots=True)
class Asked:
    """One parsed request."""

    model: str
    system: str
    user: str
    schema: Mapping[str, Any] | None
    max_output: int
    key: str
    options: frozenset[str]
    body: Mapping[str, Any]
    headers: Mapping[str, str]

    @property
    def tokens(self) -> int:
        return count(self.system) + count(self.user)


Script = Callable[[Asked], Turn | str] | Iterable[Turn | str]


def count(text: str) -> int:
    """Tokens of a text: its words and other characters."""
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
    """The usage after part of a reply."""
    if turn.usage is not None:
        return turn.usage
    return Usage(input=asked.tokens, cached=min(turn.cached, asked.tokens), output=count(text) + turn.reasoning)
