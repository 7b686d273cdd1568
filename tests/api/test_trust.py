"""Programs and agents run nothing from elsewhere that the user has not allowed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from support import forged, sessions

import espalier
from engine.api.agents import AgentLimits
from engine.api.mcp_server import make_server
from engine.session import trust

CODE = 'extern "C" void launch(const float* x, float* out, void* workspace) {}\n'
PROBLEM = Path(__file__).resolve().parents[2] / "problems" / "softmax" / "reference.py"


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A session that came from elsewhere, in the folder of sessions."""
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path / "home"))
    sessions.whole(tmp_path / "original")
    return forged.forge(tmp_path / "original", tmp_path / "home" / "sessions" / "foreign", rounds=1)


@pytest.fixture
def unsandboxed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without bubblewrap."""
    monkeypatch.setattr(trust, "judge_reason", lambda: "bubblewrap is not installed")


def call(root: Path, tool: str, **given: Any) -> str:
    """What a tool refuses."""

    async def main() -> str:
        async with Client(make_server(AgentLimits(root), "tester")) as client:
            done = await client.call_tool(tool, given)
            assert done.is_error, done
            return str(done.content[0].text)

    return asyncio.run(main())


@pytest.mark.slow
def test_a_session_from_elsewhere_is_read_and_not_run(foreign: Path, tmp_path: Path) -> None:
    session = espalier.Session.open("foreign")
    assert session.kernels
    with pytest.raises(espalier.UntrustedError, match="`espalier trust foreign` shows what it would run"):
        session.run()
    with pytest.raises(espalier.UntrustedError):
        session.start()
    assert not session.held_here
    assert "session foreign is not trusted" in call(tmp_path, "resume_session", session="foreign")
    assert "not trusted" in call(tmp_path, "profile", session="foreign", kernel="k1")


@pytest.mark.slow
@pytest.mark.usefixtures("unsandboxed")
def test_a_problem_from_elsewhere_is_not_run_outside_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path / "home"))
    (tmp_path / "mine.py").write_text(PROBLEM.read_text())
    with pytest.raises(espalier.UntrustedError, match="would run outside a sandbox"):
        espalier.evaluate(tmp_path / "mine.py", espalier.code(CODE, "k.cpp"))
    with pytest.raises(espalier.UntrustedError):
        espalier.Session.new(tmp_path / "mine.py", device="cpu", folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert "outside a sandbox" in call(tmp_path, "evaluate_kernel", problem="mine.py", code=CODE, name="k.cpp", device="cpu")
    assert "outside a sandbox" in call(tmp_path, "open_session", problem="mine.py", device="cpu")
