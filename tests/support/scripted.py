"""A proposer whose answers are data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.domain.model import Author, Draft
from engine.domain.work import Proposal
from engine.ideas.proposer import Calls, CodeRequest, IdeaRequest, Implementation, RepairRequest

SCRIPT = Author("script")


@dataclass(frozen=True, slots=True)
class ScriptedProposer:
    """Answers from tables; a missing entry is an empty answer.

    Rounds are looked up by number; drafts by the idea's key, or its title where it has none; repairs by kernel and attempt.
    """

    rounds: Mapping[int, tuple[Proposal, ...]] = field(default_factory=dict)
    drafts: Mapping[str, tuple[Draft, ...]] = field(default_factory=dict)
    repairs: Mapping[tuple[str, int], str] = field(default_factory=dict)
    author: Author = SCRIPT

    async def propose(self, request: IdeaRequest, calls: Calls) -> tuple[Proposal, ...]:
        return self.rounds.get(request.round, ())[: request.count]

    async def implement(self, request: CodeRequest, calls: Calls) -> Implementation:
        text = request.idea.text
        drafts = self.drafts.get(text.key or text.title)
        if drafts is None:
            return Implementation((), f"nothing is scripted for {text.title!r}")
        return Implementation(drafts[: request.idea.branch])

    async def repair(self, request: RepairRequest, calls: Calls) -> str | None:
        return self.repairs.get((request.kernel.id, request.kernel.attempt))

    async def close(self) -> None:
        """Nothing to close."""
