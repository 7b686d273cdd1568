"""The hold-out shape drawn at random: within its bounds, none of the fixed shapes, and accepted by every shipped reference."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import pytest

from engine.domain.errors import ProblemError
from engine.domain.model import Problem, Workload
from engine.problem import catalog
from engine.problem.chance_holdout import draw_holdout
from engine.problem.reference import Reference

REFERENCE = """
import torch
dim = 8
rows = 4
class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2
def get_inputs():
    return [torch.rand(rows, dim)]
def get_init_inputs():
    return []
"""


def problem(folder: Path, table: str) -> Problem:
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "problem.toml").write_text(table)
    return catalog.find(str(folder))


def drawn(found: Problem, count: int = 40) -> list[Workload]:
    rng = Random(7)
    some = [draw_holdout(found, found.workloads[0], rng) for _ in range(count)]
    return [one for one in some if one is not None]


@pytest.mark.parametrize("name", catalog.shipped_names())
def test_shapes_of_shipped_problems_lie_between_the_fixed_ones(name: str) -> None:
    found = catalog.find(name)
    workload = catalog.workload_for(found, "small")
    fixed = found.holdouts["small"]
    shapes = [draw_holdout(found, workload, Random(seed)) for seed in range(20)]
    assert len({tuple(one.settings.items()) for one in shapes if one is not None}) > 10
    largest = max(math.prod(one.settings.values()) for one in fixed)
    for one in shapes:
        assert one is not None
        assert one.settings.keys() == workload.settings.keys()
        assert dict(one.settings) not in [dict(w.settings) for w in (workload, *fixed)]
        assert math.prod(one.settings.values()) <= largest
        for setting, value in one.settings.items():
            values = [w.settings[setting] for w in fixed]
            assert min(values) <= value <= max(values)
    assert shapes[0] is not None
    assert Reference(found, shapes[0]).signature().operands


def test_common_divisors_are_kept(tmp_path: Path) -> None:
    table = "[workloads.small]\ndim = 64\nrows = 6\n" + "".join(f"[[holdouts.small]]\ndim = {dim}\n" for dim in (16, 160))
    shapes = drawn(problem(tmp_path, table))
    assert shapes
    assert all(one.settings["dim"] % 16 == 0 and one.settings["rows"] == 6 for one in shapes)


def test_stated_bounds_take_precedence(tmp_path: Path) -> None:
    table = "[workloads.small]\ndim = 64\nrows = 6\n[bounds.small]\ndim = [3, 33, 10]\n"
    found = problem(tmp_path, table)
    assert found.name == tmp_path.name
    shapes = drawn(found)
    assert {one.settings["dim"] for one in shapes} == {3, 13, 23, 33}
    assert {one.name for one in shapes} == {"small-holdout-chance"}


def test_without_bounds_nothing_is_drawn(tmp_path: Path) -> None:
    assert not drawn(problem(tmp_path, "[workloads.small]\ndim = 64\n"))
    assert not drawn(problem(tmp_path, "[workloads.small]\ndim = 64\n[[holdouts.small]]\ndim = 16\n"))


def test_bounds_are_part_of_the_digest(tmp_path: Path) -> None:
    plain = problem(tmp_path, "[workloads.small]\ndim = 64\n")
    bounded = problem(tmp_path, "[workloads.small]\ndim = 64\n[bounds.small]\ndim = [3, 33]\n")
    assert plain.digest != bounded.digest


@pytest.mark.parametrize(
    ("bounds", "told"),
    [
        ("[bounds.large]\ndim = [1, 2]", "bounds.large has no workload"),
        ("[bounds.small]\nwidth = [1, 2]", "bounds.small sets width"),
        ("[bounds.small]\ndim = [2, 1]", "expected [lowest, highest]"),
        ("[bounds.small]\ndim = [1]", "expected [lowest, highest]"),
        ("[bounds.small]\ndim = [1, 9, 0]", "expected [lowest, highest]"),
    ],
)
def test_wrong_bounds_are_explained(tmp_path: Path, bounds: str, told: str) -> None:
    with pytest.raises(ProblemError, match=told.replace("[", r"\[").replace(".", r"\.")):
        problem(tmp_path, f"[workloads.small]\ndim = 64\n{bounds}\n")
