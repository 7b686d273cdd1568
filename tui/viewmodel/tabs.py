"""The seven pages on a kernel: names, tab line and content. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from engine.domain.state import Kernel, SessionState
from engine.domain.work import WorkKey
from tui.viewmodel import code, detail, diff, fmt, kernels, timing
from tui.viewmodel.cells import BLANK, Cell, Ground, Ink, Line, clean, line, output_lines, wrap
from tui.viewmodel.lineage_lines import LineageLines
from tui.viewmodel.pages import empty_page, section

Read = Callable[[str], str | None]
"""Blob → its text; ``None`` if it is missing."""


class Tab(StrEnum):
    """The pages, in order."""

    IDEA = "idea"
    CODE = "code"
    DIFF = "diff"
    CHECKS = "checks"
    TIMING = "timing"
    RESOURCES = "resources"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class TabLine:
    """The tab line and the position of each tab."""

    line: Line
    places: tuple[tuple[int, int, Tab], ...]


def tab_line(shown: Tab, room: int) -> TabLine:
    """The tabs with numbers and names; with less room names alone, then numbers with the shown page's name. No name is cut."""
    numbered = {tab: (f" {number}", f" {tab.value}") for number, tab in enumerate(Tab, 1)}
    named = {tab: ("", f" {tab.value}") for tab in Tab}
    spaced = {tab: (number, f"{name} ") for tab, (number, name) in numbered.items()}
    least = {tab: (number, f"{name} " if tab is shown else " ") for tab, (number, name) in numbered.items()}
    labels = next((one for one in (spaced, numbered, named) if _width(one) <= room), least)
    cells: list[Cell] = []
    places: list[tuple[int, int, Tab]] = []
    at = 0
    for tab, (number, name) in labels.items():
        active = tab is shown
        ground = Ground.CHIP if active else Ground.NONE
        cells += [
            Cell(number, Ink.ACCENT if active else Ink.RULE, ground),
            Cell(name, Ink.TITLE if active else Ink.FAINT, ground),
        ]
        end = at + len(number) + len(name)
        places.append((at, end, tab))
        at = end
    return TabLine(Line(tuple(cells)), tuple(places))


def _width(labels: Mapping[Tab, tuple[str, str]]) -> int:
    return sum(len(number) + len(name) for number, name in labels.values())


@dataclass(frozen=True, slots=True)
class PageSubject:
    """The kernel that the pages describe, and how they read blobs."""

    state: SessionState
    kernel: Kernel
    other: str
    """The kernel to compare with; empty: the parent."""
    read: Read
    progress: Mapping[WorkKey, str] | None = None
    race_key: str = ""
    """The key that races the kernel; empty where none does."""
    lineage: LineageLines = field(default_factory=LineageLines)


def page(tab: Tab, subject: PageSubject, room: int) -> tuple[Line, ...]:
    """The lines of one page at a width."""
    state, kernel = subject.state, subject.kernel
    match tab:
        case Tab.IDEA:
            return detail.idea(state, kernel, room, subject.lineage)
        case Tab.CODE:
            return _code(subject, room)
        case Tab.DIFF:
            return _diff(subject, room)
        case Tab.CHECKS:
            return detail.checks(state, kernel, room)
        case Tab.TIMING:
            raw = kernel.measurement.raw if kernel.measurement else ""
            return timing.page(state, kernel, room, (subject.read(raw) or "") if raw else "", race_key=subject.race_key)
        case Tab.RESOURCES:
            return detail.resources(state, kernel, room)
        case Tab.LOG:
            return _log(subject, room)


def _code(subject: PageSubject, room: int) -> tuple[Line, ...]:
    source = subject.read(subject.kernel.source)
    if source is None:
        return empty_page("the code is missing from the session folder", room)
    return code.number_lines(code.highlight(source, subject.kernel.dialect))


def _diff(subject: PageSubject, room: int) -> tuple[Line, ...]:
    kernel = subject.kernel
    name = subject.other if subject.other and subject.other != kernel.id else kernel.parent or ""
    other = subject.state.kernels.get(name)
    if other is None:
        return empty_page("a root kernel has no parent: mark another kernel to compare with it", room)
    before, after = subject.read(other.source), subject.read(kernel.source)
    if before is None or after is None:
        return empty_page("the code of one kernel is missing from the session folder", room)
    found = diff.difference(before, after, kernel.dialect)
    role = "marked" if name == subject.other else "parent"
    head = line(
        Cell(f"  {other.id}", Ink.STRONG), Cell(f" ({role})", Ink.FAINT), " → ", Cell(kernel.id, Ink.STRONG),
        Cell(f"   +{found.added}", Ink.GOOD), Cell(f" −{found.removed}", Ink.BAD), Cell(_chosen(other, kernel), Ink.FAINT),
    )  # fmt: skip
    if not found.lines:
        return (BLANK, head, BLANK, line(Cell("  identical code", Ink.FAINT)))
    return (head, BLANK, *found.lines)


def _chosen(before: Kernel, after: Kernel) -> str:
    """The changed tunables."""
    changed = {n: v for n, v in after.tunables.items() if before.tunables.get(n) != v}
    return f"   {clean(fmt.tunables(changed))}" if changed else ""


def _log(subject: PageSubject, room: int) -> tuple[Line, ...]:
    """The output of compiler, trial and sanitizers, and the latest progress."""
    state, kernel = subject.state, subject.kernel
    lines: list[Line] = []
    if kernels.under_way(state, kernel):
        word = (subject.progress or {}).get(kernels.work_key(kernel), "")
        lines += [BLANK, line("  ", kernels.outcome(state, kernel).cell, Cell(f"  {clean(word)}", Ink.FAINT))]
    if kernel.failure is not None:
        lines += [BLANK, section(kernels.outcome(state, kernel).word, room)]
        lines += [line(Cell(f"  {part}", Ink.BAD)) for part in wrap(kernel.failure.reason, room - 4)]
        lines += [BLANK, *_payload(subject, kernel.failure.log)]
    if kernel.reason:
        lines += [BLANK, *(line(Cell(f"  {part}", Ink.FAINT)) for part in wrap(kernel.reason, room - 4))]
    if kernel.build_log and (kernel.failure is None or kernel.build_log != kernel.failure.log):
        lines += [BLANK, section("compiler", room), *_payload(subject, kernel.build_log)]
    if kernel.sanitizing is not None and kernel.sanitizing.log:
        lines += [BLANK, section("sanitizers", room), *_payload(subject, kernel.sanitizing.log)]
    if kernel.attempt:
        words = f"  {fmt.counted(kernel.attempt, 'earlier attempt')} failed to build or verify"
        lines += [BLANK, line(Cell(words, Ink.FAINT))]
    return tuple(lines) or empty_page("no output yet")


def _payload(subject: PageSubject, blob: str) -> list[Line]:
    if not blob:
        return []
    text = subject.read(blob)
    if text is None:
        return [line(Cell("  the log is missing from the session folder", Ink.FAINT))]
    return [line(Cell(f"  {part}")) for part in output_lines(text)] or [line(Cell("  no output", Ink.FAINT))]
