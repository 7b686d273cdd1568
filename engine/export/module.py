"""A measured kernel as a standalone file: an importable module with an operator, a test and a benchmark.

Joins the reference's model, the kernel's code and header as text, and three templates: ``nested_arguments`` finds the tensors
in arguments, ``kernel_module`` compiles and calls the kernel, ``module_check`` tests and times it. Values in, text out;
compiles and runs nothing.
"""

from __future__ import annotations

import ast
import hashlib
import keyword
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.domain import python_syntax
from engine.domain.errors import ProblemError, printable
from engine.domain.model import Contract, Device, Dialect, Number, Operand, Problem, Role, Signature, Workload
from engine.domain.preparation import CorrectnessCheck
from engine.export import standalone
from engine.export.plan_host import ENTRY, ERROR_REPORTER, TROUBLE, launcher
from engine.export.template import fill, keep_apart, literal, template
from engine.export.triton_host import triton_launcher
from engine.problem import header, names
from engine.problem.files import reference_code as reference
from engine.toolchain import plan as launch_plan
from engine.toolchain import resolution
from engine.toolchain.kernel_build import for_shape
from engine.toolchain.kernel_file import KernelCode
from engine.toolchain.triton.plan import parse_triton_plan
from engine.toolchain.triton.resolution import ResolvedTriton, resolve_triton

_CPP = ["g++", "-std=c++20", "-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-fPIC", "-shared"]
_CUDA = ["nvcc", "-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC", "-cudart", "static"]
_ALLCLOSE = re.compile(r"allclose ([0-9.e+-]+)")
_USAGE = (
    "python {file} --test      compare with the reference in float64 over several seeds; exit status 0 or 1",
    "python {file} --bench     time it interleaved with eager PyTorch; prints the ratio with its 95% interval",
)
_NO_OPERATOR = 'DEVICE = ""\n\nOPERATOR = None\n\nOPERATOR_NAME = ""\n\nPOISON = []\n\n'
"""Replaces ``kernel_module`` for a kernel in Python."""
_NOTE = """\
# The kernel is compiled on its first call and cached in ESPALIER_CACHE or the user's cache folder. The operator accepts only
# the shapes in BUILDS. Numbers that forward takes are compiled in. It has no backward pass.
"""


@dataclass(frozen=True, slots=True)
class Exported:
    """The inputs of a module."""

    problem: Problem
    workload: Workload
    signature: Signature
    device: Device
    kernel: KernelCode
    tunables: Mapping[str, int]
    remarks: tuple[str, ...]
    """Comments about the kernel and its measurements."""
    check: CorrectnessCheck | None = None
    """The tolerance of the module's test. Without one, and for several shapes: ten times the error of eager."""
    file: str = "FILE"
    """The file name in the usage lines."""
    others: tuple[tuple[Workload, Signature], ...] = ()
    """The further workloads of a suite, for which the module is built too."""
    for_format: bool = False
    """Whether it is for another project's harness: that brings the stored tensors, and also calls it with other shapes."""


@dataclass(frozen=True, slots=True)
class _Build:
    """The kernel for one workload: of a dispatch, the member for its shape."""

    workload: Workload
    signature: Signature
    kernel: KernelCode
    tunables: Mapping[str, int]
    device: Device


def module(given: Exported) -> str:
    """The text of the module. Raises KernelCodeError or ProblemError for a kernel that cannot be exported."""
    _check_names(given)
    head = "".join(_comment(" ".join(remark.split())) for remark in given.remarks)
    usage = "".join(_comment(f"    {line.format(file=shlex.quote(given.file))}") for line in _USAGE)
    if given.kernel.dialect is Dialect.PYTHON:
        return head + _python(given, usage)
    tree = _reference(given)
    name, signature = _operator_name(given), schema(given.signature.operands)
    values = _constants(given, tree) | _policy(given) | {"OPERATOR_NAME": repr(name), "SCHEMA": repr(signature)}
    values["REFERENCES"] = _references(given, own=False)
    text = keep_apart(_templates("kernel_module"), set(reference.bound_names(tree)))
    shown = _comment(f"    torch.ops.{name.replace('::', '.')}{signature}")
    return f"{head}{usage}{shown}{_NOTE}\n{ast.unparse(tree)}\n\n\n{fill(text, values)}"


def _templates(*more: str) -> str:
    """The templates of every module, with ``more`` in between."""
    return "\n\n".join(map(template, ("nested_arguments", *more, "module_check")))


def _check_names(given: Exported) -> None:
    """Names that become code: a journal from elsewhere may hold anything. Raises ProblemError."""
    dtypes = [operand.dtype for operand in given.signature.operands]
    for name in (*dtypes, *given.tunables):
        if not re.fullmatch(r"\w+", name, re.ASCII):
            raise ProblemError(f"cannot export: {name[:80]!r} is neither an element type nor a tunable")


def _comment(text: str) -> str:
    """A comment line. The text may come from a stranger's journal: none of it becomes code or changes how the file reads."""
    shown = printable(text).replace("\n", " ")
    return f"# {shown}\n"


def _reference(given: Exported, workload: Workload | None = None) -> ast.Module:
    return standalone.reference(given.problem, workload or given.workload, given.device, stored=not given.for_format)


def _references(given: Exported, *, own: bool) -> str:
    """Each shape's name and the reference's code for it. ``own``: also for the first, whose code the module does not have."""
    shapes = [given.workload, *(workload for workload, _ in given.others)]
    codes = [
        literal(ast.unparse(_reference(given, one)) + "\n") if own or one is not given.workload else "None" for one in shapes
    ]
    rows = [f"    ({one.name!r}, {code})," for one, code in zip(shapes, codes, strict=True)]
    return "[\n" + "\n".join(rows) + "\n]"


def _python(given: Exported, usage: str) -> str:
    """A Python kernel unchanged, followed by its test and benchmark."""
    code = _with_tunables(given.kernel.text, given.tunables).rstrip()
    taken = set(reference.bound_names(reference.parse(code, given.kernel.name)))
    values = {"REFERENCES": _references(given, own=True), "DEVICE": repr(given.device.kind)}
    text = keep_apart(_NO_OPERATOR + _templates(), taken)
    return f"{code}\n\n\n{usage}\n{fill(text, values | _policy(given))}"


def _constants(given: Exported, tree: ast.Module) -> dict[str, str]:
    """Constant of ``kernel_module`` → its value as Python."""
    plan = given.kernel.contract is Contract.PLAN
    cuda = given.kernel.dialect is Dialect.CUDA
    forward = _forward(tree)
    builds = _builds(given)
    texts = list(dict.fromkeys(_source_text(one) for one in builds))
    return {
        "KERNELS": "[\n" + "".join(f"    {literal(text)},\n" for text in texts) + "]",
        "BUILDS": "[\n" + "".join(_build(one, texts, forward) for one in builds) + "]",
        "FILE": repr(f"kernel{given.kernel.dialect.suffix}"),
        "FORWARD": repr(forward),
        "DEVICE": repr(given.device.kind),
        "ANY_SHAPE": repr(given.for_format or len(builds) > 1),
        "PLAN": repr(plan),
        "ENTRY": repr(ENTRY if plan else "launch"),
        "TROUBLE": repr(TROUBLE if cuda and not plan else ""),
    }


def _builds(given: Exported) -> list[_Build]:
    shapes = ((given.workload, given.signature), *given.others)
    return [
        _Build(workload, signature, *for_shape(given.kernel, given.tunables, workload, signature), given.device)
        for workload, signature in shapes
    ]


def _build(one: _Build, texts: Sequence[str], forward: list[str]) -> str:
    rows = {
        "kernel": repr(texts.index(_source_text(one))),
        "header": literal(_header(one)),
        "command": repr(_command(one)),
        "operands": _operands(one.signature),
        "numbers": repr(_numbers(forward, one.signature)),
        "workspace_bytes": repr(_workspace_bytes(one)),
    }
    return "    {\n" + "".join(f"        {name!r}: {value},\n" for name, value in rows.items()) + "    },\n"


def _operator_name(given: Exported) -> str:
    parts = [text for one in _builds(given) for text in (_source_text(one), _header(one), *_command(one))]
    return operator_name(given.problem.name, parts)


def operator_name(problem: str, parts: Sequence[str]) -> str:
    """The problem's name and eight digits of the digest of everything that the operator is compiled from."""
    plain = re.sub(r"\W", "_", problem, flags=re.ASCII).lower().strip("_") or "kernel"
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
    return f"espalier::{f'n{plain}' if plain[0].isdigit() else plain}_{digest}"


def schema(operands: Sequence[Operand]) -> str:
    """The operator's signature in torch's schema language."""
    given = [f"Tensor {_argument(o.name)}" for o in operands if o.role is not Role.OUTPUT]
    outputs = ["Tensor" for o in operands if o.role is Role.OUTPUT]
    returned = ", ".join(outputs)
    return f"({', '.join(given)}) -> {returned if len(outputs) == 1 else f'({returned})'}"


def _argument(operand: str) -> str:
    return f"{operand}_" if keyword.iskeyword(operand) or operand[0] == "_" else operand


def _policy(given: Exported) -> dict[str, str]:
    """The tolerance as the module's test applies it. Calibrated limits hold for one shape."""
    check = given.check
    if check is None or (given.others and not _ALLCLOSE.search(check.policy)):
        return {"POLICY": repr(("ten times the error of eager", None)), "LIMITS": "None"}
    if close := _ALLCLOSE.search(check.policy):
        return {"POLICY": repr((f"{check.policy}; here against float64", float(close[1]))), "LIMITS": "(1.0, 1.0)"}
    return {"POLICY": repr((check.policy, None)), "LIMITS": repr((check.rel_fro_limit, check.max_scaled_limit))}


def _forward(tree: ast.Module) -> list[str]:
    """Names of forward's arguments in the reference."""
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef) and statement.name == "Model":
            for method in statement.body:
                if isinstance(method, ast.FunctionDef) and method.name == "forward":
                    return [a.arg for a in (*method.args.posonlyargs, *method.args.args)][1:]
    return []


def _numbers(forward: list[str], signature: Signature) -> dict[str, Number]:
    """The compiled-in values of forward's numeric arguments, except those whose constant has no plain name."""
    found = {}
    tensors = {operand.name for operand in signature.with_roles(Role.INPUT)}
    for name in forward:
        constant = names.macro(name)
        if name not in tensors and constant in signature.constants and f"{constant}_" not in signature.constants:
            found[name] = signature.constants[constant]
    return found


def _command(given: _Build) -> list[str]:
    defines = [f"-D{name}={value}" for name, value in given.tunables.items()]
    if given.kernel.dialect is Dialect.TRITON:
        return []
    if given.kernel.dialect is Dialect.CPP:
        return [*_CPP, *defines]
    number = given.device.arch.removeprefix("sm_")
    return [*_CUDA, f"-gencode=arch=compute_{number},code=sm_{number}", *defines, "-ldl"]


def _header(given: _Build) -> str:
    triton = given.kernel.dialect is Dialect.TRITON
    return "" if triton else header.render(given.signature, given.kernel.dialect, given.workload.name)


def _source_text(given: _Build) -> str:
    if given.kernel.dialect is Dialect.CPP:
        return given.kernel.text
    if given.kernel.contract is not Contract.PLAN:
        return given.kernel.text.rstrip() + "\n" + ERROR_REPORTER
    names = [operand.name for operand in given.signature.operands]
    if given.kernel.dialect is Dialect.TRITON:
        return given.kernel.text.rstrip() + "\n" + triton_launcher(_resolved_triton(given), names)
    return given.kernel.text.rstrip() + "\n" + launcher(_resolved(given), names)


def _workspace_bytes(given: _Build) -> int | None:
    """Bytes that a plan asks for; a host kernel says it itself."""
    if given.kernel.contract is not Contract.PLAN:
        return None
    if given.kernel.dialect is Dialect.TRITON:
        return _resolved_triton(given).plan.workspace_bytes
    return _resolved(given).workspace_bytes


def _plan_names(given: _Build) -> dict[str, Number]:
    return {**header.plan_names(given.signature, given.device.units), **given.tunables}


def _resolved(given: _Build) -> resolution.ResolvedPlan:
    return resolution.resolve(launch_plan.parse_plan(given.kernel.text), _plan_names(given), given.signature.operands)


def _resolved_triton(given: _Build) -> ResolvedTriton:
    return resolve_triton(parse_triton_plan(given.kernel.text), _plan_names(given), given.signature.operands)


def _operands(signature: Signature) -> str:
    rows = [f"            ({o.name!r}, {o.role.value!r}, {o.shape!r}, torch.{o.dtype})," for o in signature.operands]
    if not signature.with_roles(Role.OUTPUT):
        raise ProblemError("cannot export: the problem has no output")
    if len(signature.operands) == len(signature.with_roles(Role.OUTPUT)):
        raise ProblemError("cannot export as an operator: the problem has no input")
    return "[\n" + "\n".join(rows) + "\n        ]"


def _with_tunables(text: str, chosen: Mapping[str, int]) -> str:
    """A Python kernel with its tunables assigned before any other statement runs."""
    if not chosen:
        return text
    lines = text.splitlines(keepends=True)
    after = 0
    for place, statement in enumerate(python_syntax.parse(text).body):
        docstring = place == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if docstring or future:
            after = statement.end_lineno or after
    values = "".join(f"{name} = {value}\n" for name, value in chosen.items())
    return "".join([*lines[:after], values, *lines[after:]])
