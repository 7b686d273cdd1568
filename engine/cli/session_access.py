"""The SESSION of a command: reading its journal, submitting commands to it, and naming it in advice."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from engine.cli import options as o
from engine.cli.output import show, show_json
from engine.cli.verbosity import quiet
from engine.domain.commands import Command
from engine.domain.events import Entry, SessionResumed
from engine.domain.folds import advance
from engine.domain.model import ENGINEER, Author
from engine.domain.state import SessionState
from engine.journal import codec, journal, store
from engine.report.text import progress
from engine.report.text.lines import Line
from engine.report.text.shell import shell_name
from engine.session.inbox import agent
from engine.session.steer import Commands, steer

AGENT_NAME = "ESPALIER_AGENT"
"""Environment variable: commands are an agent's, which may propose and write, and never decides."""

session_argument = click.argument("session", type=o.SESSION)
reason_option = click.option("--reason", default="", metavar="TEXT", help="Kept in the journal.")


def read_entries(folder: Path) -> tuple[Entry, ...]:
    """The entries of a session; warns when the last line cannot be read. Raises JournalError and its kinds."""
    recording = journal.read(folder)
    if recording.torn:
        show([f"the last line of the journal of {folder.name} {recording.torn} and is left out"], err=True)
    return recording.entries


def read_state(folder: Path) -> SessionState:
    """The state that these entries fold to. Raises JournalError and its kinds."""
    return advance(SessionState(), read_entries(folder))


@dataclass(slots=True)
class Target:
    """The session that a command steers, and how its result is printed."""

    folder: Path
    as_json: bool
    held: bool = False
    """Whether another process held the session when it was steered."""

    @property
    def name(self) -> str:
        """The session's short name, quoted for a shell."""
        return shell_name(self.folder)

    def submit(self, command: Command) -> SessionState:
        """Submit one command; see ``submit_all``."""
        return self.submit_all(lambda _: [command])

    def submit_all(self, commands: Commands) -> SessionState:
        """Submit commands, print the events that they caused, and return the state after them.

        Raises JournalError and its kinds, CommandRejected with the reason.
        """
        steered = steer(self.folder, commands, asking_author())
        self.held = steered.held
        if repaired := _last_repair(journal.read(self.folder).entries):
            show([f"the journal was repaired: {repaired}"], err=True)
        if self.as_json:
            news = [json.loads(codec.encode(one)) for one in steered.entries]
            show_json({"session": str(self.folder.absolute()), "events": news})
            return steered.after
        _, lines = progress.entry_lines(steered.before, steered.entries)
        show([spans for _, spans in lines] or ["nothing changed"])
        return steered.after

    def show(self, lines: Iterable[Line | str]) -> None:
        """Print further lines; with --json nothing."""
        if not self.as_json:
            show(lines)

    def advise(self, text: str) -> None:
        """Print what to do next; with --json or --quiet, or where another process runs the session, nothing."""
        if not quiet() and not self.held:
            self.show([f"next: {text}"])


def asking_author() -> Author:
    """Who runs this command: the engineer, or the agent that ``ESPALIER_AGENT`` names. Raises CommandRejected."""
    name = os.environ.get(AGENT_NAME, "")
    return agent(name) if name else ENGINEER


def steers(function: Callable[..., None]) -> Callable[..., None]:
    """Gives a command its SESSION and ``--json``; ``function`` is called with a ``Target`` first."""

    @functools.wraps(function)
    def command(session: str, as_json: bool, **given: Any) -> None:
        function(Target(store.resolve(session), as_json), **given)

    own = list(getattr(function, "__click_params__", ()))
    command.__click_params__ = []  # type: ignore[attr-defined]
    events_option(command)
    command.__click_params__ += own  # type: ignore[attr-defined]
    session_argument(command)
    return command


events_option = click.option("--json", "as_json", is_flag=True, help="Print the recorded events as one JSON object.")


def _last_repair(entries: tuple[Entry, ...]) -> str:
    """What this command repaired before it could write: every command that writes first records a SessionResumed."""
    return next((entry.event.repaired for entry in reversed(entries) if isinstance(entry.event, SessionResumed)), "")
