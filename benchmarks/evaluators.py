"""Seconds to a verdict beside KernelBench's own evaluator: ``python -m benchmarks.evaluators KernelBench --device cuda:0``.

KernelBench is a checkout. Each kernel that its prompts show is judged by its evaluator (five correctness trials and 100 timed
calls, the defaults of its scripts) and by ``espalier eval``, one after the other. Each runs in a process of its own, and each
compiles the kernel: the evaluator in an empty build folder, Espalier with an empty cache. What an installation pays once
(torch's bytecode, the device's ceilings) is paid before, by judging a kernel that does not count.

Prints both verdicts, both times and their ratio. The evaluator needs KernelBench's requirements; its clients of model servers
may be missing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PROMPTS = Path("src", "kernelbench", "prompts")
_REFERENCES, _KERNELS = "model_ex_", "model_new_ex_"
_BACKENDS = ("triton", "cute", "tilelang", "thunderkittens", "hip")
_EVALUATE = """
import json, sys, types
from pathlib import Path
for name, attribute in (("openai", "OpenAI"), ("litellm", "completion")):
    try:
        __import__(name)
    except ImportError:
        sys.modules[name] = types.ModuleType(name)
        setattr(sys.modules[name], attribute, None)
import torch
from kernelbench.eval import eval_kernel_against_ref
reference, kernel, backend, build, device = sys.argv[1:]
found = eval_kernel_against_ref(
    Path(reference).read_text(), Path(kernel).read_text(), num_correct_trials=5, num_perf_trials=100, measure_performance=True,
    build_dir=build, backend=backend, device=torch.device(device),
)
print(json.dumps({"status": "correct" if found.correctness else "wrong" if found.compiled else "build_failed"}))
"""
_WARM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

class ModelNew(Model):
    pass

def get_inputs():
    return [torch.randn(1024, 1024)]

def get_init_inputs():
    return []
"""
_FAILED = "failed: "
"""How the status of a judge begins that gave no verdict; the reason follows."""
_HEAD = f"{'kernel':24}{'evaluator':>16}{'seconds':>9}{'espalier':>18}{'seconds':>9}{'ratio':>8}"


@dataclass(frozen=True, slots=True)
class Pair:
    """A kernel of the prompts and its reference."""

    name: str
    reference: Path
    kernel: Path
    backend: str


@dataclass(frozen=True, slots=True)
class Timed:
    """A verdict, and the seconds from the start of its process to its end."""

    status: str
    seconds: float


def pairs(checkout: Path) -> Iterator[Pair]:
    """The kernels that the prompts show and whose reference is there, by name."""
    prompts = checkout / _PROMPTS
    for kernel in sorted(prompts.rglob(f"{_KERNELS}*.py")):
        name = kernel.stem.removeprefix(_KERNELS)
        backend = next((one for one in _BACKENDS if name.endswith(f"_{one}")), "cuda")
        stem = name.removesuffix(f"_{backend}")
        found = (kernel.with_name(f"{_REFERENCES}{one}.py") for one in (name, stem))
        reference = next((path for path in found if path.is_file() and path.stat().st_size), None)
        if reference is not None and kernel.stat().st_size:
            yield Pair(str(kernel.relative_to(prompts).with_suffix("")).replace(_KERNELS, ""), reference, kernel, backend)


def evaluated(pair: Pair, checkout: Path, device: str, limit: float) -> Timed:
    """The verdict of KernelBench's evaluator."""
    path = os.pathsep.join([str((checkout / "src").resolve()), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    with tempfile.TemporaryDirectory() as build:
        command = [sys.executable, "-c", _EVALUATE, str(pair.reference), str(pair.kernel), pair.backend, build, device]
        return _timed(command, {"PYTHONPATH": path}, limit)


def judged(pair: Pair, device: str, regime: str, limit: float, environment: Mapping[str, str]) -> Timed:
    """The verdict of ``espalier eval``."""
    command = ["eval", str(pair.reference), str(pair.kernel), "--device", device, "--regime", regime, "--json"]
    return _timed([sys.executable, "-m", "espalier", *command], environment, limit)


def _timed(command: Sequence[str], environment: Mapping[str, str], limit: float) -> Timed:
    began = time.monotonic()
    try:
        ended = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return Timed("time_limit", limit)
    seconds = time.monotonic() - began
    start = max(ended.stdout.rfind("\n{"), 0)
    try:
        return Timed(str(json.loads(ended.stdout[start:])["status"]), seconds)
    except (ValueError, KeyError):
        last = [line for line in ended.stderr.splitlines() if line.strip()][-1:]
        return Timed(f"{_FAILED}{last[0] if last else f'exit status {ended.returncode}'}", seconds)


def main(arguments: Sequence[str]) -> int:
    """Command line. Exit status 2 if the checkout has no prompts."""
    options = _options(arguments)
    chosen = [pair for pair in pairs(options.checkout) if not options.only or pair.name in options.only.split(",")]
    if not chosen:
        print(f"evaluators: {options.checkout / _PROMPTS} has no chosen kernel with its reference", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        environment = {"ESPALIER_CACHE": str(Path(folder, "cache"))}
        warm = Path(folder, "warm.py")
        warm.write_text(_WARM)
        first = judged(Pair("", warm, warm, ""), options.device, options.regime, options.limit, environment)
        print(f"the first verdict of an installation, on a small ReLU: {first.status}, {first.seconds:.1f} s")
        print(_HEAD, flush=True)
        for pair in chosen:
            theirs = evaluated(pair, options.checkout, options.device, options.limit)
            ours = judged(pair, options.device, options.regime, options.limit, environment)
            print(_row(pair, theirs, ours), flush=True)
    return 0


def _row(pair: Pair, theirs: Timed, ours: Timed) -> str:
    whys = [one.status.removeprefix(_FAILED) for one in (theirs, ours) if one.status.startswith(_FAILED)]
    ratio = "-" if whys else f"{ours.seconds / theirs.seconds:.2f}"
    cells = f"{theirs.status[:15]:>16}{theirs.seconds:>9.1f}{ours.status[:17]:>18}{ours.seconds:>9.1f}{ratio:>8}"
    return "  ".join([f"{pair.name:24}{cells}", *whys])


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evaluators", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="a checkout of KernelBench")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--only", default="", help="names of the first column, comma separated")
    parser.add_argument("--regime", default="single", help="single, as the evaluator times; or auto. Default: single")
    parser.add_argument("--limit", type=float, default=180.0, metavar="S", help="seconds for a verdict. Default: 180")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
