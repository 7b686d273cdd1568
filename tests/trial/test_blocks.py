"""Comparison in blocks: the same errors as over whole tensors, whatever the size of a block."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.trial.judge.outputs import blocks, comparison
from engine.trial.judge.outputs.comparison import compare, spread
from engine.trial.judge.tolerance.special_values import compare_special

FLOATS = st.floats(-1e6, 1e6, width=32)
ODD = st.one_of(FLOATS, st.sampled_from([math.inf, -math.inf, math.nan]))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blocks.ELEMENTS, "cpu", 7)


@pytest.mark.parametrize("own_type", [False, True])
def test_blocks_hold_every_element_once(*, own_type: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blocks._IN_OWN_TYPE, "cpu", 3)
    one, other = torch.arange(50.0), torch.arange(50).reshape(5, 10)
    found = list(blocks.in_blocks(one, other, own_type=own_type))
    assert [a.numel() for a, _ in found[:-1]] == [21 if own_type else 7] * (len(found) - 1)
    assert torch.cat([a for a, _ in found]).equal(one)
    assert torch.cat([b for _, b in found]).equal(other.reshape(-1))


@pytest.mark.slow
@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_errors_are_those_of_the_whole_tensor(values: list[tuple[float, float]]) -> None:
    output = torch.tensor([a for a, _ in values])
    reference = torch.tensor([b for _, b in values], dtype=torch.float64)
    found = compare([output], [reference], ["out"])
    difference, unit = output - reference, spread(reference) or float(reference.norm()) / math.sqrt(len(values))
    assert found.max_abs == pytest.approx(float(difference.abs().max()))
    assert found.rel_fro == pytest.approx(float(difference.norm()) / max(unit * math.sqrt(len(values)), 1e-300), rel=1e-6)
    assert found.max_scaled == pytest.approx(float((difference / (reference.abs() + unit + 1e-300)).abs().max()), rel=1e-6)


@given(st.lists(st.one_of(FLOATS, st.integers(-3, 3).map(float)), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_moments_are_those_of_the_whole_tensor(values: list[float]) -> None:
    whole = torch.tensor(values, dtype=torch.float64)
    found = blocks.moments(lambda: (block for (block,) in blocks.in_blocks(whole)))
    assert found.count == len(values)
    assert found.scale * found.mean == pytest.approx(float(whole.mean()), abs=1e-6)
    scale = float(whole.abs().max()) ** 2 + 1e-30
    assert found.deviation**2 == pytest.approx(float(whole.var(correction=0)), abs=1e-9 * scale)
    assert found.rms == pytest.approx(float(whole.norm()) / math.sqrt(len(values)))


@pytest.mark.slow
@given(st.lists(st.tuples(ODD, ODD), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_what_is_not_finite_is_found_in_every_block(values: list[tuple[float, float]]) -> None:
    output = torch.tensor([a for a, _ in values])
    right = torch.tensor([b for _, b in values], dtype=torch.float64)
    differing = (output.isfinite() != right.isfinite()).nonzero().reshape(-1).tolist()
    same = (output.double() == right) | (output.isnan() & right.isnan()) | (output.isfinite() & right.isfinite())
    flaw = compare([output], [right], ["out"]).flaw
    if differing:
        assert f"{len(differing)} of {len(values)} elements wrong, the first at {differing[0]} " in flaw
    else:
        assert bool(flaw) == (not bool(same.all()))
    special = compare_special([output], [right])
    assert special.different == int((~same).sum())
    assert torch.equal(special.hidden[0], output.isfinite() & ~right.isfinite())


def test_integers_differ_by_count_in_all_blocks() -> None:
    output = torch.arange(40)
    right = output.clone()
    right[[0, 8, 39]] += 1
    undecided = torch.zeros(40, dtype=torch.bool)
    undecided[8] = True
    assert "3 of 40" in compare([output], [right], ["out"]).flaw
    assert "2 of 40" in compare([output], [right], ["out"], [undecided]).flaw


def test_the_moments_of_an_expected_output_are_computed_once_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    plain = comparison.moments

    def counted(blocks: Iterator[torch.Tensor]) -> blocks.Moments:
        ran.append(1)
        return plain(blocks)

    monkeypatch.setattr(comparison, "moments", counted)
    right = torch.arange(1.0, 9.0, dtype=torch.float64)
    first = compare([right + 1], [right], ["out"])
    assert compare([right + 1], [right], ["out"]) == first
    assert len(ran) == 1
    right.mul_(2)
    assert compare([right + 1], [right], ["out"]).rel_fro == pytest.approx(first.rel_fro / 2)
    assert len(ran) == 2


def test_the_moments_of_tensors_without_a_version_are_computed_each_time() -> None:
    with torch.inference_mode():
        right = torch.arange(1.0, 9.0, dtype=torch.float64)
        first = compare([right + 1], [right], ["out"])
        right.mul_(2)
        assert compare([right + 1], [right], ["out"]).rel_fro == pytest.approx(first.rel_fro / 2)


@pytest.mark.parametrize("zeros", [torch.zeros(3, dtype=torch.bool), torch.zeros(3, dtype=torch.uint8), torch.zeros(0)])
def test_zeros_of_any_type_have_moments_of_zero(zeros: torch.Tensor) -> None:
    found = blocks.moments(lambda: iter([zeros]))
    assert found.rms == found.deviation == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_equal_tensors_have_equal_integers_wherever_they_lie_in_memory(dtype: torch.dtype) -> None:
    """Inputs and outputs may be slices, such as ``x[1:]``, and the lent memory that they are compared with is aligned."""
    whole = torch.arange(17).to(dtype)
    one, other = whole[1:], whole[1:].clone()
    assert torch.equal(blocks.as_integers(one), blocks.as_integers(other))
    other[3] = 0
    assert not torch.equal(blocks.as_integers(one), blocks.as_integers(other))
