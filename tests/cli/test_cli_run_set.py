"""``espalier run`` on several problems: one budget, a session each, continued by the same command."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support import builders as b
from support.program import Call
from support.sessions import OPENED

from engine.cli.run_set import live_table, named_problems
from engine.domain.errors import ProblemError
from engine.domain.strategy.worth import Standing
from engine.journal import store
from engine.report.text.lines import plain
from engine.session.factory import NewSession
from engine.session.problem_set import ProblemSet, SetBudget, restored

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


@pytest.mark.slow
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
    assert "8 of 8 kernels tried; to continue, repeat the command with a larger" in again.out
    assert "next kernel" in again.out
    assert sorted(path.name for path in store.folders() if path.parent == home / "sessions") == sessions


def drawn(text: str) -> list[list[str]]:
    """What a terminal shows below the lines that stay, each time it is drawn."""
    return [part.split("\n") for part in re.split(r"\r(?:\x1b\[\d+A)?\x1b\[(?:J|2K)", text)]


@pytest.mark.slow
@pytest.mark.usefixtures("pretended")
def test_in_a_terminal_a_table_of_all_problems_stays_below_the_lines(espalier: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.cli.output.is_terminal", lambda stream: True)
    for name, value in {"NO_COLOR": "1", "COLUMNS": "120", "LINES": "12", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    done = espalier("run", "softmax", "layernorm", *FEW, "--kernels", 6)
    assert done.status == 0, done.err
    tables = [lines[-3:] for lines in drawn(done.err) if any("problems go on" in line for line in lines)]
    assert tables[0][0].endswith("0 of 6 kernels tried, 2 of 2 problems go on")
    assert "waits" in tables[0][2]
    assert any("under way" in rows[1] and "waits" in rows[2] for rows in tables)
    assert any("next kernel" in rows[1] and "under way" in rows[2] for rows in tables)
    assert any("4 of 6" in rows[0] or "5 of 6" in rows[0] for rows in tables), "kernels count before their turn is over"
    assert done.err.endswith("\x1b[J"), "the table is erased at the end"

    headless = espalier("run", "softmax", "layernorm", *FEW, "--kernels", 7, "--headless")
    assert "problems go on" not in headless.err


def test_of_more_problems_than_lines_those_worth_most_are_shown(tmp_path: Path) -> None:
    names = [f"p{number}" for number in range(9)]
    requests = [NewSession(replace(b.problem(name), digest=b.digest(name)), "cpu", OPENED.settings) for name in names]
    members = [restored(one, tmp_path / one.problem.name) for one in requests]
    problems = ProblemSet(members, SetBudget(9), 1)
    problems.latest = [Standing(name, 1, worth=number / 100) for number, name in enumerate(names)]
    lines = [plain(spans) for spans in live_table(problems, 5)]
    assert [line.split()[0] for line in lines] == ["0", "p6", "p7", "p8", "…"]
    assert lines[-1] == "… 6 more problems"
    assert len(live_table(problems, 10)) == 10
    assert "more" not in plain(live_table(problems, 10)[-1])


@pytest.mark.slow
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
