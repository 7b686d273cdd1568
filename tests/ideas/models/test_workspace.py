"""A command that works in a folder: what it finds there, what it may reach, and what counts as its answer."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path

import pytest
from support import builders as b
from support import sessions

from engine.domain.model import Dialect
from engine.ideas.models import registry
from engine.ideas.models.model import AgentWorkspace, ModelError, Prompt
from engine.ideas.models.retry_policy import RetryPolicy
from engine.ideas.models.workspace import WorkspaceModel
from engine.ideas.prompts import compose
from engine.ideas.proposer import CodeRequest
from engine.ideas.replies import read_code

POLICY = RetryPolicy(seconds=60.0)
KERNEL = 'extern "C" void launch(const float* x, float* out, void* workspace) {}\n'


@pytest.fixture
def session(tmp_path: Path) -> Path:
    folder = tmp_path / "sessions" / "mine"
    sessions.whole(folder)
    return folder


def ask(tmp_path: Path, session: Path | None, script: str, files: dict[str, str] | None = None) -> str:
    """The reply of a Python script as the agent."""
    agent = tmp_path / "agent.py"
    agent.write_text(f"import json, os, pathlib, subprocess, sys\nhere = pathlib.Path(sys.argv[1])\n{script}\n")
    model = WorkspaceModel(f"{shlex.quote(sys.executable)} {shlex.quote(str(agent))} {{workspace}}", policy=POLICY)
    workspace = AgentWorkspace(session, files or {}) if session is not None else None
    return asyncio.run(model.ask(Prompt("system", "user", workspace=workspace), lambda _: None)).text


def test_what_it_leaves_as_a_kernel_is_the_answer(tmp_path: Path, session: Path) -> None:
    script = f"""
assert pathlib.Path.cwd() == here
task = (here / "TASK.md").read_text()
assert "system" in task and "user" in task and "`reference.py`" in task
assert (here / "reference.py").read_text() == "import torch"
assert json.loads((here / ".mcp.json").read_text())["mcpServers"]["espalier"]["args"][:1] == ["mcp"]
(here / "kernel.cpp").write_text({KERNEL!r} + "// ```\\n")
"""
    reply = ask(tmp_path, session, script, {"reference.py": "import torch"})
    assert read_code(reply, Dialect.CPP).text.startswith(KERNEL.strip())


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("print('here is my kernel')", "left no file kernel.*"),
        ("(here / 'kernel.cu').touch(); (here / 'kernel.cpp').touch()", "left 2 files: kernel.cpp, kernel.cu"),
        ("(here / 'kernel.cpp').symlink_to('/etc/passwd')", "left no file kernel.*"),
        ("(here / 'kernel.cpp').write_text('x' * (2 << 20))", "larger than 1 MiB"),
        ("sys.exit(3)", "exited with status 3"),
    ],
)
def test_anything_else_is_an_error_with_one_line(tmp_path: Path, session: Path, script: str, words: str) -> None:
    with pytest.raises(ModelError) as caught:
        ask(tmp_path, session, script)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_its_espalier_reaches_this_session_only_as_an_agent_within_its_budget(tmp_path: Path, session: Path) -> None:
    sessions.whole(tmp_path / "sessions" / "other")
    script = f"""
def run(*words):
    done = subprocess.run([str(here / "espalier"), *words], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr
out = []
out.append(run("kernel", "list", {str(session)!r}))
out.append(run("kernel", "list", {str(session.parent / "other")!r}))
out.append(run("session", "end", {str(session)!r}))
out.append(run("run", "softmax"))
(here / "limits.json").write_text(json.dumps({{"session": {str(session)!r}, "evaluations": 0}}))
out.append(run("eval", "softmax", "kernel.cpp"))
(here / "kernel.cpp").write_text("// " + json.dumps(out) + "\\n" + {KERNEL!r})
"""
    import json

    reply = ask(tmp_path, session, script)
    known, other, ended, ran, evaluated = json.loads(reply.splitlines()[1].removeprefix("// "))
    assert known[0] == 0
    assert "k10" in known[1]
    assert (other[0], ended[0], ran[0], evaluated[0]) == (2, 2, 2, 2)
    assert "this workspace reaches the session mine only" in other[1]
    assert "agent:writer may not end the session" in ended[1]
    assert "`espalier run softmax` is not available in a workspace" in ran[1]
    assert "evaluations of this workspace are used up" in evaluated[1]


def test_a_prompt_for_ideas_is_answered_on_standard_output(tmp_path: Path) -> None:
    assert ask(tmp_path, None, "print('{\"ideas\": []}'); print((here / 'TASK.md').read_text())").startswith('{"ideas": []}')


def test_a_command_with_the_word_works_in_a_workspace_and_others_as_before() -> None:
    assert registry.open_model("command:agent {workspace}/TASK.md").name == "command:agent {workspace}/TASK.md"
    assert isinstance(registry.open_model("command:agent {workspace}")._model, WorkspaceModel)
    assert not isinstance(registry.open_model("command:agent")._model, WorkspaceModel)


def test_the_prompt_for_code_brings_the_files_and_no_hold_outs(tmp_path: Path) -> None:
    state = b.fold(*b.first_round(), b.proposed("i2", round_number=1, parent="k1"))
    request = CodeRequest(state, state.ideas["i2"], Dialect.CPP, "// parent", {"k1": "// k1"}, tmp_path)
    workspace = compose.code(request, compose.Turn(1, 1, ())).workspace
    assert workspace is not None
    assert workspace.session == tmp_path
    assert workspace.files["parent.cpp"] == "// parent"
    assert workspace.files["k1.cpp"] == "// k1"
    assert workspace.files["reference.py"] == state.opened.problem.reference
    assert "hold-out" not in workspace.files["reference.py"]
    assert compose.code(CodeRequest(state, state.ideas["i2"], Dialect.CPP, None), compose.Turn(1, 1, ())).workspace is None
