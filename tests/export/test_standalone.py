"""References of other formats' problems as code that needs no file beside it."""

from __future__ import annotations

import ast
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from problem import format_files as files

from engine.domain.model import Device
from engine.export import standalone
from engine.problem import catalog

CPU = Device("cpu", 0, "two cores", "x86_64", 2, 1 << 25, 1 << 33, "torch")


def printed(folder: Path, tree: ast.Module) -> str:
    """What a process prints that has nothing beside the code, and calls the model with its inputs."""
    use = "\ninputs = get_inputs()\nprint(tuple(inputs[0].shape), float(Model()(*inputs).sum()))\n"
    (folder / "alone").mkdir()
    (folder / "alone" / "made.py").write_text(ast.unparse(tree) + use)
    done = subprocess.run(
        [sys.executable, "-P", folder / "alone" / "made.py"], capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_files_that_a_task_imports_are_in_it_and_a_cpu_is_named(tmp_path: Path) -> None:
    problem = catalog.find(str(files.write_kernelbot(tmp_path)))
    tree = standalone.reference(problem, problem.workloads[0], CPU, stored=True)
    assert printed(tmp_path, tree).startswith("(8, 8) ")


@pytest.mark.slow
@pytest.mark.parametrize("stored", [True, False])
def test_stored_tensors_of_the_workload_are_in_it_where_they_are_wanted(tmp_path: Path, stored: bool) -> None:
    rows = []
    for m in (1, 2):
        data = struct.pack(f"<{8 * m}f", *[float(m)] * (8 * m))
        files.write_safetensors(tmp_path / "blob" / f"x{m}.safetensors", "x", "F32", [m, 8], data)
        given = {"type": "safetensors", "path": f"blob/x{m}.safetensors", "tensor_key": "x"}
        rows.append(files.workload(m, inputs={"x": given, "factor": {"type": "scalar", "value": 2.0}}))
    problem = catalog.find(str(files.write_flashinfer(tmp_path, None, *rows)))
    tree = standalone.reference(problem, problem.workloads[1], CPU, stored=stored)
    text = ast.unparse(tree)
    assert "espalier_tensors" not in text
    assert ("'x.1'" in text, "'x.0'" in text) == (stored, False)
    if stored:
        assert printed(tmp_path, tree) == f"(2, 8) {2 * 8 * 2.0 * 2.0}\n"
