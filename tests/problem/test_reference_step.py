"""Steps of a reference: a time limit, and one process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path
from engine.domain.errors import ProblemError
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.problem.reference_step import limit_steps

def used(problem):
    reference = Reference(problem, problem.workloads[0])
    reference.signature()
    reference.call(reference.model(0), reference.inputs(0))

plain, limit, *others = sys.argv[1:]
used(catalog.find(plain))  # torch is imported further where a reference is first traced
limit_steps(float(limit))
for file in others:
    try:
        used(catalog.find(file))
    except ProblemError as error:
        print(error)
    else:
        print(f"{file}: no error")
"""
REFERENCE = """import os
import time
import torch
from torch import nn
# top
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        # made
    def forward(self, x):
        # forward
        return x * 2
def get_inputs():
    # inputs
    return [torch.randn(4)]
def get_init_inputs():
    return []
"""
LINES = {"top": 5, "made": 9, "forward": 11, "inputs": 14}


def ran(folder: Path, limit: float, changed: Mapping[str, str]) -> list[str]:
    """What references with other code in these places end with."""
    (folder / "plain.py").write_text(REFERENCE)
    for place, code in changed.items():
        (folder / f"{place}.py").write_text(REFERENCE.replace(f"# {place}", code))
    files = [str(folder / "plain.py"), str(limit), *(str(folder / f"{place}.py") for place in changed)]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *files], cwd=root, env={**os.environ, "PYTHONPATH": root},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_step_without_end_is_told_with_its_line(tmp_path: Path) -> None:
    found = ran(tmp_path, 1.5, dict.fromkeys(LINES, "while True: time.sleep(0.01)"))
    for line, (place, number) in zip(found, LINES.items(), strict=True):
        assert line.startswith(f"{tmp_path / place}.py, line {number}: ")
        assert line.endswith(" takes longer than 1.5 s: choose a smaller workload")


@pytest.mark.slow
def test_a_reference_that_catches_everything_is_stopped_too(tmp_path: Path) -> None:
    loop = "while True:\n            try: time.sleep(0.01)\n            except Exception: pass"
    (line,) = ran(tmp_path, 1.5, {"forward": loop})
    assert "takes longer than 1.5 s" in line


@pytest.mark.slow
def test_a_forked_process_ends_with_the_step(tmp_path: Path) -> None:
    found = ran(tmp_path, 60, dict.fromkeys(LINES, "os.fork()"))
    assert found == [f"{tmp_path / place}.py: no error" for place in LINES]


BRIEF = """
import sys
import time
from engine.problem.reference_step import StepTooLong, limit_steps, one_step, steps_at_most

limit_steps(60)
try:
    with steps_at_most(0.3):
        for step in range(1000):
            with one_step():
                time.sleep(0.05)
except StepTooLong:
    print("ended" if step < 500 else "late")
with one_step():
    time.sleep(0.5)
print("goes on")
"""


@pytest.mark.slow
def test_several_steps_have_a_limit_together() -> None:
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", BRIEF], cwd=root, env={**os.environ, "PYTHONPATH": root},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["ended", "goes", "on"]
