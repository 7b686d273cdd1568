"""What a suite costs beside one workload: ``python benchmarks/suite_cost.py --device cpu``.

Softmax on 16 small shapes, with one kernel of the playbook. Preparation, build, verification and measurement are timed on the
middle shape alone and on the suite, in the same run, and the ratios are printed. A suite's verdict shares its processes and
takes fewer samples on each workload; the aim is at most four times one workload's verdict.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from pathlib import Path

from engine.domain.model import Problem
from engine.problem import catalog
from engine.session.seeds import kernel_spec, seed_of
from engine.session.workbench import open_workbench
from engine.toolchain.kernel_file import read_kernel_file
from engine.trial.bench import Assignment

_SHAPES = (
    (1, 50257), (4, 32000), (2, 131072), (8, 2048), (16, 4096), (8, 8192), (64, 512), (32, 1024), (256, 256), (512, 128),
    (100, 1000), (256, 64), (512, 32), (2048, 8), (1024, 16), (3, 16385),
)  # fmt: skip
_MIDDLE = 6
_KERNELS = {"cpu": "online.cpp", "cuda": "online.cu"}
_AIM = 4.0


def problem_in(folder: Path) -> Problem:
    """Softmax with a suite of the small shapes."""
    shutil.copy(catalog.problems_root() / "softmax" / "reference.py", folder)
    tables = [f"[workloads.s{n}]\nbatch_size = {rows}\ndim = {width}\n" for n, (rows, width) in enumerate(_SHAPES)]
    members = ", ".join(f'"s{n}"' for n in range(len(_SHAPES)))
    (folder / "problem.toml").write_text("\n".join([*tables, f"[suites]\nsixteen = [{members}]\n"]))
    return catalog.find(str(folder))


async def seconds(found: Problem, device: str, suite: str) -> dict[str, float]:
    """Seconds of each stage of one verdict, with nothing prepared."""
    kernel = read_kernel_file(catalog.problems_root() / "softmax" / "playbook" / _KERNELS[device.partition(":")[0]])
    seed = seed_of(kernel, {})
    first, *rest = catalog.workloads_for(found, "", suite, f"s{_MIDDLE}")
    began = time.monotonic()
    assignment = Assignment(found, first, device, fresh=True, rest=tuple(rest), suite=suite)
    async with open_workbench(assignment, lambda _: None, accept_unverifiable=False) as bench:
        await bench.complete_preparation()
        stages = {"preparation": time.monotonic() - began}
        tried = await bench.attempt(kernel_spec(seed.kernel, seed.tunables))
    if tried.measurement is None:
        raise SystemExit(f"the kernel was not measured: {tried.final}")
    return stages | {"build": tried.build_s, "verification": tried.verify_s or 0.0, "measurement": tried.measure_s or 0.0}


def main() -> None:
    """Print each stage on one workload and on the suite, with their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    with tempfile.TemporaryDirectory() as folder:
        found = problem_in(Path(folder))
        one = asyncio.run(seconds(found, device, ""))
        many = asyncio.run(seconds(found, device, "sixteen"))
    for stage, alone in one.items():
        print(f"{stage:13} {alone:7.2f} s  suite {many[stage]:7.2f} s  ratio {many[stage] / max(alone, 1e-3):5.2f}")
    verdicts = [sum(found.values()) - found["preparation"] for found in (one, many)]
    print(f"verdict, prepared {verdicts[1] / verdicts[0]:.2f}; first verdict {sum(many.values()) / sum(one.values()):.2f}; "
          f"aim {_AIM:.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
