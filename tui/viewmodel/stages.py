"""What is under way, what waits and what is done, in one strip. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.domain import queries
from engine.domain.state import IdeaStatus, Kernel, SessionState
from tui.viewmodel import fmt, kernels
from tui.viewmodel.cells import Cell, Ink, Line, cut_cells, flat, joined, line, width

_VERBS = {"build": "building", "verify": "verifying", "measure": "measuring", "repair": "repairing"}


@dataclass(frozen=True, slots=True)
class Counts:
    """How many kernels and ideas are where."""

    undecided: int
    parked: int
    writing: int
    building: int
    verifying: int
    measuring: int
    repairing: int
    queued: int
    measured: int
    failed: int
    cancelled: int


def counts(state: SessionState) -> Counts:
    """One pass over the kernels and the ideas."""
    by_stage: dict[str, int] = {}
    for kernel in state.kernels.values():
        name = _place(state, kernel)
        by_stage[name] = by_stage.get(name, 0) + 1
    statuses = [idea.status for idea in state.ideas.values()]
    return Counts(
        undecided=statuses.count(IdeaStatus.PROPOSED),
        parked=statuses.count(IdeaStatus.PARKED),
        writing=sum(1 for key in state.started if key.startswith(("implement:", "propose:"))),
        building=by_stage.get("build", 0),
        verifying=by_stage.get("verify", 0),
        measuring=by_stage.get("measure", 0),
        repairing=by_stage.get("repair", 0),
        queued=by_stage.get("queued", 0),
        measured=by_stage.get("measured", 0),
        failed=by_stage.get("failed", 0),
        cancelled=by_stage.get("cancelled", 0),
    )


def _place(state: SessionState, kernel: Kernel) -> str:
    if kernel.stage.settled or kernels.under_way(state, kernel):
        return kernel.stage.value
    return "queued"


def strip(state: SessionState, progress: Mapping[str, str], room: int) -> tuple[Line, ...]:
    """The counts in one line, what is being worked at in the next. What does not fit is left out from the end."""
    found = counts(state)
    always = (
        (found.building, "◔", "building", Ink.BUILD),
        (found.verifying, "◑", "verifying", Ink.VERIFY),
        (found.measuring, "◕", "measuring", Ink.MEASURE),
        (found.queued, "○", "queued", Ink.WAITING),
        (found.measured, "●", "measured", Ink.MEASURED),
        (found.failed, "✗", "failed", Ink.FAILED),
    )
    sometimes = (
        (found.undecided, "◇", "to decide", Ink.WARN),
        (found.writing, "✎", "being written", Ink.BUILD),
        (found.repairing, "↻", "repairing", Ink.REPAIR),
        (found.cancelled, "■", "cancelled", Ink.CANCELLED),
        (found.parked, "‖", "ideas parked", Ink.CANCELLED),
    )
    shown = [*(s for s in sometimes[:2] if s[0]), *always, *(s for s in sometimes[2:] if s[0])]
    some = [s for s in shown if s[0]]
    for counted, names, gap in ((shown, {}, "   "), (shown, {}, "  "), (shown, _SHORT, "  "), (some, _SHORT, "  ")):
        parts = [_count(number, glyph, names.get(word, word), ink) for number, glyph, word, ink in counted]
        if sum(width(cell.text) for part in parts for cell in part) + len(gap) * (len(parts) - 1) <= room - 2:
            break
    return (_fitting(parts, room, gap), _words(state, progress, room))


_SHORT = {
    "building": "build", "verifying": "verify", "measuring": "measure", "measured": "done", "queued": "wait",
    "failed": "failed", "to decide": "open", "being written": "writing", "cancelled": "cancel", "repairing": "repair",
    "ideas parked": "parked",
}  # fmt: skip


def _count(number: int, glyph: str, word: str, ink: Ink) -> tuple[Cell, ...]:
    if not number:
        return (Cell(f"{glyph} 0 {word}", Ink.RULE),)
    return (Cell(f"{glyph} ", ink), Cell(str(number), Ink.STRONG), Cell(f" {word}", ink))


def _fitting(parts: Sequence[Sequence[Cell]], room: int, gap: str) -> Line:
    cells: list[Cell] = [Cell(" ")]
    left = room - 2
    for place, part in enumerate(parts):
        needed = sum(width(cell.text) for cell in part) + (len(gap) if place else 0)
        if needed > left:
            break
        cells += [Cell(gap), *part] if place else part
        left -= needed
    return line(*cells)


def _words(state: SessionState, progress: Mapping[str, str], room: int) -> Line:
    """The latest word on each piece of work under way; why nothing is, when nothing is."""
    keys = list(state.started)
    if not keys:
        return line(*cut_cells((Cell(f" {idle_words(state)}", Ink.FAINT),), room))
    parts = [_work(key, progress.get(key, "")) for key in keys]
    shown = cut_cells((Cell(" "), *joined(parts, Cell(" │ ", Ink.RULE))), room)
    return line(*shown)


def _work(key: str, word: str) -> tuple[Cell, ...]:
    kind, _, rest = key.partition(":")
    subject = rest.partition(":")[0]
    ink = {"build": Ink.BUILD, "verify": Ink.VERIFY, "measure": Ink.MEASURE, "repair": Ink.REPAIR}.get(kind, Ink.BUILD)
    if not word:
        word = {"propose": "asking for ideas", "implement": "asking for code", "prepare": "preparing"}.get(
            kind, _VERBS.get(kind, kind)
        )
    name = {"propose": f"round {subject}", "prepare": "device"}.get(kind, subject)
    return (Cell(f"{name} ", ink), Cell(flat(word), Ink.FAINT))


def idle_words(state: SessionState) -> str:
    """Why nothing is under way."""
    waiting = len(queries.pending_ideas(state))
    if state.closed is not None:
        return f"ended: {flat(state.closed)}"
    if state.broken:
        return f"stopped: {flat(next(iter(state.broken.values())))}"
    if waiting and state.mode != "autopilot":
        return f"nothing under way: {fmt.counted(waiting, 'idea')} to decide on"
    return "nothing under way"
