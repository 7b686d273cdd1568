"""The one interface of every source of ideas and code: playbook, model, pasted reply, command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from engine.domain.model import Author, Blob, CallRole, Dialect, Draft, Usage
from engine.domain.state import Call, Idea, Kernel, SessionState
from engine.domain.work import Proposal


@dataclass(frozen=True, slots=True)
class IdeaRequest:
    """A round's question: what to try next, from these parents."""

    state: SessionState
    round: int
    parents: tuple[str, ...]
    count: int
    dialect: Dialect
    """The dialect that the session's device builds: ``cpp`` on a CPU, ``cuda`` on a GPU."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Source texts of the kernels that can be built on (the parents and the frontier), by kernel id."""


@dataclass(frozen=True, slots=True)
class CodeRequest:
    """Implementations of one selected idea, at most ``idea.branch`` of them, variants by tunables included."""

    state: SessionState
    idea: Idea
    dialect: Dialect
    parent_source: str | None
    materials: Mapping[str, str] = field(default_factory=dict)
    """Source texts of the kernels put beside the idea, by kernel id."""


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """A failed attempt with the words of the compiler or the verifier."""

    state: SessionState
    kernel: Kernel
    source: str
    reason: str
    log: str


@dataclass(frozen=True, slots=True)
class Implementation:
    """What came back for a ``CodeRequest``; ``note`` says why there is less than was asked for."""

    drafts: tuple[Draft, ...]
    note: str = ""
    author: Author | None = None
    """Who wrote them, where that is not the source's own author."""


class Calls(Protocol):
    """The recorded calls of models that one work makes, and a word with whoever watches.

    What is started here is in the journal before the first token is spent, what is answered before anyone has read it: a work
    that is done again after a kill finds its answers and pays for none of them twice.
    """

    @property
    def state(self) -> SessionState:
        """The session as it is now: what was spent so far is derived from it."""
        ...

    def earlier(self) -> tuple[Call, ...]:
        """All calls that this work has made in whatever process, oldest first, those that failed included."""
        ...

    def start(self, role: CallRole, model: str, prompt: str, ceiling: int) -> Call:
        """Record that ``model`` is about to be asked; ``ceiling`` is the most tokens it can cost."""
        ...

    def answer(
        self, call: str, reply: str, usage: Usage, usd: float | None, finish: str, seconds: float, *, recalled: bool = False
    ) -> None: ...

    def fail(self, call: str, reason: str, usage: Usage = Usage(), usd: float | None = None) -> None:  # noqa: B008
        """Record that no reply came or that the one that came cannot be used; ``usage`` is what an answer has not recorded."""
        ...

    async def by_hand(self, call: str) -> Call:
        """Wait until someone answers this call by hand (``AnswerCall``), or cancels it (``CancelCall``)."""
        ...

    async def cancelled(self, call: str) -> None:
        """Wait until this call, which a model is being asked, has ended otherwise than by its reply: someone cancelled it."""
        ...

    async def confirm(self, reason: str) -> None:
        """Pause the session for this reason, and wait until the engineer says go on."""
        ...

    def text(self, blob: Blob) -> str:
        """A recorded prompt or reply."""
        ...

    def say(self, text: str) -> None:
        """Streamed words; shown while they arrive, never recorded."""
        ...


class IdeaSource(Protocol):
    """Raises IdeaSourceError when the source cannot be reached or does not answer as agreed, never for lack of ideas;
    CallCancelled, a kind of it, when someone stopped the question; BudgetExhausted before a call that could pass a hard cap."""

    @property
    def author(self) -> Author: ...

    async def propose(self, request: IdeaRequest, calls: Calls) -> tuple[Proposal, ...]: ...

    async def implement(self, request: CodeRequest, calls: Calls) -> Implementation: ...

    async def repair(self, request: RepairRequest, calls: Calls) -> str | None:
        """A new source text, or ``None`` when this source does not repair."""
        ...

    async def close(self) -> None:
        """Let go of connections; called once, at the session's end."""
        ...
