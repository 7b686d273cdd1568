"""Commands that use a device say whom they wait for."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from support.program import command, environment

from engine.trial import lease

PROBLEM = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.rand(8)]


def get_init_inputs():
    return []
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "why"),
    [(("scaffold", "add.py"), ": the reference runs on the CPU"), (("doctor", "add.py", "--device", "cpu"), "")],
)
def test_a_command_that_loads_a_problem_says_who_holds_the_device(
    tmp_path: Path, words: tuple[str, ...], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "add.py").write_text(PROBLEM)
    leases = tmp_path / "leases"
    monkeypatch.setenv(lease.LEASES, str(leases))
    held = lease.Lease("cpu", lambda: None)

    async def waits_for_this_process() -> str:
        async with held.held(lambda _: None):
            program = subprocess.Popen(
                command(*words), cwd=tmp_path, env=environment(tmp_path / "home", **{lease.LEASES: str(leases)}),
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            try:
                assert program.stderr is not None
                return await asyncio.to_thread(program.stderr.readline)
            finally:
                program.terminate()
                program.communicate()

    assert f"waiting for cpu, held by process {os.getpid()}{why}" in asyncio.run(waits_for_this_process())
    held.close()
