"""The MCP server, driven by the official SDK's client."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter
from support import sessions
from support.held import held

from engine.api import agents, mcp_tools
from engine.api.agents import AgentAccess, AgentLimits
from engine.api.mcp_http import http_app
from engine.api.mcp_server import make_server
from engine.domain import commands as c
from engine.domain import events as e
from engine.domain.errors import CommandRejected
from engine.domain.model import Author
from engine.domain.profile import Profile
from engine.journal.journal import read
from engine.session.steer import steer

KERNEL = sessions.source("mine", "time_us = 40")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    return tmp_path / "sessions" / "mine"


def talk(act: Callable[[Client], Awaitable[None]], root: Path, verdicts: int = 40, **limits: Any) -> None:
    async def main() -> None:
        async with Client(make_server(AgentLimits(root, verdicts, **limits), "tester")) as client:
            await asyncio.wait_for(act(client), 60)

    asyncio.run(main())


async def call(client: Client, tool: str, **given: Any) -> Any:
    """The result of a tool; its refusal as a string."""
    done = await client.call_tool(tool, given)
    return done.content[0].text if done.is_error else done.structured_content


def test_every_tool_has_a_schema_and_a_description_of_each_argument(tmp_path: Path) -> None:
    async def act(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {"open_session", "propose_idea", "write_kernel", "wait_for", "evaluate_kernel", "race_kernels"} <= set(tools)
        for tool in tools.values():
            assert tool.description
            assert tool.title
            for name, argument in tool.input_schema.get("properties", {}).items():
                assert argument.get("description"), (tool.name, name)
            assert tool.annotations is not None
            assert tool.annotations.destructive_hint is False
            assert tool.input_schema["type"] == "object"
            assert not {"ctx", "access"} & set(tool.input_schema.get("properties", {}))
        assert "session" in tools["wait_for"].input_schema["required"]
        uris = {one.uri_template for one in (await client.list_resource_templates()).resource_templates}
        assert "espalier://sessions/{session}/kernels/{kernel}" in uris
        reading = {name for name, tool in tools.items() if tool.annotations and tool.annotations.read_only_hint}
        assert {"get_kernel", "wait_for", "doctor"} <= reading
        assert not {"open_session", "write_kernel", "evaluate_kernel", "add_note"} & reading
        (offered,) = (await client.list_prompts()).prompts
        assert all(argument.description for argument in offered.arguments or ())
        prompt = await client.get_prompt("improve_kernel", {"problem": "softmax"})
        assert "open_session for 'softmax'" in prompt.messages[0].content.text

    talk(act, tmp_path)


@pytest.mark.slow
def test_an_idea_stops_at_the_gate_until_another_process_approves_it(folder: Path) -> None:
    heard: list[str | None] = []

    async def act(client: Client) -> None:
        idea = await call(client, "propose_idea", session="mine", title="Tiles", rationale="They fit.", category="control flow")
        name = idea["idea"]
        assert (idea["status"], idea["by"]) == ("proposed", "agent:tester")
        refused = await call(client, "write_kernel", session="mine", idea=name, code=KERNEL, name="k.cpp")
        assert f"{name} awaits approval" in refused
        waiting = await call(client, "wait_for", session="mine", subject=name, timeout_seconds=0)
        assert waiting["done"] is False
        await asyncio.to_thread(steer, folder, lambda _: [c.SelectIdeas((name,))])
        assert (await call(client, "wait_for", session="mine", subject=name, timeout_seconds=20))["status"] == "selected"
        kernel = (await call(client, "write_kernel", session="mine", idea=name, code=KERNEL, name="k.cpp"))["kernel"]

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            heard.append(message)

        given = {"session": "mine", "subject": kernel, "timeout_seconds": 20}
        done = (await client.call_tool("wait_for", given, progress_callback=hear)).structured_content
        assert done is not None
        assert (done["done"], done["outcome"], done["by"]) == (True, "measured", "agent:tester")
        tree = await client.read_resource("espalier://sessions/mine/tree")
        assert kernel in tree.contents[0].text
        code = await client.read_resource(f"espalier://sessions/mine/kernels/{kernel}")
        assert code.contents[0].text == KERNEL
        assert (await call(client, "get_session", session="mine"))["session"] == "mine"
        assert "+// mine" in (await call(client, "diff_kernel", session="mine", kernel=kernel))["diff"]
        ideas = (await call(client, "list_ideas", session="mine"))["ideas"]
        assert ideas[-1]["kernels"] == [kernel]
        assert (await call(client, "doctor"))["verdicts"] == {"budget": 40, "used": 1}

    with held(folder):
        talk(act, folder.parent)
    by_agent = [entry for entry in read(folder).entries if entry.by.name == "agent:tester"]
    assert len(by_agent) > 3


REFUSALS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("get_problem", {"problem": "/etc/passwd"}, "unknown problem '/etc/passwd'"),
    ("get_problem", {"problem": "../../../etc/passwd"}, "unknown problem"),
    ("get_problem", {"problem": "~/.ssh/id_rsa"}, "unknown problem"),
    ("get_problem", {"problem": "link"}, "unknown problem 'link'"),
    ("get_problem", {"problem": "a\x00b"}, "unknown problem"),
    ("get_session", {"session": "../../etc"}, "unknown session '../../etc'"),
    ("get_kernel", {"session": "mine", "kernel": "../journal.jsonl"}, "unknown kernel"),
    ("wait_for", {"session": "mine", "subject": "hold-outs"}, "unknown subject 'hold-outs'"),
    ("write_kernel", {"session": "mine", "idea": "i1", "code": KERNEL, "name": "../../k.cpp"}, "without a folder"),
    ("write_kernel", {"session": "mine", "idea": "i1", "code": "x" * 300_000, "name": "k.cpp"}, "has 300000 characters"),
    ("write_kernel", {"session": "mine", "idea": "i1", "code": KERNEL, "name": "k.cpp"}, "i1 is an idea of script"),
    ("write_kernel", {"session": "mine", "idea": "i1", "code": "no kernel", "name": "k.txt"}, "k.txt"),
    ("propose_idea", {"session": "mine", "title": "t", "rationale": "r" * 9000, "category": "control flow"}, "9000 characters"),
    ("propose_idea", {"session": "mine", "title": "t", "rationale": "r", "category": "magic"}, "unknown category 'magic'"),
    ("withdraw_idea", {"session": "mine", "idea": "i1"}, "is not an idea of agent:tester"),
    ("race_kernels", {"session": "mine", "kernel": "k77"}, "unknown kernel 'k77'"),
    ("resume_session", {"session": "mine"}, "is open in process"),
    ("get_problem", {"problem": "softmax", "hold_outs": True}, "get_problem has no argument 'hold_outs': it takes problem"),
    ("get_session", {"session": "mine", "secret": "please"}, "get_session has no argument 'secret'"),
    ("doctor", {"environment\x1b[2J": "OPENAI_API_KEY"}, "doctor has no argument"),
    ("get_kernel", {"session": "mine", "kernel": "/proc/self/environ"}, "unknown kernel"),
    ("get_session", {}, "get_session: session: field required"),
    ("get_session", {"session": 7}, "get_session: session: input should be a valid string"),
    ("wait_for", {"session": "mine", "subject": "k1", "timeout_seconds": 1e9}, "less than or equal to 600"),
    (
        "propose_idea",
        {"session": "mine", "title": "t", "rationale": "r", "category": "control flow", "predicted": -3},
        "predict",
    ),
    (
        "propose_idea",
        {"session": "mine", "title": "t", "rationale": "r", "category": "control flow", "parent": "../k1"},
        "../k1",
    ),
    ("add_note", {"session": "mine", "text": "x" * 9000}, "9000 characters"),
    ("add_note", {"session": "mine", "text": "x", "on": "/etc/passwd"}, "/etc/passwd"),
    ("add_note", {"session": "mine", "text": "x", "on": "k" * 100_000}, "unknown target"),
    ("open_session", {"problem": "softmax", "device": "x" * 100_000}, "characters left out"),
    (
        "evaluate_kernel",
        {"problem": "softmax", "code": KERNEL, "name": "k.cpp", "device": "/dev/sda"},
        "unknown device '/dev/sda'",
    ),
    ("open_session", {"problem": "softmax", "device": "cpu", "workload": "../../x"}, "workload"),
    ("no_such_tool", {}, "no_such_tool"),
)


@pytest.mark.slow
def test_an_agent_that_lies_gets_one_clear_line_each_and_the_session_loses_nothing(folder: Path) -> None:
    async def act(client: Client) -> None:
        for tool, given, words in REFUSALS:
            try:
                answer = await call(client, tool, **given)
            except MCPError as error:
                answer = str(error)
            assert isinstance(answer, str), (tool, given, answer)
            assert words in answer
            assert not answer.startswith("Error executing"), "the reason alone"
            assert answer.isprintable(), "one line"
            assert len(answer) < 1200
            assert "Traceback" not in answer

    (folder.parent).mkdir()
    (folder.parent / "link").symlink_to("/etc")
    with held(folder):
        talk(act, folder.parent)
    asked = [entry.event for entry in read(folder).entries if entry.by.name == "agent:tester"]
    assert asked
    assert all(isinstance(event, e.CommandAnswered) and not event.accepted for event in asked), "nothing else was recorded"


@pytest.mark.slow
@pytest.mark.parametrize(
    "uri",
    [
        "espalier://problems/..%2F..%2Fetc%2Fpasswd", "espalier://problems/%2Fetc%2Fpasswd", "espalier://problems/link",
        "espalier://sessions/..%2F..%2Fetc/tree", "espalier://sessions/mine/kernels/..%2F..%2Fjournal.jsonl",
        "espalier://sessions/mine/hold-outs", "file:///etc/passwd", "espalier://secrets/OPENAI_API_KEY",
    ],
)  # fmt: skip
def test_a_resource_outside_is_refused_in_one_line(folder: Path, uri: str) -> None:
    sessions.whole(folder)
    (folder.parent / "link").symlink_to("/etc")

    async def act(client: Client) -> None:
        with pytest.raises(MCPError) as refused:
            await client.read_resource(uri)
        assert str(refused.value).isprintable()
        assert "root:" not in str(refused.value)

    talk(act, folder.parent)


def test_a_crash_in_a_tool_is_not_taken_for_wrong_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash() -> None:
        TypeAdapter(int).validate_python("inner")

    async def act(client: Client) -> None:
        assert await call(client, "list_problems") == "Error executing tool list_problems"

    monkeypatch.setattr(mcp_tools.catalog, "shipped", crash)
    talk(act, tmp_path)


def test_hold_outs_are_shown_nowhere(folder: Path) -> None:
    async def act(client: Client) -> None:
        problem = await call(client, "get_problem", problem="softmax")
        assert set(problem) == {"name", "title", "workloads", "suites", "reference"}
        text = str(
            [problem, await call(client, "get_session", session="mine"), await call(client, "get_guide", session="mine")]
        )
        assert not re.search(r"hold-?out.{0,40}\d{2,}|chance", text)

    with held(folder):
        talk(act, folder.parent)


@pytest.mark.slow
def test_a_flood_is_refused_and_the_budget_of_verdicts_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def spend(client: Client) -> None:
        first = await call(client, "seed_kernel", session="mine", code=KERNEL, name="k.cpp", title="mine")
        assert first["kernel"]
        second = await call(client, "seed_kernel", session="mine", code=KERNEL, name="k.cpp", title="mine")
        assert (
            "the budget of 1 verdicts is used up (1): the engineer sets the budget with `espalier mcp --verdicts N`" in second
        )

    async def flood(client: Client) -> None:
        answers = [await call(client, "list_sessions") for _ in range(8)]
        assert [isinstance(answer, str) for answer in answers] == [False] * 5 + [True] * 3
        assert "more than 5 calls" in answers[-1]

    with held(folder, "autopilot"):
        talk(spend, folder.parent, verdicts=1)
        monkeypatch.setattr(agents, "_CALLS", 5)
        talk(flood, folder.parent)


def measuring_calls(kernel: str, times: int) -> dict[str, list[dict[str, Any]]]:
    """Tools that cost a verdict, each with the arguments of several calls."""
    codes = [{"code": sessions.source(f"mine {n}", "time_us = 40"), "name": "k.cpp"} for n in range(times)]
    return {
        "seed_kernel": [{"session": "mine", "title": "mine", **code} for code in codes],
        "race_kernels": [{"session": "mine", "kernel": kernel}] * times,
        "profile": [{"session": "mine", "kernel": kernel}] * times,
        "evaluate_kernel": [{"problem": "softmax", "device": "cpu", **code} for code in codes],
    }


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["seed_kernel", "profile", "evaluate_kernel"])
def test_parallel_calls_share_the_budget_of_verdicts(folder: Path, monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    """Each looked at the budget before any of them was charged."""
    begun: list[str] = []

    async def measured(*_: Any) -> Any:
        begun.append(tool)
        await asyncio.sleep(0.1)
        return SimpleNamespace(verdict=None, profile=Profile(1), command=lambda _: c.RecordProfile("k1", Profile(1)))

    monkeypatch.setattr(mcp_tools, "profile_kernel", measured)
    monkeypatch.setattr(mcp_tools, "evaluate_here", measured)
    monkeypatch.setattr(mcp_tools.views, "verdict_data", lambda _: {"status": "measured"})

    async def spend(client: Client) -> None:
        answers = await asyncio.gather(*(call(client, tool, **given) for given in measuring_calls("k1", 6)[tool]))
        refused = [answer for answer in answers if isinstance(answer, str)]
        assert len(refused) == 4, answers
        assert all("the budget of 2 verdicts is used up (2)" in answer for answer in refused)
        assert (await call(client, "doctor"))["verdicts"]["used"] == 2
        assert len(begun) in (0, 2), "no more was measured"

    with held(folder, "autopilot"):
        talk(spend, folder.parent, verdicts=2)


@pytest.mark.slow
def test_what_is_refused_before_it_is_measured_costs_no_verdict(folder: Path) -> None:
    async def ask(client: Client) -> None:
        for tool in ("seed_kernel", "race_kernels", "profile", "evaluate_kernel"):
            (given,) = measuring_calls("k77", 1)[tool]
            bad = {"parent": "k77"} if tool == "seed_kernel" else {"device": "/dev/sda"} if tool == "evaluate_kernel" else {}
            assert "verdicts" not in await call(client, tool, **{**given, **bad})
        assert (await call(client, "doctor"))["verdicts"]["used"] == 0

    with held(folder, "autopilot"):
        talk(ask, folder.parent, verdicts=1)


def test_calls_are_admitted_again_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_CALLS", 2)
    now = [0.0]
    access = AgentAccess(Author("agent:x"), AgentLimits(tmp_path), clock=lambda: now[0])
    access.admit()
    access.admit()
    with pytest.raises(CommandRejected):
        access.admit()
    now[0] = 61.0
    access.admit()


@pytest.mark.slow
def test_a_server_of_one_session_shows_no_other(folder: Path) -> None:
    sessions.whole(folder)
    sessions.whole(folder.parent / "other")

    async def act(client: Client) -> None:
        assert [one["session"] for one in (await call(client, "list_sessions"))["sessions"]] == ["mine"]
        assert "serves the session mine only" in await call(client, "get_session", session="other")
        assert "serves the session mine only" in await call(client, "open_session", problem="softmax")

    talk(act, folder.parent, only=str(folder))


@pytest.mark.parametrize("odd", ["null", "1.5", "true", "[1]", '{"a": 1}'])
def test_http_answers_a_request_with_an_id_of_another_type(tmp_path: Path, odd: str) -> None:
    app = http_app(make_server(AgentLimits(tmp_path), "tester"), "right")
    request = f'{{"jsonrpc": "2.0", "id": {odd}, "method": "ping"}}'
    headers = {"authorization": "Bearer right", "accept": "application/json, text/event-stream"}
    headers["content-type"] = "application/json"

    async def main() -> None:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1:1") as client:
            refused = await client.post("/mcp", content=request, headers=headers)
        assert refused.status_code == 400
        assert refused.headers["content-type"] == "application/json"
        assert refused.json()["id"] is None
        assert refused.json()["error"]["message"].startswith("the id of a request is a text or a whole number")

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.slow
def test_http_needs_the_token_and_refuses_foreign_hosts_and_origins(tmp_path: Path) -> None:
    app = http_app(make_server(AgentLimits(tmp_path), "tester"), "right")
    served = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))

    async def main() -> None:
        serving = asyncio.create_task(served.serve())
        while not served.started:
            await asyncio.sleep(0.01)
        port = served.servers[0].sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/mcp"
        good = {"authorization": "Bearer right", "accept": "application/json, text/event-stream"}
        async with httpx2.AsyncClient() as client:
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "right"}):
                refused = await client.post(url, json={}, headers=headers)
                assert refused.status_code == 401
                assert "send the header Authorization: Bearer TOKEN" in refused.text
            upgrade = {"upgrade": "websocket", "connection": "upgrade", "sec-websocket-version": "13"}
            upgrade["sec-websocket-key"] = "x3JJHMbDL1EzLkh9GBhXDw=="
            assert (await client.get(url, headers=upgrade)).status_code == 403
            foreign = await client.post(url, json={}, headers={**good, "host": f"evil.example:{port}"})
            assert foreign.status_code == 421
            other_case = await client.post(url, json={}, headers={**good, "authorization": "bearer right"})
            assert other_case.status_code == 400, "not a message; the token was accepted"
            origin = await client.post(url, json={}, headers={**good, "origin": "http://evil.example"})
            assert origin.status_code == 403
        async with (
            httpx2.AsyncClient(headers={"authorization": "Bearer right"}) as http,
            Client(streamable_http_client(url, http_client=http)) as agent,
        ):
            assert (await call(agent, "doctor"))["agent"] == "agent:tester"
        served.should_exit = True
        await serving

    asyncio.run(asyncio.wait_for(main(), 60))
