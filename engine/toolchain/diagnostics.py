"""Parses the output of g++, nvcc, ptxas and ld: the first error in the kernel's own file, and ptxas's resource usage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from engine.domain.model import Resources

_GXX = re.compile(r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):(?:(?P<column>\d+):)? (?:fatal )?error: (?P<text>.*)$")
_NVCC = re.compile(
    r"^(?P<file>[^\s()][^()]*)\((?P<line>\d+)\): (?:catastrophic |fatal |internal )?error(?: #[\w-]+)?\s*: (?P<text>.*)$"
)
_PTXAS = re.compile(r"^ptxas(?:-blackwell)? (?:\S+, line \d+; )?(?:error|fatal)\s*: (?P<text>.*)$")
_ASSEMBLER = re.compile(r"^\S+\.s:\d+: Error: (?P<text>.*)$")
_NO_LAUNCH = re.compile(r"required symbol [`']?launch'? not defined|undefined symbol: launch\b")
_UNDEFINED = re.compile(r"undefined reference to [`']?(?P<name>[^'`]+)'?")
_ANY = re.compile(r"\b(?:error|fatal|out of memory|undefined|cannot|Killed|terminated)\b", re.IGNORECASE)

_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_PROPERTIES = re.compile(r"Function properties for (?P<name>\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+)(?:\+(\d+))? bytes smem")


@dataclass(frozen=True, slots=True)
class _Error:
    file: str
    line: int
    column: int
    text: str


def first_error(output: str, file: str, shown: str) -> str | None:
    """The first error as one line that points into the kernel's file, e.g. ``kernel.cu:12:7: error: ...``.

    An error inside a header is attributed to the line of the kernel's file that includes or instantiates it; the header's name
    follows.

    Args:
        output: the compiler's whole output.
        file: the file name that the compiler was given.
        shown: the file name to show.
    """
    lines = output.splitlines()
    for index, line in enumerate(lines):
        if error := _parse_error(lines, index, line):
            return _in_own_file(error, lines, index, file, shown)
        if match := _PTXAS.match(line):
            return f"{shown}: error: ptxas: {match['text'].strip()}"
        if match := _ASSEMBLER.match(line):
            return f"{shown}: error: assembler: {match['text'].strip()}"
        if _NO_LAUNCH.search(line):
            return f'{shown}: error: no launch() with C linkage: write `extern "C" void launch(...)`'
        if match := _UNDEFINED.search(line):
            return f"{shown}: error: undefined reference to {match['name']}"
    return next((f"{shown}: {line.strip()}" for line in lines if _ANY.search(line)), None)


def _parse_error(lines: Sequence[str], index: int, line: str) -> _Error | None:
    if match := _GXX.match(line):
        return _Error(match["file"], int(match["line"]), int(match["column"] or 0), match["text"].strip())
    if match := _NVCC.match(line):
        return _Error(match["file"], int(match["line"]), _caret(lines[index + 1 : index + 8]), match["text"].strip())
    return None


def _caret(following: Sequence[str]) -> int:
    """The column of nvcc's caret; nvcc indents the quoted line by two."""
    for line in following:
        if line.strip() == "^":
            return max(line.index("^") - 1, 0)
        if not line.strip():
            break
    return 0


def _in_own_file(error: _Error, lines: Sequence[str], index: int, file: str, shown: str) -> str:
    if _same(error.file, file):
        column = f":{error.column}" if error.column else ""
        return f"{shown}:{error.line}{column}: error: {error.text}"
    name = PurePath(error.file).name
    own = re.compile(rf"(?:^|[\s/]){re.escape(file)}:(\d+)(?::(\d+))?|at line (\d+) of \"?(?:\S*/)?{re.escape(file)}")
    nearby = [*reversed(lines[max(index - 40, 0) : index]), *lines[index + 1 : index + 40]]
    for line in nearby:
        if match := own.search(line):
            column = f":{match[2]}" if match[2] else ""
            return f"{shown}:{match[1] or match[3]}{column}: error: {error.text} (in {name})"
    return f"{name}:{error.line}: error: {error.text}"


def _same(found: str, file: str) -> bool:
    return found == file or found.endswith(f"/{file}")


def ptxas_resources(output: str) -> tuple[Resources, ...]:
    """Registers, shared memory, spills and stack of every entry function, from ``ptxas -v``."""
    entries: list[str] = []
    frames: dict[str, tuple[int, int]] = {}
    used: dict[str, tuple[int, int]] = {}
    function = ""
    for line in output.splitlines():
        if match := _ENTRY.search(line):
            entries.append(function := match["name"])
        elif match := _PROPERTIES.search(line):
            function = match["name"]
        elif match := _FRAME.search(line):
            frames[function] = int(match[1]), max(int(match[2]), int(match[3]))
        elif entries and (match := _USED.search(line)):
            shared = _SHARED.search(line)
            used[entries[-1]] = int(match[1]), sum(int(part or 0) for part in shared.groups()) if shared else 0
    return tuple(
        Resources(
            name, *used.get(name, (0, 0)), spill_bytes=frames.get(name, (0, 0))[1], stack_bytes=frames.get(name, (0, 0))[0]
        )
        for name in dict.fromkeys(entries)
    )


def vectorised_loops(report: str, file: str) -> str:
    """The lines of g++'s ``-fopt-info-vec`` report about the kernel's own file."""
    own = [line for line in report.splitlines() if line.startswith(f"{file}:")]
    return "\n".join(dict.fromkeys(own))
