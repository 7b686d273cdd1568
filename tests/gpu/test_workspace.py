"""The workspace of a kernel on a device: what it begins with, and what is written past its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.domain.errors import DeviceError
from engine.trial.runner.workspace import KernelWorkspace
from engine.trial.shared.cuda import driver
from engine.trial.shared.layout import GUARD, POISONS

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    try:
        opened = driver.Context.open(0)
    except DeviceError as error:
        pytest.skip(f"no CUDA device: {error}")
    yield
    opened.close()


def test_it_and_the_region_after_it_begin_as_nonsense() -> None:
    made = [KernelWorkspace(1000, "cuda:0") for _ in range(2)]
    begun = []
    for one in made:
        bytes_there = bytearray(1000 + GUARD)
        driver.check(driver.bindings().cuMemcpyDtoH(bytes_there, one.pointer, len(bytes_there)), "reading")
        begun.append(set(bytes_there))
    assert sorted(map(sorted, begun)) == sorted([poison] for poison in POISONS)


def test_a_write_past_the_end_shows_even_if_it_is_still_under_way() -> None:
    made = KernelWorkspace(1000, "cuda:0")
    driver.check(driver.bindings().cuMemsetD8(made.pointer, 0, 1000), "writing")
    assert not made.is_overrun()
    torch.cuda._sleep(10_000_000)
    driver.check(driver.bindings().cuMemsetD8Async(made.pointer + 1000, 0, 1, 0), "writing")
    assert made.is_overrun()
