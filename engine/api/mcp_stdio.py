"""Serves the MCP server on standard input and output, until the client hangs up or a signal ends the process.

A thread that waits for input cannot be interrupted. So another thread copies the input to a socket, and a signal ends that
socket: to the server it looks like a client that hung up, and it releases its sessions.

The SDK drops a line that is not a message, and takes a request with an id of another type for a notification. The client
would wait indefinitely for an answer, so it gets one (``mcp_messages``). It also drops the requests in progress once the input
ends: those of a shell's pipe, whose input ends at once. They get some seconds.
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
from typing import TYPE_CHECKING, Any, Self

import anyio
from anyio import AsyncFile
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse, RequestId, jsonrpc_message_adapter
from pydantic import ValidationError

from engine.api.mcp_messages import refusal, refused_id

if TYPE_CHECKING:
    from mcp.shared._stream_protocols import WriteStream

_LOG = logging.getLogger(__name__)
_STDIN = 0
_CHUNK = 1 << 16
_ENDING = (signal.SIGTERM, signal.SIGINT)
_LAST_ANSWERS_SECONDS = 5.0
"""How long requests in progress may still take once the input has ended. Longer ones, such as measurements, are dropped."""


class _Unanswered:
    """The requests that have no answer yet."""

    def __init__(self) -> None:
        self._ids: set[RequestId | None] = set()
        self._none_left = anyio.Event()

    def add(self, number: RequestId) -> None:
        self._ids.add(number)

    def remove(self, number: RequestId | None) -> None:
        self._ids.discard(number)
        if not self._ids:
            self.give_up()

    def give_up(self) -> None:
        """Nobody waits for an answer any more."""
        self._ids.clear()
        self._none_left.set()
        self._none_left = anyio.Event()

    async def wait(self, seconds: float) -> None:
        """Wait until every request is answered, but at most for so long."""
        with anyio.move_on_after(seconds):
            if self._ids:
                await self._none_left.wait()


class _Answers:
    """The stream to the client, which notes what is answered."""

    def __init__(self, stream: WriteStream[SessionMessage], unanswered: _Unanswered) -> None:
        self._stream = stream
        self._unanswered = unanswered

    async def send(self, item: SessionMessage, /) -> None:
        await self._stream.send(item)
        if isinstance(item.message, JSONRPCResponse | JSONRPCError):
            self._unanswered.remove(item.message.id)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


async def serve_stdio(server: MCPServer[Any]) -> None:
    """Serve one client. Raises KeyboardInterrupt once everything is released, if a signal ended it; a second signal kills."""
    loop = asyncio.get_running_loop()
    interrupted = False
    unanswered = _Unanswered()
    inside, outside = socket.socketpair()
    threading.Thread(target=_copy, args=(_take_stdin(), outside), name="espalier stdin", daemon=True).start()

    def end() -> None:
        nonlocal interrupted
        interrupted = True
        for number in _ENDING:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        unanswered.give_up()
        outside.shutdown(socket.SHUT_WR)

    for number in _ENDING:
        loop.add_signal_handler(number, end)
    try:
        await _serve(
            server, anyio.wrap_file(inside.makefile("r", encoding="utf-8", errors="replace", newline="\n")), unanswered
        )
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


async def _serve(server: MCPServer[Any], lines: AsyncFile[str], unanswered: _Unanswered) -> None:
    """``MCPServer.run_stdio_async``, with answers to lines that are not messages, and to requests when the input ends."""
    inner = server._lowlevel_server
    forward, messages = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    async with stdio_server(stdin=anyio.wrap_file(io.StringIO())) as (_, answers), anyio.create_task_group() as group:
        group.start_soon(_read, lines, forward, answers.send, unanswered)
        await inner.run(messages, _Answers(answers, unanswered), inner.create_initialization_options())


async def _read(
    lines: AsyncFile[str],
    messages: MemoryObjectSendStream[SessionMessage | Exception],
    answer: Callable[[SessionMessage], Awaitable[None]],
    unanswered: _Unanswered,
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
                    if isinstance(message, JSONRPCRequest):
                        unanswered.add(message.id)
                    await messages.send(SessionMessage(message))
            if answered is not None:
                await answer(SessionMessage(answered))
        await unanswered.wait(_LAST_ANSWERS_SECONDS)


def _copy(wire: int, server: socket.socket) -> None:
    """Copy what the client sends, until it hangs up or the server ends."""
    try:
        while data := os.read(wire, _CHUNK):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the server has ended: nobody reads any more
