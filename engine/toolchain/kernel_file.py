"""Reads a kernel file and determines its dialect and contract from suffix and content."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from pathlib import Path

from engine.domain.errors import KernelCodeError
from engine.domain.model import Contract, Dialect
from engine.journal.regular_file import open_regular
from engine.toolchain.directives import directives, without_comments
from engine.toolchain.dispatch import is_dispatch, parse_dispatch

MAX_CODE_BYTES = 1 << 20
"""Largest kernel file, in bytes."""

SUFFIXES = {dialect.suffix: dialect for dialect in Dialect} | {".cc": Dialect.CPP}
"""File suffix → dialect; of a ``.py`` file the content decides between ``python`` and ``triton``."""

_LAUNCH = re.compile(r"\blaunch\s*\(")
_LAUNCH_DECLARED = re.compile(r"\bvoid\s+launch\s*\(")
_MODEL = re.compile(r"^(?:(?:class|def)[ \t]+ModelNew\b|ModelNew[ \t]*=[^=])", re.MULTILINE)
_REFERENCE = re.compile(r"^class[ \t]+Model\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class KernelCode:
    """One kernel's code: ``name`` is its file name, shown to people."""

    text: str
    dialect: Dialect
    contract: Contract
    name: str


def read_kernel_file(path: Path) -> KernelCode:
    """Read a kernel file and classify it.

    Raises:
        KernelCodeError: missing, not a file, empty, larger than 1 MiB, not text, or of unknown dialect or contract.
    """
    try:
        if path.is_dir():
            raise KernelCodeError(f"{path} is a folder: give a kernel file (.cu, .cpp or .py)")
        with open_regular(path) as file:
            data = file.read(MAX_CODE_BYTES + 1)
    except FileNotFoundError as error:
        raise KernelCodeError(f"no kernel file {path}: check the path") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise KernelCodeError(f"kernel file {path} cannot be read: {reason}") from error
    text = _decode(data, str(path))
    dialect, contract = classify(text, path.name)
    return KernelCode(text, dialect, contract, path.name)


def _decode(data: bytes, name: str) -> str:
    if len(data) > MAX_CODE_BYTES:
        raise KernelCodeError(f"kernel file {name} is larger than 1 MiB: is it source code?")
    if not data.strip():
        raise KernelCodeError(f"kernel file {name} is empty: `espalier scaffold PROBLEM` writes one to start from")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise KernelCodeError(f"kernel file {name} is UTF-16 text: save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise KernelCodeError(f"kernel file {name} is not text: byte {error.start} is not UTF-8") from error
    if "\0" in text:
        raise KernelCodeError(f"kernel file {name} is binary: give the source code, not a build of it")
    return text


def classify(text: str, name: str) -> tuple[Dialect, Contract]:
    """The dialect and contract of ``text`` under this file name.

    Raises:
        KernelCodeError: an unknown suffix, or code that fits no contract of its dialect.
    """
    suffix = Path(name).suffix.lower()
    dialect = SUFFIXES.get(suffix)
    if dialect is not None and (marked := _dispatch_dialect(text, dialect)) is not None:
        return marked, _dispatch_contract(text, name, marked)
    match dialect:
        case Dialect.CUDA:
            return dialect, _cuda_contract(text, name)
        case Dialect.CPP:
            if not _LAUNCH.search(without_comments(text)):
                raise KernelCodeError(f'{name} has no launch(): write `extern "C" void launch(...)`')
            return dialect, Contract.HOST
        case Dialect.PYTHON | Dialect.TRITON:
            return _python_dialect(text, name)
        case None:
            known = ", ".join(SUFFIXES)
            raise KernelCodeError(f"{name} has the unknown suffix '{suffix}': use one of {known}")


def launch_parameters(text: str) -> int | None:
    """The number of parameters of ``launch`` in the text of a C++ kernel; ``None`` where a macro or a template hides it."""
    code = without_comments(text)
    counts = {_parameters(code[found.end() :]) for found in _LAUNCH_DECLARED.finditer(code)}
    return counts.pop() if len(counts) == 1 else None


def _parameters(rest: str) -> int | None:
    inside, closed, _ = rest.partition(")")
    if not closed or any(mark in inside for mark in "(#<"):
        return None
    return 0 if inside.strip() in ("", "void") else inside.count(",") + 1


def _dispatch_dialect(text: str, dialect: Dialect) -> Dialect | None:
    """The dialect of a dispatch file; ``None`` for other files."""
    marked = Dialect.TRITON if dialect.in_python else dialect
    return marked if is_dispatch(text, marked) else None


def _dispatch_contract(text: str, name: str, dialect: Dialect) -> Contract:
    """The contract that all members of a dispatch have."""
    found = {}
    for member in parse_dispatch(text, dialect).members:
        inner, found[member.name] = classify(member.code, f"{member.name}{dialect.suffix}")
        if inner is not dialect:
            raise KernelCodeError(f"{name}: member {member.name} is not a {dialect} kernel of its own")
    if len(set(found.values())) > 1:
        each = ", ".join(f"{member} {contract}" for member, contract in found.items())
        raise KernelCodeError(f"{name}: the members of a dispatch need the same contract, not {each}")
    return next(iter(found.values()))


def _python_dialect(text: str, name: str) -> tuple[Dialect, Contract]:
    """``@launch`` lines make a Triton plan of a Python file, whatever else it holds."""
    if directives(text, Dialect.TRITON, "launch"):
        return Dialect.TRITON, Contract.PLAN
    if not _MODEL.search(text):
        if _REFERENCE.search(text):
            raise KernelCodeError(f"{name} has no `class ModelNew`, but a `class Model`: rename it to ModelNew")
        raise KernelCodeError(
            f"{name} has no `class ModelNew`: a python kernel is a KernelBench module, a triton kernel has `# @launch` lines"
        )
    return Dialect.PYTHON, Contract.MODULE


def _cuda_contract(text: str, name: str) -> Contract:
    if directives(text, Dialect.CUDA, "launch"):
        return Contract.PLAN
    if _LAUNCH.search(without_comments(text)):
        return Contract.HOST
    raise KernelCodeError(f"{name} does not say how it is launched: add a `// @launch` line or a launch() function")
