"""What home previews: read on a thread, from journals alone, and kept for the cursor's way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from engine.domain.errors import EspalierError
from engine.domain.model import Problem
from engine.domain.state import SessionState
from engine.journal.store import SessionSummary
from engine.report.facts import charts
from tui.opener import SessionOpener
from tui.viewmodel.cells import Line, line, one_line, wrap
from tui.viewmodel.preview import SessionFacts, problem_lines, session_lines

_KEPT = 8


@dataclass(frozen=True, slots=True)
class PreviewContent:
    """A preview: its title, its lines for a width, the session whose speedup is drawn."""

    title: str
    lines: Callable[[int], tuple[Line, ...]]
    state: SessionState | None = None


def preview_of(
    opener: SessionOpener, problem: Problem | None, session: SessionSummary | None, sessions: Sequence[SessionSummary]
) -> PreviewContent | None:
    """The preview of the problem, or else of the session; ``None`` without either."""
    if problem is not None:
        here = [one for one in sessions if one.problem == problem.name]
        latest = _facts(opener, here[0]) if here else None
        names = [one.name for one in here]
        return PreviewContent(f"Problem {one_line(problem.name)}", partial(problem_lines, problem, names, latest))
    if session is None:
        return None
    title = f"Session {one_line(session.name)}"
    facts = _facts(opener, session)
    if facts is None:
        return PreviewContent(title, partial(_reason_lines, one_line(session.reason)))
    charts.climb(facts.state)  # here, not on the screen's thread: for the preview, and for the session if it is opened
    return PreviewContent(title, partial(session_lines, facts), facts.state)


def _reason_lines(reason: str, room: int) -> tuple[Line, ...]:
    """Why a session cannot be read, and what to do about it: nothing of it is cut."""
    return tuple(line(f" {part}") for part in wrap(reason, max(1, room - 2)))


def _facts(opener: SessionOpener, session: SessionSummary) -> SessionFacts | None:
    """``None`` for a session that cannot be read: the list says so."""
    if session.status == "unreadable":
        return None
    try:
        return _read(opener, session.folder, session.last_activity)
    except EspalierError:
        return None  # it was deleted or damaged since it was listed; the next refresh tells


@lru_cache(maxsize=_KEPT)
def _read(opener: SessionOpener, folder: Path, last_activity: float) -> SessionFacts:
    return opener.preview(folder)
