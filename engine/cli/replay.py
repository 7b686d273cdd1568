"""``espalier replay``: a recorded session, from its journal alone."""

from __future__ import annotations

from pathlib import Path

import click

from engine.cli import options as o
from engine.cli.conclusion import print_session
from engine.cli.output import show, show_json, timestamped
from engine.cli.session_access import read_entries, session_argument
from engine.cli.session_file import unpacked_or_resolved
from engine.cli.ui import open_ui
from engine.cli.verbosity import verbosity
from engine.domain.folds import advance
from engine.domain.state import SessionState
from engine.export.bundle import is_bundle
from engine.report.facts.summary import summarise
from engine.report.text import progress


@click.command()
@session_argument
@o.plain_option
@o.headless_option
@click.option("--story", is_flag=True, help="Print every event, one line each, then the tree; implies --headless.")
@o.json_option
@verbosity
def replay(session: str, headless: bool, story: bool, as_json: bool) -> None:
    """Watch SESSION as it was recorded, or print its tree with --headless. Runs no kernel and writes nothing.

    SESSION is a name, a folder, or a bundle file, which is played without importing it.
    """
    with unpacked_or_resolved(session) as folder:
        if headless or story or as_json or not open_ui("replay", folder):
            _print(folder, Path(session) if is_bundle(Path(session)) else None, story, as_json)


def _print(folder: Path, bundle: Path | None, story: bool, as_json: bool) -> None:
    entries = read_entries(folder)
    state = advance(SessionState(), entries)
    if as_json:
        show_json(summarise(state, bundle or folder))
        return
    if story:
        _, lines = progress.entry_lines(SessionState(), entries)
        show([*(timestamped(spans, entry.at - state.opened_at) for entry, spans in lines), ""])
    print_session(state, folder, bundle=bundle)
