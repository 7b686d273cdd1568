"""Serves the MCP server over streamable HTTP on this machine: a token for every request, and no foreign host or origin."""

from __future__ import annotations

import hmac
import secrets
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp, Receive, Scope, Send

HOST = "127.0.0.1"
PATH = "/mcp"
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
    return _WithToken(server.streamable_http_app(streamable_http_path=PATH, transport_security=security, host=HOST), token)


class _WithToken:
    """Answers 401 to every request without the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if scope["type"] == "http" and hmac.compare_digest(given, self._expected):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "http":
            headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b"a token is needed: espalier mcp --http prints it\n"})


async def serve_http(server: MCPServer[Any], port: int, token: str) -> None:
    """Serve until the process is told to end. Raises OSError if the port is taken."""
    import uvicorn

    config = uvicorn.Config(http_app(server, token), host=HOST, port=port, log_level="warning")
    await uvicorn.Server(config).serve()
