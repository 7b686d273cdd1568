"""Small problems of other formats, written by hand for the tests."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

SCALE = "import torch\n\n\ndef run(x, factor):\n    return x * factor\n"
GENERATE = (
    "import torch\n\n\ndef make(axes_and_scalars, device):\n"
    "    return {'x': torch.ones(axes_and_scalars['M'], axes_and_scalars['N'], device=device), 'factor': 3.0}\n\n\n"
    "def run(x, factor):\n    return x * factor\n"
)


def definition(**changed: Any) -> dict[str, Any]:
    """A definition with a variable, a constant and an expression axis."""
    return {
        "name": "scale",
        "op_type": "generic",
        "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 8}, "K": {"type": "expr", "expression": "N // 2 + M"}},
        "inputs": {"x": {"shape": ["M", "N"], "dtype": "float32"}, "factor": {"shape": None, "dtype": "float32"}},
        "outputs": {"out": {"shape": ["M", "N"], "dtype": "float32"}},
        "reference": SCALE,
    } | changed


def workload(m: int = 4, **changed: Any) -> dict[str, Any]:
    """A workload of ``definition``."""
    inputs = {"x": {"type": "random"}, "factor": {"type": "scalar", "value": 2.5}}
    return {"uuid": f"id-{m}", "axes": {"M": m}, "inputs": inputs} | changed


def write_sol(folder: Path, written: dict[str, Any] | None = None, *workloads: dict[str, Any]) -> Path:
    """A SOL-ExecBench folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "definition.json").write_text(json.dumps(definition() if written is None else written))
    rows = workloads or (workload(4), workload(16), workload(64))
    (folder / "workload.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def write_flashinfer(root: Path, written: dict[str, Any] | None = None, *workloads: dict[str, Any]) -> Path:
    """A FlashInfer trace set with one definition; its file."""
    found = definition(axes={"M": {"type": "var"}, "N": {"type": "const", "value": 8}}) if written is None else written
    file = root / "definitions" / "generic" / "scale.json"
    rows = root / "workloads" / "generic" / "scale.jsonl"
    for path in (file, rows):
        path.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found))
    lines = [{"definition": "scale", "workload": w, "solution": None, "evaluation": None} for w in workloads or (workload(),)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def write_safetensors(path: Path, name: str, dtype: str, shape: list[int], data: bytes) -> Path:
    """A safetensors file with one tensor."""
    header = json.dumps({name: {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


TASK = """
files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
  - {"name": "task.py", "source": "task.py"}
  - {"name": "utils.py", "source": "../utils.py"}
  - {"name": "reference.py", "source": "reference.py"}
  - {"name": "eval.py", "source": "../eval.py"}
lang: "py"
config: {"main": "eval.py"}
ranking_by: "geom"
tests:
  - {"n": 8, "kind": "flat", "seed": 1}
  - {"n": 16, "kind": "steep", "seed": 2}
benchmarks:
  - {"n": 64, "kind": "steep", "seed": 3}
  - {"n": 32, "seed": 4}
"""
TASK_PY = "import torch\n\ninput_t = tuple[torch.Tensor, torch.Tensor]\noutput_t = torch.Tensor\n"
UTILS_PY = """import torch


def make_match_reference(reference, rtol=1e-5, atol=1e-8):
    def check(data, output):
        good = torch.allclose(output, reference(data), rtol=rtol, atol=atol)
        return good, "" if good else "mismatch"
    return check
"""
REFERENCE_PY = """import torch
from task import input_t, output_t
from utils import make_match_reference


def generate_input(n: int, seed: int, kind: str = "flat") -> input_t:
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    x = torch.randn(n, n, device="cuda", generator=gen)
    if kind == "steep":
        x = x * torch.arange(n, device="cuda")
    return x, torch.empty_like(x)


def ref_kernel(data: input_t) -> output_t:
    x, output = data
    output[...] = torch.tanh(x)
    return output


check_implementation = make_match_reference(ref_kernel, rtol=1e-3, atol=1e-4)
"""
SUBMISSION_PY = """from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    x, output = data
    output[...] = x.tanh()
    return output
"""


def write_kernelbot(root: Path, task: str = TASK, reference: str = REFERENCE_PY, licence: str = "Apache License\n") -> Path:
    """A repository with one kernelbot task; the task's folder."""
    folder = root / "problems" / "smooth"
    folder.mkdir(parents=True, exist_ok=True)
    (root / "LICENSE").write_text(licence)
    (folder.parent / "utils.py").write_text(UTILS_PY)
    for name, text in (("task.yml", task), ("task.py", TASK_PY), ("reference.py", reference), ("submission.py", SUBMISSION_PY)):
        (folder / name).write_text(text)
    return folder
