"""``espalier fork``: go on from an earlier point of a session, in a session of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from engine.cli import options as o
from engine.cli.exit_codes import BAD_INPUT, CommandExit
from engine.cli.output import show, show_json
from engine.cli.session_access import read_entries, session_argument, shell_name
from engine.domain.events import Entry
from engine.journal import store
from engine.report.facts.forks import left_behind
from engine.report.text.lines import counted
from engine.session.fork import after_round
from engine.session.fork import fork as fork_session


@click.command()
@session_argument
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
        raise CommandExit(BAD_INPUT, "name a --round or an --event, not both")
    folder = store.resolve(session)
    entries = read_entries(folder)
    cut = _event_position(folder, entries, position) if number is None else after_round(entries, number)
    behind = left_behind(entries, cut)
    forked = None if preview else fork_session(folder, cut, target, recall=recall)
    if as_json:
        left = {
            "events": behind.events, "rounds": behind.rounds, "ideas": behind.ideas, "kernels": len(behind.kernels),
            "best": behind.lost[0] if behind.lost else "",
        }  # fmt: skip
        show_json({"session": str(forked) if forked else None, "events": cut, "left_behind": left})
        return
    best = f", the leader {behind.lost[0]} among them" if behind.lost else ""
    parts = [counted(behind.rounds, "round"), counted(behind.ideas, "idea"), counted(len(behind.kernels), "kernel")]
    show([f"{'would leave' if preview else 'left'} behind: {counted(behind.events, 'event')}: {', '.join(parts)}{best}"])
    if forked is not None:
        show([f"forked after event {cut} of {folder.name}: espalier open {shell_name(forked)}"])


def _event_position(folder: Path, entries: Sequence[Entry], position: int | None) -> int:
    if position is not None and position > len(entries):
        raise CommandExit(BAD_INPUT, f"there is no event {position} in {folder.name}: its journal holds {len(entries)}")
    return position or len(entries)
