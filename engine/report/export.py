"""A measured kernel as a file that works without this tool: an importable module with an operator, a test and a benchmark.

Knows how such a module is put together: the reference's model, the kernel's source and header as text, and the parts that
compile and call it (``operator``) and try it (``operator_check``). Pure: values in, text out; compiles and runs nothing.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from engine.build import plan as launch_plan
from engine.build import resolution
from engine.build.source import KernelSource
from engine.domain.errors import ProblemError
from engine.domain.model import Contract, Device, Dialect, Number, Problem, Role, Signature, Workload
from engine.domain.preparation import Gate
from engine.problem import header, names
from engine.problem import source as reference
from engine.report import operator as op
from engine.report import operator_check as check
from engine.report.plan_host import ENTRY, TROUBLE, error_reporter, launcher

_CPP = ["g++", "-std=c++20", "-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-fPIC", "-shared"]
_CUDA = ["nvcc", "-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC", "-cudart", "static"]
_ALLCLOSE = re.compile(r"allclose ([0-9.e+-]+)")
_MARK = re.compile(r"@(\w+)@")
_NOTE = """\
# The kernel is compiled when it is first called, and kept in ESPALIER_CACHE or the user's cache folder. It is made for the
# shapes listed in OPERANDS and refuses others; numbers that forward takes are compiled in. It has no backward.
"""


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
    gate: Gate | None = None
    """The tolerance of its own test; without one, ten times what eager errs."""
    file: str = "FILE"
    """What the module is called in its own words on how to run it."""


def module(given: Exported) -> str:
    """The text of the module. Raises SourceError or ProblemError for a kernel that cannot be told apart from its session."""
    head = "".join(f"# {' '.join(remark.split())}\n" for remark in given.remarks)
    usage = "".join(f"#     {line.format(file=shlex.quote(given.file))}\n" for line in check.USAGE)
    if given.kernel.dialect is Dialect.PYTHON:
        return head + _python(given, usage)
    tree = _reference(given)
    parts = _parts(given, tree) | _policy(given.gate)
    tail = _tried(check.BESIDE, check.OPERATOR_TEST, check.POISON)
    text = op.fitted(f"{_called(given.kernel)}\n\n{tail}", set(reference.bound_names(tree)))
    shown = f"#     torch.ops.{parts['operator'].replace('::', '.')}{parts['schema']}\n"
    return f"{head}{usage}{shown}{_NOTE}\n{ast.unparse(tree)}\n\n\n{_filled(text, parts)}"


def _filled(text: str, parts: Mapping[str, str]) -> str:
    """``text`` with every ``@mark@`` replaced; what is put in is left as it is."""
    return _MARK.sub(lambda match: parts[match[1]], text)


def _reference(given: Exported) -> ast.Module:
    tree = reference.parse(given.problem.reference, given.problem.name)
    return reference.with_settings(tree, given.workload.settings)


def _python(given: Exported, usage: str) -> str:
    """A python kernel as it is, and its test and benchmark behind it. What torch makes of it is torch's to compile."""
    text = _with_values(given.kernel.text, given.tunables).rstrip()
    taken = set(reference.bound_names(reference.parse(text, given.kernel.name)))
    model = _literal(ast.unparse(_reference(given)) + "\n")
    parts = {"reference": model, "device": repr(given.device.kind), **_policy(given.gate)}
    return f"{text}\n\n\n{usage}\n{_filled(op.fitted(_tried(check.LOADED, '', ''), taken), parts)}"


def _tried(beginning: str, operator_test: str, poison: str) -> str:
    """Test and benchmark."""
    return f"{beginning}\n\n{check.CHECK}".replace("@operator_test@", operator_test).replace("@poison@", poison)


def _called(kernel: KernelSource) -> str:
    """The operator, with the call that this contract asks for."""
    cuda = kernel.dialect is Dialect.CUDA
    call = op.PLAN_CALL if kernel.contract is Contract.PLAN else op.HOST_CALL + (op.ASKED if cuda else "")
    return op.BUILT.replace("@call@", call).replace("@stream@", op.STREAM if cuda else "")


def _parts(given: Exported, tree: ast.Module) -> dict[str, str]:
    plan = given.kernel.contract is Contract.PLAN
    cuda = given.kernel.dialect is Dialect.CUDA
    source, problem_h = _source_text(given), header.render(given.signature, given.kernel.dialect, given.workload.name)
    command, forward = _command(given), _forward(tree)
    return {
        "source": _literal(source),
        "header": _literal(problem_h),
        "file": "kernel.cu" if cuda else "kernel.cpp",
        "command": repr(command),
        "operands": _operands(given.signature),
        "numbers": repr(_numbers(forward, given.signature)),
        "forward": repr(forward),
        "device": repr(given.device.kind),
        "workspace": str(_resolved(given).workspace_bytes) if plan else "None",
        "entry": ENTRY,
        "trouble": TROUBLE,
        "operator": op.name(given.problem.name, [source, problem_h, *command]),
        "schema": op.schema(given.signature.operands),
    }


def _policy(gate: Gate | None) -> dict[str, str]:
    """The tolerance as the module's test applies it."""
    if gate is None:
        return {"policy": repr(("ten times the error of eager", None)), "limits": "None"}
    if close := _ALLCLOSE.search(gate.policy):
        return {"policy": repr((f"{gate.policy}; here against float64", float(close[1]))), "limits": "(1.0, 1.0)"}
    return {"policy": repr((gate.policy, None)), "limits": repr((gate.rel_fro_limit, gate.max_scaled_limit))}


def _forward(tree: ast.Module) -> list[str]:
    """Names of forward's arguments as its reference writes them."""
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef) and statement.name == "Model":
            for method in statement.body:
                if isinstance(method, ast.FunctionDef) and method.name == "forward":
                    return [a.arg for a in (*method.args.posonlyargs, *method.args.args)][1:]
    return []


def _numbers(forward: list[str], signature: Signature) -> dict[str, Number]:
    """What the numbers among forward's arguments must be; those whose constant has no plain name are left out."""
    found = {}
    tensors = {operand.name for operand in signature.of(Role.INPUT)}
    for name in forward:
        constant = names.macro(name)
        if name not in tensors and constant in signature.constants and f"{constant}_" not in signature.constants:
            found[name] = signature.constants[constant]
    return found


def _command(given: Exported) -> list[str]:
    defines = [f"-D{name}={value}" for name, value in given.tunables.items()]
    if given.kernel.dialect is Dialect.CPP:
        return [*_CPP, *defines]
    number = given.device.arch.removeprefix("sm_")
    return [*_CUDA, f"-gencode=arch=compute_{number},code=sm_{number}", *defines, "-ldl"]


def _source_text(given: Exported) -> str:
    if given.kernel.dialect is Dialect.CPP:
        return given.kernel.text
    if given.kernel.contract is not Contract.PLAN:
        return given.kernel.text.rstrip() + "\n" + error_reporter()
    names = [operand.name for operand in given.signature.operands]
    return given.kernel.text.rstrip() + "\n" + launcher(_resolved(given), names)


def _resolved(given: Exported) -> resolution.ResolvedPlan:
    names: dict[str, Number] = {**header.plan_names(given.signature, given.device.units), **given.tunables}
    return resolution.resolve(launch_plan.parse_plan(given.kernel.text), names, given.signature.operands)


def _operands(signature: Signature) -> str:
    rows = [f"    ({o.name!r}, {o.role.value!r}, {o.shape!r}, torch.{o.dtype})," for o in signature.operands]
    if not signature.of(Role.OUTPUT):
        raise ProblemError("the problem has no output: there is nothing to export")
    if len(signature.operands) == len(signature.of(Role.OUTPUT)):
        raise ProblemError("the problem has no input: its kernel cannot be an operator")
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
