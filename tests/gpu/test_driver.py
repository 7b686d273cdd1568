"""Device properties, errors and context of the driver, on a real device."""

from __future__ import annotations

import pytest

from engine.domain.errors import DeviceError
from engine.trial.shared.cuda import driver

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def context() -> driver.Context:
    try:
        return driver.Context.open(0)
    except DeviceError as error:
        pytest.skip(f"no CUDA device: {error}")


def test_the_description_matches_torch(context: driver.Context) -> None:
    torch = pytest.importorskip("torch")
    seen = torch.cuda.get_device_properties(0)
    found = driver.describe(0)
    assert (found.kind, found.index, found.label) == ("cuda", 0, "cuda:0")
    assert (found.name, found.units, found.cache_bytes) == (seen.name, seen.multi_processor_count, seen.L2_cache_size)
    assert found.memory_bytes == seen.total_memory
    assert found.arch.removeprefix("sm_").removesuffix("a") == f"{seen.major}{seen.minor}"
    assert f"torch {torch.__version__}" in found.software
    assert "unknown" not in found.software


def test_an_unknown_device(context: driver.Context) -> None:
    with pytest.raises(DeviceError, match=r"unknown device cuda:99: this machine has cuda:0"):
        driver.describe(99)


def test_out_of_memory_reports_free_memory(context: driver.Context) -> None:
    asked = 1 << 50
    with pytest.raises(DeviceError, match=r"^cuda:0 is out of memory: taking too much asked for .* GiB free"):
        driver.check(driver.bindings().cuMemAlloc(asked), "taking too much", asked=asked)


def test_free_memory_shrinks_by_the_allocation(context: driver.Context) -> None:
    before = driver.free_bytes()
    pointer = driver.check(driver.bindings().cuMemAlloc(256 << 20), "taking some")
    assert driver.free_bytes() <= before - (256 << 20)
    driver.check(driver.bindings().cuMemFree(pointer), "giving it back")


def test_the_context_is_torch_s(context: driver.Context) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(16, dtype=torch.int32, device="cuda:0")
    driver.check(driver.bindings().cuMemsetD32(tensor.data_ptr(), 7, 16), "writing to torch's memory")
    context.synchronise()
    assert tensor.tolist() == [7] * 16
