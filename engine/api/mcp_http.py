"""Serves the MCP server over streamable HTTP on this machine: a token for every request, and no foreign host or origin.

The SDK takes a request whose id is of another type for a notification and accepts it with 202; it gets an error here.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.api.mcp_messages import refused_id

HOST = "127.0.0.1"
PATH = "/mcp"
_GRACE_SECONDS = 3
"""How long an end waits for requests: a client that never sends the rest of one would keep the server indefinitely."""
_NO_TOKEN = b"send the header Authorization: Bearer TOKEN, with the token that espalier mcp --http prints or was given\n"
_HOSTS = ("127.0.0.1", "localhost")


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(32)


def http_app(server: MCPServer[Any], token: str) -> ASGIApp:
    """The ASGI application. A browser page that resolves its own name to this machine (DNS rebinding) is refused."""
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[f"{host}:*" for host in _HOSTS],
        allowed_origins=[f"http://{host}:*" for host in _HOSTS],
    )
    app = server.streamable_http_app(streamable_http_path=PATH, transport_security=security, host=HOST)
    return _WithToken(_WithIds(app), token)


class _WithIds:
    """Answers 400 to a request whose id is neither a text nor a whole number."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        received = await _received(receive)
        refused = refused_id(b"".join(part.get("body", b"") for part in received))
        if refused is None:
            await self._app(scope, _again(received, receive), send)
            return
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": refused.model_dump_json().encode()})


async def _received(receive: Receive) -> list[Message]:
    """The parts of a request's body, until it is complete or its client is gone."""
    parts = [await receive()]
    while parts[-1].get("more_body", False):
        parts.append(await receive())
    return parts


def _again(parts: list[Message], receive: Receive) -> Receive:
    """Receives the parts first, then what comes after them."""
    left = iter(parts)

    async def received() -> Message:
        part = next(left, None)
        return part if part is not None else await receive()

    return received


class _WithToken:
    """Answers 401 to every request without the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})  # answered with 403
            return
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._expected):
            await self._app(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": _NO_TOKEN})


def listen(port: int) -> socket.socket:
    """A socket that listens on the port, or on a free one for 0. Raises OSError if it cannot be used."""
    return socket.create_server((HOST, port))


async def serve_http(server: MCPServer[Any], listening: socket.socket, token: str) -> None:
    """Serve until the process is told to end."""
    import uvicorn

    config = uvicorn.Config(
        http_app(server, token), log_level="warning", log_config=None, timeout_graceful_shutdown=_GRACE_SECONDS
    )  # without a configuration of its own, uvicorn's messages go where the program's do
    await uvicorn.Server(config).serve(sockets=[listening])
