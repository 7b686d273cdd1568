"""``command:CMD`` with ``{workspace}`` in it: an agent that works in a folder and leaves ``kernel.*`` there as its answer.

The folder holds the task, the problem, the parent kernel and its evidence as files, and an ``espalier`` that reaches this
session only, as an agent, with a budget of evaluations. The command runs there, under the limits of every ``command:``. Its
answer becomes a reply like any other: recorded in the journal, recalled, counted.

The launcher guards against mistakes, not against the command: that is the user's own program.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from engine.domain.dialect import Dialect
from engine.ideas.models.command import CommandModel, parse_command
from engine.ideas.models.model import AgentWorkspace, ModelError, OnText, Prompt, Reply, Spent, Trouble
from engine.ideas.models.retry_policy import DEFAULT_POLICY, RetryPolicy

PLACE = "{workspace}"
TASK = "TASK.md"
EVALUATIONS = 5
"""Evaluations of single kernels that the workspace's ``espalier`` runs."""
VARIABLE = "ESPALIER_WORKSPACE"
"""Environment variable: the folder whose limits the command line obeys."""
LIMITS = "limits.json"
_LARGEST = 1 << 20
_LANGUAGES = {dialect.suffix: dialect.language for dialect in Dialect}


def uses_workspace(command: str) -> bool:
    """Whether a command line works in a workspace."""
    return PLACE in command


class WorkspaceModel:
    """A command that leaves its answer in a folder. It reports no tokens."""

    def __init__(self, command: str, *, policy: RetryPolicy = DEFAULT_POLICY) -> None:
        """Raises ProposerError for a malformed command."""
        parse_command(command)
        self._command = command
        self._policy = policy

    @property
    def name(self) -> str:
        return f"command:{self._command}"

    @property
    def output_limit(self) -> int | None:
        return None

    async def ask(self, prompt: Prompt, on_text: OnText) -> Reply:
        """The kernel that the command left, as a reply; what it printed, if the prompt asks for something else.

        Raises ModelError, also where it left no kernel, or more than one.
        """
        with tempfile.TemporaryDirectory(prefix="espalier-workspace-") as name:
            folder = Path(name).resolve()
            task = f"{prompt.system}\n\n{prompt.user}\n" if prompt.system else f"{prompt.user}\n"
            if prompt.workspace is not None:
                _fill(folder, prompt.workspace)
                task += f"\nLeave the complete kernel in this folder as the only file `kernel.*`. {_help(prompt.workspace)}\n"
            (folder / TASK).write_text(task, encoding="utf-8", errors="replace")
            line = self._command.replace(PLACE, shlex.quote(str(folder)))
            inner = CommandModel(line, policy=self._policy, folder=folder, silent=prompt.workspace is not None)
            reply = await inner.ask(replace(prompt, user=task, system=""), on_text)
            return reply if prompt.workspace is None else replace(reply, text=_answer(folder))

    async def close(self) -> None:
        """Does nothing: no process outlives its prompt."""


def _help(workspace: AgentWorkspace) -> str:
    return (
        f"Beside this task: {', '.join(f'`{name}`' for name in workspace.files)}. `./espalier --help` reaches this session: "
        f"`./espalier kernel list {workspace.session}` lists its kernels, and `./espalier eval PROBLEM kernel.cpp` measures "
        f"yours, {EVALUATIONS} times at most."
    )


def _fill(folder: Path, workspace: AgentWorkspace) -> None:
    for name, text in workspace.files.items():
        (folder / name).write_text(text, encoding="utf-8", errors="replace")
    limits = {"session": str(workspace.session.absolute()), "evaluations": EVALUATIONS}
    (folder / LIMITS).write_text(json.dumps(limits), encoding="utf-8")
    launcher = folder / "espalier"
    run = f"exec {shlex.quote(sys.executable)} -m espalier"
    own = f"{VARIABLE}={shlex.quote(str(folder))} ESPALIER_AGENT=writer"
    path = f"PYTHONPATH={shlex.quote(os.pathsep.join(filter(None, sys.path)))}"
    launcher.write_text(f'#!/bin/sh\n{path} {own} {run} "$@"\n', encoding="utf-8")
    launcher.chmod(0o755)
    server = {"command": str(launcher), "args": ["mcp", "--session", str(workspace.session.absolute()), "--agent", "writer"]}
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"espalier": server}}), encoding="utf-8")


def _answer(folder: Path) -> str:
    """The kernel in the folder as a code fence. Links are not followed."""
    found = sorted(path for path in folder.glob("kernel.*") if path.is_file() and not path.is_symlink())
    if len(found) != 1:
        what = f"left {len(found)} files: {', '.join(path.name for path in found)}" if found else "left no file"
        raise ModelError(Trouble.REPLY, f"the command {what} kernel.* in its workspace", spent=Spent.UNKNOWN)
    (kernel,) = found
    if kernel.stat().st_size > _LARGEST:
        raise ModelError(
            Trouble.REPLY, f"{kernel.name} in the workspace is larger than {_LARGEST >> 20} MiB", spent=Spent.UNKNOWN
        )
    text = kernel.read_text(encoding="utf-8", errors="replace")
    fence = "`" * 4
    return f"{fence}{_LANGUAGES.get(kernel.suffix, '')}\n{text.rstrip()}\n{fence}\n"
