"""Runs Triton plans in Triton's interpreter, on the CPU, exactly as they are launched on a GPU.

The interpreter must be chosen before Triton is imported, so ``run_plans`` runs all of them in one process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.domain.model import Dialect, Number, Signature
from engine.problem import header
from engine.toolchain import resolution
from engine.toolchain.resolution import OperandArg, ScalarArg, WorkspaceArg
from engine.toolchain.triton.plan import parse_triton_plan
from engine.toolchain.triton.resolution import ResolvedTriton, resolve_triton
from engine.toolchain.tunables import default_values, parse_requires, parse_tunables, variants

installed = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
UNITS = 132
TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class PlanRun:
    """One plan on its operands, by name; outputs are overwritten."""

    code: str
    resolved: ResolvedTriton
    operands: Mapping[str, Tensor]


def resolved_for(code: str, signature: Signature, chosen: Mapping[str, int] | None = None) -> ResolvedTriton:
    """The plan of a Triton file for these shapes, with its default tunables or those ``chosen``."""
    names: dict[str, Number] = dict(header.plan_names(signature, UNITS))
    if chosen is None:
        tunables = parse_tunables(code, Dialect.TRITON)
        chosen = variants(tunables, parse_requires(code, Dialect.TRITON), names, 1, 0)[0] if tunables else default_values(())
    return resolve_triton(parse_triton_plan(code), {**names, **chosen}, signature.operands)


def run_plans(runs: Mapping[str, PlanRun]) -> dict[str, dict[str, Tensor] | str]:
    """The operands of each plan after one call, or why it could not be called."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        rows = {
            name: (run.code, _jobs(run.resolved), resolution.encode(run.resolved.plan), dict(run.operands))
            for name, run in runs.items()
        }
        torch.save(rows, place / "runs.pt")
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "support.triton_interpreter", folder],
            cwd=TESTS, env={**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        return dict(torch.load(place / "results.pt", weights_only=False))


def _jobs(resolved: ResolvedTriton) -> list[tuple[str, tuple[tuple[str, str], ...], dict[str, Any]]]:
    return [(job.function, job.signature, dict(job.constants)) for job in resolved.jobs]


def _multiply_bf16() -> None:
    """Let the interpreter's products read bfloat16, which it stores as integers."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    plain = interpreter.InterpreterBuilder.create_dot

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    interpreter.InterpreterBuilder.create_dot = lambda self, a, b, *rest: plain(self, widened(a), widened(b), *rest)


def _main(folder: Path) -> None:
    _multiply_bf16()
    rows = torch.load(folder / "runs.pt", weights_only=False)
    results: dict[str, Any] = {}
    for number, (name, (code, jobs, plan, operands)) in enumerate(rows.items()):
        file = folder / f"kernel{number}.py"
        file.write_text(code)
        try:
            _call(file, jobs, resolution.decode(plan), operands)
            results[name] = operands
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"
    torch.save(results, folder / "results.pt")


def _call(file: Path, jobs: Sequence[Any], plan: resolution.ResolvedPlan, operands: dict[str, Tensor]) -> None:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    workspace = torch.full((plan.workspace_bytes + 64,), 0 if plan.workspace_zeroed else 0x7F, dtype=torch.uint8)
    for launch in plan.launches:
        function, signature, constants = jobs[launch.image]
        given = iter(launch.arguments)
        values = dict(constants)
        for name, kind in signature:
            if kind != "constexpr":
                values[name] = _value(next(given), kind, operands, workspace)
        clusters = launch.cluster[0]
        grid = (launch.grid[0] // clusters, launch.grid[1], launch.grid[2])
        found = getattr(module, function)
        while type(found).__name__ == "Autotuner":
            found = found.fn
        found[grid](**values)
    assert bool((workspace[plan.workspace_bytes :] == workspace[-1]).all()), "wrote beyond the workspace"


_TYPES = {"*fp32": torch.float32, "*fp64": torch.float64, "*fp16": torch.float16, "*bf16": torch.bfloat16, "*i64": torch.int64,
          "*i32": torch.int32, "*i16": torch.int16, "*i8": torch.int8, "*u8": torch.uint8, "*i1": torch.bool}  # fmt: skip


def _value(argument: resolution.Argument, kind: str, operands: dict[str, Tensor], workspace: Tensor) -> Any:
    match argument:
        case OperandArg(name):
            return operands[name]
        case WorkspaceArg(offset):
            size = _TYPES[kind].itemsize
            return workspace[offset : offset + (len(workspace) - offset) // size * size].view(_TYPES[kind])
        case ScalarArg(_, value):
            return value
    raise TypeError(argument)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
