"""The strip of counts by stage and running work; open model calls. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from engine.domain import queries
from engine.domain.state import CallStatus, Idea, IdeaStatus, ModelCall, SessionState, Stage
from engine.domain.work import WorkKey, WorkKind
from engine.report.facts.usage import refused_before
from engine.report.text.work import VERBS, subject_words
from tui.viewmodel import fmt, kernels
from tui.viewmodel.cells import Cell, Ink, Line, cut_cells, join_cells, line, one_line, tail, width
from tui.viewmodel.ideas import awaiting_approval
from tui.viewmodel.kernels import author
from tui.viewmodel.tree_facts import tree_facts

_INKS = {
    "build": Ink.BUILD, "verify": Ink.VERIFY, "measure": Ink.MEASURE, "race": Ink.MEASURE, "repair": Ink.REPAIR,
}  # fmt: skip
_MODEL_WORK = frozenset({"propose", "implement", "repair"})

_LEAST_WORDS = 24


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of kernels and ideas by stage."""

    undecided: int
    parked: int
    writing: int
    building: int
    verifying: int
    measuring: int
    repairing: int
    queued: int
    measured: int
    quarantined: int
    doubted: int
    """Measured, but not corroborated."""
    failed: int
    cancelled: int


def counts(state: SessionState) -> Counts:
    """The counts of a state."""
    found = tree_facts(state)
    waiting = sum(found.stages.get(stage, 0) - found.under_way.get(stage, 0) for stage in Stage if not stage.settled)
    by_stage = {stage.value: (found.stages if stage.settled else found.under_way).get(stage, 0) for stage in Stage}
    statuses = [idea.status for idea in state.ideas.values()]
    return Counts(
        undecided=statuses.count(IdeaStatus.PROPOSED),
        parked=statuses.count(IdeaStatus.PARKED),
        writing=sum(1 for key in state.running if key.kind in (WorkKind.IMPLEMENT, WorkKind.PROPOSE)),
        building=by_stage["build"],
        verifying=by_stage["verify"],
        measuring=by_stage["measure"],
        repairing=by_stage["repair"],
        queued=waiting,
        measured=by_stage["measured"] - len(found.doubted),
        quarantined=by_stage["quarantined"],
        doubted=len(found.doubted),
        failed=by_stage["failed"],
        cancelled=by_stage["cancelled"],
    )


@lru_cache(maxsize=2)
def at_rest(state: SessionState) -> SessionState:
    """The state where no process runs its session: what was begun does not run. The same object for the same state."""
    return replace(state, started={}) if state.started else state


def strip(
    state: SessionState,
    progress: Mapping[WorkKey, str],
    room: int,
    seconds: Mapping[WorkKey, int] | None = None,
    *,
    is_run: bool = True,
) -> tuple[Line, ...]:
    """A line of counts and a line of running work, each with its elapsed ``seconds``; what does not fit is left out.

    ``is_run``: whether some process runs the session; without one, what was begun does not run.
    """
    found = counts(state if is_run else at_rest(state))
    above = count_line(found, len(ideas_for_you(state)), room)
    if not is_run and state.running:
        stands = f" {fmt.counted(len(state.running), 'task')} interrupted"
        return (above, line(*cut_cells((Cell(stands, Ink.FAINT),), room)))
    return (above, _work_line(state, progress, seconds or {}, room))


@dataclass(frozen=True, slots=True)
class _Count:
    """One of the counts as it is shown."""

    number: int
    glyph: str
    name: str
    ink: Ink
    word: str
    """``name`` or a shorter form of it; empty: the symbol and the number alone."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Muted if it is 0."""
        word = f" {self.word}" if self.word else ""
        if not self.number:
            return (Cell(f"{self.glyph} 0{word}", Ink.RULE),)
        return (Cell(f"{self.glyph} ", self.ink), Cell(str(self.number), Ink.STRONG), Cell(word, self.ink))


def count_line(found: Counts, for_you: int, room: int) -> Line:
    """The counts without the ideas ``for_you``, in the longest form that fits. No word is cut."""
    cells: tuple[Cell, ...] = ()
    for shown, gap in _forms(_all_counts(found, for_you)):
        cells = join_cells((one.cells for one in shown), Cell(gap))
        if sum(width(cell.text) for cell in cells) <= room - 2:
            break
    return line(" ", *cells)


def _all_counts(found: Counts, for_you: int) -> list[_Count]:
    doubt = kernels.NOT_CORROBORATED
    always = (
        (found.building, "◔", "building", Ink.BUILD),
        (found.verifying, "◑", "verifying", Ink.VERIFY),
        (found.measuring, "◕", "measuring", Ink.MEASURE),
        (found.queued, "○", "queued", Ink.WAITING),
        (found.measured, "●", "measured", Ink.MEASURED),
        (found.failed, "✗", "failed", Ink.FAILED),
    )
    sometimes = (
        (found.undecided - for_you, "◇", "to approve", Ink.WARN),
        (found.quarantined, "◬", "quarantined", Ink.QUARANTINED),
        (found.writing, "✎", "being written", Ink.BUILD),
        (found.doubted, doubt.glyph, doubt.word, doubt.ink),
        (found.repairing, "↻", "repairing", Ink.REPAIR),
        (found.cancelled, "■", "cancelled", Ink.CANCELLED),
        (found.parked, "‖", "ideas parked", Ink.CANCELLED),
    )
    shown = [*(s for s in sometimes[:3] if s[0]), *always, *(s for s in sometimes[3:] if s[0])]
    return [_Count(number, glyph, name, ink, name) for number, glyph, name, ink in shown]


_SHORT = {
    "building": "build", "verifying": "verify", "measuring": "measure", "measured": "done", "queued": "queue",
    "to approve": "approve", "being written": "writing", "repairing": "repair", "ideas parked": "parked",
    kernels.NOT_CORROBORATED.word: kernels.NOT_CORROBORATED.short,
}  # fmt: skip
_NAMED_BELOW = ("building", "verifying", "measuring", "queued")
"""Lose their words first: the second line names running work."""
_LEFT_OUT = ("ideas parked", "cancelled", "repairing", "building", "verifying", "measuring", "being written", "queued")
"""Left out in a narrow line, in this order."""
_KEPT = ("to approve", "measured", "quarantined", "failed", kernels.NOT_CORROBORATED.word)
"""In a narrower line these lose their words, in this order, and are left out last."""


def _forms(found: Sequence[_Count]) -> Iterator[tuple[Sequence[_Count], str]]:
    """The counts and the gap between them in ever shorter forms; the last has no count."""
    yield found, "   "
    gap = "  "
    yield found, gap
    found = [replace(one, word=_SHORT.get(one.name, one.name)) for one in found]
    yield found, gap
    found = [one for one in found if one.number]
    yield found, gap
    found = _without_word(found, *_NAMED_BELOW)
    yield found, gap
    for name in _LEFT_OUT:
        found = [one for one in found if one.name != name]
        yield found, gap
    for name in _KEPT:
        found = _without_word(found, name)
        yield found, gap
    for name in _KEPT:
        found = [one for one in found if one.name != name]
        yield found, gap


def _without_word(found: Sequence[_Count], *names: str) -> list[_Count]:
    return [replace(one, word="") if one.name in names else one for one in found]


_WORK_GAP = " │ "


def _work_line(state: SessionState, progress: Mapping[WorkKey, str], seconds: Mapping[WorkKey, int], room: int) -> Line:
    """The latest progress of each running work, and how many more there are; without any, why nothing runs."""
    keys = list(state.running)
    if not keys:
        words = "idle" if ideas_for_you(state) else idle_reason(state)
        return line(*cut_cells((Cell(f" {words}", Ink.FAINT),), room))
    share = max(_LEAST_WORDS, (room - 2) // len(keys) - 3)
    parts: list[tuple[Cell, ...]] = []
    left = room - 1
    for place, key in enumerate(keys):
        later = len(keys) - place - 1
        rest = len(f"{_WORK_GAP}+{later}") if later else 0
        part = _work(key, progress.get(key, ""), seconds.get(key, 0), share)
        if not place:
            part = cut_cells(part, left - rest)
        left -= sum(width(cell.text) for cell in part) + (len(_WORK_GAP) if place else 0)
        if left < rest:
            parts.append((Cell(f"+{later + 1}", Ink.FAINT),))
            break
        parts.append(part)
    return line(*cut_cells((Cell(" "), *join_cells(parts, Cell(_WORK_GAP, Ink.RULE))), room))


def _work(key: WorkKey, message: str, seconds: int, room: int) -> tuple[Cell, ...]:
    """The progress of one work; of a model's output the end, which changes."""
    kind = key.kind
    ink = _INKS.get(kind, Ink.BUILD)
    name = "preparation" if kind == WorkKind.PREPARE else subject_words(key)
    text = one_line(message) or ("under way" if kind == WorkKind.PREPARE else VERBS.get(kind, kind))
    if kind in _MODEL_WORK:
        text = tail(text, room - width(name) - 1)
    return (Cell(f"{name} ", ink), Cell(text, Ink.FAINT), Cell(f" · {fmt.elapsed(seconds)}" if seconds >= 2 else "", Ink.RULE))


def ideas_for_you(state: SessionState) -> tuple[Idea, ...]:
    """The ideas for which the session waits: the header counts them, so that nothing else has to."""
    waits = state.closed is None and not state.broken and state.paused is None and not state.mode.is_autopilot
    return queries.pending_ideas(state) if waits else ()


def calls_by_hand(state: SessionState) -> tuple[ModelCall, ...]:
    """Open calls to answer by hand, oldest first."""
    return tuple(call for call in state.calls.values() if call.by_hand and call.status is CallStatus.OPEN)


def awaiting_answer(prompts: int) -> str:
    """``2 prompts await you``."""
    return f"{fmt.counted(prompts, 'prompt')} await{'s' if prompts == 1 else ''} you"


def open_calls(state: SessionState) -> tuple[ModelCall, ...]:
    """Calls without a reply, oldest first."""
    return tuple(call for call in state.calls.values() if call.status is CallStatus.OPEN)


def call_label(state: SessionState, call: ModelCall) -> tuple[str, str]:
    """(call and purpose, model and idea): label and description of a choice."""
    subject = call.work.subject
    idea = state.ideas.get(state.kernels[subject].idea if subject in state.kernels else subject)
    title = f": {one_line(idea.text.title)}" if idea is not None else ""
    return f"{call.id}  {purpose(state, call)}", f"{author(call.model)}{title}"


def purpose(state: SessionState, call: ModelCall) -> str:
    """What the call is for, and whether it is a retry: ``code for i11, retry of c60``."""
    before = refused_before(state, call)
    return f"{call.role.value} for {subject_words(call.work)}{f', retry of {before.id}' if before is not None else ''}"


def idle_reason(state: SessionState) -> str:
    """Why no work is running."""
    waiting = len(queries.pending_ideas(state))
    if state.closed is not None:
        return f"ended: {one_line(state.closed)}"
    if state.called_off:
        return f"not requested: {one_line(next(iter(state.called_off.values())))}"
    if state.broken:
        return f"stopped: {one_line(next(iter(state.broken.values())))}"
    if prompts := len(calls_by_hand(state)):
        return awaiting_answer(prompts)
    if state.paused is not None:
        return f"paused: {one_line(state.paused)}"
    if waiting and not state.mode.is_autopilot:
        return f"idle: {awaiting_approval(waiting)}"
    return "idle"
