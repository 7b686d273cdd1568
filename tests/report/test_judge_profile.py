"""The profile of the judge's own time runs, and finds what it counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import judge_profile

ROOT = Path(__file__).parents[2]
RELU = """import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.rand(64, 64)]

def get_init_inputs():
    return []
"""


def test_everything_counted_exists() -> None:
    """Functions that moved to another module ended the program with an AttributeError."""
    assert [name for owner, name in judge_profile._COUNTED if not callable(getattr(owner, name, None))] == []


@pytest.mark.slow
def test_each_step_is_printed_with_its_calls(tmp_path: Path) -> None:
    """In a process of its own, because the functions counted are replaced."""
    file = tmp_path / "relu.py"
    file.write_text(RELU)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.judge_profile", str(file)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "FAILED" not in done.stdout
    for step in ("open", "calibration", "test bed", "trivial models", "right outputs on inputs"):
        assert f"s  {step}" in done.stdout
    assert "make_case, " in done.stdout
