"""Index arithmetic: every simplification gives the same value in every loop iteration."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.codegen import ir
from engine.codegen.ir import Div, Expr, Linear, Mod, Var

OPERATIONS = ("add", "scale", "shift", "divide", "remainder")
STEP = st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 30), st.integers(0, 30), st.sampled_from((1, 2, 3, 4, 6, 8, 12)))


def evaluated(expr: Expr, values: Mapping[Expr, int]) -> int:
    """The value of an index, by its definition."""
    match expr:
        case Var():
            return values[expr]
        case Linear(terms=terms, constant=constant):
            return constant + sum(evaluated(part, values) * factor for part, factor in terms)
        case Div(value=value, by=by):
            return evaluated(value, values) // by
        case Mod(value=value, by=by):
            return evaluated(value, values) % by
    raise AssertionError(f"no index: {expr}")


def applied(step: tuple[str, int, int, int], made: list[Linear], plain: list[int] | None) -> Linear | int:
    """One operation, on the normal forms or (with ``plain``) on numbers."""
    name, first, second, by = step
    if plain is not None:
        a, b = plain[first % len(plain)], plain[second % len(plain)]
        return {"add": a + b, "scale": a * by, "shift": a + by, "divide": a // by, "remainder": a % by}[name]
    one, other = made[first % len(made)], made[second % len(made)]
    match name:
        case "add":
            return ir.add(one, other)
        case "scale":
            return ir.scale(one, by)
        case "shift":
            return ir.shift(one, by)
        case "divide":
            return ir.divide(one, by)
        case _:
            return ir.remainder(one, by)


@pytest.mark.slow
@given(st.lists(st.sampled_from((1, 2, 3, 4, 6, 8)), min_size=3, max_size=3), st.lists(STEP, min_size=1, max_size=10))
def test_simplified_indices_keep_their_values(extents: list[int], steps: list[tuple[str, int, int, int]]) -> None:
    loops = [Var(f"i{place}", extent) for place, extent in enumerate(extents)]
    made = [ir.as_index(loop) for loop in loops]
    for step in steps:
        result = applied(step, made, None)
        assert isinstance(result, Linear)
        made.append(result)
    for turn in itertools.product(*(range(extent) for extent in extents)):
        plain = list(turn)
        for step in steps:
            plain.append(int(applied(step, made, plain)))  # type: ignore[call-overload]
        values: dict[Expr, int] = dict(zip(loops, turn, strict=True))
        assert [evaluated(index, values) for index in made] == plain
        for index, number in zip(made, plain, strict=True):
            span = ir.bounds(index)
            assert span is None or span[0] <= number <= span[1]


@given(st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_flattening_undoes_unflattening(shape: list[int]) -> None:
    count = 1
    for extent in shape:
        count *= extent
    position = ir.as_index(Var("i", count))
    assert ir.flatten(ir.unflatten(position, shape), shape) == position


def test_conditions_that_always_hold_are_dropped() -> None:
    place = ir.shift(ir.as_index(Var("y", 6)), -1)
    assert len(ir.in_range(place, 0, 4)) == 2
    assert len(ir.in_range(place, -1, 4)) == 1
    assert ir.in_range(place, -1, 5) == ()
