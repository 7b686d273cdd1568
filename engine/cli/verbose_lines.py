"""What --verbose adds to the progress lines: the time of each piece of work, and the output of compilers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from engine.domain import events as e
from engine.domain.errors import JournalError
from engine.domain.model import Blob
from engine.domain.state import SessionState
from engine.domain.work_key import WorkKey
from engine.report.text.lines import Line, Span, Tone, line
from engine.report.text.work import subject_words, work_words

_MOST = 40
"""Lines of one log."""


class VerboseLines:
    """The further lines of each entry, in order."""

    def __init__(self, text: Callable[[Blob], str]) -> None:
        """``text`` reads a blob."""
        self._text = text
        self._started: dict[str, float] = {}

    def lines(self, before: SessionState, entry: e.Entry, after: SessionState) -> list[Line]:
        """The further lines of ``entry``; ``before`` and ``after`` are the states around it."""
        return [*self._timings(before, entry, after), *self._log_lines(entry.event)]

    def _timings(self, before: SessionState, entry: e.Entry, after: SessionState) -> Iterator[Line]:
        match entry.event:
            case e.WorkStarted(work):
                self._started[work] = entry.at
                yield line(Span(f"{_words(work)} began", Tone.FAINT))
            case e.CallStarted(call, work, role, model):
                yield line(Span(f"{call}: {role.value} for {subject_words(WorkKey.parse(work))} from {model}", Tone.FAINT))
            case _:
                for work in (str(key) for key in before.started if key not in after.started):
                    seconds = entry.at - self._started.pop(work, entry.at)
                    yield line(Span(f"{_words(work)} took {seconds:.2f} s", Tone.FAINT))

    def _log_lines(self, event: e.Event) -> list[Line]:
        match event:
            case e.KernelFailed(_, failure) | e.AttemptFailed(_, _, failure):
                log = failure.log
            case e.KernelBuilt() | e.KernelSanitized():
                log = event.log
            case _:
                return []
        try:
            rows = self._text(log).splitlines() if log else []
        except JournalError:
            return []
        more = [line(Span(f"    ... {len(rows) - _MOST} more lines", Tone.FAINT))] if len(rows) > _MOST else []
        return [*(line(Span(f"    {row.rstrip()}", Tone.FAINT)) for row in rows[:_MOST] if row.strip()), *more]


def _words(work: str) -> str:
    return work_words(WorkKey.parse(work))
