"""The clients of the MCP server: who they are, and what each of them holds."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from mcp.server.mcpserver import Context

from engine.api.agents import AgentAccess, AgentLimits
from engine.domain.model import Author
from engine.session.inbox import agent


class Clients:
    """The access of each client, by the name of its agent."""

    def __init__(self, limits: AgentLimits, name: str | None = None) -> None:
        """``name``: the agent's name; ``None`` to take the name that each client states."""
        self._limits = limits
        self._name = name
        self._known: dict[str, AgentAccess] = {}
        self._measuring = asyncio.Lock()

    def access(self, ctx: Context[Any, Any]) -> AgentAccess:
        author = self._author(ctx)
        if author.name not in self._known:
            self._known[author.name] = AgentAccess(author, self._limits, self._measuring)
        return self._known[author.name]

    def _author(self, ctx: Context[Any, Any]) -> Author:
        stated = self._name
        if stated is None:
            params = ctx.session.client_params
            stated = re.sub(r"[^A-Za-z0-9._-]+", "-", params.client_info.name).strip("-._")[:40] if params else ""
        return agent(stated or "unnamed")

    async def close(self) -> None:
        """Release every session."""
        for access in self._known.values():
            await asyncio.to_thread(access.close)
