"""kernelbot tasks: ``task.yml`` with tests and benchmarks, ``reference.py`` with its inputs and its check.

https://github.com/gpu-mode/kernelbot. The problem's reference is ``reference.py``, unchanged, with a generated part below it;
the files that it imports are attachments. Numbers of a case are settings; words and lists are chosen by number. The seed of a
case is the judge's.
"""

from __future__ import annotations

import ast
import contextlib
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.domain.errors import ProblemError
from engine.domain.model import Number, Problem, Workload
from engine.domain.problem_format import FormatTolerance, ProblemFormat
from engine.problem.files import reference_code
from engine.problem.formats import building, licences, output_memory
from engine.problem.formats.documents import inside, shown, text_of, top_level, yaml_file
from engine.problem.formats.output_memory import OutputMemory
from engine.problem.names import unused_name

NAME = "kernelbot"
TASK = "task.yml"
REFERENCE = "reference.py"
_SUBMISSION = "@SUBMISSION@"
_GENERATE, _CHECK, _SEED = "generate_input", "check_implementation", "seed"
REFERENCES = ("ref_kernel", "reference_kernel", "reference")
_TAKEN = frozenset({"torch", "numpy", "triton", "engine", "espalier", "espalier_tensors"})
_MATCH = ("make_match_reference", "match_reference")
_DEFAULTS = {"rtol": 1e-05, "atol": 1e-08}
_FOUR_BIT = "float4_e2m1fn_x2"
_AMD_ONLY = "aiter"
_Value = bool | int | float | str | list[int | float | str]


class _TaskFile(msgspec.Struct, frozen=True):
    name: str
    source: str


class _Task(msgspec.Struct, frozen=True):
    files: list[_TaskFile]
    tests: list[dict[str, _Value]] = []
    benchmarks: list[dict[str, _Value]] = []
    lang: str = "py"
    description: str = ""
    ranking_by: str = "last"
    multi_gpu: bool = False
    gpus: list[str] = []


@dataclass(frozen=True, slots=True)
class _Reference:
    """What the syntax tree of ``reference.py`` shows."""

    file: str
    text: str
    tree: ast.Module
    function: str
    arguments: tuple[str, ...]
    """The names that it unpacks its data into; empty for a single tensor or an unknown number."""
    memory: OutputMemory
    parameters: tuple[str, ...]
    """Of ``generate_input``."""
    optional: frozenset[str]
    """Those with a default."""
    defaults: Mapping[str, object]
    """The defaults that are plain values."""


def read(folder: Path, origin: str) -> Problem:
    """The problem of a task. Raises ProblemError."""
    file = folder / TASK
    task = yaml_file(file, _Task)
    if task.multi_gpu:
        raise ProblemError(f"{file}: multi_gpu: the task needs several GPUs at once: only one device is supported")
    if task.lang != "py":
        raise ProblemError(f"{file}: lang: {task.lang!r} is not supported: only py")
    if task.ranking_by not in ("geom", "mean", "last"):
        raise ProblemError(f"{file}: ranking_by: {task.ranking_by!r} is unknown: use last, mean or geom")
    texts = _texts(folder, task, file)
    reference = _reference(texts.pop(REFERENCE), str(folder / REFERENCE))
    cases = [(f"test{n}", f"{file}: tests.{n}", c) for n, c in enumerate(task.tests, 1)]
    cases += [(f"benchmark{n}", f"{file}: benchmarks.{n}", c) for n, c in enumerate(task.benchmarks, 1)]
    if not cases:
        raise ProblemError(f"{file}: neither tests nor benchmarks: there is nothing to judge")
    adapter = _Adapter(reference, cases)
    tests = tuple(w.name for w in adapter.workloads if w.name.startswith("test"))
    benchmarks = tuple(w.name for w in adapter.workloads if w.name.startswith("benchmark"))
    sizes = {w.name: math.prod(max(1, abs(int(v))) for v in w.settings.values()) for w in adapter.workloads}
    default, small = building.default_workloads(sizes, benchmarks)
    tolerance, unique = _check(reference)
    found = ProblemFormat(
        name=NAME, entry=folder.resolve().name, default=default, small=small, tests=tests, benchmarks=benchmarks,
        ranking=task.ranking_by, tolerances=dict.fromkeys(sizes, tolerance) if tolerance else {},
        checker=_CHECK, unique=unique, devices=tuple(task.gpus), licence=licences.find(folder),
    )  # fmt: skip
    return building.problem(folder.resolve().name, "", origin, adapter.text(), adapter.workloads, texts, found)


def _texts(folder: Path, task: _Task, file: Path) -> dict[str, str]:
    """The Python files that the reference may import, by name."""
    root = licences.repository(folder) or folder.resolve().parent
    texts: dict[str, str] = {}
    for one in task.files:
        where = f"{file}: files.{one.name[:60]}"
        if one.source == _SUBMISSION or one.name == "eval.py":
            continue
        if Path(one.name).name != one.name or one.name.startswith("."):
            raise ProblemError(f"{where}: not a plain file name")
        if not one.name.endswith(".py"):
            continue
        stem = one.name.removesuffix(".py")
        if stem in sys.stdlib_module_names or stem in _TAKEN:
            raise ProblemError(f"{where}: would hide the module {stem}")
        texts[one.name] = text_of(_source(folder.resolve(), root, one.source, where))
    if REFERENCE not in texts:
        raise ProblemError(f"{file}: files: no {REFERENCE}")
    return texts


def _source(folder: Path, root: Path, source: str, where: str) -> Path:
    """A Python file in the task's folder, directly in one above it up to ``root``, or in another folder of tasks.

    Links are followed. A task from elsewhere may lie in a home folder, and must not bring the files there into a session.
    """
    path = (folder / source).resolve()
    if Path(source).is_absolute() or not path.is_relative_to(root):
        raise ProblemError(f"{where}: {source[:120]!r} leaves the task's repository {root}")
    near = path.is_relative_to(folder) or path.parent in folder.parents or _holds_tasks(path.parent, folder, root)
    if path.suffix != ".py" or not near:
        rule = "is no Python file in the task's folder, directly in one above it or in another folder of tasks"
        raise ProblemError(f"{where}: {source[:120]!r} {rule}")
    return inside(root, str(path.relative_to(root)), where)


def _holds_tasks(place: Path, folder: Path, root: Path) -> bool:
    """Whether ``place`` holds tasks and lies beside the folder around the task, or beside one above that; nothing hidden.

    Tasks share files so: ``linalg/qr_py`` imports ``pmpp_v2/utils.py``. A folder beside the task itself is not meant: in a home
    folder that may be the engineer's.
    """
    if place.parent not in folder.parent.parents or any(part.startswith(".") for part in place.relative_to(root).parts):
        return False
    tasks = (path for path in place.glob(f"*/{TASK}") if not path.parent.name.startswith("."))
    return any(path.resolve() == path and path.is_file() for path in tasks)


def _reference(text: str, file: str) -> _Reference:
    tree = reference_code.parse(text, file)
    _check_device(tree, file)
    known = top_level(tree)
    bound = set(reference_code.bound_names(tree))
    generate = known.get(_GENERATE)
    if not isinstance(generate, ast.FunctionDef):
        raise ProblemError(f"{file}: no function {_GENERATE}: a kernelbot task makes its inputs with it")
    if _CHECK not in bound:
        raise ProblemError(f"{file}: no function {_CHECK}: a kernelbot task checks outputs with it")
    name = next((n for n in REFERENCES if isinstance(known.get(n), ast.FunctionDef)), "")
    function = known.get(name)
    if not isinstance(function, ast.FunctionDef) or not function.args.args:
        raise ProblemError(f"{file}: no function {REFERENCES[0]}(data) that computes the right output")
    arguments = _unpacked(function)
    signature = generate.args
    parameters = tuple(a.arg for a in (*signature.posonlyargs, *signature.args, *signature.kwonlyargs))
    expressions = _default_expressions(signature)
    defaults: dict[str, object] = {}
    for parameter, expression in expressions.items():
        with contextlib.suppress(ValueError):
            defaults[parameter] = ast.literal_eval(expression)
    memory = output_memory.find(function, arguments, generate)
    return _Reference(file, text, tree, name, arguments, memory, parameters, frozenset(expressions), defaults)


def _default_expressions(signature: ast.arguments) -> dict[str, ast.expr]:
    """The parameters that have a default, and how it is written."""
    plain = [*signature.posonlyargs, *signature.args]
    found = {a.arg: value for a, value in zip(reversed(plain), reversed(signature.defaults), strict=False)}
    named = zip(signature.kwonlyargs, signature.kw_defaults, strict=True)
    return found | {a.arg: value for a, value in named if value is not None}


def _check_device(tree: ast.Module, file: str) -> None:
    """Raises ProblemError for a reference that no supported device runs: one for AMD GPUs, or with packed 4-bit numbers."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=[ast.alias(name=module), *_]) | ast.ImportFrom(module=str(module)):
                if module.partition(".")[0] == _AMD_ONLY:
                    raise ProblemError(f"{file}, line {node.lineno}: imports {_AMD_ONLY}, which runs on AMD GPUs only")
            case ast.Attribute(attr=name) if name == _FOUR_BIT:
                raise ProblemError(f"{file}, line {node.lineno}: {name} (NVFP4, packed 4-bit) is not supported")


def _unpacked(function: ast.FunctionDef) -> tuple[str, ...]:
    """``x, y = data`` at the beginning of a function, or within its ``with`` block."""
    data = function.args.args[0].arg
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=items)], value=ast.Name(id=name)) if name == data:
                names = [item.id for item in items if isinstance(item, ast.Name)]
                if len(names) == len(items):
                    return _distinct(names)
    return ()


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """The names, those without meaning (``_``) numbered."""
    found: list[str] = []
    for name in names:
        plain = name.strip("_") or "unused"
        found.append(unused_name(f"{plain}{len(found)}" if plain in found else plain, lambda n: n in found))
    return tuple(found)


def _check(reference: _Reference) -> tuple[FormatTolerance | None, bool]:
    """(the tolerance, if it is a comparison with the reference whose numbers are known; whether the output is unique)."""
    node = top_level(reference.tree).get(_CHECK)
    match node:
        case ast.Assign(value=ast.Call(func=ast.Name(id=name), keywords=keywords)) if name in _MATCH:
            given = dict(_DEFAULTS)
            for keyword in keywords:
                if keyword.arg in given and isinstance(keyword.value, ast.Constant):
                    given[keyword.arg] = float(keyword.value.value)  # type: ignore[arg-type]
            return FormatTolerance(given["atol"], given["rtol"]), True
        case ast.FunctionDef():
            names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
            return None, reference.function in names or bool(names & set(_MATCH))
    return None, True


class _Adapter:
    """The workloads of the cases, and the generated part of the reference."""

    def __init__(self, reference: _Reference, cases: Sequence[tuple[str, str, Mapping[str, _Value]]]) -> None:
        self._reference = reference
        self._choices: dict[str, list[object]] = {}
        self._flags: set[str] = set()
        keys = list(dict.fromkeys(key for _, _, case in cases for key in case if key != _SEED))
        taken = set(reference_code.bound_names(reference.tree)) | {"Model", "get_inputs", "get_init_inputs", "format_check"}
        self._names: dict[str, str] = {}
        for key in keys:
            self._names[key] = unused_name(key, lambda n: n in taken)
            taken.add(self._names[key])
        for _, where, case in cases:
            self._check_names(case, where)
        full = [self._complete(keys, case, where) for _, where, case in cases]
        for key in keys:
            values = [case[key] for case in full]
            if all(isinstance(value, bool) for value in values):
                self._flags.add(key)
            elif any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
                self._choices[key] = list({repr(value): value for value in values}.values())
        self.workloads = tuple(
            Workload(name, {self._names[key]: self._setting(key, case[key]) for key in keys})
            for (name, _, _), case in zip(cases, full, strict=True)
        )

    def _check_names(self, case: Mapping[str, _Value], where: str) -> None:
        reference = self._reference
        for key in case:
            if key not in reference.parameters or not key.isidentifier():
                known = shown(reference.parameters)
                raise ProblemError(f"{where}.{key[:60]}: {_GENERATE} has no such parameter: it has {known}")
        for key in reference.parameters:
            if key not in case and key not in reference.optional and key != _SEED:
                raise ProblemError(f"{where}.{key}: missing: {_GENERATE} needs it")

    def _complete(self, keys: Sequence[str], case: Mapping[str, _Value], where: str) -> dict[str, object]:
        """The case with the default of every parameter that another case sets."""
        defaults = self._reference.defaults
        for key in keys:
            if key not in case and key not in defaults:
                raise ProblemError(f"{where}.{key}: missing: other cases set it, and its default is no plain value")
        full = {key: case[key] if key in case else defaults[key] for key in keys}
        for key, value in full.items():
            if isinstance(value, int | float) and not reference_code.is_usable(value):
                raise ProblemError(f"{where}.{key}: not a finite number of at most 64 bits")
        return full

    def _setting(self, key: str, value: object) -> Number:
        if key in self._choices:
            return [repr(one) for one in self._choices[key]].index(repr(value))
        assert isinstance(value, int | float), "everything else is a choice"
        return int(value) if isinstance(value, bool) else value

    def _argument(self, key: str) -> str:
        own = self._names[key]
        if key in self._flags:
            return f"{key}=bool({own})"
        if key in self._choices:
            return f"{key}=({', '.join(repr(one) for one in self._choices[key])},)[{own}]"
        return f"{key}={own}"

    def text(self) -> str:
        """The reference's whole text."""
        reference = self._reference
        settings = [f"{name} = {value!r}" for name, value in self.workloads[0].settings.items()]
        arguments = [self._argument(key) for key in self._names]
        if _SEED in reference.parameters:
            arguments.append(f"{_SEED}=_random.randrange(1 << 31)")
        memory = reference.memory
        if reference.arguments:
            head = ", ".join(("self", *reference.arguments))
            data = "(" + "".join(
                f"_torch.empty_like({name}), " if name in memory.names else f"{name}, " for name in reference.arguments
            ).rstrip() + ")"  # fmt: skip
        else:
            head, data = "self, *data", "data[0] if len(data) == 1 else data"
        answer = f"{reference.function}({data})" + (f".to({memory.unused}.dtype)" if memory.unused else "")
        lines = [
            reference.text.rstrip("\n"), "", "",
            "# Below: the task as a problem in KernelBench's format, written by Espalier.",
            "import random as _random", "", "import torch as _torch", "", *settings, "", "",
            "class Model(_torch.nn.Module):", f"    def forward({head}):",
            f"        return {answer}", "", "",
            "def get_inputs():", f"    data = {_GENERATE}({', '.join(arguments)})",
            "    return list(data) if isinstance(data, tuple) else [data]", "", "",
            "def get_init_inputs():", "    return []", "", "",
            "def format_check(inputs, outputs):",
            "    data = inputs[0] if len(inputs) == 1 else tuple(inputs)",
            f"    return {_CHECK}(data, outputs[0] if len(outputs) == 1 else tuple(outputs))",
            "",
        ]  # fmt: skip
        return "\n".join(lines)
