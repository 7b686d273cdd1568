"""Names the macro behind a syntax error: a kernel that declares a name which ``problem.h`` or a tunable defines as a macro."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_ERROR = re.compile(
    r"^(?:[^\s:()][^:()]*|<command-line>)(?:\((?P<line>\d+)\)|(?::\d+)*): (?:\w+ )?error(?: #[\w-]+)?\s*: (?P<text>.*)$"
)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(?P<name>\w+)[ \t]+(?P<value>\S.*?)[ \t]*$", re.MULTILINE)
_QUOTED_LINES = 6


def clash_error(output: str, file: str, shown: str, code: str, header: str, tunables: Mapping[str, int]) -> str:
    """The first error as one line if it stands where a macro was expanded, with the macro's name; otherwise empty.

    Compilers report ``constexpr int N = 4;`` as a syntax error in front of a number: nvcc quotes the line with the macro
    replaced, and g++ points into ``problem.h``.
    """
    lines = output.splitlines()
    first = next(((at, found) for at, line in enumerate(lines) if (found := _ERROR.match(line))), None)
    if first is None or not first[1]["text"].startswith("expected"):
        return ""
    at, error = first
    macros = {found["name"]: found["value"] for found in _DEFINE.finditer(header)} | {k: str(v) for k, v in tunables.items()}
    following = lines[at + 1 : at + 1 + _QUOTED_LINES]
    place = _in_nvcc(following, int(error["line"]), code, macros) if error["line"] else _in_gxx(following, file)
    if place is None or place[2] not in macros:
        return ""
    line, column, name = place
    origin = "a tunable, which the compiler sees as a macro" if name in tunables else f"a macro of problem.h, {macros[name]}"
    return f"{shown}:{line}:{column}: error: {error['text'].strip()}: {name} is {origin}; choose another name"


def _in_gxx(following: Sequence[str], file: str) -> tuple[int, int, str] | None:
    """Line, column and name of the macro whose expansion g++ notes."""
    note = re.compile(rf"^(?:\S*/)?{re.escape(file)}:(\d+):(\d+): note: in expansion of macro ['‘](\w+)['’]")
    found = next((found for line in following if (found := note.match(line))), None)
    return (int(found[1]), int(found[2]), found[3]) if found else None


def _in_nvcc(following: Sequence[str], number: int, code: str, macros: Mapping[str, str]) -> tuple[int, int, str] | None:
    """Line, column and name of the macro of the code's line whose value nvcc's caret points at."""
    caret = next((index for index, line in enumerate(following) if line.strip() == "^"), 0)
    lines = code.splitlines()
    if not caret or not 1 <= number <= len(lines):
        return None
    quoted, at = following[caret - 1], following[caret].index("^")
    for found in re.finditer(r"\b[A-Za-z_]\w*\b", lines[number - 1]):
        value = macros.get(found[0])
        if value and any(start <= at < start + len(value) for start in _occurrences(quoted, value)):
            return number, found.start() + 1, found[0]
    return None


def _occurrences(text: str, part: str) -> list[int]:
    return [found.start() for found in re.finditer(re.escape(part), text)]
