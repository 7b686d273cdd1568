"""The interface of models: takes a prompt, returns a reply with its usage, or raises one error with the reason.

Adapters (``openai_api``, ``gemini_api``, ``command``) implement the protocols; they are independent of sessions, budgets and
the content of prompts. They do all retries; callers never retry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from engine.domain.errors import ProposerError
from engine.domain.model import Usage

OnText = Callable[[str], None]
"""Receives the pieces of a streamed reply as they arrive."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question. ``schema`` is a JSON schema that the reply must follow, or ``None`` for free text."""

    system: str
    user: str
    schema: Mapping[str, Any] | None = None
    max_output: int = 16_000
    """Limit on the tokens of the reply, reasoning included."""
    spare: int | None = None
    """Tokens that failed attempts may cost: beyond them there are no retries; ``None`` for no bound. With 0, a request never
    costs more than one attempt, as far as the provider reports usage."""


class Finish(StrEnum):
    """Why a model stopped."""

    STOP = "stop"
    LENGTH = "length"
    """The reply was cut off at the token limit."""
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
    """Unknown model, or a command that does not start."""
    QUOTA = "quota"
    """Out of credit, or rate-limited after all retries."""
    REQUEST = "request"
    """The provider rejects the request itself: too long, or with an unknown option."""
    UNREACHABLE = "unreachable"
    """No connection, or a server that keeps failing."""
    REPLY = "reply"
    """The response violates the protocol."""


class ModelError(ProposerError):
    """There was no reply. ``usage`` is the cost of all attempts as far as the provider reported it."""

    def __init__(self, trouble: Trouble, message: str, usage: Usage = Usage()) -> None:  # noqa: B008
        super().__init__(message)
        self.trouble = trouble
        self.usage = usage


class Model(Protocol):
    """One model behind one protocol."""

    @property
    def name(self) -> str:
        """The model's name as an author: ``openai:NAME``, ``gemini:NAME``, ``command:CMD``."""
        ...

    @property
    def counted(self) -> bool:
        """Whether the provider reports token counts."""
        ...

    async def ask(self, prompt: Prompt, on_text: OnText) -> Reply:
        """Raises ModelError; can be cancelled at any time."""
        ...

    async def close(self) -> None: ...
