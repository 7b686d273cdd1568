"""The interface of proposers and writers: playbook, models, pasted replies, commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from engine.domain.model import Author, Blob, CallRole, Dialect, Draft, Failure, Usage
from engine.domain.state import Idea, Kernel, ModelCall, SessionState
from engine.domain.work import Proposal


@dataclass(frozen=True, slots=True)
class IdeaRequest:
    """Asks for the ideas of a round, from these parents."""

    state: SessionState
    round: int
    parents: tuple[str, ...]
    count: int
    dialect: Dialect
    """The dialect of the session's device: ``cpp`` on a CPU, ``cuda`` on a GPU."""
    code: Mapping[str, str] = field(default_factory=dict)
    """Code of the possible parents (the round's and the whole frontier), by kernel id."""


@dataclass(frozen=True, slots=True)
class CodeRequest:
    """Asks for implementations of one approved idea: at most ``idea.branch``, including variants of their tunables."""

    state: SessionState
    idea: Idea
    dialect: Dialect
    parent_code: str | None
    materials: Mapping[str, str] = field(default_factory=dict)
    """Code of the kernels attached to the idea, by kernel id."""
    session: Path | None = None
    """The session's folder, for a writer that works in a workspace."""


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """Asks for the repair of a failed kernel, with the output of the compiler or of the correctness check."""

    state: SessionState
    kernel: Kernel
    code: str
    reason: str
    log: str
    session: Path | None = None
    earlier: tuple[tuple[str, Failure], ...] = ()
    """The attempts before this one, oldest first: their code, and why it failed."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """The answer to a ``CodeRequest``; ``note`` says why there are fewer drafts than requested."""

    drafts: tuple[Draft, ...]
    note: str = ""
    author: Author | None = None
    """Who wrote them; ``None`` for the proposer that was asked."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call has cost."""

    usage: Usage = field(default_factory=Usage)
    usd: float | None = None
    """``None``: the price is unknown, or nothing was counted."""
    estimated: bool = False
    """The provider has not reported it: it is what the call could have cost."""


class Calls(Protocol):
    """The recorded model calls of one work item, and its progress stream.

    A call is in the journal before its first token is spent, and its reply before it is parsed. Work that runs again after a
    crash finds its replies and pays for none of them twice.
    """

    @property
    def state(self) -> SessionState:
        """The present state of the session, which includes the spending so far."""
        ...

    def earlier(self) -> tuple[ModelCall, ...]:
        """All calls of this work in any process, oldest first, including failed ones."""
        ...

    def start(self, role: CallRole, model: str, prompt: str, ceiling: int, max_output: int = 0) -> ModelCall:
        """Record that ``model`` is about to be asked; ``ceiling`` is the highest possible number of tokens, ``max_output`` the
        reply's part of it."""
        ...

    def answer(self, call: str, reply: str, cost: Cost, finish: str, seconds: float, *, recalled: bool = False) -> None: ...

    def fail(self, call: str, reason: str, cost: Cost = Cost()) -> None:
        """Record that no reply came, or that it is unusable; ``cost`` is what ``answer`` has not recorded."""
        ...

    async def wait(self, seconds: float, words: Callable[[float], str]) -> None:
        """Wait for a provider. ``words`` says why, given the seconds that are left; meanwhile other work of models may run."""
        ...

    async def wait_by_hand(self, call: str) -> ModelCall:
        """Wait until someone answers the call (``AnswerCall``) or cancels it (``CancelCall``)."""
        ...

    async def wait_cancelled(self, call: str) -> None:
        """Wait until someone cancels the call."""
        ...

    async def confirm(self, reason: str) -> None:
        """Pause the session for this reason and wait until the engineer resumes it."""
        ...

    def text(self, blob: Blob) -> str:
        """A recorded prompt or reply."""
        ...

    def say(self, text: str) -> None:
        """Report progress, which is not recorded."""
        ...


class Proposer(Protocol):
    """Proposes ideas, writes their code and repairs it.

    Raises ProposerError if it is unreachable or violates its protocol, never for lack of ideas; CallCancelled if someone
    cancelled the call; BudgetExhausted before a call that could exceed a hard cap.
    """

    @property
    def author(self) -> Author: ...

    async def propose(self, request: IdeaRequest, calls: Calls) -> tuple[Proposal, ...]: ...

    async def implement(self, request: CodeRequest, calls: Calls) -> Implementation: ...

    async def repair(self, request: RepairRequest, calls: Calls) -> str | None:
        """Revised code, or ``None`` if there is no repair."""
        ...

    async def close(self) -> None:
        """Release connections; called once, when the session closes."""
        ...
