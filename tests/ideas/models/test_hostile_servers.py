"""Servers that answer with what no model would say: bounded time and memory, one clear line, nothing undercharged."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from support.model_servers import OPENAI_KEY, GeminiServer, ModelServer, OpenAIServer, Says
from support.more_model_servers import MessagesServer, ResponsesServer

from engine.domain.model import Usage
from engine.domain.settings import ModelServer as ModelServerSetting
from engine.ideas.models import one_server
from engine.ideas.models.model import ModelError, Prompt, Reply, Spent, Trouble
from engine.ideas.models.registry import open_model
from engine.ideas.models.retry_policy import RetryPolicy

QUICK = RetryPolicy(attempts=1, first_wait=0.01, silence=5.0, seconds=5.0)
SHORT = RetryPolicy(attempts=1, first_wait=0.01, silence=5.0, seconds=0.4)
KINDS = ("openai", "responses", "anthropic", "gemini")
SERVERS: dict[str, type[ModelServer]] = {
    "openai": OpenAIServer, "responses": ResponsesServer, "anthropic": MessagesServer, "gemini": GeminiServer,
}  # fmt: skip
KEYS = {"gemini": "GEMINI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"

Serve = Callable[[asyncio.StreamWriter], Awaitable[None]]
pytestmark = pytest.mark.parametrize("kind", KINDS)


@dataclass(slots=True)
class Raw:
    """A server that reads a request and then does what it likes."""

    serve: Serve
    url: str = ""
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Raw]:
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for writer in self.writers:
                writer.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().splitlines() if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
            await self.serve(writer)


def model_of(kind: str, url: str, policy: RetryPolicy):  # type: ignore[no-untyped-def]
    provider = "openai" if kind == "responses" else kind
    place = f"{url}/v1" if provider == "openai" else url
    setting = ModelServerSetting(f"{provider}:m", place, KEYS.get(kind, "OPENAI_API_KEY"), "responses" * (kind == "responses"))
    return open_model(f"{provider}:m", server=setting, policy=policy)


def failure(kind: str, serve: Serve, policy: RetryPolicy = QUICK) -> ModelError:
    """How a call ends, within its time."""

    async def body() -> ModelError:
        async with Raw(serve).listening() as server:
            model = model_of(kind, server.url, policy)
            began = time.monotonic()
            with pytest.raises(ModelError) as caught:
                await model.ask(Prompt("", "x", max_output=1000), lambda _: None)
            assert time.monotonic() - began < policy.seconds + 5.0
            await model.close()
            return caught.value

    error = asyncio.run(body())
    assert "\n" not in str(error)
    assert len(str(error)) < 600
    assert OPENAI_KEY not in str(error)
    return error


def outcome(kind: str, turn: Says) -> tuple[Reply | ModelError, ModelServer]:
    """The reply of a server that speaks the protocol."""

    async def body() -> Reply | ModelError:
        model = model_of(kind, server.root, QUICK)
        try:
            return await model.ask(Prompt("", "x", max_output=1000), lambda _: None)
        except ModelError as error:
            return error
        finally:
            await model.close()

    with SERVERS[kind]([turn]) as server:
        return asyncio.run(body()), server


async def write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def endless(writer: asyncio.StreamWriter, piece: bytes) -> None:
    while True:
        await write(writer, piece)


@pytest.mark.slow
@pytest.mark.parametrize("piece", [b": nothing\n\n" * 6000, b"x" * 65_536], ids=["comments", "one line"])
def test_a_stream_without_end_is_left(kind: str, piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_server, "LONGEST_RESPONSE", 1 << 20)

    async def serve(writer: asyncio.StreamWriter) -> None:
        await write(writer, HEAD + b"\r\n")
        await endless(writer, piece)

    error = failure(kind, serve)
    assert re.search("more than 1 MiB|not a valid Gemini reply", str(error))
    assert (error.trouble, error.spent) == (Trouble.REPLY, Spent.UNKNOWN)


def test_a_reply_beyond_its_limit_is_left(kind: str) -> None:
    error, _ = outcome(kind, Says("many words " * 20_000))
    assert isinstance(error, ModelError)
    assert str(error).endswith("the reply is longer than its limit of 1,000 tokens allows")
    assert error.spent is Spent.UNKNOWN


def test_a_header_without_end_is_left(kind: str) -> None:
    async def serve(writer: asyncio.StreamWriter) -> None:
        await write(writer, HEAD + b"X-Filler: ")
        await endless(writer, b"x" * 65_536)

    error = failure(kind, serve)
    assert "the connection failed" in str(error)


def test_the_body_of_an_error_is_bounded(kind: str) -> None:
    async def serve(writer: asyncio.StreamWriter) -> None:
        await write(writer, b"HTTP/1.1 500 Oops\r\nContent-Type: application/json\r\n\r\n")
        await endless(writer, b" " * 65_536)

    assert "more than 1 MiB" in str(failure(kind, serve))


@pytest.mark.slow
def test_bytes_that_trickle_end_at_the_time_limit(kind: str) -> None:
    async def serve(writer: asyncio.StreamWriter) -> None:
        await write(writer, HEAD + b"\r\n")
        while True:
            await write(writer, b"x")
            await asyncio.sleep(0.02)

    error = failure(kind, serve, SHORT)
    assert "no complete reply in 0.4 s" in str(error)
    assert error.spent is Spent.UNKNOWN


def test_a_compressed_response_is_refused_unread(kind: str) -> None:
    """Sixteen kilobytes that would be sixteen megabytes."""
    bomb = gzip.compress(b"\0" * (16 << 20))

    async def serve(writer: asyncio.StreamWriter) -> None:
        await write(writer, HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(bomb), bomb))

    assert "the server compresses its response (gzip)" in str(failure(kind, serve))


def test_no_compression_is_asked_for(kind: str) -> None:
    _, server = outcome(kind, Says("ok"))
    headers = {name.lower(): value for name, value in server.requests[0].headers.items()}
    assert headers["accept-encoding"] == "identity"


def test_a_connection_that_breaks_after_the_headers_may_have_cost_something(kind: str) -> None:
    async def serve(writer: asyncio.StreamWriter) -> None:
        await write(writer, HEAD + b"Content-Length: 1000\r\n\r\n")
        writer.transport.abort()

    error = failure(kind, serve)
    assert error.trouble is Trouble.UNREACHABLE
    assert error.spent is Spent.UNKNOWN


JUNK = {
    "binary": b"\x00\x01\xff\xfe" * 100,
    "random": random.Random(7).randbytes(4096),
    "control characters": b"data: \x00\n\n" * 50,
    "another shape": b"data: [1, 2]\n\n",
}


@pytest.mark.parametrize("content", JUNK.values(), ids=JUNK)
def test_bytes_that_are_no_reply_are_called_that(kind: str, content: bytes) -> None:
    async def serve(writer: asyncio.StreamWriter) -> None:
        await write(writer, HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(content), content))

    error = failure(kind, serve)
    assert error.trouble is Trouble.REPLY
    assert error.spent is Spent.UNKNOWN


def test_control_characters_arrive_as_they_were_sent(kind: str) -> None:
    text = "a\0b\x1b[2Jc\x07d\u202e"
    reply, _ = outcome(kind, Says(text))
    assert isinstance(reply, Reply)
    assert reply.text == text


def test_a_negative_count_is_no_count(kind: str) -> None:
    reply, _ = outcome(kind, Says("ok", usage=Usage(-5, 0, 3)))
    assert isinstance(reply, Reply)
    assert not reply.counted
    assert reply.usage == Usage()
