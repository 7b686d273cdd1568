"""A suite session on a problem of another format, with the real compiler and judge: its port runs on every workload."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from problem import format_files as files
from support.program import Call

from engine.cli.exit_codes import DOUBTED

ONE_SHAPE = """#include "problem.h"
static_assert(X_DIM0 == 64, "only 64");
extern "C" void launch(const x_t* x, const output_t* output, out_t* out, void*) {}
"""
CALLED = """
import sys
sys.path.insert(0, sys.argv[2])
import torch
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("submission", sys.argv[1])
module = module_from_spec(spec)
spec.loader.exec_module(module)
ran = []
plain = module._launch
module._launch = lambda build, given: ran.append(tuple(given[0].shape)) or plain(build, given)
for n in (64, 32, 8):
    x = torch.randn(n, n)
    assert torch.allclose(module.custom_kernel((x, torch.empty_like(x))), x.tanh(), rtol=1e-3, atol=1e-4), n
print(ran)
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_session_on_a_task_s_benchmarks_runs_its_port_on_all_of_them(process: Call, tmp_path: Path) -> None:
    task = files.write_kernelbot(tmp_path / "bot")
    session, submission = tmp_path / "session", tmp_path / "submission.py"
    ran = process(
        "run", task, "--headless", "--device", "cpu", "--suite", "benchmarks", "--rounds", "1", "--session", session,
        "--strategy", "branching",
    )  # fmt: skip
    assert ran.status in (0, 1, DOUBTED), ran.err
    assert "k1 verified" in ran.out + ran.err
    written = process("export", session, "--format", "kernelbot", "--kernel", "k1", "-o", submission)
    assert written.status in (0, DOUBTED), written.err
    called = subprocess.run(
        [sys.executable, "-c", CALLED, str(submission), str(task.parent)], capture_output=True, text=True, check=False
    )
    assert called.returncode == 0, called.stderr
    assert "(64, 64)" in called.stdout
    assert "(32, 32)" in called.stdout


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_kernel_that_does_not_build_for_every_workload_is_no_submission(process: Call, tmp_path: Path) -> None:
    task = files.write_kernelbot(tmp_path / "bot")
    session, kernel = tmp_path / "session", tmp_path / "one.cpp"
    kernel.write_text(ONE_SHAPE)
    process(
        "run", task, "--headless", "--device", "cpu", "--suite", "benchmarks", "--rounds", "1", "--session", session,
        "--seed-kernel", kernel,
    )  # fmt: skip
    rows = process("kernel", "list", session, "--json").json()["kernels"]
    seeded = next(row["kernel"] for row in rows if row["seed"])
    for kind in ("kernelbot", "kernelbench"):
        refused = process("export", session, "--format", kind, "--kernel", seeded, "-o", tmp_path / "out.py")
        assert refused.status == 2
        assert refused.err.count("\n") == 1
        assert f"{seeded} does not build: for workload benchmark2" in refused.err
    assert not (tmp_path / "out.py").exists()


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["cpp", "cuda", "triton"])
def test_a_scaffold_for_a_suite_names_its_sizes(process: Call, tmp_path: Path, dialect: str) -> None:
    task = files.write_kernelbot(tmp_path / "bot")
    written = process("scaffold", task, "--suite", "benchmarks", "--dialect", dialect)
    assert written.status == 0, written.err
    assert "X_DIM0 == 64" in written.out
    assert "X_DIM0 == 32" in written.out
    refused = process("scaffold", task, "--suite", "benchmarks", "--workload", "test1")
    assert "--suite and --workload exclude each other" in refused.error_line()
