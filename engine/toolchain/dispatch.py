"""A dispatch: one kernel file of several kernels, of which the shape chooses one.

    // @dispatch batch_size dim
    // @member k12 THREADS=256
    // @shape batch_size=128 dim=16384
    <the code of k12>
    // @member k7
    // @shape batch_size=1 dim=50257
    // @shape batch_size=8 dim=50257 THREADS=512
    <the code of k7>

The member that has the nearest ``@shape`` is built for a workload: nearest by the sum of |ln(size ÷ size)| over the settings of
the first line, so shapes between those that were measured are covered too. The values of its tunables are those of the
``@shape``, then those of the ``@member``, then the defaults. In a Triton file the lines begin with ``#``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.domain import suite
from engine.domain.errors import KernelCodeError
from engine.domain.model import Dialect, Number, Workload
from engine.toolchain.directives import Directive, directives

_WORD = "dispatch"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,80}")
_FAR = 1e9
"""Distance of sizes that have no ratio: one of them is zero or negative, or unknown."""


@dataclass(frozen=True, slots=True)
class DispatchShape:
    """A shape that a member was chosen for, and the values of its tunables there that differ from the member's."""

    settings: Mapping[str, Number]
    tunables: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DispatchMember:
    """One kernel of a dispatch, with the shapes that it was chosen for."""

    name: str
    tunables: Mapping[str, int]
    shapes: tuple[DispatchShape, ...]
    code: str


@dataclass(frozen=True, slots=True)
class DispatchChoice:
    """The member for one shape, and the values of its tunables there; those that are not named have their defaults."""

    member: DispatchMember
    tunables: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """``settings``: the names of the workload's settings that decide."""

    settings: tuple[str, ...]
    members: tuple[DispatchMember, ...]

    def choose(self, shape: Mapping[str, Number]) -> DispatchChoice:
        """The member with the nearest shape; of equally near ones the first. Raises KernelCodeError if a setting is missing."""
        if missing := [name for name in self.settings if name not in shape]:
            known = ", ".join(shape) or "none"
            raise KernelCodeError(
                f"the dispatch decides by {', '.join(missing)}, which this workload does not set (it sets {known})"
            )
        every = ((member, known) for member in self.members for known in member.shapes)
        member, nearest = min(every, key=lambda pair: self._distance(pair[1].settings, shape))
        return DispatchChoice(member, {**member.tunables, **nearest.tunables})

    def _distance(self, known: Mapping[str, Number], shape: Mapping[str, Number]) -> float:
        return sum(_apart(known[name], shape[name]) for name in self.settings)


def _apart(one: Number, other: Number) -> float:
    if one == other:
        return 0.0
    return abs(math.log(one / other)) if one > 0 and other > 0 else _FAR


def deciding_settings(workloads: Sequence[Workload]) -> tuple[str, ...]:
    """The settings in which the workloads differ and that each of them states."""
    differing = dict.fromkeys(name for each in suite.distinct(workloads).values() for name in each)
    return tuple(name for name in differing if all(name in one.settings for one in workloads))


def is_dispatch(text: str, dialect: Dialect) -> bool:
    """Whether the first directive of a kernel file is ``@dispatch``."""
    if f"@{_WORD}" not in text or dialect is Dialect.PYTHON:
        return False
    head = text[: text.index(f"@{_WORD}") + len(_WORD) + 1]
    return not directives(head, dialect, "launch", "tune", "require", "workspace", "tensormap", "member") and bool(
        directives(head, dialect, _WORD)
    )


def parse_dispatch(text: str, dialect: Dialect) -> Dispatch:
    """Read a dispatch file. Raises KernelCodeError with the line that is wrong."""
    (head, *_) = directives(text, dialect, _WORD)
    settings = tuple(head.text.split())
    if not settings or len(set(settings)) < len(settings) or not all(map(_NAME.fullmatch, settings)):
        raise KernelCodeError(
            "@dispatch: give the settings that decide, e.g. `@dispatch batch_size dim`", head.line, head.column
        )
    starts = directives(text, dialect, "member")
    if not starts:
        raise KernelCodeError("the dispatch has no @member", head.line, head.column)
    lines = text.splitlines(keepends=True)
    ends = [one.line - 1 for one in starts[1:]] + [len(lines)]
    members = tuple(_member(start, lines[start.line : end], dialect, settings) for start, end in zip(starts, ends, strict=True))
    names = [one.name for one in members]
    if len(set(names)) < len(names):
        raise KernelCodeError("two members of the dispatch have one name", starts[0].line, starts[0].column)
    return Dispatch(settings, members)


def _member(start: Directive, lines: Sequence[str], dialect: Dialect, settings: Sequence[str]) -> DispatchMember:
    name, *chosen = start.text.split() or [""]
    if not _FILE_NAME.fullmatch(name):
        raise KernelCodeError(
            "@member: give a name, then its tunables, e.g. `@member k12 THREADS=256`", start.line, start.column
        )
    shapes: list[DispatchShape] = []
    for number, line in enumerate(lines):
        found = directives(line, dialect, "shape")
        if not found:
            code = "".join(lines[number:]).strip("\n") + "\n"
            break
        shapes.append(_shape(found[0], start.line + number + 1, settings))
    else:
        code = ""
    if not shapes:
        raise KernelCodeError(f"member {name} has no @shape line", start.line, start.column)
    if not code.strip():
        raise KernelCodeError(f"member {name} has no code", start.line, start.column)
    tunables = _values((_assigned(one, start, start.line) for one in chosen), start, start.line)
    return DispatchMember(name, tunables, tuple(shapes), code)


def _shape(found: Directive, line: int, settings: Sequence[str]) -> DispatchShape:
    """The settings come first or last, each once; the other names are tunables."""
    pairs = [_assigned(one, found, line) for one in found.text.split()]
    given = [name for name, _ in pairs]
    if not set(settings) <= set(given) or len(set(given)) < len(given):
        raise KernelCodeError(f"@shape: give {', '.join(settings)}, each once", line, found.column)
    own = _values((pair for pair in pairs if pair[0] not in settings), found, line)
    return DispatchShape({name: value for name, value in pairs if name in settings}, own)


def _values(pairs: Iterable[tuple[str, Number]], within: Directive, line: int) -> dict[str, int]:
    """The values of tunables: integers."""
    found = dict(pairs)
    if wrong := next((name for name, value in found.items() if not isinstance(value, int)), ""):
        raise KernelCodeError(f"@{within.word}: the value of {wrong} is not an integer", line, within.column)
    return {name: int(value) for name, value in found.items()}


def _assigned(text: str, within: Directive, line: int) -> tuple[str, Number]:
    name, _, value = text.partition("=")
    try:
        if not _NAME.fullmatch(name):
            raise ValueError
        number = float(value)
        return name, int(value) if number.is_integer() and "." not in value and "e" not in value.lower() else number
    except (ValueError, OverflowError) as error:
        raise KernelCodeError(f"@{within.word}: {text!r} is not NAME=NUMBER", line, within.column) from error


def dispatch_text(dispatch: Dispatch, dialect: Dialect, title: str) -> str:
    """The file of a dispatch; ``parse_dispatch`` reads it."""
    mark = "#" if dialect.in_python else "//"
    parts = [f"{mark} {title}\n{mark} @{_WORD} {' '.join(dispatch.settings)}\n"]
    for one in dispatch.members:
        parts.append(" ".join((f"\n{mark} @member {one.name}", *_pairs(one.tunables))) + "\n")
        parts += [
            " ".join((f"{mark} @shape", *_pairs({n: shape.settings[n] for n in dispatch.settings}), *_pairs(shape.tunables)))
            + "\n"
            for shape in one.shapes
        ]
        parts.append(one.code.rstrip() + "\n")
    return "".join(parts)


def _pairs(values: Mapping[str, Number]) -> list[str]:
    return [f"{name}={value}" for name, value in values.items()]
