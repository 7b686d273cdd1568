"""``espalier replay``: a recorded session, from its journal alone."""

from __future__ import annotations

import click

from engine.cli import options as o
from engine.cli.conclusion import print_session
from engine.cli.output import show, show_json, timestamped
from engine.cli.session_access import read_entries, session_argument
from engine.cli.ui import open_ui
from engine.domain.state import SessionState, advance
from engine.journal import store
from engine.report.facts.summary import summarise
from engine.report.text import progress


@click.command()
@session_argument
@click.option("--headless", is_flag=True, help="Print it.")
@click.option("--story", is_flag=True, help="Print what happened line by line before the tree.")
@o.json_option
def replay(session: str, headless: bool, story: bool, as_json: bool) -> None:
    """Watch SESSION as it went, or print its tree with --headless. Nothing is run and nothing is written."""
    folder = store.resolve(session)
    if not headless and not as_json and open_ui("replay", folder):
        return
    entries = read_entries(folder)
    state = advance(SessionState(), entries)
    if as_json:
        show_json(summarise(state, folder))
        return
    if story:
        _, lines = progress.entry_lines(SessionState(), entries)
        show([*(timestamped(spans, entry.at - state.opened_at) for entry, spans in lines), ""])
    print_session(state, folder)
