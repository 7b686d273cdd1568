"""Fingerprints of outputs that are left where they are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.trial.judge.outputs import taken_outputs
from engine.trial.judge.outputs.taken_outputs import Fingerprints, Left, OutputTaker

SIZES = st.integers(1, 200)


@pytest.mark.slow
@given(SIZES, st.integers(0, 1 << 16), st.integers(0, 7))
def test_any_changed_bit_changes_the_fingerprint(size: int, place: int, bit: int) -> None:
    bytes_ = torch.randint(0, 256, (size,), dtype=torch.uint8)
    secret = Fingerprints()
    before = secret.compute([bytes_])
    assert secret.compute([bytes_.clone()]) == before
    bytes_[place % size] ^= 1 << bit
    assert secret.compute([bytes_]) != before


@pytest.mark.slow
@given(st.integers(2, 60))
def test_moved_elements_change_it_also_in_other_blocks(size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taken_outputs, "_WORDS", 4)
        values = torch.arange(float(size))
        secret = Fingerprints()
        before = secret.compute([values])
        for step in range(1, size):
            assert secret.compute([values.roll(step)]) != before


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int8, torch.bool, torch.complex64])
def test_every_type_and_an_empty_output_have_one(dtype: torch.dtype) -> None:
    secret = Fingerprints()
    empty, some = torch.empty(0, dtype=dtype), torch.ones(7, 3, dtype=dtype)
    assert secret.compute([empty, some]) == secret.compute([empty.clone(), some.clone()])
    assert secret.compute([some]) != secret.compute([torch.zeros_like(some)])


def test_two_judges_have_other_keys() -> None:
    assert Fingerprints().compute([torch.ones(9)]) != Fingerprints().compute([torch.ones(9)])


def test_outputs_are_left_only_where_memory_is_short_and_nobody_else_writes() -> None:
    outputs = [torch.ones(9)]
    assert isinstance(OutputTaker(saves_memory=True, leaves=True).take(outputs, alone=True), Left)
    for short, leaves, alone in ((False, True, True), (True, False, True), (True, True, False)):
        assert not isinstance(OutputTaker(saves_memory=short, leaves=leaves).take(outputs, alone=alone), Left)
