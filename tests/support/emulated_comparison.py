"""The kernels of ``comparison.cu`` on a CPU: compiled by g++ with the emulator, for tensors of the CPU."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch
from support import emulated_gpu

from engine.trial.judge.outputs.fused_comparison import SOURCE, THREADS, ComparisonVariant, blocks_for

_ENTRIES = f"""
extern "C" void run_moments(int blocks, const OUTPUT* output, const EXPECTED* expected, Count count, double, Moments* rows)
{{
    emu::launch(blocks, {THREADS}, 1, [=] {{ moments(output, expected, count, rows); }});
}}
extern "C" void run_errors(int blocks, const OUTPUT* output, const EXPECTED* expected, Count count, double unit, Errors* rows)
{{
    emu::launch(blocks, {THREADS}, 1, [=] {{ errors(output, expected, count, unit, rows); }});
}}
extern "C" void run_unlike(int blocks, const OUTPUT* output, const EXPECTED* expected, Count count, double, Unlike* rows)
{{
    emu::launch(blocks, {THREADS}, 1, [=] {{ unlike(output, expected, count, rows); }});
}}
"""
_POINTER = ctypes.c_void_p
_ARGUMENTS = (ctypes.c_int, _POINTER, _POINTER, ctypes.c_ulonglong, ctypes.c_double, _POINTER)


class EmulatedComparison:
    """In place of ``fused_comparison.KERNELS``; at most two blocks run, so that a thread goes around more than once."""

    device_type = "cpu"

    def __init__(self, folder: Path, *, most_blocks: int = 2) -> None:
        """``folder``: for its files."""
        self.launched: list[tuple[str, ComparisonVariant]] = []
        self._folder, self._most_blocks = folder, most_blocks
        self._libraries: dict[ComparisonVariant, ctypes.CDLL] = {}

    def ready(self, variant: ComparisonVariant, device: torch.device, names: Sequence[str]) -> bool:
        if variant not in self._libraries:
            place = self._folder / str(len(self._libraries))
            place.mkdir()
            (place / "kernel.cpp").write_text(emulated_gpu.translated(SOURCE.read_text()) + _ENTRIES)
            command = ["g++", "-O1", "-std=c++17", "-w", "-shared", "-fPIC", f"-I{Path(emulated_gpu.__file__).parent}"]
            command += ["-include", "emulator.h", *variant.macros(), "-o", "kernel.so", "kernel.cpp"]
            subprocess.run(command, cwd=place, check=True)
            self._libraries[variant] = ctypes.CDLL(str(place / "kernel.so"))
        return True

    def launch(
        self, name: str, variant: ComparisonVariant, output: torch.Tensor, expected: torch.Tensor, unit: float
    ) -> torch.Tensor:
        self.launched.append((name, variant))
        blocks = blocks_for(expected.numel(), self._most_blocks)
        rows = torch.full((blocks, 3), float("nan"), dtype=torch.float64)
        run = getattr(self._libraries[variant], f"run_{name}")
        run.argtypes, run.restype = _ARGUMENTS, None
        run(blocks, output.data_ptr(), expected.data_ptr(), expected.numel(), unit, rows.data_ptr())
        return rows
