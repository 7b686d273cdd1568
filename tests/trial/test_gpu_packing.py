"""The parts of the CUDA layer that need no device: structures, messages, handles."""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.errors import DeviceError
from engine.toolchain.resolution import OperandArg, ResolvedLaunch, TensorMapArg
from engine.trial.runner.gpu_launch import Function, describe_launch, mismatch
from engine.trial.shared.cuda import device_memory, driver, packing

ROWS = st.lists(st.integers(1, 64), min_size=1, max_size=5)


def launch(*arguments: OperandArg | TensorMapArg, **more: object) -> ResolvedLaunch:
    settings = {"grid": (4, 1, 1), "block": (128, 1, 1), **more}
    return ResolvedLaunch("k", arguments, **settings)


def function(*parameters: int, threads: int = 1024, static_shared: int = 0) -> Function:
    return Function("k", 1, parameters, 32, static_shared, 0, threads)


def test_structures_match_cuda_h() -> None:
    # sizeof and offsetof, printed by a C program with cuda.h of CUDA 13.0
    assert ctypes.sizeof(packing.LaunchConfig) == 56
    assert packing.LaunchConfig.stream.offset == 32
    assert packing.LaunchConfig.attributes.offset == 40
    assert packing.LaunchConfig.count.offset == 48
    assert ctypes.sizeof(packing.LaunchAttribute) == 72
    assert packing.LaunchAttribute.value.offset == 8


def test_plain_launch_has_no_attributes() -> None:
    config = packing.pack_config((2, 3, 4), (32, 2, 1), 1000, 77).config
    assert (list(config.grid), list(config.block)) == ([2, 3, 4], [32, 2, 1])
    assert (config.shared, config.stream, config.attributes, config.count) == (1000, 77, None, 0)


def test_cluster_and_cooperative_become_attributes() -> None:
    packed = packing.pack_config((16, 1, 1), (32, 1, 1), 0, 0, cluster=(2, 4, 1), cooperative=True)
    assert packed.config.count == 2
    assert packed.config.attributes == ctypes.addressof(packed.attributes)
    cooperative, cluster = (ctypes.string_at(ctypes.addressof(a), 72) for a in packed.attributes)
    words = [[int.from_bytes(a[i : i + 4], "little") for i in (0, 8, 12, 16)] for a in (cooperative, cluster)]
    assert words == [[2, 1, 0, 0], [4, 2, 4, 1]]


@given(st.lists(st.one_of(st.integers(0, 2**64 - 1), st.binary(min_size=128, max_size=128)), max_size=12))
def test_parameters_can_be_read_through_the_table(values: list[int | bytes]) -> None:
    packed = packing.pack_parameters(values)
    for index, value in enumerate(values):
        at = packed.table[index]
        assert at is not None
        if isinstance(value, bytes):
            assert at % 128 == 0
            assert ctypes.string_at(at, 128) == value
        else:
            assert ctypes.c_uint64.from_address(at).value == value


@pytest.mark.parametrize(
    ("dims", "tile", "item", "expected"),
    [
        ((7,), (4,), 4, ((7,), (), (4,))),
        ((256, 1024), (32, 64), 4, ((1024, 256), (4096,), (64, 32))),
        ((2, 3, 8), (1, 2, 8), 2, ((8, 3, 2), (16, 48), (8, 2, 1))),
    ],
)
def test_tensor_geometry(dims: tuple[int, ...], tile: tuple[int, ...], item: int, expected: tuple[object, ...]) -> None:
    found = packing.tensor_geometry(dims, tile, item)
    assert (found.dims, found.strides, found.tile) == expected


@given(ROWS, st.sampled_from([1, 2, 4, 8]))
def test_geometry_matches_row_major_addresses(dims: list[int], item: int) -> None:
    found = packing.tensor_geometry(dims, dims, item)
    last = sum((d - 1) * s for d, s in zip(found.dims, (item, *found.strides), strict=True))
    assert last == (math.prod(dims) - 1) * item


@pytest.mark.parametrize(
    ("made", "given_function", "words"),
    [
        (launch(OperandArg("x")), function(8, 8), "has 2 parameters, the @launch line passes 1"),
        (launch(OperandArg("x")), function(128), "1 takes 128 bytes, the @launch line passes an address of 8"),
        (launch(OperandArg("x"), TensorMapArg("t")), function(8, 8), "parameter 2 takes 8 bytes"),
        (launch(OperandArg("x"), block=(512, 2, 1)), function(8, threads=768), "a block of 1024 threads"),
        (launch(OperandArg("x"), shared_bytes=60_000), function(8, static_shared=50_000), "50000 bytes of static and"),
    ],
)  # fmt: skip
def test_a_launch_that_the_function_does_not_allow_is_rejected(
    made: ResolvedLaunch, given_function: Function, words: str
) -> None:
    text = mismatch(made, given_function, 100_000)
    assert text is not None
    assert words in text


def test_a_launch_that_the_function_allows() -> None:
    made = launch(OperandArg("x"), TensorMapArg("t"), shared_bytes=50_000)
    assert mismatch(made, function(8, 128, threads=128, static_shared=50_000), 100_000) is None


def test_a_launch_is_described_in_plan_syntax() -> None:
    told = describe_launch(launch(grid=(4, 2, 1), shared_bytes=64, cluster=(2, 1, 1), cooperative=True))
    assert told == "launching k grid(4,2) block(128) shared(64) cluster(2) cooperative"


@pytest.mark.parametrize(("size", "granule", "whole"), [(0, 8, 8), (1, 8, 8), (8, 8, 8), (9, 8, 16)])
def test_sizes_are_rounded_to_whole_granules(size: int, granule: int, whole: int) -> None:
    assert device_memory.rounded(size, granule) == whole


@pytest.mark.parametrize(
    ("size", "text"),
    [(12, "12 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (9 << 40, "9216.0 GiB")],
)
def test_sizes_are_shown_in_binary_units(size: int, text: str) -> None:
    assert driver.size_text(size) == text


def test_out_of_memory_names_device_requested_and_free_bytes() -> None:
    text = driver.memory_message("cuda:1", "allocating an arena", 3 << 30, (1 << 30, 80 << 30))
    assert text.startswith("cuda:1 is out of memory: allocating an arena asked for 3.0 GiB; 1.0 GiB of 80.0 GiB free;")


def test_a_known_error_has_a_hint() -> None:
    told = driver.wording("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered")
    assert told.startswith("CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered): the kernel read")
    assert driver.wording("CUDA_ERROR_SOMETHING", "") == "CUDA_ERROR_SOMETHING"


@pytest.mark.parametrize(("version", "arch"), [((9, 0), "sm_90a"), ((8, 9), "sm_89"), ((10, 0), "sm_100"), ((12, 1), "sm_121")])
def test_a_compute_capability_is_named_as_nvcc_does(version: tuple[int, int], arch: str) -> None:
    assert driver.arch_text(*version) == arch


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root)", "580.159.04"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 16:14:05 UTC 2021", "470.57.02"),
        ("580.159.04\n", "580.159.04"),
        ("nothing of the kind", ""),
    ],
)
def test_the_version_is_found_in_the_drivers_text(text: str, version: str) -> None:
    assert driver.version_in(text) == version


@pytest.mark.parametrize(
    "handle",
    [
        device_memory.DeviceHandle(device_memory.Means.DESCRIPTOR, 3, 4096, 7),
        device_memory.DeviceHandle(device_memory.Means.TOKEN, 0, 1 << 40, token=bytes(range(64))),
    ],
)
def test_a_handle_round_trips_as_header_and_descriptor(handle: device_memory.DeviceHandle) -> None:
    assert device_memory.DeviceHandle.parse(handle.header(), handle.descriptor) == handle


@pytest.mark.parametrize("header", [b"", b"\x01short", b"\x09" + bytes(76)])
def test_an_invalid_handle_is_rejected(header: bytes) -> None:
    with pytest.raises(DeviceError, match="invalid device memory handle"):
        device_memory.DeviceHandle.parse(header)


@pytest.mark.parametrize(
    ("dtype", "code"),
    [("float32", "<f4"), ("bfloat16", "<i2"), ("bool", "|b1"), ("int64", "<i8"), ("float8_e5m2", "|u1")],
)
def test_device_memory_is_described_as_an_array(dtype: str, code: str) -> None:
    described = device_memory.ArrayInterface(4096, 12, dtype).__cuda_array_interface__
    assert described == {"shape": (12,), "typestr": code, "data": (4096, False), "version": 3, "strides": None}


def test_an_unsupported_type_is_rejected() -> None:
    with pytest.raises(DeviceError, match="unsupported type quint8"):
        device_memory.ArrayInterface(4096, 12, "quint8")


@pytest.mark.slow
def test_importing_needs_neither_torch_nor_the_bindings() -> None:
    program = (
        "import sys; import engine.trial.runner.gpu_launch, engine.trial.shared.cuda.device_memory;"
        "import engine.trial.runner.stopwatch;"
        "print([m for m in ('torch', 'cuda.bindings') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_the_bindings_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    driver.bindings.cache_clear()
    with pytest.raises(DeviceError, match=r"pip install 'espalier\[gpu\]'"):
        driver.describe(0)
    driver.bindings.cache_clear()
