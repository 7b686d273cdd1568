"""Keeps a client's requests, and with them the key, on the server that the client was made for. Imports the HTTP library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2

CONNECT_SECONDS = 10.0

_PLAIN_HEADERS = frozenset(
    {"accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "host", "user-agent"}
)
"""Headers of a request to a server that gets no key. Its ``authorization`` is a placeholder."""
_CLIENT_HEADERS = "x-stainless-"
"""Prefix of the headers in which an SDK describes itself."""


class OtherServer(httpx2.RequestError):
    """A server redirected a request to another one, and the redirect was not followed."""


async def refuse_other_server(response: httpx2.Response) -> None:
    """A hook for every response. Raises OtherServer for a redirect to another host or port; https on the same host is allowed.

    An HTTP library removes ``authorization`` from a redirected request, but not a provider's own headers, nor the prompt.
    """
    if not response.has_redirect_location:
        return
    here = response.request.url
    there = here.join(response.headers["location"])
    upgraded = (here.scheme, here.port, there.scheme, there.port) == ("http", None, "https", None)
    if there.host != here.host or not (upgraded or (there.scheme, there.port) == (here.scheme, here.port)):
        target = f"{there.scheme}://{there.netloc.decode('ascii', 'replace')}"
        raise OtherServer(f"the server redirects to {target}: correct the base URL", request=response.request)


async def remove_secrets(request: httpx2.Request) -> None:
    """A hook for every request to a server that gets no key: removes headers that an SDK adds from the environment."""
    for name in list(request.headers):
        if name.lower() not in _PLAIN_HEADERS and not name.lower().startswith(_CLIENT_HEADERS):
            del request.headers[name]


def hooks(*, has_key: bool) -> dict[str, list[Callable[..., Any]]]:
    """The hooks of a client."""
    return {"response": [refuse_other_server], "request": [] if has_key else [remove_secrets]}


def timeout(silence: float) -> httpx2.Timeout:
    """A client's time-outs. ``silence``: seconds without data before a connection counts as dead."""
    return httpx2.Timeout(silence, connect=min(CONNECT_SECONDS, silence))
