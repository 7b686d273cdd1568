"""``espalier replay``: a recorded session, from its journal alone."""

from __future__ import annotations

import click

from engine.cli import options as o
from engine.cli.main import open_face
from engine.cli.output import show, show_json
from engine.cli.reading import entries_of
from engine.cli.running import print_session, summary_of
from engine.domain.events import Entry
from engine.domain.state import SessionState, advance
from engine.journal import store
from engine.report import progress
from engine.report.text import Line, Span, Tone


@click.command()
@click.argument("session")
@click.option("--headless", is_flag=True, help="Print it.")
@click.option("--story", is_flag=True, help="Print what happened line by line before the tree.")
@o.json_option
def replay(session: str, headless: bool, story: bool, as_json: bool) -> None:
    """Watch SESSION as it went, or print its tree with --headless. Nothing is run and nothing is written."""
    folder = store.resolve(session)
    if not headless and not as_json and open_face("replay", folder):
        return
    entries = entries_of(folder)
    state = advance(SessionState(), entries)
    if as_json:
        show_json(summary_of(state, folder))
        return
    if story:
        show([*told(entries), ""])
    print_session(state, folder)


def told(entries: tuple[Entry, ...], from_seq: int = 0) -> list[Line]:
    """What happened from ``from_seq`` on, each line with the seconds since the session opened."""
    lines: list[Line] = []
    state = SessionState()
    for entry in entries:
        before, state = state, advance(state, (entry,))
        if entry.seq >= from_seq:
            stamp = Span(f"{max(0.0, entry.at - state.opened_at):7.1f} s  ", Tone.FAINT)
            lines += [(stamp, *spans) for spans in progress.lines(before, entry, state)]
    return lines
