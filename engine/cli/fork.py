"""``espalier fork``: a new session from an earlier point of another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from engine.cli import options as o
from engine.cli.exit_codes import BAD_INPUT, CommandExit
from engine.cli.output import show, show_json
from engine.cli.session_access import read_entries, session_argument
from engine.cli.verbosity import quiet
from engine.domain.events import Entry
from engine.domain.settings import STRATEGIES
from engine.journal import store
from engine.report.facts.forks import left_behind, lost_words
from engine.report.facts.strategy_replay import RoundReplay, replayed
from engine.report.text.lines import counted
from engine.report.text.shell import shell_name
from engine.session.fork import after_round
from engine.session.fork import fork as fork_session


@click.command()
@session_argument
@click.option("--round", "number", type=click.IntRange(0), metavar="N", help="Copy up to the end of this round.")
@click.option("--event", "position", type=click.IntRange(1), metavar="N", help="Copy this many events. Default: all.")
@click.option("--into", "target", type=o.NEW_SESSION, metavar="DIR", help="Folder of the new session. Default: a new name.")
@click.option("--recall", is_flag=True, help="Answer prompts from the replies recorded in SESSION. "
              "The fork pauses before it spends anything new.")  # fmt: skip
@click.option("--strategy", type=o.KnownValue(STRATEGIES), default=None,
              help="Search on with this strategy; prints the rounds in which it would have chosen other parents.")  # fmt: skip
@click.option("--preview", is_flag=True, help="Only print what the fork would leave out.")
@o.json_option
def fork(
    session: str,
    number: int | None,
    position: int | None,
    target: Path | None,
    recall: bool,
    strategy: str | None,
    preview: bool,
    as_json: bool,
) -> None:
    """Copy SESSION up to an earlier point into a new session, and search from there. SESSION itself does not change."""
    if number is not None and position is not None:
        raise CommandExit(BAD_INPUT, "give --round or --event, not both")
    folder = store.resolve(session)
    entries = read_entries(folder)
    cut = _event_position(folder, entries, position) if number is None else after_round(entries, number)
    behind = left_behind(entries, cut)
    forked = None if preview else fork_session(folder, cut, target, recall=recall, strategy=strategy)
    rounds = tuple(replayed(entries[:cut], strategy)) if strategy is not None else ()
    if as_json:
        left = {
            "events": behind.events, "rounds": behind.rounds, "ideas": behind.ideas, "kernels": len(behind.kernels),
            "best": behind.lost[0] if behind.lost else "",
        }  # fmt: skip
        show_json(
            {
                "session": str(forked.folder) if forked else None,
                "events": cut,
                "left_behind": left,
                "missing": forked.missing if forked else (),
            }
            | _rounds_object(strategy, rounds)
        )
        return
    best = f", with the incumbent {behind.lost[0]}" if behind.lost else ""
    parts = [counted(behind.rounds, "round"), counted(behind.ideas, "idea"), counted(len(behind.kernels), "kernel")]
    if behind.events:
        show([f"{'would leave out' if preview else 'left out'} {counted(behind.events, 'event')}: {', '.join(parts)}{best}"])
    elif preview:
        show(["would leave out nothing"])
    if strategy is not None:
        show(_round_lines(strategy, rounds))
    if forked is not None:
        show([f"forked {folder.name} after event {cut} into {forked.folder}"])
        if lost := lost_words(forked.missing, folder):
            show([f"warning: {lost}"])
        if not quiet():
            show([f"next: espalier open {shell_name(forked.folder)}"])


def _round_lines(strategy: str, rounds: Sequence[RoundReplay]) -> list[str]:
    """The rounds in which the other strategy would have chosen other parents."""
    apart = [one for one in rounds if one.differs]
    lines = [f"{strategy} would have chosen other parents in {len(apart)} of {counted(len(rounds), 'round')}"]
    for one in apart:
        why = f": {one.reason}" if one.reason else ""
        lines.append(
            f"  round {one.round}: {', '.join(one.instead) or 'none'} instead of {', '.join(one.parents) or 'none'}{why}"
        )
    return lines


def _rounds_object(strategy: str | None, rounds: Sequence[RoundReplay]) -> dict[str, object]:
    if strategy is None:
        return {}
    listed = [
        {"round": one.round, "parents": one.parents, "instead": one.instead, "differs": one.differs, "reason": one.reason}
        for one in rounds
    ]
    return {"strategy": strategy, "rounds": listed}


def _event_position(folder: Path, entries: Sequence[Entry], position: int | None) -> int:
    if position is not None and position > len(entries):
        raise CommandExit(BAD_INPUT, f"unknown event {position} in {folder.name}: its journal has {len(entries)}")
    return position or len(entries)
