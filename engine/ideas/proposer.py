"""The interface of everything that proposes ideas and writes their code: playbook, model, pasted reply, command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from engine.domain.model import Author, Blob, CallRole, Dialect, Draft, Usage
from engine.domain.state import Idea, Kernel, ModelCall, SessionState
from engine.domain.work import Proposal


@dataclass(frozen=True, slots=True)
class IdeaRequest:
    """What to try next in a round, from these parents."""

    state: SessionState
    round: int
    parents: tuple[str, ...]
    count: int
    dialect: Dialect
    """The dialect that the session's device builds: ``cpp`` on a CPU, ``cuda`` on a GPU."""
    code: Mapping[str, str] = field(default_factory=dict)
    """Code of the kernels that can be built on (the parents and the frontier), by kernel id."""


@dataclass(frozen=True, slots=True)
class CodeRequest:
    """Implementations of one selected idea, at most ``idea.branch`` of them, variants by tunables included."""

    state: SessionState
    idea: Idea
    dialect: Dialect
    parent_code: str | None
    materials: Mapping[str, str] = field(default_factory=dict)
    """Code of the kernels attached to the idea, by kernel id."""


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """A failed kernel, with the message of the compiler or the correctness check."""

    state: SessionState
    kernel: Kernel
    code: str
    reason: str
    log: str


@dataclass(frozen=True, slots=True)
class Implementation:
    """The answer to a ``CodeRequest``; ``note`` says why there are fewer drafts than requested."""

    drafts: tuple[Draft, ...]
    note: str = ""
    author: Author | None = None
    """Who wrote them, where that is not the proposer that was asked."""


class Calls(Protocol):
    """The recorded model calls of one work, and a stream to whoever watches.

    A call is in the journal before its first token is spent; its reply is recorded before it is read. So a work that runs
    again after a kill finds its replies and pays for none of them twice.
    """

    @property
    def state(self) -> SessionState:
        """The session as it is now: spending so far is derived from it."""
        ...

    def earlier(self) -> tuple[ModelCall, ...]:
        """All calls of this work in any process, oldest first, failed ones included."""
        ...

    def start(self, role: CallRole, model: str, prompt: str, ceiling: int) -> ModelCall:
        """Record that ``model`` is about to be asked; ``ceiling`` is the most tokens the call can cost."""
        ...

    def answer(
        self, call: str, reply: str, usage: Usage, usd: float | None, finish: str, seconds: float, *, recalled: bool = False
    ) -> None: ...

    def fail(self, call: str, reason: str, usage: Usage = Usage(), usd: float | None = None) -> None:  # noqa: B008
        """Record that no reply came, or that it cannot be used; ``usage`` is what ``answer`` has not recorded yet."""
        ...

    async def wait_by_hand(self, call: str) -> ModelCall:
        """Wait until someone answers this call by hand (``AnswerCall``) or cancels it (``CancelCall``)."""
        ...

    async def wait_cancelled(self, call: str) -> None:
        """Wait until this call has ended without a reply of the model: someone cancelled it."""
        ...

    async def confirm(self, reason: str) -> None:
        """Pause the session for this reason, and wait until the engineer resumes it."""
        ...

    def text(self, blob: Blob) -> str:
        """A recorded prompt or reply."""
        ...

    def say(self, text: str) -> None:
        """Stream words to the screen; they are not recorded."""
        ...


class Proposer(Protocol):
    """Proposes ideas, writes their code and repairs it.

    Raises ProposerError when it cannot be reached or does not answer as agreed, never for lack of ideas; CallCancelled when
    someone stopped the call; BudgetExhausted before a call that could exceed a hard cap.
    """

    @property
    def author(self) -> Author: ...

    async def propose(self, request: IdeaRequest, calls: Calls) -> tuple[Proposal, ...]: ...

    async def implement(self, request: CodeRequest, calls: Calls) -> Implementation: ...

    async def repair(self, request: RepairRequest, calls: Calls) -> str | None:
        """Revised code, or ``None`` when this proposer does not repair."""
        ...

    async def close(self) -> None:
        """Release connections; called once, at the session's end."""
        ...
