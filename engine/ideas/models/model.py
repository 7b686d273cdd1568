"""What every model is to the rest of the program: a prompt in, a reply with its usage out, or one clear reason why not.

Adapters (``openai_api``, ``gemini_api``, ``command``) know their protocol and nothing of sessions, budgets or prompts' content.
They retry what is worth retrying; whoever asks them retries nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from engine.domain.errors import IdeaSourceError
from engine.domain.model import Usage

Heard = Callable[[str], None]
"""Takes streamed pieces of a reply as they arrive."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question. ``schema`` is a JSON schema that the reply must follow, or ``None`` for free text."""

    system: str
    user: str
    schema: Mapping[str, Any] | None = None
    max_output: int = 16_000
    """Tokens that the reply may have, reasoning included."""
    spare: int | None = None
    """Tokens that failed attempts may have cost before there is no further one; ``None`` for no bound. With 0 an ask never
    costs more than one attempt can, as far as the provider tells."""


class Finish(StrEnum):
    """Why a model stopped."""

    STOP = "stop"
    LENGTH = "length"
    """The reply is cut short."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back, as the provider counted it."""

    text: str
    usage: Usage
    finish: Finish = Finish.STOP


class Trouble(StrEnum):
    """Why no reply came."""

    KEY = "key"
    """No key, or one that the provider does not take."""
    MODEL = "model"
    """No such model."""
    QUOTA = "quota"
    """Out of credit, or still limited after every retry."""
    REQUEST = "request"
    """The provider says that the request itself is wrong (too long, an option it does not know)."""
    UNREACHABLE = "unreachable"
    """No connection, or a server that keeps failing."""
    REPLY = "reply"
    """Something came that is not what the protocol says."""


class ModelError(IdeaSourceError):
    """No reply: what failed, which model, what to do. ``usage`` is what was spent on it as far as the provider said."""

    def __init__(self, trouble: Trouble, message: str, usage: Usage = Usage()) -> None:  # noqa: B008
        super().__init__(message)
        self.trouble = trouble
        self.usage = usage


class Model(Protocol):
    """One model behind one protocol."""

    @property
    def name(self) -> str:
        """As authors are named: ``openai:NAME``, ``gemini:NAME``, ``command:CMD``."""
        ...

    @property
    def counted(self) -> bool:
        """Whether the provider says what a call costs in tokens."""
        ...

    async def ask(self, prompt: Prompt, heard: Heard) -> Reply:
        """Raises ModelError; can be cancelled at any time."""
        ...

    async def close(self) -> None: ...
