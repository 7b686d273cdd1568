"""A measured kernel as a file that works without this tool: an importable KernelBench module. Pure: values in, text out.

Knows how such a module is put together: the reference's model, the kernel's source and header as text, a compilation when it is
imported, and a forward that hands tensors over. Compiles and runs nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass

from engine.build import plan as launch_plan
from engine.build import resolution
from engine.build.source import KernelSource
from engine.domain.errors import ProblemError
from engine.domain.model import Contract, Device, Dialect, Number, Problem, Role, Signature, Workload
from engine.problem import header
from engine.problem import source as reference
from engine.report.plan_host import ENTRY, launcher

_CPP = ["g++", "-std=c++20", "-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-fPIC", "-shared"]
_CUDA = ["nvcc", "-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC", "-cudart", "static"]


@dataclass(frozen=True, slots=True)
class Exported:
    """What a module is made from."""

    problem: Problem
    workload: Workload
    signature: Signature
    device: Device
    kernel: KernelSource
    tunables: Mapping[str, int]
    remarks: tuple[str, ...]
    """Lines about what it is and what was measured; they become comments."""


def module(given: Exported) -> str:
    """The text of the module. Raises SourceError or ProblemError for a kernel that cannot be told apart from its session."""
    head = "".join(f"# {' '.join(remark.split())}\n" for remark in given.remarks)
    if given.kernel.dialect is Dialect.PYTHON:
        return head + _with_values(given.kernel.text, given.tunables)
    tree = reference.with_settings(reference.parse(given.problem.reference, given.problem.name), given.workload.settings)
    parts = {
        "head": head,
        "reference": ast.unparse(tree),
        "source": _literal(_source_text(given)),
        "header": _literal(header.render(given.signature, given.kernel.dialect, given.workload.name)),
        "file": "kernel.cu" if given.kernel.dialect is Dialect.CUDA else "kernel.cpp",
        "command": repr(_command(given)),
        "operands": _operands(given.signature),
        "call": _PLAN_CALL if given.kernel.contract is Contract.PLAN else _HOST_CALL,
        "workspace": str(_resolved(given).workspace_bytes) if given.kernel.contract is Contract.PLAN else "None",
        "entry": ENTRY,
        "stream": _STREAM if given.kernel.dialect is Dialect.CUDA else "",
    }
    return re.sub(r"@(\w+)@", lambda match: parts[match.group(1)], _MODULE)


def _command(given: Exported) -> list[str]:
    defines = [f"-D{name}={value}" for name, value in given.tunables.items()]
    if given.kernel.dialect is Dialect.CPP:
        return [*_CPP, *defines]
    number = given.device.arch.removeprefix("sm_")
    return [*_CUDA, f"-gencode=arch=compute_{number},code=sm_{number}", *defines, "-ldl"]


def _source_text(given: Exported) -> str:
    if given.kernel.contract is not Contract.PLAN:
        return given.kernel.text
    names = [operand.name for operand in given.signature.operands]
    return given.kernel.text.rstrip() + "\n" + launcher(_resolved(given), names)


def _resolved(given: Exported) -> resolution.ResolvedPlan:
    names: dict[str, Number] = {**header.plan_names(given.signature, given.device.units), **given.tunables}
    return resolution.resolve(launch_plan.parse_plan(given.kernel.text), names, given.signature.operands)


def _operands(signature: Signature) -> str:
    rows = [f"    ({o.name!r}, {o.role.value!r}, {o.shape!r}, torch.{o.dtype})," for o in signature.operands]
    if not signature.of(Role.OUTPUT):
        raise ProblemError("the problem has no output: there is nothing to export")
    return "\n".join(rows)


def _literal(text: str) -> str:
    """A raw string that reads as it is written where the text allows it."""
    if "'''" not in text and not text.endswith(("\\", "'")) and "\r" not in text:
        return f"r'''{text}'''"
    return repr(text)


def _with_values(text: str, chosen: Mapping[str, int]) -> str:
    """A python kernel with its tunables assigned before anything else is executed."""
    if not chosen:
        return text
    lines = text.splitlines(keepends=True)
    after = 0
    for place, statement in enumerate(ast.parse(text).body):
        docstring = place == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if docstring or future:
            after = statement.end_lineno or after
    values = "".join(f"{name} = {value}\n" for name, value in chosen.items())
    return "".join([*lines[:after], values, *lines[after:]])


_STREAM = """
    arguments.append(ctypes.c_void_p(torch.cuda.current_stream(tensors[0].device).cuda_stream))"""

_HOST_CALL = """\
    _library.launch.restype = None
    _library.launch(*arguments)"""

_PLAN_CALL = """\
    pointers = (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
    _library.@entry@.restype = ctypes.c_char_p
    trouble = _library.@entry@(pointers, *arguments[len(tensors):])
    if trouble:
        raise RuntimeError(f"the kernel could not be launched: {trouble.decode()}")""".replace("@entry@", ENTRY)

_MODULE = '''\
@head@# The kernel is compiled when this module is imported. It is made for the shapes listed in OPERANDS and refuses others;
# numbers that forward takes are compiled in.

@reference@


import ctypes
import inspect
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

KERNEL = @source@

PROBLEM_H = @header@

COMMAND = @command@

OPERANDS = [
@operands@
]

WORKSPACE_BYTES = @workspace@


def _compiler(name):
    places = [os.environ.get("PATH", os.defpath), os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin")]
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        raise RuntimeError(f"{name} is missing, and this kernel is compiled with it")
    return found


def _build():
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "@file@").write_text(KERNEL)
        (place / "problem.h").write_text(PROBLEM_H)
        command = [_compiler(COMMAND[0]), *COMMAND[1:], "-o", "kernel.so", "@file@"]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{COMMAND[0]} refused the kernel:\\n{done.stderr[-2000:]}")
        return ctypes.CDLL(str(place / "kernel.so"))


_library = _build()


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [tensor for inner in value for tensor in _tensors(inner)] if isinstance(value, (list, tuple)) else []


def _held(model):
    found = [*model.parameters(), *model.buffers()]
    for part in model.modules():
        found += [value for value in vars(part).values() if isinstance(value, torch.Tensor)]
    return found


def _checked(given):
    wanted = [operand for operand in OPERANDS if operand[1] != "output"]
    if len(given) != len(wanted):
        raise ValueError(f"{len(given)} tensors were given, {len(wanted)} are needed")
    for tensor, (name, _, shape, dtype) in zip(given, wanted):
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, the kernel is made for {dtype} {shape}")
    return [tensor.detach().contiguous() for tensor in given]


def _workspace_bytes():
    if WORKSPACE_BYTES is not None:
        return WORKSPACE_BYTES
    if not hasattr(_library, "workspace_bytes"):
        return 0
    _library.workspace_bytes.restype = ctypes.c_size_t
    return _library.workspace_bytes()


def _call(given, device):
    outputs = [torch.empty(shape, dtype=dtype, device=device) for _, role, shape, dtype in OPERANDS if role == "output"]
    tensors = [*_checked(given), *outputs]
    workspace = torch.empty(max(_workspace_bytes(), 1), dtype=torch.uint8, device=device)
    arguments = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (*tensors, workspace)]@stream@
@call@
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


class ModelNew(Model):
    """The reference's model, with the kernel in place of its forward."""

    def forward(self, *arguments, **named):
        bound = inspect.signature(Model.forward).bind(self, *arguments, **named)
        given = [*_tensors(list(bound.arguments.values())[1:]), *_held(self)]
        return _call(given, given[0].device)
'''
