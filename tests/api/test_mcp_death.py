"""Agents that die in the middle of a call: their sessions are released, and lose nothing."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import httpx2
import pytest
import uvicorn
from support import sessions
from support.pretended import PretendedBench
from support.program import ROOT, command, environment

import espalier
from engine.api import mcp_tools
from engine.api.agents import AgentLimits
from engine.api.evaluation import EvaluationRequest
from engine.api.mcp_http import http_app
from engine.api.mcp_server import make_server
from engine.domain import events as e
from engine.domain.errors import JournalLocked
from engine.domain.state import Stage
from engine.journal import store
from engine.journal.journal import read
from engine.journal.lock import WriterLock
from engine.session import benches

KERNEL = sessions.source("mine", "time_us = 40")
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "mortal", "version": "1"}}


class Wire:
    """A client that speaks the protocol line by line, so that it can end between any two lines."""

    def __init__(self, home: Path) -> None:
        program = [sys.executable, "-m", "support.pretended_program", "0.1", "mcp", "--mode", "autopilot"]
        own = environment(home, PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}")
        self.server = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=own, cwd=home)
        self._last = 0
        self.call("initialize", **HELLO)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message: dict[str, Any]) -> None:
        assert self.server.stdin is not None
        self.server.stdin.write(json.dumps(message) + "\n")
        self.server.stdin.flush()

    def ask(self, method: str, /, **params: Any) -> int:
        self._last += 1
        self.send({"jsonrpc": "2.0", "id": self._last, "method": method, "params": params})
        return self._last

    def call(self, method: str, /, **params: Any) -> Any:
        asked = self.ask(method, **params)
        assert self.server.stdout is not None
        while (answer := json.loads(self.server.stdout.readline())).get("id") != asked:
            pass
        return answer["result"]

    def tool(self, name: str, /, **arguments: Any) -> Any:
        return self.call("tools/call", name=name, arguments=arguments)["structuredContent"]

    def hang_up(self) -> None:
        for pipe in (self.server.stdin, self.server.stdout):
            assert pipe is not None
            pipe.close()


def _killed(wire: Wire) -> None:
    """As when the client is killed: nobody writes, nobody reads."""
    wire.hang_up()


def _terminated(wire: Wire) -> None:
    """As an agent program ends its servers."""
    wire.server.send_signal(signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("end", [_killed, _terminated])
def test_a_session_is_released_with_its_work_owed_when_the_client_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Callable[[Wire], None]
) -> None:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    wire = Wire(tmp_path)
    try:
        name = wire.tool("open_session", problem="softmax", device="cpu")["session"]
        kernel = wire.tool("seed_kernel", session=name, code=KERNEL, name="k.cpp", title="mine")["kernel"]
        wire.ask("tools/call", name="wait_for", arguments={"session": name, "subject": kernel, "timeout_seconds": 600})
        folder = store.resolve(name)
        with pytest.raises(JournalLocked):
            WriterLock(folder).release()
        end(wire)
        assert wire.server.wait(20) in (0, 130)
    finally:
        wire.server.kill()
        wire.hang_up()
    WriterLock(folder).release()
    state = store.state_of(folder)
    assert kernel in state.kernels
    assert state.closed is None
    failed = [entry.event.reason for entry in read(folder).entries if isinstance(entry.event, e.WorkFailed)]
    assert set(failed) <= {"interrupted"}, "not counted as a crash of the engine"
    monkeypatch.setattr(benches, "TrialBench", PretendedBench)
    with espalier.Session.open(name) as session:
        session.start()
        stage = session.wait(lambda now: now.kernels[kernel].stage if now.kernels[kernel].stage.settled else None, 20)
        assert stage is Stage.MEASURED


@contextmanager
def served(limits: AgentLimits) -> Iterator[str]:
    """The address of a server over HTTP in another thread."""
    server = uvicorn.Server(
        uvicorn.Config(http_app(make_server(limits, "mortal"), "t"), host="127.0.0.1", port=0, log_level="error")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        thread.join()


class HttpWire:
    """The same over HTTP; ``drop`` closes the connection while the server still owes an answer."""

    def __init__(self, url: str) -> None:
        headers = {"authorization": "Bearer t", "accept": "application/json, text/event-stream"}
        self._url = url
        self._client = httpx2.Client(headers=headers, timeout=20)
        self._last = 0
        first = self._client.post(url, json=self._request("initialize", HELLO))
        self._client.headers["mcp-session-id"] = first.headers["mcp-session-id"]
        self._client.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._last += 1
        return {"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}

    def tool(self, name: str, /, **arguments: Any) -> Any:
        answer = self._client.post(self._url, json=self._request("tools/call", {"name": name, "arguments": arguments}))
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
        return json.loads(lines[-1])["result"]["structuredContent"]

    def drop(self, name: str, /, **arguments: Any) -> None:
        asked = self._request("tools/call", {"name": name, "arguments": arguments})
        with self._client.stream("POST", self._url, json=asked) as answer:
            assert answer.status_code == 200
        self._client.close()


@pytest.mark.slow
def test_over_http_the_verdict_is_recorded_although_the_client_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    monkeypatch.setattr(benches, "TrialBench", PretendedBench)
    with served(AgentLimits(tmp_path, mode="autopilot")) as url:
        with HttpWire(url) as wire:
            name = wire.tool("open_session", problem="softmax", device="cpu")["session"]
            kernel = wire.tool("seed_kernel", session=name, code=KERNEL, name="k.cpp", title="mine")["kernel"]
            wire.drop("wait_for", session=name, subject=kernel, timeout_seconds=600)
        watching = espalier.Session.open(name)
        watching.wait(lambda now: now.kernels[kernel].measurement, 20)
        with HttpWire(url) as wire:
            assert wire.tool("get_kernel", session=name, kernel=kernel)["outcome"] == "measured"
    WriterLock(watching.folder).release()


@pytest.mark.slow
def test_an_evaluation_whose_client_is_gone_does_not_block_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    async def slow(wanted: EvaluationRequest, say: Callable[[str], None]) -> Any:
        begun.append(wanted.name)
        for _ in range(20):
            say("measuring")
            await asyncio.sleep(0.01)
        return SimpleNamespace(verdict=None)

    monkeypatch.setattr(mcp_tools, "evaluate_here", slow)
    monkeypatch.setattr(mcp_tools.views, "verdict_data", lambda verdict: {"status": "measured"})
    with served(AgentLimits(tmp_path)) as url:
        with HttpWire(url) as wire:
            wire.drop("evaluate_kernel", problem="softmax", code=KERNEL, name="first.cpp")
        with HttpWire(url) as wire:
            found = wire.tool("evaluate_kernel", problem="softmax", code=KERNEL, name="second.cpp")
            assert found == {"status": "measured"}
            assert wire.tool("doctor")["verdicts"]["used"] == 2, "both are charged"
    assert begun == ["first.cpp", "second.cpp"]


@pytest.mark.slow
def test_over_http_a_client_that_never_sends_the_rest_does_not_keep_the_server(tmp_path: Path) -> None:
    program = command("mcp", "--http", "--port", "0")
    own = environment(tmp_path, ESPALIER_MCP_TOKEN="t")
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=own, cwd=tmp_path) as server:
        assert server.stderr is not None
        port = int(server.stderr.readline().rpartition(":")[2].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as client:
            head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer t\r\nExpect: 100-continue\r\n"
            client.sendall(f"{head}Content-Length: 1000\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 100"), "the server waits for the rest"
            server.send_signal(signal.SIGTERM)
            _, said = server.communicate(timeout=60)
    assert (server.returncode, said) == (130, "espalier: interrupted\n")
