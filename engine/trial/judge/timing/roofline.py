"""The device's measured ceilings, and the speed of light (SOL) of a workload. Imports torch.

Ceilings are measured once per device and software and cached: bandwidth by a large copy (bytes read and written), arithmetic
rates by large matrix products on random data. On a GPU each is timed with events, one at a time and after a pause: products
back to back reach the power limit and run at a lower clock than a single call. On a CPU bandwidth is the best of copying,
reading and writing, in memory and within the last-level cache: a flush does not evict all of a small workload, and a reduction
moves bytes faster than a copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from engine.domain.model import Device, Signature, SpeedOfLight
from engine.domain.preparation import Peaks
from engine.trial.judge.rounding.arithmetic import tf32
from engine.trial.shared.layout import operand_bytes

_REPEATS = 9
_REST_S = 0.02
_HELD_CYCLES = 400_000
"""Clock cycles that the device is held while the host enqueues a timed call."""


def measure_peaks(device: Device) -> Peaks:
    """The device's ceilings, measured now (a second or two)."""
    label = device.label
    copy = _copy_rate(1 << 30, label) if device.kind == "cuda" else _cpu_bandwidth(device.cache_bytes)
    rates: dict[str, float] = {}
    if device.kind == "cuda":
        with tf32(allowed=False):
            rates["fp32"] = _product_rate(4096, torch.float32, label)
        with tf32(allowed=True):
            rates["tf32"] = max(_product_rate(n, torch.float32, label) for n in _PRODUCTS)
        rates["fp16"] = max(_product_rate(n, torch.float16, label) for n in _PRODUCTS)
        rates["bf16"] = max(_product_rate(n, torch.bfloat16, label) for n in _PRODUCTS)
        if torch.cuda.get_device_capability(label) >= _LEAST_FOR_FP8:
            rates[_FP8] = max(_TO_BF16 * rates["bf16"], *(_scaled_product_rate(n, label) for n in _PRODUCTS))
    else:
        rates = _cpu_rates()
    return Peaks(copy, rates)


_PRODUCTS = (4096, 8192)
"""Sizes of products on tensor cores; the faster counts."""
_LEAST_FOR_FP8 = (8, 9)
"""The least compute capability whose tensor cores multiply eight-bit floats."""
_TO_BF16 = 2.0
"""Their rate, in that of bfloat16. The library's product can miss it: 1.22 and 1.49 PFLOP/s were seen on two H100s
whose products in bfloat16 differ by 4%."""


def _copy_rate(size: int, label: str) -> float:
    """Bytes read and written per second."""
    source = torch.ones(size, dtype=torch.uint8, device=label)
    target = torch.empty_like(source)
    return 2 * size / _seconds(lambda: target.copy_(source), label)


def _cpu_bandwidth(cache_bytes: int) -> float:
    """Bytes per second at best: copied, read or written, in memory or in the last-level cache."""
    rates = []
    for size in (1 << 27, cache_bytes // 8):
        words = torch.ones(size // 4, dtype=torch.int32)
        rates += [_copy_rate(size, "cpu"), size / _seconds(words.max, "cpu"), size / _seconds(lambda: words.fill_(2), "cpu")]  # noqa: B023 - called here
    return max(rates)


def _cpu_rates() -> dict[str, float]:
    """Operations per second in fp32, and in narrower types that this CPU multiplies faster: others emulate them."""
    rates = {"fp32": _product_rate(_CPU_PRODUCT, torch.float32, "cpu")}
    for unit, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if _product_rate(_CPU_PROBE, dtype, "cpu") * _HOPELESS < rates["fp32"]:
            continue
        rate = _product_rate(_CPU_PRODUCT, dtype, "cpu")
        if rate > rates["fp32"]:
            rates[unit] = rate
    return rates


_CPU_PRODUCT, _CPU_PROBE = 1536, 256
_HOPELESS = 20.0
"""A small product so many times slower than fp32's peak is emulated: a large one would take seconds."""


def _product_rate(n: int, dtype: torch.dtype, label: str) -> float:
    a = torch.randn(n, n, device=label).to(dtype)
    b = torch.randn(n, n, device=label).to(dtype)
    return 2.0 * n**3 / _seconds(lambda: a @ b, label)


def _scaled_product_rate(n: int, label: str) -> float:
    """Operations per second of a product of eight-bit floats with one scale for each operand."""
    a, b = (torch.randn(n, n, device=label).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=label)
    multiply = partial(torch._scaled_mm, a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
    return 2.0 * n**3 / _seconds(multiply, label)


def _seconds(work: Callable[[], object], label: str) -> float:
    """The fastest of several runs, in seconds: a ceiling is the device at its best."""
    for _ in range(2):
        work()
    return min(_once(work) if label == "cpu" else _once_on_gpu(work) for _ in range(_REPEATS))


def _once(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _once_on_gpu(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    time.sleep(_REST_S)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(_HELD_CYCLES)  # type: ignore[no-untyped-call]
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


@dataclass(frozen=True, slots=True)
class Floor:
    """The least time that the device's ceilings allow for one workload."""

    bound: str
    """``bytes``, ``operations (UNIT)`` for products, or ``operations (vector)`` for all other arithmetic."""
    floor_us: float
    bytes_moved: int
    products_us: float
    """The time that the reference's products take in the fastest unit. A faster kernel does other work, or less."""
    bytes_us: float
    """The time that the bytes alone take: no kernel is much faster."""


_FP8 = "fp8"
_PASSES = 3
"""Products in a narrower type that give fp32 accuracy: two terms per operand, without the smallest product."""
_CORRECTIONS = 2
"""Of these, those that only correct the first: eight bits are enough for their operands."""


def floor(signature: Signature, ceilings: Peaks) -> Floor:
    """The floor of a workload and what bounds it. fp32 may be emulated by three passes of a narrower unit, or by one of it and
    two of eight bits (``rotated_bytes.cu`` of matmul_fp32's playbook does so within the fp32 class).

    Arithmetic outside products runs on the vector units. So do products in fp32 without TF32: their rate is the vector peak.
    The peak of eight-bit floats counts only where operands are of such a type, however the reference multiplies them. A device
    without it multiplies them in bfloat16, which holds them exactly.
    """
    moved = signature.bytes_moved or operand_bytes(signature.operands)
    by_bytes = moved / ceilings.copy_bytes_per_s * 1e6
    narrow = any(operand.dtype.startswith("float8") for operand in signature.operands)
    rates = {unit: rate for unit, rate in ceilings.operations_per_s.items() if narrow or unit != _FP8}
    wanted = (_FP8, "bf16", signature.unit) if narrow else (signature.unit,)
    unit = next((name for name in wanted if name in rates), "fp32")
    best, how = rates[unit], unit
    if unit == "fp32":
        for other in ("tf32", "bf16"):
            if rates.get(other, 0.0) / _PASSES > best:
                best, how = rates[other] / _PASSES, f"fp32 by {_PASSES} passes of {other}"
        if (eight_bits := ceilings.operations_per_s.get(_FP8, 0.0)) and "bf16" in rates:
            corrected = 1 / (1 / rates["bf16"] + _CORRECTIONS / eight_bits)
            if corrected > best:
                best, how = corrected, f"fp32 by 1 pass of bf16 and {_CORRECTIONS} of 8 bits"
    by_operations = signature.operations / best * 1e6
    fastest = signature.operations / max(rates.values()) * 1e6
    by_vector = signature.vector_operations / rates["fp32"] * 1e6
    bounds = (("bytes", by_bytes), (f"operations ({how})", by_operations), ("operations (vector)", by_vector))
    bound, floor_us = max(bounds, key=lambda one: one[1])
    return Floor(bound, floor_us, moved, fastest, by_bytes)


def speed_of_light(least: Floor, time_us: float) -> SpeedOfLight:
    """The fraction of SOL that ``time_us`` reaches: floor ÷ time."""
    return SpeedOfLight(least.bound, least.floor_us, least.floor_us / time_us if time_us > 0 else 0.0)
