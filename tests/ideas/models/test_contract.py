"""The contract of every model, with the same assertions for each protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.model_servers import GeminiServer, Hangs, ModelServer, OpenAIServer, Says
from support.more_model_servers import MessagesServer, ResponsesServer

from engine.domain.model import Usage
from engine.domain.settings import ModelServer as ModelServerSetting
from engine.ideas.models.model import Finish, Model, ModelError, Prompt, Trouble
from engine.ideas.models.registry import open_model
from engine.ideas.models.retry_policy import RetryPolicy

QUICK = RetryPolicy(attempts=3, first_wait=0.01, longest_wait=0.5, silence=5.0, seconds=10.0)
SHORT = RetryPolicy(attempts=2, first_wait=0.01, silence=5.0, seconds=0.3)
PROMPT = Prompt(system="You write kernels.", user="Make it fast; größer: ≤ 2 µs ✓")
SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"], "additionalProperties": False}
KINDS = ("openai", "responses", "anthropic", "gemini", "command")
SERVERS: dict[str, type[ModelServer]] = {
    "openai": OpenAIServer, "responses": ResponsesServer, "anthropic": MessagesServer, "gemini": GeminiServer,
}  # fmt: skip
"""``openai``: Chat Completions; ``responses``: OpenAI's other protocol."""

AGENT = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
number = len(list(folder.glob("asked-*")))
(folder / f"asked-{number}").write_text(sys.stdin.read())
turns = json.loads((folder / "turns").read_text())
text = turns[min(number, len(turns) - 1)]
if text is None:
    (folder / "hanging").touch()
    time.sleep(60)
for at in range(0, len(text), 8):
    sys.stdout.write(text[at : at + 8])
    sys.stdout.flush()
    time.sleep(0.005 if at < 64 else 0)
"""


@dataclass(frozen=True, slots=True)
class Bench:
    """An open model, with the requests that its server or command received."""

    model: Model
    asked: Callable[[], list[str]]
    counted: Callable[[], Usage]


@contextlib.asynccontextmanager
async def opened(kind: str, turns: Sequence[Says | Hangs], folder: Path, policy: RetryPolicy = QUICK) -> AsyncIterator[Bench]:
    with contextlib.ExitStack() as stack:
        if kind == "command":
            (folder / "agent.py").write_text(AGENT)
            (folder / "turns").write_text(json.dumps([turn.text if isinstance(turn, Says) else None for turn in turns]))
            spec, setting = f"command:{sys.executable} -S -E {folder / 'agent.py'} {folder}", None

            def asked() -> list[str]:
                return [path.read_text() for path in sorted(folder.glob("asked-*"))]

            def counted() -> Usage:
                return Usage()
        else:
            server = stack.enter_context(SERVERS[kind](turns))
            spec = spec_of(kind)
            setting = ModelServerSetting(spec, server.url, "", "responses" if kind == "responses" else "")

            def asked() -> list[str]:
                return [f"{request.system}\n{request.user}\n{json.dumps(request.schema)}" for request in server.requests]

            def counted() -> Usage:
                return server.counted

        model = open_model(spec, server=setting, policy=policy)
        assert model.name == spec
        try:
            yield Bench(model, asked, counted)
        finally:
            await model.close()


def spec_of(kind: str) -> str:
    return f"{'openai' if kind == 'responses' else kind}:some-model"


def ignore(piece: str) -> None:
    pass


pytestmark = pytest.mark.parametrize("kind", KINDS)


def test_the_reply_equals_the_streamed_text(kind: str, tmp_path: Path) -> None:
    text = "Tile the rows: ≤ 128 threads each.\nThen vectorise the loads — four at a time.\n"

    async def body() -> None:
        async with opened(kind, [Says(text)], tmp_path) as bench:
            on_text: list[str] = []
            reply = await bench.model.ask(PROMPT, on_text.append)
            assert (reply.text, reply.finish) == (text, Finish.STOP)
            assert "".join(on_text) == text
            assert len(on_text) > 1

    asyncio.run(body())


def test_both_halves_of_the_prompt_arrive(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(kind, [Says("ok")], tmp_path) as bench:
            await bench.model.ask(PROMPT, ignore)
            (asked,) = bench.asked()
            assert asked.startswith(PROMPT.system)
            assert PROMPT.user in asked

    asyncio.run(body())


def test_the_schema_is_sent(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(kind, [Says('{"title": "tiling"}')], tmp_path) as bench:
            reply = await bench.model.ask(Prompt("", "One idea.", SCHEMA), ignore)
            assert json.loads(reply.text) == {"title": "tiling"}
            assert json.dumps(SCHEMA) in bench.asked()[0]

    asyncio.run(body())


@pytest.mark.slow
def test_a_long_prompt_and_a_long_reply(kind: str, tmp_path: Path) -> None:
    prompt, text = "x = 1.0f; // große\n" * 20_000, "y += 2.0f; // größer\n" * 200

    async def body() -> None:
        async with opened(kind, [Says(text)], tmp_path) as bench:
            reply = await bench.model.ask(Prompt("", prompt), ignore)
            assert reply.text == text
            assert prompt in bench.asked()[0]

    asyncio.run(body())


def test_usage_equals_the_servers_count(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(kind, [Says("a b c", reasoning=7, cached=3), Says("d e")], tmp_path) as bench:
            first = await bench.model.ask(PROMPT, ignore)
            second = await bench.model.ask(PROMPT, ignore)
            assert first.usage + second.usage == bench.counted()
            assert first.counted == (kind != "command")
            if first.counted:
                assert first.usage.output == 10
                assert first.usage.cached == 3

    asyncio.run(body())


def test_a_command_that_never_answers_times_out(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(kind, [Hangs()], tmp_path, SHORT) as bench:
            began = time.monotonic()
            with pytest.raises(ModelError, match=r"no complete reply in 0.3 s") as caught:
                await bench.model.ask(PROMPT, ignore)
            assert time.monotonic() - began < 3.0
            assert caught.value.trouble is Trouble.UNREACHABLE
            assert "\n" not in str(caught.value)

    asyncio.run(body())


def test_a_call_can_be_cancelled_and_another_made(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(kind, [Hangs(), Says("after all")], tmp_path) as bench:
            call = asyncio.create_task(bench.model.ask(PROMPT, ignore))
            while not bench.asked():
                await asyncio.sleep(0.01)
            began = time.monotonic()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert time.monotonic() - began < 3.0
            assert (await bench.model.ask(PROMPT, ignore)).text == "after all"

    asyncio.run(body())


def test_concurrent_requests_do_not_mix(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(kind, [Says("the same answer")], tmp_path) as bench:
            on_text: list[list[str]] = [[] for _ in range(4)]
            replies = await asyncio.gather(*(bench.model.ask(PROMPT, pieces.append) for pieces in on_text))
            assert {reply.text for reply in replies} == {"the same answer"}
            assert {"".join(pieces) for pieces in on_text} == {"the same answer"}

    asyncio.run(body())


def test_an_unreachable_server_is_one_line(kind: str) -> None:
    spec = {"command": "command:/nowhere/agent --print"}.get(kind, spec_of(kind))
    server = None if kind == "command" else ModelServerSetting(spec, "http://127.0.0.1:9/v1")

    async def body() -> None:
        model = open_model(spec, server=server, policy=QUICK)
        with pytest.raises(ModelError) as caught:
            await model.ask(PROMPT, ignore)
        assert caught.value.trouble in (Trouble.UNREACHABLE, Trouble.MODEL)
        assert "\n" not in str(caught.value)
        await model.close()

    asyncio.run(body())
