"""The resources and the prompt of the MCP server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError
from pydantic import Field

from engine.api import agent_views as views
from engine.api.agents import AgentAccess
from engine.domain.errors import EspalierError, message_line

STEPS = """\
Make the kernel of the problem {problem!r} faster{where} with the espalier tools.

1. open_session for {problem!r}, then wait_for its subject 'session': the naive port is measured.
2. Read get_problem, get_guide and get_kernel of the incumbent. Find its bottleneck: bytes, operations or latency.
3. propose_idea with a rationale from that evidence and an honest predicted speedup. wait_for it: an engineer decides.
4. write_kernel for the approved idea, wait_for the kernel, and read its verdict and evidence.
5. Repeat from the evidence. Stop near the speed of light, when two ideas in a row gain nothing, or when the budget of verdicts
   ends. Report what you tried, what each idea gained over its parent, and what limits the kernel now.
"""


def add_resources(server: MCPServer[Any], access_of: Callable[[Context[Any, Any]], AgentAccess]) -> None:
    """The references, trees and kernels that a client may read."""

    @server.resource("espalier://problems/{problem}", mime_type="text/x-python", description="The reference of a problem.")
    async def reference(problem: str, ctx: Context[Any, Any]) -> str:
        return await _read(lambda access: access.problem(problem).reference, ctx)

    @server.resource("espalier://sessions/{session}/tree", mime_type="text/plain", description="The kernel tree of a session.")
    async def tree(session: str, ctx: Context[Any, Any]) -> str:
        return await _read(lambda access: str(views.session_data(access.session(session), "")["tree"]), ctx)

    @server.resource(
        "espalier://sessions/{session}/kernels/{kernel}", mime_type="text/plain", description="The code of a kernel."
    )
    async def kernel_code(session: str, kernel: str, ctx: Context[Any, Any]) -> str:
        return await _read(lambda access: access.session(session).code(kernel), ctx)

    async def _read(text: Callable[[AgentAccess], str], ctx: Context[Any, Any]) -> str:
        try:
            access = access_of(ctx)
            access.admit()
            return text(access)
        except EspalierError as error:
            raise ResourceError(message_line(str(error))) from error


def add_prompt(server: MCPServer[Any]) -> None:
    """The prompt that starts a search."""

    @server.prompt(title="Improve this kernel")
    def improve_kernel(
        problem: Annotated[str, Field(description="A shipped name, or a file in the server's folder.")],
        device: Annotated[str, Field(description="cpu or cuda:N; by default the first device.")] = "",
    ) -> str:
        """Search for a faster kernel of a problem, with an engineer at the gate."""
        where = f" on {device}" if device else ""
        return STEPS.format(problem=problem, where=where)
