"""``espalier run`` on several problems: one budget, a session each, continued by the same command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.program import Call

from engine.cli.run_set import named_problems
from engine.domain.errors import ProblemError
from engine.journal import store

REFERENCE = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.rand(8, 8)]


def get_init_inputs():
    return []
"""
FEW = ("--device", "cpu", "--ideas", 1, "--branch", 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two problems, with a file that is none."""
    inside = tmp_path / "problems"
    inside.mkdir()
    for name in ("1_one.py", "2_two.py"):
        (inside / name).write_text(REFERENCE.replace("+ 1", f"+ {name[0]}"))
    (inside / "notes.py").write_text("x = 1\n")
    (inside / "_draft.py").write_text(REFERENCE)
    return inside


def test_a_folder_stands_for_the_problems_in_it(folder: Path) -> None:
    assert [Path(name).name for name in named_problems([str(folder)])] == ["1_one.py", "2_two.py"]
    assert named_problems(["softmax", "layernorm", "softmax"]) == ["softmax", "layernorm"]
    with pytest.raises(ProblemError):
        named_problems(["softmax", str(folder / "nowhere.py")])


@pytest.mark.usefixtures("pretended")
def test_several_problems_share_a_budget_and_the_same_command_continues(espalier: Call, home: Path) -> None:
    first = espalier("run", "softmax", "layernorm", *FEW, "--kernels", 6, "--json")
    assert first.status == 0, first.err
    found = json.loads(first.out)
    assert [one["problem"] for one in found["problems"]] == ["softmax", "layernorm"]
    assert sum(one["kernels"] for one in found["problems"]) == found["spent"]["kernels"] == 6
    assert found["reason"] == "6 of 6 kernels tried"
    assert "softmax is next: its first kernels" in first.err
    sessions = sorted(path.name for path in store.folders() if path.parent == home / "sessions")
    assert [name.split("-set-")[0] for name in sessions] == ["layernorm", "softmax"]

    again = espalier("run", "layernorm", "softmax", *FEW, "--kernels", 8)
    assert again.status == 0, again.err
    assert "8 of 8 kernels tried; a larger budget continues" in again.out
    assert "next kernel" in again.out
    assert sorted(path.name for path in store.folders() if path.parent == home / "sessions") == sessions


@pytest.mark.usefixtures("pretended")
def test_a_failing_problem_is_named_and_the_others_are_searched(espalier: Call, folder: Path, tmp_path: Path) -> None:
    """The fake bench generates no naive port."""
    done = espalier("run", "softmax", folder / "1_one.py", *FEW, "--kernels", 4, "--session", tmp_path / "set")
    assert done.status == 1, done.err
    assert "1_one failed: 1_one: no naive port" in done.err
    assert "4 of 4 kernels tried" in done.out
    assert "no naive port" in done.out
    assert store.is_session(tmp_path / "set" / "softmax")
    assert not (tmp_path / "set" / "1_one").exists()
