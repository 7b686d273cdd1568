"""``espalier follow``: watch a session that another process runs."""

from __future__ import annotations

import asyncio

import click

from engine.cli import options as o
from engine.cli.conclusion import print_session
from engine.cli.exit_codes import BAD_INPUT, CommandExit
from engine.cli.output import show, timestamped
from engine.cli.session_access import session_argument
from engine.cli.ui import open_ui, registered_ui
from engine.domain.state import SessionState
from engine.journal import store
from engine.report.text import progress
from engine.session.follow import FollowSource


@click.command()
@session_argument
@o.plain_option
@click.option("--headless", is_flag=True, help="Print each event, one line each, until the session ends.")
@click.option("--browser", is_flag=True, help="Serve the terminal UI to browsers on this machine (needs the extra `serve`).")
def follow(session: str, headless: bool, browser: bool) -> None:
    """Watch SESSION while another process runs it. Reads its journal only."""
    folder = store.resolve(session)
    if browser:
        if (ui := registered_ui()) is None:
            raise CommandExit(BAD_INPUT, "the terminal UI is not installed: nothing can be served")
        ui.serve(folder)
        return
    if not headless and open_ui("follow", folder):
        return
    print_session(asyncio.run(_print_until_closed(FollowSource(folder))), folder)


async def _print_until_closed(source: FollowSource) -> SessionState:
    """Print each event until the session ends; its last state."""
    state = SessionState()
    async for batch in source.batches():
        state, lines = progress.entry_lines(state, batch.entries)
        show([timestamped(spans, entry.at - state.opened_at) for entry, spans in lines])
        if state.closed is not None:
            await source.close()
    return state
