"""An agent trains softmax over MCP, from a new session to a kernel faster than the naive port, with the real judge."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from support.program import command, environment

from engine.journal import store

ROOT = Path(__file__).resolve().parents[2]
FASTER = ROOT / "problems" / "softmax" / "playbook" / "vector_cores.cpp"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_agent_searches_with_its_ideas_stopped_at_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = dict(environment(tmp_path))
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    heard: list[str | None] = []

    async def main() -> dict[str, Any]:
        server = StdioServerParameters(command=sys.executable, args=command("mcp", "--verdicts", 1)[1:], env=own, cwd=tmp_path)
        async with Client(server, mode="legacy") as client:

            async def hear(progress: float, total: float | None, message: str | None) -> None:
                heard.append(message)

            async def call(tool: str, **given: Any) -> Any:
                done = await client.call_tool(tool, given, progress_callback=hear)
                return done.content[0].text if done.is_error else done.structured_content

            session = (await call("open_session", problem="softmax", device="cpu", workload="small"))["session"]
            ready = await call("wait_for", session=session, subject="session", timeout_seconds=300)
            assert ready["done"], ready
            text = {"title": "Vector exponentials on all cores", "rationale": "The naive port uses one lane.", "parent": "k1"}
            idea = (await call("propose_idea", session=session, category="instructions", predicted=3.0, **text))["idea"]
            refused = await call("write_kernel", session=session, idea=idea, code=FASTER.read_text(), name="fast.cpp")
            assert "awaits approval" in refused
            approve = command("idea", "approve", session, idea)
            subprocess.run(approve, env=own, check=True, capture_output=True, cwd=tmp_path)
            assert (await call("wait_for", session=session, subject=idea))["status"] == "selected"
            kernel = (await call("write_kernel", session=session, idea=idea, code=FASTER.read_text(), name="fast.cpp"))[
                "kernel"
            ]
            verdict = await call("wait_for", session=session, subject=kernel, timeout_seconds=300)
            over = await call("write_kernel", session=session, idea=idea, code=FASTER.read_text(), name="fast.cpp")
            assert "the budget of 1 verdicts is used up" in over
            return {"session": session, "naive": await call("get_kernel", session=session, kernel="k1"), "mine": verdict}

    found = asyncio.run(main())
    assert found["mine"]["by"].startswith("agent:")
    assert found["mine"]["outcome"] in ("measured", "not_corroborated"), found["mine"]
    assert found["mine"]["time_us"]["value"] < found["naive"]["time_us"]["value"]
    assert any(message and "verified" in message for message in heard)
    assert not any(message and "random:" in message for message in heard), "a drawn hold-out shape is not shown"
    state = store.state_of(store.resolve(found["session"]))
    assert state.kernels["k2"].verification is not None
    assert state.ideas["i2"].author.name == found["mine"]["by"]
