"""The interface of models: takes a prompt, returns a reply with its usage, or raises one error with the reason.

Adapters (``responses_api``, ``chat_api``, ``anthropic_api``, ``gemini_api``, ``command``) implement the protocols; they are
independent of sessions, budgets and the content of prompts. One ``ask`` is one attempt: ``engine.ideas.model_calls`` reserves
its cost, waits and asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from engine.domain.errors import ProposerError
from engine.domain.model import Usage
from engine.domain.settings import CallOptions

OnText = Callable[[str], None]
"""Receives the pieces of a streamed reply as they arrive."""


@dataclass(frozen=True, slots=True)
class AgentWorkspace:
    """What a workspace holds beside its task."""

    session: Path
    """The folder of the session."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Names → texts: the reference, the parent's code, evidence."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question. ``schema`` is a JSON schema that the reply must follow, or ``None`` for free text."""

    system: str
    user: str
    schema: Mapping[str, Any] | None = None
    max_output: int = 16_000
    """Limit on the tokens of the reply, reasoning included."""
    workspace: AgentWorkspace | None = None
    """Files and session for a command that works in a folder."""
    stable: int = 0
    """Characters at the beginning of ``user`` that the session's next prompts repeat: providers can cache them."""
    options: CallOptions = field(default_factory=CallOptions)
    """``max_output`` above counts; the other options are sent where the model accepts them."""


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
    counted: bool = True
    """False if the provider reported no usage."""


class Trouble(StrEnum):
    """Why no reply came."""

    KEY = "key"
    """No key, or one that the provider rejects."""
    MODEL = "model"
    """Unknown model, or a command that does not start."""
    QUOTA = "quota"
    """Out of credit, or rate-limited."""
    REQUEST = "request"
    """The provider rejects the request itself: too long, or with an unknown option."""
    UNREACHABLE = "unreachable"
    """No connection, or a server that fails."""
    REPLY = "reply"
    """The response violates the protocol."""


class Spent(StrEnum):
    """What is known about the cost of a failed attempt."""

    NOTHING = "nothing"
    """The model did not begin: the provider answered with an error, or was never reached."""
    COUNTED = "counted"
    """The provider reported it."""
    UNKNOWN = "unknown"
    """The model may have begun: anything up to the limits of the request."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Another attempt may succeed; ``after`` is the wait in seconds that the provider requests."""

    after: float | None = None


class ModelError(ProposerError):
    """There was no reply. ``usage`` is the cost of the attempt as far as the provider reported it."""

    def __init__(
        self,
        trouble: Trouble,
        message: str,
        usage: Usage = Usage(),  # noqa: B008
        *,
        spent: Spent = Spent.NOTHING,
        retry: Retry | None = None,
    ) -> None:
        super().__init__(message)
        self.trouble = trouble
        self.usage = usage
        self.spent = spent
        self.retry = retry


class Model(Protocol):
    """One model behind one protocol."""

    @property
    def name(self) -> str:
        """The model's name as an author: ``openai:NAME``, ``anthropic:NAME``, ``command:CMD``."""
        ...

    @property
    def output_limit(self) -> int | None:
        """The longest reply in tokens that the server allows; ``None`` until an error of it named the limit."""
        ...

    async def ask(self, prompt: Prompt, on_text: OnText) -> Reply:
        """One attempt. Raises ModelError; can be cancelled at any time."""
        ...

    async def close(self) -> None: ...
