"""Folds of the session itself: its life, its settings, notes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from engine.domain import events as e
from engine.domain.folds.batch import Fold, StateBatch
from engine.domain.settings import Mode
from engine.domain.state import Note
from engine.domain.work import WorkKey, WorkKind


def _mode_of(text: str) -> Mode:
    """The mode that a journal names; ``ask`` if it is unknown."""
    return Mode.parse(text) or Mode()


def _opened(b: StateBatch, entry: e.Entry, ev: e.SessionOpened) -> None:
    b.set(
        opened=ev, opened_at=entry.at, limits=ev.settings.limits, pauses=ev.settings.pauses, models=ev.settings.models,
        mode=_mode_of(ev.mode),
    )  # fmt: skip


def _resumed(b: StateBatch, entry: e.Entry, ev: e.SessionResumed) -> None:
    b.set(workers=MappingProxyType({}))
    b.table("broken").clear()
    b.table("called_off").clear()


def _prepared(b: StateBatch, entry: e.Entry, ev: e.SessionPrepared) -> None:
    races = (work for work in (*b.peek("started"), *b.peek("broken")) if work.kind == WorkKind.RACE)
    b.finish(WorkKey(WorkKind.PREPARE), *races)
    b.set(asked=(), device=ev.device, preparation=ev.preparation, epoch=b.get("epoch") + 1)


def _closed(b: StateBatch, entry: e.Entry, ev: e.SessionClosed) -> None:
    b.set(closed=ev.reason)


def _reopened(b: StateBatch, entry: e.Entry, ev: e.SessionReopened) -> None:
    b.set(closed=None, reopened_after=max(b.peek("rounds"), default=-1))


def _note(b: StateBatch, entry: e.Entry, ev: e.NoteAdded) -> None:
    b.set(notes=(*b.get("notes"), Note(entry.at, entry.by, ev.target, ev.text)))


def _mode(b: StateBatch, entry: e.Entry, ev: e.ModeChanged) -> None:
    b.set(mode=_mode_of(ev.mode))


def _limits(b: StateBatch, entry: e.Entry, ev: e.LimitsChanged) -> None:
    b.set(limits=ev.limits, capped=None)


def _instructions(b: StateBatch, entry: e.Entry, ev: e.InstructionsChanged) -> None:
    b.set(instructions=ev.text)


def _models(b: StateBatch, entry: e.Entry, ev: e.ModelsChanged) -> None:
    b.set(models=ev.models)


def _pauses(b: StateBatch, entry: e.Entry, ev: e.PausesChanged) -> None:
    b.set(pauses=ev.pauses)


def _paused(b: StateBatch, entry: e.Entry, ev: e.SessionPaused) -> None:
    b.set(paused=ev.reason)


def _continued(b: StateBatch, entry: e.Entry, ev: e.SessionContinued) -> None:
    b.set(paused=None, pauses=ev.pauses)


def _command_answered(b: StateBatch, entry: e.Entry, ev: e.CommandAnswered) -> None:
    """Changes nothing: the command's own events precede it."""


def _unknown(b: StateBatch, entry: e.Entry, ev: e.UnknownEvent) -> None:
    b.table("unknown")[ev.kind] = b.peek("unknown").get(ev.kind, 0) + 1


FOLDS: Mapping[type, Fold] = {
    e.SessionOpened: _opened,
    e.SessionResumed: _resumed,
    e.SessionPrepared: _prepared,
    e.SessionClosed: _closed,
    e.SessionReopened: _reopened,
    e.NoteAdded: _note,
    e.ModeChanged: _mode,
    e.LimitsChanged: _limits,
    e.InstructionsChanged: _instructions,
    e.ModelsChanged: _models,
    e.PausesChanged: _pauses,
    e.SessionPaused: _paused,
    e.SessionContinued: _continued,
    e.CommandAnswered: _command_answered,
    e.UnknownEvent: _unknown,
}
