"""The SESSION of a command: reading its journal, submitting commands to it, and naming it in advice."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from engine.cli.output import show
from engine.domain.commands import Command
from engine.domain.events import Entry, SessionResumed
from engine.domain.state import SessionState, advance
from engine.journal import journal, store
from engine.report.text import progress
from engine.session import factory
from engine.session.writer import SessionWriter

session_argument = click.argument("session")
reason_option = click.option("--reason", default="", help="Why, in words; kept in the journal.")


def shell_name(folder: Path) -> str:
    """A session's short name, quoted for a shell."""
    return shlex.quote(store.short_name(folder))


def read_entries(folder: Path) -> tuple[Entry, ...]:
    """The entries of a session; warns when the last one was cut short. Raises JournalError and its kinds."""
    recording = journal.read(folder)
    if recording.torn:
        show([f"the last line of the journal of {folder.name} was cut short and is left out"], err=True)
    return recording.entries


def read_state(folder: Path) -> SessionState:
    """The state that these entries fold to. Raises JournalError and its kinds."""
    return advance(SessionState(), read_entries(folder))


def submit(session: str, commands: Callable[[SessionWriter], Sequence[Command]]) -> SessionState:
    """Submit commands to a session, print what they changed, and return the state after them.

    Raises JournalError and its kinds, CommandRejected with the reason.
    """
    folder = store.resolve(session)
    before, after = factory.steer(folder, commands)
    entries = journal.read(folder).entries
    if repaired := _last_repair(entries):
        show([f"the journal was mended: {repaired}"], err=True)
    _, lines = progress.entry_lines(before, [entry for entry in entries if entry.seq > before.seq])
    show([spans for _, spans in lines] or ["nothing changed: it is so already"])
    return after


def _last_repair(entries: tuple[Entry, ...]) -> str:
    """What this command repaired before it could write: every command that writes first records a SessionResumed."""
    return next((entry.event.repaired for entry in reversed(entries) if isinstance(entry.event, SessionResumed)), "")
