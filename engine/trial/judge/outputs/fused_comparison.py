"""Moments and errors of large tensors on a GPU, and where they are not finite, by ``comparison.cu``. Imports torch.

Each takes one pass. In blocks, a comparison costs a dozen launches for every 4 million elements, which take longer than reading
them. The kernels are compiled in the judge's process, for the types at hand. Where that fails, or the tensors do not qualify,
blocks do the work.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from engine.domain.errors import DeviceError
from engine.domain.model import Device, Operand
from engine.trial.judge.outputs.blocks import Moments
from engine.trial.shared.cuda import driver as cuda
from engine.trial.shared.cuda import nvrtc
from engine.trial.shared.cuda.packing import pack_config, pack_parameters

LEAST = 1 << 25
"""Elements from which on the kernels are used. Compiling them takes as long as the launches of some 3000 blocks, and a trial
compares about 60 times: with fewer than 8 blocks in a tensor, a session of a few kernels would not gain it back."""
SOURCE = Path(__file__).with_name("comparison.cu")
THREADS, TILE, BLOCKS_PER_UNIT = 256, 8, 4
"""As in ``comparison.cu``."""
_TYPES = {torch.float64: "double", torch.float32: "float", torch.float16: "Half", torch.bfloat16: "Bfloat"}
_ROUNDED_AT_ONCE = 1 << 24
"""Elements that are rounded before they are compared: they need memory of their own."""
_NUMBERS = 3
"""In a row of results."""
_NAMES = ("moments", "errors", "unlike")
"""The kernels, in the order of the source's ``ONLY``."""
_COMPILED_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class ComparisonVariant:
    """What the kernels are compiled for: two types, and what is compared of them."""

    output: torch.dtype
    expected: torch.dtype
    finite: bool
    """Whether only elements count that are finite in both."""
    to_float: bool = False
    """Whether the expected elements, rounded to float32, stand for the output's."""

    def macros(self, name: str | None = None) -> list[str]:
        """The macros of ``comparison.cu``, as options of a compiler. ``name``: of the only kernel that is wanted."""
        only = [f"-DONLY={1 + _NAMES.index(name)}"] if name is not None else []
        return [
            f"-DOUTPUT={_TYPES[self.output]}", f"-DEXPECTED={_TYPES[self.expected]}", f"-DFINITE_ONLY={int(self.finite)}",
            f"-DTO_FLOAT={int(self.to_float)}", *only,
        ]  # fmt: skip


class Kernels(Protocol):
    """The compiled kernels of ``comparison.cu``."""

    device_type: str
    """Of the tensors that they read."""

    def ready(self, variant: ComparisonVariant, device: torch.device, names: Sequence[str]) -> bool:
        """Whether these kernels of this variant can be launched there."""

    def launch(
        self, name: str, variant: ComparisonVariant, output: torch.Tensor, expected: torch.Tensor, unit: float
    ) -> torch.Tensor:
        """Enqueues ``moments``, ``errors`` (which reads ``unit``) or ``unlike`` of flat tensors: a row for each block."""


Compiler = Callable[[str, Sequence[str]], bytes]
"""Makes machine code of CUDA C++ and options. Raises :class:`DeviceError`."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    context: Any
    function: int
    most_blocks: int


_Key = tuple[int, ComparisonVariant, str]
"""The index of a device, a variant, and the name of a kernel."""


class DeviceKernels:
    """The kernels on GPUs, each compiled for a variant at its first use."""

    device_type = "cuda"

    def __init__(self, compiler: Compiler = nvrtc.compiled) -> None:
        self._compiler = compiler
        self._compiling: dict[_Key, Future[bytes]] = {}
        self._loaded: dict[_Key, _Loaded | None] = {}
        self.missing = ""
        """Why one cannot be launched; empty if all could be."""

    def compile_ahead(self, outputs: Iterable[torch.dtype], index: int) -> None:
        """Start compiling, in threads, what compares such outputs with float64, what is needed first first.

        Each takes a tenth of a second, and NVRTC compiles few at a time. ``ready`` waits for those, and says what failed.
        """
        wanted = [(index, *one) for dtype in outputs if dtype in _TYPES for one in _usual(dtype)]
        new = [key for key in dict.fromkeys(wanted) if key not in {*self._compiling, *self._loaded}]
        if new:
            threads = ThreadPoolExecutor(_COMPILED_AT_ONCE, "compiler")
            self._compiling |= {key: threads.submit(self._compiled, *key) for key in new}
            threads.shutdown(wait=False)

    def ready(self, variant: ComparisonVariant, device: torch.device, names: Sequence[str]) -> bool:
        return all(self._is_loaded((device.index, variant, name)) for name in names)

    def _is_loaded(self, key: _Key) -> bool:
        if key not in self._loaded:
            self._loaded[key] = None
            try:
                self._loaded[key] = self._load(*key)
            except DeviceError as error:
                self.missing = str(error)
        return self._loaded[key] is not None

    def _compiled(self, index: int, variant: ComparisonVariant, name: str) -> bytes:
        context = cuda.Context.open(index)
        major, minor = (context.attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
        options = [f"-arch=sm_{major}{minor}", "-std=c++17", *variant.macros(name)]
        return self._compiler(SOURCE.read_text(encoding="utf-8"), options)

    def _load(self, index: int, variant: ComparisonVariant, name: str) -> _Loaded:
        context, driver = cuda.Context.open(index), cuda.bindings()
        begun = self._compiling.pop((index, variant, name), None)
        image = begun.result() if begun is not None else self._compiled(index, variant, name)
        module = cuda.check(driver.cuModuleLoadData(image), f"loading {SOURCE.name}")
        function = int(cuda.check(driver.cuModuleGetFunction(module, name.encode()), f"looking up {name}"))
        handle = cuda.check(driver.cuCtxGetCurrent(), f"reading the context of cuda:{index}")
        return _Loaded(handle, function, BLOCKS_PER_UNIT * context.attribute("MULTIPROCESSOR_COUNT"))

    def launch(
        self, name: str, variant: ComparisonVariant, output: torch.Tensor, expected: torch.Tensor, unit: float
    ) -> torch.Tensor:
        """Raises :class:`DeviceError` if the launch fails."""
        loaded, device = self._loaded[output.device.index, variant, name], output.device
        assert loaded is not None, "launch what is ready"
        blocks = blocks_for(expected.numel(), loaded.most_blocks)
        with torch.cuda.device(device):
            rows = torch.empty((blocks, _NUMBERS), dtype=torch.float64, device=device)
            numbers = [struct.pack("<d", unit)] if name == "errors" else []
            values: list[int | bytes] = [output.data_ptr(), expected.data_ptr(), expected.numel(), *numbers, rows.data_ptr()]
            config = pack_config((blocks, 1, 1), (THREADS, 1, 1), 0, torch.cuda.current_stream(device).cuda_stream)
            parameters = pack_parameters(values)
            cuda.check(cuda.bindings().cuCtxSetCurrent(loaded.context), f"entering the context of {device}")
            code = cuda.native().cuLaunchKernelEx(
                ctypes.byref(config.config), ctypes.c_void_p(loaded.function), parameters.table, None
            )
        if code:
            raise DeviceError(f"launching {name} of {SOURCE.name} failed: {cuda.explain(code)}")
        return rows


def blocks_for(count: int, most: int) -> int:
    """Blocks of a launch on ``count`` elements."""
    return max(1, min(most, -(-count // (THREADS * TILE))))


def _usual(output: torch.dtype) -> Iterator[tuple[ComparisonVariant, str]]:
    """What every large output of this type is compared with, in the order of use: its moments in float64, its errors, the
    reference's in half precision, those of rounding, and, on special values, what is not finite alike and the errors of the
    rest."""
    exact = torch.float64
    yield ComparisonVariant(exact, exact, finite=False), "moments"
    yield ComparisonVariant(output, exact, finite=False), "errors"
    if output is torch.float32:
        yield ComparisonVariant(torch.bfloat16, exact, finite=False), "errors"
        rounding = ComparisonVariant(exact, exact, finite=True, to_float=True)
        yield from ((rounding, "moments"), (rounding, "errors"))
    yield ComparisonVariant(output, exact, finite=False), "unlike"
    finite = ComparisonVariant(output, exact, finite=True)
    yield from ((finite, "moments"), (finite, "errors"))


_ON_DEVICES = DeviceKernels()
KERNELS: Kernels = _ON_DEVICES


def compile_ahead(outputs: Sequence[Operand], device: Device) -> None:
    """Start compiling what outputs of a problem will be compared with, where they are large and on a GPU."""
    if device.kind == "cuda":
        large = [getattr(torch, one.dtype) for one in outputs if math.prod(one.shape) >= LEAST]
        _ON_DEVICES.compile_ahead(large, device.index)


@dataclass(frozen=True, slots=True)
class FusedPair:
    """An output and the expected one, which the kernels can read."""

    output: torch.Tensor
    expected: torch.Tensor
    finite: bool
    rounded: torch.dtype | None

    @property
    def variant(self) -> ComparisonVariant:
        output = self.output.dtype if self._rounds_in_kernel else self.rounded or self.output.dtype
        return ComparisonVariant(output, self.expected.dtype, self.finite, self._rounds_in_kernel)

    @property
    def _rounds_in_kernel(self) -> bool:
        return self.rounded is torch.float32

    def moments(self) -> Moments:
        """The moments of the expected elements."""
        counts, means, squares = self._rows("moments").unbind(1)
        total = counts.sum()
        if not total:
            return Moments()
        mean = (counts * means).sum() / total
        variance = (squares + counts * (means - mean) ** 2).sum() / total
        square = (squares + counts * means**2).sum() / total
        return Moments(int(total), float(mean), float(square), float(variance))

    def errors(self, unit: float) -> torch.Tensor:
        """Rows of sums of squared errors, largest errors, and largest errors ÷ (|expected| + ``unit``)."""
        return self._rows("errors", unit)

    def unlike(self) -> tuple[int, int, int]:
        """How many elements are finite in the output only, how many in the expected one only, and how many differ
        among those that are not finite in both."""
        hidden, exposed, different = self._rows("unlike").sum(0).tolist()
        return int(hidden), int(exposed), int(different)

    def _rows(self, name: str, unit: float = 0.0) -> torch.Tensor:
        return torch.cat([KERNELS.launch(name, self.variant, mine, right, unit) for mine, right in self._pieces()]).cpu()

    def _pieces(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        mine, right = self.output.view(-1), self.expected.view(-1)
        if self.rounded is None or self._rounds_in_kernel:
            yield mine, right
            return
        for start in range(0, max(1, right.numel()), _ROUNDED_AT_ONCE):
            here, wide = (flat[start : start + _ROUNDED_AT_ONCE] for flat in (mine, right))
            yield torch.where(torch.isfinite(here), wide.to(self.rounded), math.nan), wide


def fused_pair(
    output: torch.Tensor, expected: torch.Tensor, *names: str, finite: bool = False, rounded: torch.dtype | None = None
) -> FusedPair | None:
    """The pair, if the kernels of these ``names`` can read it. ``finite``: only elements that are finite in both count.

    ``rounded``: not the output's elements are compared, but the expected ones rounded to this type, where the output is finite.
    To float32 the kernels round.
    """
    if expected.numel() < LEAST or not (_is_plain(output) and _is_plain(expected) and output.device == expected.device):
        return None
    pair = FusedPair(output, expected, finite, rounded)
    return pair if pair.variant.output in _TYPES and KERNELS.ready(pair.variant, output.device, names) else None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements lie one after the other, on a device of the kernels, in a type they know."""
    on_device = tensor.device.type == KERNELS.device_type
    return on_device and tensor.dtype in _TYPES and tensor.is_contiguous() and not tensor.is_neg()
