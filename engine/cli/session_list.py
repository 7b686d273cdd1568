"""``espalier session list`` and ``session show``: all sessions, and where one stands."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import click

from engine.cli import options as o
from engine.cli.conclusion import print_session
from engine.cli.exit_codes import BAD_INPUT, CommandExit
from engine.cli.output import as_data, show, show_json, terminal_width
from engine.cli.session_access import read_state, session_argument
from engine.domain import queries
from engine.journal import store, user_folders
from engine.report.facts.summary import summarise
from engine.report.text.lines import Span, Tone, counted, fitted, times
from engine.report.text.rounds import counted_rounds

_STATUS = {"open": "open", "closed": "ended"}
"""Status of a summary → its word in the list."""


@click.command("list")
@o.json_option
def list_sessions(as_json: bool) -> None:
    """List all sessions, the latest activity first."""
    summaries = store.summaries()
    if as_json:
        show_json({"sessions": [_session_fields(one) for one in summaries]})
    else:
        none = f"no session yet in {user_folders.sessions_root()}: `espalier run softmax` starts one"
        rows = [_session_row(one) for one in summaries]
        show(fitted(rows, terminal_width(), wide=3, least=24, spare=(4, 1)) or [none])
    if fault := store.root_fault():
        raise CommandExit(BAD_INPUT, fault)


def _session_fields(one: store.SessionSummary) -> Mapping[str, object]:
    return {
        "session": str(one.folder), "name": one.name, "status": one.status, "reason": one.reason, "problem": one.problem,
        "workload": one.workload, "device": {"name": one.device}, "rounds": one.rounds, "kernels": one.kernels,
        "verified": one.verified, "awaiting": one.awaiting, "last_activity": one.last_activity,
        "best": None if one.best is None else {
            "kernel": one.incumbent,
            "speedup": {"value": one.best.value, "low": one.best.low, "high": one.best.high, "baseline": one.baseline},
            "corroborated": one.corroborated, "quarantined": False, "doubts": one.doubts,
        },
        "doubted": one.doubted,
    }  # fmt: skip


def _session_row(one: store.SessionSummary) -> list[Span]:
    when = f"{datetime.fromtimestamp(one.last_activity, UTC).astimezone():%Y-%m-%d %H:%M}"
    name = Span(store.short_name(one.folder), Tone.STRONG)
    if one.status == "unreadable":
        return [name, Span(when, Tone.FAINT), Span("unreadable", Tone.BAD), Span(one.reason, Tone.BAD)]
    status = f"{one.awaiting} awaiting approval" if one.awaiting and one.status == "open" else _STATUS[one.status]
    none = "no kernel whose time is corroborated" if one.doubted else "no verified kernel"
    accepted = "" if one.corroborated or not one.best else ", not corroborated"
    best = f"{one.incumbent} {times(one.best)} {one.baseline}{accepted}" if one.best else none
    size = f"{counted_rounds(one.rounds, one.strategy)}, {one.verified} of {counted(one.kernels, 'kernel')} verified"
    where = f"{one.problem} {one.workload} on {one.device}"
    tone = Tone.GOOD if one.best and one.best.low > 1.0 and not accepted else Tone.PLAIN
    return [name, Span(when, Tone.FAINT), Span(status), Span(where), Span(size, Tone.FAINT), Span(best, tone)]


@click.command("show")
@session_argument
@o.json_option
def show_session(session: str, as_json: bool) -> None:
    """Print the kernel tree of SESSION, its evidence, and where it stands."""
    folder = store.resolve(session)
    state = read_state(folder)
    if not as_json:
        print_session(state, folder)
        return
    _, workload = queries.problem_and_workload(state)
    dollars, unpriced = queries.total_usd(state)
    more = {
        "workload": workload, "status": "open" if state.closed is None else "closed", "reason": state.closed or "",
        "mode": str(state.mode), "paused": state.paused, "limits": state.limits, "pauses": state.pauses,
        "instructions": state.instructions, "awaiting": [idea.id for idea in queries.pending_ideas(state)],
        "pinned": state.pinned, "pruned": state.pruned, "notes": state.notes,
        "usage": {"calls": len(state.calls), "tokens": queries.total_usage(state), "usd": dollars, "unpriced": unpriced},
    }  # fmt: skip
    show_json({**as_data(summarise(state, folder)), **more})
