"""Kernels of other formats as ``ModelNew`` modules: FlashInfer and SOL-ExecBench solutions, kernelbot submissions.

A module is one file: what a source imports from its own files is written in place of the import. Runs nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from engine.domain import python_syntax
from engine.domain.errors import KernelCodeError, ProblemError
from engine.domain.model import Dialect, Problem
from engine.domain.problem_format import ProblemFormat
from engine.problem.files import reference_code
from engine.problem.formats import flashinfer, kernelbot, sol
from engine.problem.formats.axis_expressions import literal
from engine.problem.formats.documents import json_file, text_of
from engine.problem.names import unused_name

SUBMISSION = "custom_kernel"
"""The function of a kernelbot submission."""
_PYTHON = ("python", "triton", "pytorch", "cute_dsl", "cutile", "tilelang", "cudnn_frontend")
_NATIVE = ("cuda", "cpp", "cuda_cpp", "cutlass", "cublas", "cudnn")
_CUDA_SUFFIXES = (Dialect.CUDA.suffix, f"{Dialect.CUDA.suffix}h")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*$', re.MULTILINE)


class _Source(msgspec.Struct, frozen=True):
    path: str
    content: str


class _Compile(msgspec.Struct, frozen=True):
    cflags: list[str] = []
    cuda_cflags: tuple[str, ...] = ("-O3", "--use_fast_math")
    ld_flags: list[str] = []


class _Spec(msgspec.Struct, frozen=True):
    entry_point: str
    language: str = ""
    languages: list[str] = []
    destination_passing_style: bool = True
    binding: str | None = None
    compile_options: _Compile | None = None


class _Solution(msgspec.Struct, frozen=True):
    name: str
    definition: str
    spec: _Spec
    sources: list[_Source]


def is_solution(path: Path, origin_format: ProblemFormat | None) -> bool:
    """Whether a kernel's file is one of the problem's format, by its name and content."""
    if origin_format is None:
        return False
    if path.suffix == ".json":
        return origin_format.name in (flashinfer.NAME, sol.NAME)
    if path.suffix != ".py" or origin_format.name != kernelbot.NAME or not path.is_file():
        return False
    text = text_of(path)
    return SUBMISSION in text and "ModelNew" not in text


def module_of(path: Path, origin_format: ProblemFormat, reference: str, attachments: Mapping[str, str]) -> tuple[str, str]:
    """(the file's name as a kernel, its text as a module with ``ModelNew``). Raises KernelCodeError."""
    try:
        if path.suffix == ".json":
            return f"{path.stem}.py", _of_solution(path, json_file(path, _Solution), origin_format)
        return path.name, _of_submission(path, reference, attachments)
    except ProblemError as error:
        raise KernelCodeError(str(error)) from None


def _of_solution(path: Path, solution: _Solution, origin_format: ProblemFormat) -> str:
    spec = solution.spec
    if solution.definition != origin_format.entry:
        raise KernelCodeError(f"{path}: definition: {solution.definition!r}; the problem is {origin_format.entry!r}")
    languages = spec.languages or [spec.language]
    file, colons, function = spec.entry_point.partition("::")
    if not colons or not function.isidentifier():
        raise KernelCodeError(f"{path}: spec.entry_point: {spec.entry_point[:80]!r}: expected file::function")
    sources = {source.path: source.content for source in solution.sources}
    if file not in sources:
        raise KernelCodeError(f"{path}: spec.entry_point: {file!r} is none of its sources")
    if all(language in _PYTHON for language in languages):
        others = {Path(name).name: text for name, text in sources.items() if name != file}
        head, call = inlined(sources[file], others, str(path)), function
    elif all(language in _NATIVE for language in languages):
        if spec.binding not in (None, "torch") or (spec.binding is None and origin_format.name == flashinfer.NAME):
            raise KernelCodeError(f"{path}: spec.binding: {spec.binding or 'tvm-ffi'} is not supported: only torch")
        head, call = _native(sources, spec), f"_extension.{function}"
    else:
        raise KernelCodeError(f"{path}: spec: languages {', '.join(languages)[:80]} are not supported")
    forward = (
        _destination(origin_format, call, str(path)) if spec.destination_passing_style else _returning(origin_format, call)
    )
    return _module(head, solution.name, forward)


def _module(head: str, name: str, forward: Sequence[str]) -> str:
    return "\n".join((
        head.rstrip("\n"), "", "", f"# Below: {name} as a KernelBench module, written by Espalier.",
        "import torch as _torch", "", "",
        "class ModelNew(_torch.nn.Module):", *forward, "",
    ))  # fmt: skip


def _returning(origin_format: ProblemFormat, call: str) -> list[str]:
    arguments = ", ".join(tensor.name for tensor in origin_format.inputs)
    return [f"    def forward({', '.join(filter(None, ('self', arguments)))}):", f"        return {call}({arguments})"]


def _destination(origin_format: ProblemFormat, call: str, where: str) -> list[str]:
    """Allocates the outputs, whose axes are those of the inputs, and passes them last."""
    taken = {tensor.name for tensor in (*origin_format.inputs, *origin_format.outputs)}
    names = {axis: unused_name(axis, lambda n: n in taken) for axis in origin_format.axes}
    first = next((tensor.name for tensor in origin_format.inputs if tensor.axes is not None), None)
    device = f", device={first}.device" if first else ""
    lines = [f"        {names[axis]} = {text}" for axis, text in _axes(origin_format, names, where)]
    for tensor in origin_format.outputs:
        axes = [names[axis] if (size := literal(axis)) is None else str(size) for axis in tensor.axes or ()]
        shape = f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"
        lines.append(f"        {tensor.name} = _torch.empty({shape}, dtype=_torch.{tensor.dtype}{device})")
    inputs = [tensor.name for tensor in origin_format.inputs]
    outputs = [tensor.name for tensor in origin_format.outputs]
    returned = outputs[0] if len(outputs) == 1 else ", ".join(outputs)
    return [
        f"    def forward({', '.join(('self', *inputs))}):", *lines,
        f"        {call}({', '.join((*inputs, *outputs))})", f"        return {returned}",
    ]  # fmt: skip


def _axes(origin_format: ProblemFormat, names: Mapping[str, str], where: str) -> list[tuple[str, str]]:
    """(axis, its value as code) for the axes of the outputs, those that they are computed from first."""
    bound: dict[str, str] = {}
    for tensor in origin_format.inputs:
        for place, axis in enumerate(tensor.axes or ()):
            bound.setdefault(axis, f"{tensor.name}.shape[{place}]")
    found: dict[str, str] = {}

    def add(axis: str) -> None:
        value = origin_format.axes[axis]
        if axis in found:
            return
        if isinstance(value, int):
            found[axis] = str(value)
        elif axis in bound:
            found[axis] = bound[axis]
        elif value:
            tree = python_syntax.parse_expression(value.strip())
            for node in ast.walk(tree):
                if isinstance(node, ast.Name):
                    add(node.id)
                    node.id = names[node.id]
            found[axis] = f"int({ast.unparse(tree)})"
        else:
            raise KernelCodeError(f"{where}: axis {axis} of an output is in no input: its output cannot be allocated")

    for output in origin_format.outputs:
        for axis in output.axes or ():
            if literal(axis) is None:
                add(axis)
    return list(found.items())


def _native(sources: Mapping[str, str], spec: _Spec) -> str:
    """C++ and CUDA sources, compiled by torch's extension builder. Headers are written in place of their includes."""
    options = spec.compile_options or _Compile()
    units = {n: t for n, t in sources.items() if Path(n).suffix not in (".h", ".hpp", _CUDA_SUFFIXES[1])}
    cuda = [_with_headers(t, n, sources, ()) for n, t in units.items() if Path(n).suffix in _CUDA_SUFFIXES]
    cpp = [_with_headers(t, n, sources, ()) for n, t in units.items() if Path(n).suffix not in _CUDA_SUFFIXES]
    binds = any("PYBIND11_MODULE" in text for text in (*cuda, *cpp))
    functions = "None" if binds else repr([spec.entry_point.partition("::")[2]])
    return "\n".join((
        "from torch.utils.cpp_extension import load_inline as _load_inline", "",
        "_extension = _load_inline(", '    name="solution",',
        f"    cpp_sources={_texts(cpp)},", f"    cuda_sources={_texts(cuda)},", f"    functions={functions},",
        f"    extra_cflags={options.cflags!r},", f"    extra_cuda_cflags={list(options.cuda_cflags)!r},",
        f"    extra_ldflags={options.ld_flags!r},", f"    with_cuda={bool(cuda)},", ")",
    ))  # fmt: skip


def _texts(texts: Sequence[str]) -> str:
    rows = "\n".join(f"        {_raw(text)}," for text in texts)
    return f"[\n{rows}\n    ]" if rows else "[]"


def _raw(text: str) -> str:
    """A Python literal over several lines where the text allows it."""
    plain = "'''" not in text and not text.endswith(("'", "\\"))
    return f"r'''{text}'''" if plain else repr(text)


def _with_headers(text: str, name: str, sources: Mapping[str, str], above: tuple[str, ...]) -> str:
    by_name = {Path(path).name: (path, content) for path, content in sources.items()}

    def header(match: re.Match[str]) -> str:
        path, content = by_name.get(Path(match[1]).name, ("", ""))
        if not path or path in above or path == name:
            return match[0]
        return _with_headers(content.replace("#pragma once", ""), path, sources, (*above, name))

    return _INCLUDE.sub(header, text)


def own_module(problem: Problem, device: str) -> str:
    """The problem's own model as a module: the reference, with the attached files that it imports in their place.

    On a CPU the device that it names is the CPU, as where the reference itself runs on a machine without a GPU.
    """
    files = {name: content for name, content in problem.attachments.items() if name.endswith(".py")}
    text = inlined(problem.reference, files, problem.name) if files else problem.reference
    if device == "cpu":
        text = ast.unparse(reference_code.with_device(reference_code.parse(text, problem.name), device))
    return f"{text}\n\nModelNew = Model\n"


def _of_submission(path: Path, reference: str, attachments: Mapping[str, str]) -> str:
    files = {name: content for name, content in attachments.items() if name.endswith(".py")}
    text = inlined(text_of(path), files | {kernelbot.REFERENCE: reference}, str(path))
    return _module(text, path.stem, _forward_like(reference))


def _forward_like(reference: str) -> list[str]:
    """``forward`` as the generated reference has it, calling the submission instead of the task's function."""
    tree = reference_code.parse(reference, "reference")
    model = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model")
    for node in ast.walk(model):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kernelbot.REFERENCES:
            node.func.id = SUBMISSION
    return [f"    {line}" for function in model.body for line in ast.unparse(function).splitlines()]


def inlined(text: str, files: Mapping[str, str], where: str) -> str:
    """``text`` with the files that it imports names from in place of those imports, each once."""
    done: set[str] = set()

    def expand(code: str, place: str) -> str:
        tree = reference_code.parse(code, place)
        lines = code.split("\n")
        for node in reversed(tree.body):
            if not isinstance(node, ast.ImportFrom) or node.level > 1 or f"{node.module}.py" not in files:
                continue
            file = f"{node.module}.py"
            renamed = [f"{a.asname} = {a.name}" for a in node.names if a.asname]
            body = [] if file in done else [expand(_without_future(files[file]), file)]
            done.add(file)
            end = node.end_lineno or node.lineno
            lines[node.lineno - 1 : end] = ["\n".join((*body, *renamed))]
        return "\n".join(lines)

    return expand(text, where)


def _without_future(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.startswith("from __future__ import"))
