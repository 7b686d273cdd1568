"""``espalier fork``: go on from an earlier point of a session, in a session of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from engine.cli import options as o
from engine.cli.ending import BAD_INPUT, Ended
from engine.cli.output import show, show_json
from engine.cli.reading import entries_of
from engine.cli.running import typed
from engine.domain.events import Entry
from engine.journal import store
from engine.report.text import counted
from engine.session import forking


@click.command()
@click.argument("session")
@click.option("--round", "number", type=click.IntRange(0), help="Up to the end of this round.")
@click.option("--event", "position", type=click.IntRange(1), help="Up to this many events of its journal. Default: all.")
@click.option("--into", "target", type=o.PATH, metavar="DIR", help="The new session's folder; default: a new one.")
@click.option("--recall", is_flag=True, help="Answer prompts that SESSION has answered from its record: the what-if. "
              "Where new spending would begin, the fork pauses and asks.")  # fmt: skip
@click.option("--preview", is_flag=True, help="Only say what would be left behind.")
@o.json_option
def fork(
    session: str, number: int | None, position: int | None, target: Path | None, recall: bool, preview: bool, as_json: bool
) -> None:
    """Fork SESSION at a point of its past; SESSION itself stays as it is."""
    if number is not None and position is not None:
        raise Ended(BAD_INPUT, "name a --round or an --event, not both")
    folder = store.resolve(session)
    entries = entries_of(folder)
    place = _place(folder, entries, position) if number is None else forking.after_round(entries, number)
    behind = forking.left_behind(entries, place)
    made = None if preview else forking.fork(folder, place, target, recall=recall)
    if as_json:
        show_json({"session": str(made) if made else None, "events": place, "left_behind": behind})
        return
    best = f", the leader {behind.best} among them" if behind.best else ""
    parts = [counted(behind.rounds, "round"), counted(behind.ideas, "idea"), counted(behind.kernels, "kernel")]
    show([f"{'would leave' if preview else 'left'} behind: {counted(behind.events, 'event')}: {', '.join(parts)}{best}"])
    if made is not None:
        show([f"forked after event {place} of {folder.name}: espalier open {typed(made)}"])


def _place(folder: Path, entries: Sequence[Entry], position: int | None) -> int:
    if position is not None and position > len(entries):
        raise Ended(BAD_INPUT, f"there is no event {position} in {folder.name}: its journal holds {len(entries)}")
    return position or len(entries)
