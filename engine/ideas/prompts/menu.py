"""Optimisations that fit the device and the bottleneck, with how often their category has won so far. Pure.

The win rates are those of the session's prior. Without one they are counted in the recorded sessions that ship: how often the
best kernel of an idea beat the idea's parent beyond the noise, and by how much, for workloads with the same bottleneck.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from engine.domain.model import CATEGORIES, Device, Dialect, PrecisionClass
from engine.domain.round_plan import CategoryRate
from engine.ideas.prompts.hardware import capability

_FEWEST = 3
"""Fewest ideas of a category for which its rate is reported."""


class Bottleneck(StrEnum):
    """The bottleneck of a workload."""

    MEMORY = "memory"
    COMPUTE = "compute"


class Operands(StrEnum):
    """What the operands are: they limit what cheaper arithmetic can still save."""

    FP16 = "fp16"
    BF16 = "bf16"
    WIDE = "wide"
    """Some have more than sixteen bits."""

    @classmethod
    def kind(cls, dtypes: Iterable[str]) -> Operands:
        """The kind of operands of these element types."""
        found = set(dtypes)
        if found == {"bfloat16"}:
            return cls.BF16
        return cls.FP16 if found and found <= {"float16", "bfloat16"} else cls.WIDE


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
    operands: frozenset[Operands] = frozenset(Operands)
    """Kinds of operands that it is for."""
    feature: str = ""
    """A vector extension that the processor must have."""
    triton: str | None = None
    """What it is in Triton, whose compiler does the rest; empty: its compiler does all of it. ``None``: the same."""


_WIDE, _FP16, _NOT_FP16 = frozenset({Operands.WIDE}), frozenset({Operands.FP16}), frozenset({Operands.WIDE, Operands.BF16})
_STAGES = "num_stages for a pipeline of the loop's loads"
_DOT = "tl.dot on tiles of at least 64 rows, with four or eight warps; operands in their narrow type, sums in float32"
_FP32, _TF32 = (PrecisionClass.FP32,), (PrecisionClass.TF32,)
_HALF = (PrecisionClass.HALF,)
_M, _C = (Bottleneck.MEMORY,), (Bottleneck.COMPUTE,)
_MEMORY, _ASYNC, _TENSOR, _INSTRUCTIONS, _OCCUPANCY, _FLOW = CATEGORIES
_ENTRIES = (
    _Option(_MEMORY, "read and write each byte once: fuse passes, keep a row in registers or shared memory", bottlenecks=_M),
    _Option(_MEMORY, "16-byte accesses, neighbouring lanes on neighbouring addresses; streaming hints for data used once"),
    _Option(_MEMORY, "tile for reuse in shared memory and registers; order blocks so that tiles meet in L2", bottlenecks=_C),
    _Option(_MEMORY, "swizzle or pad shared memory where lanes hit the same bank", bottlenecks=_C, triton=""),
    _Option(_ASYNC, "a cp.async pipeline of three or more tiles", least=80, only=(80, 86, 87, 89, 120, 121), triton=_STAGES),
    _Option(_ASYNC, "TMA loads into a ring of tiles guarded by mbarriers, one producer warp", least=90, triton=_STAGES),
    _Option(_ASYNC, "more bytes in flight: several independent loads a thread before the first use", bottlenecks=_M),
    _Option(_ASYNC, "warp specialisation: producers load, consumers compute; exponentials and epilogue of one consumer overlap "
           "the products of the other", least=90, bottlenecks=_C, triton=""),
    _Option(_TENSOR, "wgmma with operands in swizzled shared memory, two consumer warpgroups", bottlenecks=_C, only=(90,),
           triton=_DOT),
    _Option(_TENSOR, "tcgen05 MMA with sums in tensor memory", bottlenecks=_C, only=(100, 103), triton=_DOT),
    _Option(_TENSOR, "mma.sync with fragments loaded by ldmatrix", bottlenecks=_C, least=80, only=(80, 86, 87, 89, 120, 121),
           triton=_DOT),
    _Option(_TENSOR, "float32 operands as sums of two or three TF32 or bf16 parts, whose products are added in fp32; a single "
           "pass is outside the tolerance", bottlenecks=_C, least=80, allowed=_FP32, operands=_WIDE),
    _Option(_TENSOR, "TF32 with fp32 sums, which the tolerance allows", bottlenecks=_C, least=80, allowed=_TF32,
           operands=_WIDE),
    _Option(_TENSOR, "operands rounded to bf16 or fp16 with fp32 sums, which the tolerance allows", bottlenecks=_C,
           allowed=_HALF, operands=_WIDE),
    _Option(_INSTRUCTIONS, "fewer instructions an element: vectorise, unroll, hoist address arithmetic; exponentials as exp2 "
           "with the factor folded into a scale"),
    _Option(_OCCUPANCY, "whole waves of blocks over all multiprocessors; persistent blocks"),
    _Option(_OCCUPANCY, "split the reduction over blocks where there are fewer tiles than multiprocessors", bottlenecks=_C),
    _Option(_OCCUPANCY, "split a row over blocks where there are fewer rows than multiprocessors", bottlenecks=_M),
    _Option(_OCCUPANCY, "larger tiles a warp at lower occupancy, as long as registers do not spill", bottlenecks=_C),
    _Option(_FLOW, "fewer passes: online reductions that update maximum, sum and mean together", bottlenecks=_M),
    _Option(_FLOW, "fewer operations: algebra that moves work out of the inner loop; borders handled apart from inner tiles",
           bottlenecks=_C),
    _Option(_FLOW, "clusters: reduce or share tiles over distributed shared memory instead of global memory", least=90,
           triton=""),
    _Option(_MEMORY, "block for L1 and L2 so that each byte leaves memory once; lay operands out in the order of use", "cpu"),
    _Option(_MEMORY, "streaming stores for outputs that are not read again; huge strides packed first", "cpu", _M),
    _Option(_ASYNC, "software prefetch a few iterations ahead for strided access; several independent streams", "cpu", _M),
    _Option(_TENSOR, "float16 widened to float32 once, as tiles are packed, not in the inner loop", "cpu", _C, operands=_FP16),
    _Option(_TENSOR, "packed bf16 dot products with fp32 sums, which the tolerance allows", "cpu", _C, allowed=_HALF,
           operands=_NOT_FP16, feature="avx512_bf16"),
    _Option(_TENSOR, "AMX tiles of bf16 with fp32 sums, which the tolerance allows", "cpu", _C, allowed=_HALF,
           operands=_NOT_FP16, feature="amx_bf16"),
    _Option(_TENSOR, "AMX tiles: float32 operands as sums of two or three bf16 parts; a single pass is outside the tolerance",
           "cpu", _C, allowed=(*_FP32, *_TF32), operands=_WIDE, feature="amx_bf16"),
    _Option(_INSTRUCTIONS, "full-width vectors with several independent accumulators; a register tile of the output", "cpu"),
    _Option(_OCCUPANCY, "all cores with equal, contiguous shares; no false sharing; one parallel region", "cpu"),
    _Option(_FLOW, "fewer passes: fuse, online reductions; branches out of inner loops; tails handled by masks", "cpu"),
)  # fmt: skip


def bottleneck_of(bound: str) -> Bottleneck:
    """The bottleneck that a preparation's ``bound`` names."""
    return Bottleneck.MEMORY if bound.startswith("bytes") else Bottleneck.COMPUTE


@dataclass(frozen=True, slots=True)
class Situation:
    """What decides which entries fit."""

    device: Device
    bound: str
    """As a preparation names it."""
    allowed: PrecisionClass
    """The least precise class that the tolerance allows."""
    operands: Operands = Operands.WIDE
    dialect: Dialect = Dialect.CUDA

    @property
    def bottleneck(self) -> Bottleneck:
        return bottleneck_of(self.bound)


def optimisations(here: Situation, rates: Iterable[CategoryRate]) -> str:
    """The entries that fit, a line each, by category; those of the categories that gain most often come first.

    ``rates``: of sessions on devices of this kind; those of other bottlenecks are left out.
    """
    known = {rate.category: rate for rate in rates if rate.bottleneck and bottleneck_of(rate.bottleneck) is here.bottleneck}
    fitting = [entry for entry in _ENTRIES if _fits(entry, here)]
    lines: list[str] = []
    for category in sorted(CATEGORIES, key=lambda name: -_share(known.get(name))):
        texts = dict.fromkeys(text for entry in fitting if entry.category == category if (text := _text(entry, here)))
        if texts:
            lines.append(f"- {category}{_words(known.get(category))}: {'; '.join(texts)}")
    return "\n".join(lines)


def _text(entry: _Option, here: Situation) -> str:
    python = here.dialect in (Dialect.TRITON, Dialect.PYTHON)
    return entry.text if entry.triton is None or not python else entry.triton


def _fits(entry: _Option, here: Situation) -> bool:
    device = here.device
    if entry.kind != device.kind or here.bottleneck not in entry.bottlenecks or here.operands not in entry.operands:
        return False
    if entry.allowed and here.allowed not in entry.allowed:
        return False
    if entry.feature and entry.feature not in device.features:
        return False
    found = capability(device) or 0
    return found >= entry.least and (not entry.only or found in entry.only)


def _share(rate: CategoryRate | None) -> float:
    """The estimated share of ideas that gain, shrunk towards one half by two ideas."""
    return (rate.gained + 1) / (rate.tried + 2) if rate is not None else 0.5


def _words(rate: CategoryRate | None) -> str:
    if rate is None or rate.tried < _FEWEST:
        return ""
    return f" ({rate.gained} of {rate.tried} recorded ideas beat their parent; geometric mean {math.exp(rate.gain):.2f}x)"
