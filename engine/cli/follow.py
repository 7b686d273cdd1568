"""``espalier follow``: someone else's session, watched while they work."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util

import click

from engine.cli.ending import BAD_INPUT, Ended
from engine.cli.main import open_face
from engine.cli.output import show
from engine.cli.running import print_session
from engine.domain.state import SessionState, advance
from engine.journal import store
from engine.report import progress
from engine.report.text import Span, Tone
from engine.session.follow import FollowSource


@click.command()
@click.argument("session")
@click.option("--headless", is_flag=True, help="Print what happens, line by line, until the session ends.")
@click.option("--browser", is_flag=True, help="Serve it to browsers on this machine (needs the extra `serve`).")
def follow(session: str, headless: bool, browser: bool) -> None:
    """Watch SESSION while another process runs it; nothing you do here can disturb it."""
    folder = store.resolve(session)
    if browser:
        if importlib.util.find_spec("tui") is None:
            raise Ended(BAD_INPUT, "the terminal face is not installed here: there is nothing to serve")
        importlib.import_module("tui.watch").serve(folder)
        return
    if not headless and open_face("follow", folder):
        return
    print_session(asyncio.run(_told(FollowSource(folder))), folder)


async def _told(source: FollowSource) -> SessionState:
    """Print what happens until the session is closed."""
    state = SessionState()
    async for batch in source.batches():
        for entry in batch.entries:
            before, state = state, advance(state, (entry,))
            stamp = Span(f"{max(0.0, entry.at - state.opened_at):7.1f} s  ", Tone.FAINT)
            show([(stamp, *spans) for spans in progress.lines(before, entry, state)])
        if state.closed is not None:
            await source.close()
    return state
