"""Serves the MCP server on standard input and output, until the client hangs up or a signal ends the process.

A thread that waits for input cannot be interrupted. So another thread copies the input to a socket, and a signal ends that
socket: to the server it looks like a client that hung up, and it releases its sessions.

The SDK drops a line that is not a message, and takes a request with an id of another type for a notification. The client
would wait indefinitely for an answer, so it gets one (``mcp_messages``).
"""

from __future__ import annotations

import asyncio
import io
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
from mcp_types import JSONRPCNotification, jsonrpc_message_adapter
from pydantic import ValidationError

from engine.api.mcp_messages import refusal, refused_id

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
                answered = refusal(error)
            else:
                answered = refused_id(line) if isinstance(message, JSONRPCNotification) else None
                if answered is None:
                    await messages.send(SessionMessage(message))
            if answered is not None:
                await answer(SessionMessage(answered))


def _copy(wire: int, server: socket.socket) -> None:
    """Copy what the client sends, until it hangs up or the server ends."""
    try:
        while data := os.read(wire, _CHUNK):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the server has ended: nobody reads any more
