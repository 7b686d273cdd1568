"""The proposer ``agent``: coding agents propose and write through the MCP server or the command line; nobody is asked."""

from __future__ import annotations

from engine.domain.model import AGENT, Author
from engine.domain.work import Proposal
from engine.ideas.proposer import Calls, CodeRequest, IdeaRequest, Implementation, RepairRequest


class AgentProposer:
    """A ``Proposer`` without answers. The rules ask it for nothing, so its answers only matter for old states."""

    author = Author(AGENT)

    async def propose(self, request: IdeaRequest, calls: Calls) -> tuple[Proposal, ...]:
        return ()

    async def implement(self, request: CodeRequest, calls: Calls) -> Implementation:
        return Implementation((), "no model writes it: an agent or `espalier kernel seed` does")

    async def repair(self, request: RepairRequest, calls: Calls) -> str | None:
        return None

    async def close(self) -> None:
        """Does nothing."""
