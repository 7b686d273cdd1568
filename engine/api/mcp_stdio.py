"""Serves the MCP server on standard input and output, until the client hangs up or a signal ends the process.

A thread that waits for input cannot be interrupted. So another thread copies the input to a socket, and a signal ends that
socket: to the server it looks like a client that hung up, and it releases its sessions.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from typing import Any

from mcp.server.mcpserver import MCPServer

_LOG = logging.getLogger(__name__)
_STDIN = 0
_CHUNK = 1 << 16
_ENDING = (signal.SIGTERM, signal.SIGINT)


async def serve_stdio(server: MCPServer[Any]) -> None:
    """Serve one client. Raises KeyboardInterrupt once everything is released, if a signal ended it; a second signal kills."""
    loop = asyncio.get_running_loop()
    interrupted = False
    inside, outside = socket.socketpair()
    wire = os.dup(_STDIN)
    os.dup2(inside.fileno(), _STDIN)
    inside.close()
    threading.Thread(target=_copy, args=(wire, outside), name="espalier stdin", daemon=True).start()

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
        await server.run_stdio_async()
    except* BrokenPipeError:
        _LOG.info("the client hung up before it read the last answer")
    if interrupted:
        raise KeyboardInterrupt


def _copy(wire: int, server: socket.socket) -> None:
    """Copy what the client sends, until it hangs up or the server ends."""
    try:
        while data := os.read(wire, _CHUNK):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the server has ended: nobody reads any more
