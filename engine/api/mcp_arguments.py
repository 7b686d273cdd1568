"""The arguments of tool calls, and their refusals: one line that says the reason alone."""

from __future__ import annotations

from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.types import CallToolResult, InputRequiredResult
from pydantic import ValidationError

from engine.domain.errors import printable

_MOST = 5
"""Wrong arguments that one refusal names."""


class CheckedServer(MCPServer[Any]):
    """An ``MCPServer`` that ignores no argument: an agent that asks for ``hold_outs`` is told that there is no such thing."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Raises ToolError with one line, UnexpectedToolError for a crash.

        The SDK puts "Error executing tool NAME" before a tool's own refusal, which its cause has without.
        """
        known = {tool.name: tuple(tool.input_schema.get("properties", {})) for tool in await self.list_tools()}
        unknown = [one for one in arguments if one not in known[name]] if name in known else []
        if unknown:
            named = ", ".join(known[name]) or "none"
            raise ToolError(f"{name} has no argument {_quoted(unknown[0])}: it takes {named}")
        try:
            return await super().call_tool(name, arguments, context)
        except UnexpectedToolError:
            raise
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise ToolError(f"{name}: {_wrong_arguments(error.__cause__)}") from error
            if isinstance(error.__cause__, ToolError):
                raise ToolError(str(error.__cause__)) from error
            raise


def _wrong_arguments(error: ValidationError) -> str:
    """Which arguments are wrong and why; without their values, which can be long."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg'].lower()}" for one in found[:_MOST])


def _quoted(text: str) -> str:
    return repr(printable(text[:40]))
