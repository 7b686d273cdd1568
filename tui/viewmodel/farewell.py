"""Words on leaving: what still runs, and the line that the shell shows after the terminal UI."""

from __future__ import annotations

from collections.abc import Collection

from engine.domain import queries
from engine.domain.state import SessionState
from engine.domain.work_key import WorkKey
from engine.report.text.work import works_words
from tui.viewmodel import kernels
from tui.viewmodel.fmt import counted
from tui.viewmodel.heading import without_incumbent
from tui.viewmodel.ideas import awaiting_approval


def under_way(works: Collection[WorkKey], shell_name: str) -> str:
    """What is running, and what becomes of it. ``shell_name``: the session as an argument of ``espalier``."""
    words = works_words(sorted(works, key=str))
    return f"Running: {words}.\n\n`espalier open {shell_name}` resumes the session and repeats this work."


def farewell(state: SessionState, shell_name: str) -> str:
    """One line about the session that ran here. ``shell_name``: the session as an argument of ``espalier``."""
    best = queries.incumbent(state)
    baseline = state.opened.settings.baseline if state.opened is not None else ""
    figure = "".join(cell.text for cell in kernels.label(state, best.id)).strip() if best is not None else ""
    waiting = len(queries.pending_ideas(state))
    unfinished = len(queries.unsettled(state))
    parts = (
        f"incumbent {figure} {baseline}".rstrip() if figure else without_incumbent(state),
        awaiting_approval(waiting) if waiting else "",
        counted(unfinished, "unfinished kernel") if unfinished and state.closed is None else "",
        f"ended: {state.closed}" if state.closed is not None else "",
        f"replay: espalier replay {shell_name}" if state.closed is not None else f"resume: espalier open {shell_name}",
    )
    return f"{shell_name}: {' · '.join(filter(None, parts))}"
