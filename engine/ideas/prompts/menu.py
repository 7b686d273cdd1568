"""Optimisations that fit the device and the bottleneck, with how often their category has won so far. Pure.

The win rates are those of the session's prior. Without one they are counted in the recorded sessions that ship: how often the
best kernel of an idea beat the idea's parent beyond the noise, and by how much, for workloads with the same bottleneck.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from engine.domain import predictions
from engine.domain.model import CATEGORIES, Device, PrecisionClass
from engine.domain.plan import CategoryRate
from engine.domain.state import SessionState
from engine.ideas.prompts.hardware import capability

_TUNING = "tune:"
"""Beginning of the keys of ideas that only change the values of tunables."""
_FEWEST = 3
"""Ideas from which on a rate is told."""


class Bottleneck(StrEnum):
    """The bottleneck of a workload."""

    MEMORY = "memory"
    COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class WinRate:
    """What became of the ideas of one category."""

    ideas: int
    """With a measured kernel."""
    wins: int
    """Faster than the parent beyond the noise."""
    median: float
    """Median speedup over the parent of those that won; 1 if none did."""
    mean: float | None = None
    """Mean speedup over the parent of all, where that is known instead of the median."""


WinRates = Mapping[tuple[str, Bottleneck, str], WinRate]
"""By category, bottleneck and kind of device (``cuda``, ``cpu``)."""


@dataclass(frozen=True, slots=True)
class _Option:
    category: str
    text: str
    kind: str = "cuda"
    bottlenecks: tuple[Bottleneck, ...] = (Bottleneck.MEMORY, Bottleneck.COMPUTE)
    least: int = 0
    """The least compute capability."""
    only: tuple[int, ...] = ()
    allowed: tuple[PrecisionClass, ...] = ()
    """Precision classes that must be allowed for it; empty: any."""
    narrow: bool | None = None
    """Whether the operands must (not) have sixteen bits."""
    feature: str = ""
    """A vector extension that the processor must have."""


_FP32, _TF32 = (PrecisionClass.FP32,), (PrecisionClass.TF32,)
_HALF = (PrecisionClass.HALF,)
_M, _C = (Bottleneck.MEMORY,), (Bottleneck.COMPUTE,)
_MEMORY, _ASYNC, _TENSOR, _INSTRUCTIONS, _OCCUPANCY, _FLOW = CATEGORIES
_ENTRIES = (
    _Option(_MEMORY, "read and write each byte once: fuse passes, keep a row in registers or shared memory", bottlenecks=_M),
    _Option(_MEMORY, "16-byte accesses, neighbouring lanes on neighbouring addresses; streaming hints for data used once"),
    _Option(_MEMORY, "tile for reuse in shared memory and registers; order blocks so that tiles meet in L2", bottlenecks=_C),
    _Option(_MEMORY, "swizzle or pad shared memory where lanes hit the same bank", bottlenecks=_C),
    _Option(_ASYNC, "a cp.async pipeline of three or more tiles", least=80, only=(80, 86, 87, 89, 120, 121)),
    _Option(_ASYNC, "TMA loads into a ring of tiles guarded by mbarriers, one producer warp", least=90),
    _Option(_ASYNC, "more bytes in flight: several independent loads a thread before the first use", bottlenecks=_M),
    _Option(_ASYNC, "warp specialisation: producers load, consumers compute, the epilogue overlaps the next tile", least=90,
           bottlenecks=_C),
    _Option(_TENSOR, "wgmma with operands in swizzled shared memory, two consumer warpgroups", bottlenecks=_C, only=(90,)),
    _Option(_TENSOR, "tcgen05 MMA with sums in tensor memory", bottlenecks=_C, only=(100, 103)),
    _Option(_TENSOR, "mma.sync with fragments loaded by ldmatrix", bottlenecks=_C, least=80, only=(80, 86, 87, 89, 120, 121)),
    _Option(_TENSOR, "TF32 or bf16 in several passes with error compensation; a single pass is outside the tolerance",
           bottlenecks=_C, least=80, allowed=_FP32, narrow=False),
    _Option(_TENSOR, "TF32 with fp32 sums, which the tolerance allows", bottlenecks=_C, least=80, allowed=_TF32, narrow=False),
    _Option(_TENSOR, "operands rounded to fp16 with fp32 sums, which the tolerance allows", bottlenecks=_C, allowed=_HALF,
           narrow=False),
    _Option(_INSTRUCTIONS, "fewer instructions an element: vectorise, unroll, hoist address arithmetic, exp2 instead of exp"),
    _Option(_OCCUPANCY, "whole waves of blocks over all multiprocessors; persistent blocks, or split-K where there are few"),
    _Option(_OCCUPANCY, "larger tiles a warp at lower occupancy, as long as registers do not spill", bottlenecks=_C),
    _Option(_FLOW, "fewer passes or operations: online reductions, Winograd, skipping what cannot contribute"),
    _Option(_FLOW, "clusters: reduce or share tiles over distributed shared memory instead of global memory", least=90),
    _Option(_MEMORY, "block for L1 and L2 so that each byte leaves memory once; lay operands out in the order of use", "cpu"),
    _Option(_MEMORY, "streaming stores for outputs that are not read again; huge strides packed first", "cpu", _M),
    _Option(_ASYNC, "software prefetch a few iterations ahead for strided access; several independent streams", "cpu", _M),
    _Option(_TENSOR, "packed bf16 dot products with fp32 sums, which the tolerance allows", "cpu", _C, allowed=_HALF,
           feature="avx512_bf16"),
    _Option(_TENSOR, "AMX tiles of bf16 with fp32 sums, which the tolerance allows", "cpu", _C, allowed=_HALF,
           feature="amx_bf16"),
    _Option(_INSTRUCTIONS, "full-width vectors with several independent accumulators; a register tile of the output", "cpu"),
    _Option(_OCCUPANCY, "all cores with equal, contiguous shares; no false sharing; one parallel region", "cpu"),
    _Option(_FLOW, "fewer passes: fuse, online reductions; branches out of inner loops; tails handled by masks", "cpu"),
)  # fmt: skip


def bottleneck_of(bound: str) -> Bottleneck:
    """The bottleneck that a preparation's ``bound`` names."""
    return Bottleneck.MEMORY if bound.startswith("bytes") else Bottleneck.COMPUTE


def count_wins(states: Iterable[SessionState]) -> WinRates:
    """The win rates of the ideas of these sessions."""
    gains: dict[tuple[str, Bottleneck, str], list[float]] = {}
    for state in states:
        if state.preparation is None or state.device is None:
            continue
        where = bottleneck_of(state.preparation.bound), state.device.kind
        for idea in state.ideas.values():
            found = predictions.best_gain(state, idea) if idea.round else None
            if found is not None and idea.text.category in CATEGORIES and not idea.text.key.startswith(_TUNING):
                gains.setdefault((idea.text.category, *where), []).append(found.value if found.low > 1.0 else 0.0)
    return {key: _rate(values) for key, values in gains.items()}


def _rate(values: list[float]) -> WinRate:
    won = [value for value in values if value > 0.0]
    return WinRate(len(values), len(won), statistics.median(won) if won else 1.0)


def prior_rates(prior: Iterable[CategoryRate], kind: str) -> WinRates:
    """The win rates that a session's prior recorded, from this machine's sessions on devices of this kind."""
    known = [(rate, bottleneck_of(rate.bottleneck)) for rate in prior if rate.bottleneck]
    return {(rate.category, of, kind): WinRate(rate.tried, rate.gained, 1.0, math.exp(rate.gain)) for rate, of in known}


def optimisations(device: Device, bound: str, rates: WinRates, allowed: PrecisionClass, *, narrow: bool) -> str:
    """The entries that fit, a line each, by category; those of the categories that win most often come first.

    ``allowed``: the least precise class that the tolerance allows. ``narrow``: all operands have sixteen bits.
    """
    where = bottleneck_of(bound)
    fitting = [
        entry for entry in _ENTRIES
        if _fits(entry, device, where) and (not entry.allowed or allowed in entry.allowed) and entry.narrow in (None, narrow)
    ]  # fmt: skip
    lines: list[str] = []
    for category in sorted(CATEGORIES, key=lambda name: -_share(rates.get((name, where, device.kind)))):
        texts = [entry.text for entry in fitting if entry.category == category]
        if texts:
            lines.append(f"- {category}{_words(rates.get((category, where, device.kind)))}: {'; '.join(texts)}")
    return "\n".join(lines)


def _fits(entry: _Option, device: Device, where: Bottleneck) -> bool:
    if entry.kind != device.kind or where not in entry.bottlenecks:
        return False
    if entry.feature and entry.feature not in device.features:
        return False
    found = capability(device) or 0
    return found >= entry.least and (not entry.only or found in entry.only)


def _share(rate: WinRate | None) -> float:
    """The estimated share of wins, shrunk towards one half by two ideas."""
    return (rate.wins + 1) / (rate.ideas + 2) if rate is not None else 0.5


def _words(rate: WinRate | None) -> str:
    if rate is None or rate.ideas < _FEWEST:
        return ""
    if rate.mean is not None:
        return (
            f" ({rate.wins} of {rate.ideas} ideas of earlier sessions beat their parent; {rate.mean:.2f}x on average over all)"
        )
    gain = f", by {rate.median:.2f}x in the median" if rate.wins else ""
    return f" ({rate.wins} of {rate.ideas} recorded ideas beat their parent{gain})"
