"""Notes as lines: what was said of a kernel, an idea, a round or the session, newest first. Pure."""

from __future__ import annotations

from engine.domain.state import Note, SessionState
from tui.viewmodel import fmt, kernels
from tui.viewmodel.cells import BLANK, Cell, Ink, Line, cut, flat, line, wrapped
from tui.viewmodel.detail import nothing


def page(state: SessionState, target: str | None, room: int) -> tuple[Line, ...]:
    """The notes on ``target`` (``None``: all of them), each with its author, its time and what it speaks of."""
    found = [note for note in reversed(state.notes) if target is None or note.target == target]
    if not found:
        return nothing("no notes yet")
    lines: list[Line] = []
    for note in found:
        lines += [BLANK, _head(state, note, room)]
        lines += [line(f"  {part}") for part in wrapped(note.text, min(96, room - 4))]
    return tuple(lines)


def _head(state: SessionState, note: Note, room: int) -> Line:
    kernel, idea = state.kernels.get(note.target), state.ideas.get(note.target)
    about = kernels.title(state, kernel) if kernel else flat(idea.text.title) if idea else ""
    by = "you" if note.by == "engineer" else flat(note.by)
    name, stamp = Cell(note.target or "the session", Ink.STRONG), fmt.moment(note.at, state.opened_at)
    words = Cell(f" {cut(about, max(0, room - 24 - len(stamp)))}" if about else "", Ink.FAINT)
    return line("  ", name, words, Cell(" · ", Ink.RULE), Cell(by, Ink.ACCENT), Cell(f" {stamp}", Ink.RULE))
