"""Building blocks of pages: headings, tables, paragraphs; and the page of notes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from engine.domain.state import Note, SessionState
from tui.viewmodel import fmt, kernels
from tui.viewmodel.cells import BLANK, Cell, Ink, Line, cut, fold_line, line, one_line, pad, wrap

INDENT = "  "
_ANY = 10_000
_LEAST = 24
"""The room of a text before its page has a width."""


def section(title: str, room: int) -> Line:
    """A heading with a rule to the edge."""
    rule = "─" * max(0, room - len(title) - 4)
    return line(Cell(f" {title} ", Ink.TITLE), Cell(rule, Ink.RULE))


def empty_page(words: str, room: int = _ANY) -> tuple[Line, ...]:
    """A page without content, and why."""
    return (BLANK, *(line(Cell(f"{INDENT}{part}", Ink.FAINT)) for part in wrap(words, max(_LEAST, room - 4))))


def table(rows: Sequence[tuple[str, Sequence[Cell]]], room: int = _ANY) -> list[Line]:
    """One line for each name and value, indented and aligned; long values wrap below themselves."""
    widest = max((len(name) for name, _ in rows), default=0)
    lines = (line(Cell(f"{INDENT}{pad(name, widest)}  ", Ink.LABEL), *cells) for name, cells in rows)
    return [part for one in lines for part in fold_line(one, room, widest + 4)]


def paragraph(text: str, room: int) -> list[Line]:
    """The text wrapped into indented lines of readable length."""
    return [line(f"{INDENT}{part}") for part in wrap(text, max(_LEAST, min(room - 4, 96)))]


def notes(state: SessionState, room: int) -> tuple[Line, ...]:
    """All notes, newest first, with author, time and subject."""
    if not state.notes:
        return empty_page("no notes yet")
    lines: list[Line] = []
    for note in reversed(state.notes):
        lines += [BLANK, _note_head(state, note, room), *paragraph(note.text, room)]
    return tuple(lines)


def _note_head(state: SessionState, note: Note, room: int) -> Line:
    kernel, idea = state.kernels.get(note.target), state.ideas.get(note.target)
    about = kernels.title(state, kernel) if kernel else one_line(idea.text.title) if idea else ""
    by = "you" if note.by.is_engineer else one_line(note.by.name)
    name, stamp = Cell(note.target or "the session", Ink.STRONG), fmt.moment(note.at, state.opened_at)
    words = Cell(f" {cut(about, max(0, room - 24 - len(stamp)))}" if about else "", Ink.FAINT)
    return line("  ", name, words, Cell(" · ", Ink.RULE), Cell(by, Ink.ACCENT), Cell(f" {stamp}", Ink.RULE))
