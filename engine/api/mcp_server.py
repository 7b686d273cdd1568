"""The MCP server: what an agent may do, as tools, resources and a prompt of the official SDK.

``agents`` bounds what a client may cost, ``agent_views`` shows what it may see, and a session's rules decide what it may ask.
Only ``espalier mcp`` imports this module, and with it the SDK.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from engine.api import mcp_tools
from engine.api.agents import AgentLimits
from engine.api.mcp_arguments import CheckedServer
from engine.api.mcp_clients import Clients
from engine.api.mcp_resources import add_prompt, add_resources
from engine.api.mcp_tools import CallContext, Data
from engine.domain.errors import EspalierError, message_line

INSTRUCTIONS = """\
Espalier searches for faster GPU and CPU kernels. A judge that you cannot reach verifies and times every kernel.
Work like this: open_session (or list_sessions), read get_problem and get_session, propose_idea, wait_for the idea until an
engineer approves it, write_kernel for it, wait_for the kernel, read get_kernel, propose the next idea from its evidence.
Ideas of yours are scored: predict honestly. Verdicts are limited: think before you measure."""


def make_server(limits: AgentLimits, name: str | None = None) -> MCPServer[Any]:
    """The server with its tools, resources and prompt."""
    clients = Clients(limits, name)

    @asynccontextmanager
    async def lifespan(_: MCPServer[Any]) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.shield(clients.close())

    server = CheckedServer(
        "espalier", title="Espalier", instructions=INSTRUCTIONS, version=metadata.version("espalier"), lifespan=lifespan,
        log_level="WARNING",
    )  # fmt: skip
    for function in (*mcp_tools.READING, *mcp_tools.CHANGING):
        title = function.__name__.replace("_", " ").capitalize()
        reads = function in mcp_tools.READING
        hints = ToolAnnotations(title=title, read_only_hint=reads, destructive_hint=False, open_world_hint=False)
        server.add_tool(_tool(function, clients), title=title, annotations=hints)
    add_resources(server, clients.access)
    add_prompt(server)
    return server


def _tool(function: Callable[..., Awaitable[Data]], clients: Clients) -> Callable[..., Awaitable[Data]]:
    """The function as the SDK calls it: with the client's access first. One clear line for every refusal."""
    takes_context = "ctx" in function.__annotations__

    @functools.wraps(function)
    async def tool(ctx: CallContext, **given: Any) -> Data:
        try:
            access = clients.access(ctx)
            access.admit()
            if takes_context:
                given["ctx"] = ctx
            return await function(access, **given)
        except (EspalierError, TimeoutError) as error:
            raise ToolError(message_line(str(error))) from error

    shown = {name: kind for name, kind in function.__annotations__.items() if name != "access"}
    tool.__annotations__ = {**shown, "ctx": CallContext}
    tool.__signature__ = _signature(function)  # type: ignore[attr-defined]
    return tool


def _signature(function: Callable[..., object]) -> inspect.Signature:
    """The function's parameters without ``access``, and with the SDK's context."""
    own = inspect.signature(function, eval_str=True)
    parameters = [one for name, one in own.parameters.items() if name not in ("access", "ctx")]
    parameters.append(inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=CallContext))
    return own.replace(parameters=parameters)
