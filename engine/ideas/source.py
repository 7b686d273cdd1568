"""The one interface of every source of ideas and code: playbook, model, pasted reply, command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from engine.domain.model import Author, Dialect, Draft
from engine.domain.state import Idea, Kernel, SessionState
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


class IdeaSource(Protocol):
    """Raises IdeaSourceError when the source cannot be reached or does not answer as agreed; never for lack of ideas."""

    @property
    def author(self) -> Author: ...

    async def propose(self, request: IdeaRequest) -> tuple[Proposal, ...]: ...

    async def implement(self, request: CodeRequest) -> Implementation: ...

    async def repair(self, request: RepairRequest) -> str | None:
        """A new source text, or ``None`` when this source does not repair."""
        ...
