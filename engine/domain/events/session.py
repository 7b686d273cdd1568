"""Events of the session itself: its life, its settings, notes, commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from engine.domain.model import Device, Problem
from engine.domain.preparation import Preparation
from engine.domain.settings import Limits, ModelSettings, Pauses, Settings


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The first event of every journal: the problem, the settings and the requested device."""

    KIND: ClassVar[str] = "session.opened"
    problem: Problem
    device: str
    """The requested device: ``cpu`` or ``cuda:0``; ``session.prepared`` describes it."""
    settings: Settings
    mode: str
    versions: Mapping[str, str]
    forked_from: str = ""


@dataclass(frozen=True, slots=True)
class SessionResumed:
    """A process opened the session again; ``unfinished`` names work that an earlier process started but did not record."""

    KIND: ClassVar[str] = "session.resumed"
    unfinished: tuple[str, ...]
    repaired: str = ""
    """What was repaired on opening, e.g. a torn last line."""


@dataclass(frozen=True, slots=True)
class SessionPrepared:
    """The device was described, the correctness check tested, the baselines measured.

    A later one means that the session moved to another device, or that fresh baselines were asked for.
    """

    KIND: ClassVar[str] = "session.prepared"
    device: Device
    preparation: Preparation


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """A limit was reached, or the engineer ended the session."""

    KIND: ClassVar[str] = "session.closed"
    reason: str


@dataclass(frozen=True, slots=True)
class SessionReopened:
    """A closed session was extended."""

    KIND: ClassVar[str] = "session.reopened"


@dataclass(frozen=True, slots=True)
class NoteAdded:
    """A note on a kernel, an idea, a round, or (with an empty target) the session."""

    KIND: ClassVar[str] = "note.added"
    target: str
    text: str


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """The approval mode changed: ``ask``, ``ask:SECONDS`` or ``autopilot`` (see ``settings.Mode``)."""

    KIND: ClassVar[str] = "mode.changed"
    mode: str


@dataclass(frozen=True, slots=True)
class LimitsChanged:
    KIND: ClassVar[str] = "limits.changed"
    limits: Limits


@dataclass(frozen=True, slots=True)
class InstructionsChanged:
    """The standing instructions changed; every later prompt contains them."""

    KIND: ClassVar[str] = "instructions.changed"
    text: str


@dataclass(frozen=True, slots=True)
class ModelsChanged:
    """Proposers, writer, servers or the options of calls changed."""

    KIND: ClassVar[str] = "models.changed"
    models: ModelSettings


@dataclass(frozen=True, slots=True)
class PausesChanged:
    KIND: ClassVar[str] = "pauses.changed"
    pauses: Pauses


@dataclass(frozen=True, slots=True)
class SessionPaused:
    """The search was paused: no ideas and no code are requested until the engineer resumes it."""

    KIND: ClassVar[str] = "session.paused"
    reason: str


@dataclass(frozen=True, slots=True)
class SessionContinued:
    """The search was resumed. ``pauses`` are the remaining conditions, without those that already hold."""

    KIND: ClassVar[str] = "session.continued"
    pauses: Pauses


@dataclass(frozen=True, slots=True)
class CommandAnswered:
    """A command that another process left in the inbox was accepted or refused. The entry's author is who asked."""

    KIND: ClassVar[str] = "command.answered"
    request: str
    """Name of the request in the inbox, by which the asker finds the answer."""
    command: str
    """The command's name, e.g. ``PinKernel``; empty if it could not be read."""
    accepted: bool
    reason: str = ""
    """Why it was refused."""
    events: int = 0
    """Number of entries directly before this one that the command caused."""
    process: int = 0
    """Process id of the asker, as the asker stated it."""


@dataclass(frozen=True, slots=True)
class DecisionUndone:
    """The latest decision of a person was taken back: what it changed is as it was before."""

    KIND: ClassVar[str] = "decision.undone"
    decision: int
    """Sequence number of its first event."""
    what: str
    """The decision in words, e.g. ``approval of i3``."""
    ideas: tuple[str, ...] = ()
    """The ideas that are as before."""
    kernels: tuple[str, ...] = ()
    kept: str = ""
    """Why the decision stands for some of its ideas; empty if it stands for none."""


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An event of an unknown kind. It is kept and displayed."""

    KIND: ClassVar[str] = "unknown"
    kind: str
    data: Mapping[str, object]


SessionEvent = (
    SessionOpened
    | SessionResumed
    | SessionPrepared
    | SessionClosed
    | SessionReopened
    | NoteAdded
    | ModeChanged
    | LimitsChanged
    | InstructionsChanged
    | ModelsChanged
    | PausesChanged
    | SessionPaused
    | SessionContinued
    | CommandAnswered
    | DecisionUndone
    | UnknownEvent
)
