"""The steps of a session's start with their elapsed time, shown until the first kernel exists. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.domain import queries
from engine.domain.device_waits import is_free, is_waiting
from engine.domain.state import SessionState
from engine.domain.work import WorkKey, WorkKind
from engine.report.text.work import work_words
from tui.viewmodel import fmt
from tui.viewmodel.cells import BLANK, Cell, Ink, Line, cut, line, one_line, pad, wrap
from tui.viewmodel.stages import idle_reason

_WIDEST = 64
_INDENT = "   "


@dataclass(slots=True)
class Step:
    """One step; it ends when the next one begins."""

    text: str
    began: float
    ended: float | None = None


class StepLog:
    """The steps of one start, in order."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    @property
    def running(self) -> Step | None:
        """The running step."""
        return self.steps[-1] if self.steps and self.steps[-1].ended is None else None

    def add(self, text: str, now: float) -> None:
        """Begin a step; repeating the text of the running step changes nothing.

        A wait for the device is one step, however often its words change. That the device is free ends it, and is no step.
        """
        if self.running is not None:
            if self.running.text == text:
                return
            if is_waiting(text) and is_waiting(self.running.text):
                self.running.text = text
                return
            self.running.ended = now
        if not is_free(text):
            self.steps.append(Step(text, now))

    def finish(self, now: float) -> None:
        """End the running step."""
        if self.running is not None:
            self.running.ended = now


def step_lines(steps: Sequence[Step], now: float, room: int) -> tuple[Line, ...]:
    """One line for each step: done or running, its text, its time."""
    width = max(8, min(_WIDEST, room - len(_INDENT) - 14))
    return tuple(_line(step.text, now - step.began if step.ended is None else step.ended - step.began,
                       running=step.ended is None, width=width) for step in steps)  # fmt: skip


def _line(text: str, seconds: float | None, *, running: bool, width: int) -> Line:
    mark = Cell(f"{_INDENT}◔ ", Ink.BUILD) if running else Cell(f"{_INDENT}✓ ", Ink.GOOD)
    name = Cell(pad(cut(one_line(text), width), width), Ink.PLAIN if running else Ink.FAINT)
    return line(mark, name, Cell(f"  {fmt.elapsed(seconds)}" if seconds is not None else "", Ink.FAINT))


def start_lines(
    state: SessionState, log: StepLog, ages: Mapping[WorkKey, float], now: float, room: int, *, is_run: bool = True
) -> tuple[Line, ...]:
    """What the tree shows while there is no kernel: finished steps, running work, what comes next.

    Work without an entry in ``ages`` has no elapsed time: it is replayed. Without a process that runs the session, none runs.
    """
    if state.opened is None:
        return ()
    opened = state.opened
    device = state.device.name if state.device is not None else opened.device
    head = f"{_INDENT}{one_line(opened.problem.name)} {queries.problem_and_workload(state)[1]} on {one_line(device)}"
    lines = [line(Cell(cut(head, room), Ink.TITLE)), BLANK, *step_lines(log.steps, now, room)]
    width = max(8, min(_WIDEST, room - len(_INDENT) - 14))
    started = state.running if is_run else ()
    running = [work for work in started if work.kind != WorkKind.PREPARE or log.running is None]
    lines += [_line(work_words(work), ages.get(work), running=True, width=width) for work in running]
    if not is_run and state.closed is None:
        lines += _wrapped("No kernel yet; its preparation was interrupted.", Ink.WARN, room)
    elif state.running:
        lines += [BLANK, *_wrapped("Next: the naive port, then ideas round by round.", Ink.FAINT, room)]
    else:
        lines += _wrapped(f"No kernel yet; {idle_reason(state)}.", Ink.FAINT, room)
    return tuple(lines)


def _wrapped(words: str, ink: Ink, room: int) -> list[Line]:
    return [line(Cell(f"{_INDENT}{part}", ink)) for part in wrap(words, room - len(_INDENT))]
