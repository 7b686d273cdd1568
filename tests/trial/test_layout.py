"""Layout of lent memory: operands do not overlap, and each has guard regions on both sides."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.errors import ProblemError
from engine.domain.model import Operand, Role
from engine.trial.judge.guards import gaps
from engine.trial.shared.layout import ALIGNMENT, DTYPE_BYTES, GUARD, nbytes, plan_layout

OPERANDS = st.lists(
    st.builds(
        Operand,
        st.just("x"),
        st.sampled_from(Role),
        st.lists(st.integers(0, 40), max_size=4).map(tuple),
        st.sampled_from(sorted(DTYPE_BYTES)),
    ),
    min_size=1,
    max_size=6,
).map(tuple)


@given(OPERANDS, st.integers(1, 8))
def test_operands_are_disjoint_aligned_and_inside(operands: tuple[Operand, ...], slots: int) -> None:
    layout = plan_layout(operands, slots)
    assert len(layout.slots) == slots
    for written, size in ((False, layout.input_bytes), (True, layout.output_bytes)):
        places = [s for row in layout.slots for s in row if (s.role == "output") is written]
        end = 0
        for place in sorted(places, key=lambda s: s.offset):
            assert place.offset % ALIGNMENT == 0
            assert place.offset - end >= GUARD
            end = place.offset + place.nbytes + GUARD
        assert end <= size


@given(OPERANDS, st.integers(1, 3))
def test_a_slot_describes_its_operand(operands: tuple[Operand, ...], slots: int) -> None:
    for row in plan_layout(operands, slots).slots:
        assert [(s.shape, s.dtype, s.role, s.nbytes) for s in row] == [
            (o.shape, o.dtype, o.role.value, nbytes(o)) for o in operands
        ]


@given(OPERANDS, st.integers(1, 4))
def test_every_byte_of_the_output_arena_is_output_or_guard(operands: tuple[Operand, ...], slots: int) -> None:
    layout = plan_layout(operands, slots)
    outputs = [(s.offset, s.offset + s.nbytes) for row in layout.slots for s in row if s.role == "output"]
    pieces = sorted([*outputs, *gaps(layout, layout.output_bytes, writable=True)])
    assert pieces[0][0] == 0
    assert pieces[-1][1] == layout.output_bytes
    assert all(a[1] == b[0] for a, b in itertools.pairwise(pieces))


def test_an_unsupported_type_is_named() -> None:
    with pytest.raises(ProblemError, match="input x is a tensor of float4_e2m1fn_x2, which is not supported: only float64"):
        nbytes(Operand("x", Role.INPUT, (4,), "float4_e2m1fn_x2"))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_a_kernel_reads_and_returns_8_bit_floating_point_numbers(dtype: str) -> None:
    assert {nbytes(Operand("x", role, (3, 4), dtype)) for role in (Role.INPUT, Role.OUTPUT)} == {12}


@pytest.mark.parametrize("dtype", ["float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_a_kernel_reads_8_bit_numbers_of_other_devices_but_returns_none(dtype: str) -> None:
    assert nbytes(Operand("x", Role.INPUT, (3, 4), dtype)) == 12
    with pytest.raises(ProblemError, match=f"output y is a tensor of {dtype}, which is not supported"):
        nbytes(Operand("y", Role.OUTPUT, (3, 4), dtype))
