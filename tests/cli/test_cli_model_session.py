"""A whole search on the CPU with ideas and code from a server that misbehaves, killed again and again."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

import pytest
from support.agent import Troubled
from support.model_servers import OPENAI_KEY, OpenAIServer
from support.program import command, environment

from engine.domain import queries
from engine.domain.state import CallStatus
from engine.journal import store
from engine.journal.blobs import Blobs
from engine.problem import catalog

KILLS = 2
WRITTEN = sorted((catalog.problems_root() / "softmax" / "playbook").glob("*.cpp"))


def written(dice: random.Random) -> str:
    """A kernel that is right, in a text of its own."""
    return f"// {dice.random()}\n{dice.choice(WRITTEN).read_text()}"


def verdicts(folder: Path) -> int:
    journal = folder / "journal.jsonl"
    return journal.read_text("utf-8", "replace").count('"kernel.verified"') if journal.exists() else 0


def wait_for_a_verdict(folder: Path, program: subprocess.Popen[bytes]) -> None:
    """Until the program has verified another kernel: work that is killed twice in a row counts as crashed, rightly."""
    before = verdicts(folder)
    while program.poll() is None and verdicts(folder) == before:
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_rounds_of_softmax_survive_every_fault_and_kill(home: Path, tmp_path: Path) -> None:
    folder, dice = tmp_path / "s", random.Random(7)
    with OpenAIServer(Troubled(7, 0.2, written), key=OPENAI_KEY) as server:
        first = command(
            "run", "softmax", "--headless", "--device", "cpu", "--source", "openai:test-model",
            "--server", f"openai={server.url},key=OPENAI_API_KEY",
            "--rounds", 3, "--ideas", 2, "--branch", 1, "--plateau", 99, "--session", folder,
        )  # fmt: skip
        again = command("open", folder, "--headless")
        for kill in range(KILLS + 20):
            begun = folder.exists()
            program = subprocess.Popen(
                again if begun else first, env=environment(home, OPENAI_API_KEY=OPENAI_KEY), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            if kill < KILLS:
                wait_for_a_verdict(folder, program)
                time.sleep(dice.uniform(0, 8))
                program.kill()
            program.wait()
            if store.state_of(folder).closed is not None:
                break
        asked = [f"{request.system}\n\n{request.user}\n" for request in server.requests]
    state = store.state_of(folder)
    assert state.closed == "3 of 3 rounds done"
    assert len(queries.verified(state)) > 4
    assert queries.incumbent(state) is not None
    assert OPENAI_KEY not in "".join(p.read_text("utf-8", "replace") for p in folder.rglob("*") if p.is_file())
    blobs = Blobs(folder)
    for call in state.calls.values():
        if call.status is CallStatus.ANSWERED:
            twice = asked.count(blobs.text(call.prompt))
            assert twice <= 1 + 4 + KILLS, "asked again although it had been answered"
