"""Serves the MCP server on standard input and output, until the client hangs up or a signal ends the process.

A thread that waits for input cannot be interrupted. So another thread copies the input to a socket, and a signal ends that
socket: to the server it looks like a client that hung up, and it releases its sessions.

The SDK drops a line that is not a message, and takes a request with an id of another type for a notification. The client
would wait indefinitely for an answer, so it gets one here.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio import AsyncFile
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCNotification, jsonrpc_message_adapter
from pydantic import ValidationError

_LOG = logging.getLogger(__name__)
_STDIN = 0
_CHUNK = 1 << 16
_ENDING = (signal.SIGTERM, signal.SIGINT)


async def serve_stdio(server: MCPServer[Any]) -> None:
    """Serve one client. Raises KeyboardInterrupt once everything is released, if a signal ended it; a second signal kills."""
    loop = asyncio.get_running_loop()
    interrupted = False
    inside, outside = socket.socketpair()
    threading.Thread(target=_copy, args=(_take_stdin(), outside), name="espalier stdin", daemon=True).start()

    def end() -> None:
        nonlocal interrupted
        interrupted = True
        for number in _ENDING:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        outside.shutdown(socket.SHUT_WR)

    for number in _ENDING:
        loop.add_signal_handler(number, end)
    try:
        await _serve(server, anyio.wrap_file(inside.makefile("r", encoding="utf-8", errors="replace", newline="\n")))
    except* BrokenPipeError:
        _LOG.info("the client hung up before it read the last answer")
    if interrupted:
        raise KeyboardInterrupt


def _take_stdin() -> int:
    """A descriptor of what the client sends. Standard input is empty from now on: no child reads the client's messages."""
    wire = os.dup(_STDIN)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, _STDIN)
    os.close(null)
    return wire


async def _serve(server: MCPServer[Any], lines: AsyncFile[str]) -> None:
    """``MCPServer.run_stdio_async``, with answers to lines that are not messages."""
    inner = server._lowlevel_server
    forward, messages = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    async with stdio_server(stdin=anyio.wrap_file(io.StringIO())) as (_, answers), anyio.create_task_group() as group:
        group.start_soon(_read, lines, forward, answers.send)
        await inner.run(messages, answers, inner.create_initialization_options())


async def _read(
    lines: AsyncFile[str],
    messages: MemoryObjectSendStream[SessionMessage | Exception],
    answer: Callable[[SessionMessage], Awaitable[None]],
) -> None:
    """Pass messages on, and answer the other lines but blank ones. The SDK's own reader would drop these."""
    async with messages:
        async for line in lines:
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValidationError as error:
                refusal = _refusal(error)
            else:
                refusal = _refused_id(line) if isinstance(message, JSONRPCNotification) else None
                if refusal is None:
                    await messages.send(SessionMessage(message))
            if refusal is not None:
                await answer(SessionMessage(refusal))


def _refused_id(line: str) -> JSONRPCError | None:
    """The answer to a request whose id is neither a text nor a whole number: the SDK takes it for a notification."""
    if "id" not in json.loads(line):
        return None
    fault = ErrorData(code=INVALID_REQUEST, message="the id of a request is a text or a whole number: send it again with one")
    return JSONRPCError(jsonrpc="2.0", id=None, error=fault)


def _refusal(error: ValidationError) -> JSONRPCError | None:
    """The answer to a line that is not a message. A request is found among the errors, as it lacks what a reply has."""
    faults = error.errors(include_url=False, include_context=False)
    if faults[0]["type"] == "json_invalid":
        if not str(faults[0]["input"]).strip():
            return None
        fault = ErrorData(code=PARSE_ERROR, message="the line is not JSON: send one JSON-RPC message per line")
        return JSONRPCError(jsonrpc="2.0", id=None, error=fault)
    whole = next((one["input"] for one in faults if one["type"] == "missing" and isinstance(one["input"], dict)), {})
    given = whole.get("id") if "method" in whole else None
    fault = ErrorData(code=INVALID_REQUEST, message="the line is not a JSON-RPC 2.0 message, or not one alone")
    return JSONRPCError(jsonrpc="2.0", id=given if type(given) in (int, str) else None, error=fault)


def _copy(wire: int, server: socket.socket) -> None:
    """Copy what the client sends, until it hangs up or the server ends."""
    try:
        while data := os.read(wire, _CHUNK):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the server has ended: nobody reads any more
