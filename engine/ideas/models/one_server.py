"""What every client does with requests and responses: they stay on the server that the client was made for, and with them the
key; responses are bounded. Imports the HTTP library."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2

CONNECT_SECONDS = 10.0
LONGEST_RESPONSE, LONGEST_ERROR = 64 << 20, 1 << 20
"""Bytes of a stream, and of an error's body. The events of a reply have about 300 bytes a token."""

_PLAIN_HEADERS = frozenset(
    {"accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "host", "user-agent"}
)
"""Headers of a request to a server that gets no key. Its ``authorization`` is a placeholder."""
_CLIENT_HEADERS = "x-stainless-"
"""Prefix of the headers in which an SDK describes itself."""


class OtherServer(httpx2.RequestError):
    """A server redirected a request to another one, and the redirect was not followed."""


class ExcessiveResponse(httpx2.RequestError):
    """A server sends more than a response can be, or compresses it, so that nobody can tell."""


class _Bounded(httpx2.AsyncByteStream):
    """A stream that ends with ExcessiveResponse after too many bytes."""

    def __init__(self, inner: httpx2.AsyncByteStream, most: int, request: httpx2.Request) -> None:
        self._inner = inner
        self._most = most
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._most
        async for chunk in self._inner:
            left -= len(chunk)
            if left < 0:
                raise ExcessiveResponse(f"the response has more than {self._most >> 20} MiB", request=self._request)
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


async def refuse_compression(request: httpx2.Request) -> None:
    """A hook for every request."""
    request.headers["accept-encoding"] = "identity"


async def bound(response: httpx2.Response) -> None:
    """A hook for every response, before its body is read. Raises ExcessiveResponse for a compressed one."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        message = f"the server compresses its response ({encoding[:20]}), which was not asked for"
        raise ExcessiveResponse(message, request=response.request)
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    most = LONGEST_ERROR if response.is_error else LONGEST_RESPONSE
    response.stream = _Bounded(response.stream, most, response.request)


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
    removing = [] if has_key else [remove_secrets]
    return {"response": [refuse_other_server, bound], "request": [refuse_compression, *removing]}


def timeout(silence: float) -> httpx2.Timeout:
    """A client's time-outs. ``silence``: seconds without data before a connection counts as dead."""
    return httpx2.Timeout(silence, connect=min(CONNECT_SECONDS, silence))
