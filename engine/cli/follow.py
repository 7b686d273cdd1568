"""``espalier follow``: watch a session that another process runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from engine.cli import options as o
from engine.cli.conclusion import print_session
from engine.cli.exit_codes import AWAITING, BAD_INPUT, CommandExit
from engine.cli.output import show, timestamped
from engine.cli.session_access import session_argument
from engine.cli.ui import open_ui, registered_ui
from engine.domain.state import SessionState
from engine.journal import store
from engine.report.text import progress
from engine.report.text.shell import shell_name
from engine.session.follow import FollowSource


@click.command()
@session_argument
@o.plain_option
@click.option("--headless", is_flag=True, help="Print each event, one line each, while the session runs.")
@click.option("--browser", is_flag=True, help="Serve the terminal UI to browsers on this machine (needs the extra `serve`).")
def follow(session: str, headless: bool, browser: bool) -> None:
    """Watch SESSION while another process runs it. Reads its journal only."""
    if browser and headless:
        raise click.UsageError("give --headless or --browser, not both")
    folder = store.resolve(session)
    if browser:
        if (ui := registered_ui()) is None:
            raise CommandExit(BAD_INPUT, "the terminal UI is not installed: nothing can be served")
        ui.serve(folder)
        return
    if not headless and open_ui("follow", folder):
        return
    state = asyncio.run(_print_until_over(folder))
    print_session(state, folder)
    if state.closed is None:
        name = shell_name(folder)
        raise CommandExit(AWAITING, f"no process runs {name}: `espalier open {name}` resumes it")


async def _print_until_over(folder: Path) -> SessionState:
    """Print each event until the session ends, or no process writes it any more; its last state."""
    is_over = False

    async def wait(seconds: float) -> None:
        nonlocal is_over
        was_over, is_over = is_over, not source.is_run
        if was_over and is_over:  # nothing was recorded after the writer had gone, and no other came
            await source.close()
        else:
            await asyncio.sleep(seconds)

    source = FollowSource(folder, wait)
    state = SessionState()
    async for batch in source.batches():
        state, lines = progress.entry_lines(state, batch.entries)
        show([timestamped(spans, entry.at - state.opened_at) for entry, spans in lines])
        if state.closed is not None:
            await source.close()
    return state
