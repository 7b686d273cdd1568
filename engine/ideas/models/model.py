"""The interface of every model: a prompt in, a reply with its usage out, or one error with the reason.

Adapters (``openai_api``, ``gemini_api``, ``command``) know their protocol and nothing of sessions, budgets or prompts' content.
They do all retries; their callers retry nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from engine.domain.errors import ProposerError
from engine.domain.model import Usage

OnText = Callable[[str], None]
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
    """Tokens that failed attempts may cost before there is no further one; ``None`` for no bound. With 0 a request never costs
    more than one attempt can, as far as the provider reports it."""


class Finish(StrEnum):
    """Why a model stopped."""

    STOP = "stop"
    LENGTH = "length"
    """The reply is cut short."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply, with the provider's token counts."""

    text: str
    usage: Usage
    finish: Finish = Finish.STOP


class Trouble(StrEnum):
    """Why no reply came."""

    KEY = "key"
    """No key, or one that the provider rejects."""
    MODEL = "model"
    """No such model."""
    QUOTA = "quota"
    """Out of credit, or still limited after every retry."""
    REQUEST = "request"
    """The provider says that the request itself is wrong (too long, an option it does not know)."""
    UNREACHABLE = "unreachable"
    """No connection, or a server that keeps failing."""
    REPLY = "reply"
    """The reply violates the protocol."""


class ModelError(ProposerError):
    """No reply: what failed, which model, what to do. ``usage`` is what it cost as far as the provider reported it."""

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
        """Whether the provider reports token counts."""
        ...

    async def ask(self, prompt: Prompt, on_text: OnText) -> Reply:
        """Raises ModelError; can be cancelled at any time."""
        ...

    async def close(self) -> None: ...
