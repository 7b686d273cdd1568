"""The seven pages on a kernel: their names, the line of tabs, and what each page shows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from engine.domain.state import Kernel, SessionState
from tui.viewmodel import code, detail, diff, fmt, kernels, timing
from tui.viewmodel.cells import BLANK, Cell, Ground, Ink, Line, clean, line, wrapped
from tui.viewmodel.detail import nothing, section

Read = Callable[[str], str | None]
"""Blob → its text, ``None`` when it is not there."""
ReadMix = Callable[[Kernel], Mapping[str, int] | None]


class Tab(StrEnum):
    """In the order they stand."""

    IDEA = "idea"
    CODE = "code"
    DIFF = "diff"
    VERIFICATION = "verification"
    TIMING = "timing"
    MACHINE = "machine code"
    LOG = "log"


_SHORT = {Tab.VERIFICATION: "checks", Tab.MACHINE: "machine"}
_SHORTEST = {Tab.VERIFICATION: "check", Tab.MACHINE: "asm", Tab.TIMING: "time"}


@dataclass(frozen=True, slots=True)
class TabLine:
    """The line of tabs and where each lies in it."""

    line: Line
    places: tuple[tuple[int, int, Tab], ...]


def tab_line(shown: Tab, room: int) -> TabLine:
    """The tabs with their numbers, shorter names where there is little room, numbers alone where there is none."""
    for names in ({}, _SHORT, _SHORTEST):
        labels = {tab: f" {number} {names.get(tab, tab.value)} " for number, tab in enumerate(Tab, 1)}
        if sum(map(len, labels.values())) <= room:
            break
    else:
        labels = {t: f" {n} {_SHORTEST.get(t, t.value)} " if t is shown else f" {n} " for n, t in enumerate(Tab, 1)}
    cells: list[Cell] = []
    places: list[tuple[int, int, Tab]] = []
    at = 0
    for number, (tab, label) in enumerate(labels.items(), 1):
        active = tab is shown
        ground = Ground.CHIP if active else Ground.NONE
        words = label[2 + len(str(number)) - 1 :]
        cells += [
            Cell(f" {number}", Ink.ACCENT if active else Ink.RULE, ground),
            Cell(words, Ink.TITLE if active else Ink.FAINT, ground),
        ]
        places.append((at, at + len(label), tab))
        at += len(label)
    return TabLine(Line(tuple(cells)), tuple(places))


@dataclass(frozen=True, slots=True)
class Subject:
    """What the pages are about and whom they ask."""

    state: SessionState
    kernel: Kernel
    other: str
    """The kernel to compare with; empty for the parent."""
    read: Read
    read_mix: ReadMix | None = None
    progress: Mapping[str, str] | None = None
    steered: bool = True
    """Whether the keys that act on a kernel do so where this is shown."""


def page(tab: Tab, subject: Subject, room: int) -> tuple[Line, ...]:
    """The lines of one page at a width."""
    state, kernel = subject.state, subject.kernel
    match tab:
        case Tab.IDEA:
            return detail.idea(state, kernel, room)
        case Tab.CODE:
            return _code(subject)
        case Tab.DIFF:
            return _diff(subject, room)
        case Tab.VERIFICATION:
            return detail.verification(state, kernel, room)
        case Tab.TIMING:
            raw = kernel.measurement.raw if kernel.measurement else ""
            return timing.page(state, kernel, room, (subject.read(raw) or "") if raw else "", steered=subject.steered)
        case Tab.MACHINE:
            return detail.machine_code(state, kernel, room, _mixes(subject))
        case Tab.LOG:
            return _log(subject, room)


def _code(subject: Subject) -> tuple[Line, ...]:
    source = subject.read(subject.kernel.source)
    if source is None:
        return nothing("the source is not kept here")
    return code.numbered(code.highlighted(source, subject.kernel.dialect))


def _diff(subject: Subject, room: int) -> tuple[Line, ...]:
    kernel = subject.kernel
    name = subject.other if subject.other and subject.other != kernel.id else kernel.parent or ""
    other = subject.state.kernels.get(name)
    if other is None:
        return nothing("a root has no parent to compare with: mark another kernel")
    before, after = subject.read(other.source), subject.read(kernel.source)
    if before is None or after is None:
        return nothing("one of the two sources is not kept here")
    found = diff.difference(before, after, kernel.dialect)
    role = "marked" if name == subject.other else "parent"
    head = line(
        Cell(f"  {other.id}", Ink.STRONG), Cell(f" ({role})", Ink.FAINT), " → ", Cell(kernel.id, Ink.STRONG),
        Cell(f"   +{found.added}", Ink.GOOD), Cell(f" −{found.removed}", Ink.BAD), Cell(_chosen(other, kernel), Ink.FAINT),
    )  # fmt: skip
    if not found.lines:
        return (BLANK, head, BLANK, line(Cell("  the same source, line for line", Ink.FAINT)))
    return (head, BLANK, *found.lines)


def _chosen(before: Kernel, after: Kernel) -> str:
    """How the tunables differ."""
    changed = {n: v for n, v in after.tunables.items() if before.tunables.get(n) != v}
    return f"   {clean(fmt.tunables(changed))}" if changed else ""


def _mixes(subject: Subject) -> dict[str, Mapping[str, int]]:
    if subject.read_mix is None:
        return {}
    parent = subject.state.kernels.get(subject.kernel.parent or "")
    pair = [k for k in (subject.kernel, parent) if k is not None]
    return {k.id: mix for k in pair if (mix := subject.read_mix(k)) is not None}


def _log(subject: Subject, room: int) -> tuple[Line, ...]:
    """What the tools said, and what is being said now."""
    state, kernel = subject.state, subject.kernel
    lines: list[Line] = []
    if kernels.under_way(state, kernel):
        word = (subject.progress or {}).get(kernels.work_key(kernel), "")
        lines += [BLANK, line("  ", kernels.outcome(state, kernel).cell, Cell(f"  {clean(word)}", Ink.FAINT))]
    if kernel.failure is not None:
        lines += [BLANK, section(kernels.outcome(state, kernel).word, room)]
        lines += [line(Cell(f"  {part}", Ink.BAD)) for part in wrapped(kernel.failure.reason, room - 4)]
        lines += [BLANK, *_payload(subject, kernel.failure.log)]
    if kernel.reason:
        lines += [BLANK, *(line(Cell(f"  {part}", Ink.FAINT)) for part in wrapped(kernel.reason, room - 4))]
    if kernel.build_log and (kernel.failure is None or kernel.build_log != kernel.failure.log):
        lines += [BLANK, section("the compiler", room), *_payload(subject, kernel.build_log)]
    if kernel.sanitizing is not None and kernel.sanitizing.log:
        lines += [BLANK, section("the sanitizers", room), *_payload(subject, kernel.sanitizing.log)]
    if kernel.attempt:
        words = f"  {fmt.counted(kernel.attempt, 'attempt')} before this one did not build or verify"
        lines += [BLANK, line(Cell(words, Ink.FAINT))]
    return tuple(lines) or nothing("nothing was said yet")


def _payload(subject: Subject, blob: str) -> list[Line]:
    if not blob:
        return []
    text = subject.read(blob)
    if text is None:
        return [line(Cell("  the log is not kept here", Ink.FAINT))]
    return [line(Cell(f"  {clean(part)}")) for part in text.rstrip().splitlines()]
