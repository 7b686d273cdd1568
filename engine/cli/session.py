"""Commands on a session as a whole: the list of sessions, and how one is steered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import click

from engine.cli import options as o
from engine.cli.output import show, show_json
from engine.cli.session_access import read_state, reason_option, session_argument, submit
from engine.domain import commands as c
from engine.domain.settings import Limits, Pauses
from engine.journal import store
from engine.report.text.lines import Line, Span, Tone, counted, fields, table, times
from engine.session.writer import SessionWriter


@click.command()
@o.json_option
def sessions(as_json: bool) -> None:
    """All sessions, the latest activity first."""
    summaries = store.summaries()
    if as_json:
        show_json({"sessions": [_session_fields(one) for one in summaries]})
        return
    none = f"no session yet in {store.sessions_root()}: `espalier run softmax` begins one"
    show(table([_session_row(one) for one in summaries]) or [none])


def _session_fields(one: store.SessionSummary) -> Mapping[str, object]:
    return {
        "session": str(one.folder), "name": one.name, "status": one.status, "reason": one.reason, "problem": one.problem,
        "workload": one.workload, "device": one.device, "rounds": one.rounds, "kernels": one.kernels,
        "verified": one.verified, "awaiting": one.awaiting, "last_activity": one.last_activity,
        "best": None if one.best is None else {
            "kernel": one.incumbent,
            "speedup": {"value": one.best.value, "low": one.best.low, "high": one.best.high, "baseline": one.baseline},
        },
    }  # fmt: skip


def _session_row(one: store.SessionSummary) -> list[Span]:
    when = f"{datetime.fromtimestamp(one.last_activity, UTC).astimezone():%Y-%m-%d %H:%M}"
    name = Span(store.short_name(one.folder), Tone.STRONG)
    if one.status == "unreadable":
        return [name, Span(when, Tone.FAINT), Span("unreadable", Tone.BAD), Span(one.reason, Tone.BAD)]
    status = f"{one.awaiting} awaiting" if one.awaiting and one.status == "open" else one.status
    best = f"{one.incumbent} {times(one.best)} {one.baseline}" if one.best else "nothing verified"
    size = f"{counted(one.rounds, 'round')}, {one.verified} of {counted(one.kernels, 'kernel')} verified"
    where = f"{one.problem} {one.workload} on {one.device}"
    tone = Tone.GOOD if one.best and one.best.low > 1.0 else Tone.PLAIN
    return [name, Span(when, Tone.FAINT), Span(status), Span(where), Span(size, Tone.FAINT), Span(best, tone)]


@click.command()
@session_argument
@click.option("--above-usd", "usd", type=o.FiniteNumber(0), metavar="X", help="When more than this has been spent.")
@click.option("--above-tokens", "tokens", type=click.IntRange(0), metavar="N", help="When more tokens have been spent.")
@click.option("--before-round", "number", type=click.IntRange(1), metavar="N", help="Before this round opens.")
@click.option("--never", is_flag=True, help="Take all conditions back.")
@reason_option
def pause(session: str, usd: float | None, tokens: int | None, number: int | None, never: bool, reason: str) -> None:
    """Ask for no further ideas and code of SESSION until `continue`: from now on, or once a condition holds.

    What has been drafted is still built, verified and measured.
    """

    def commands(writer: SessionWriter) -> list[c.Command]:
        if never:
            return [c.SetPauses(Pauses())]
        given = {"tokens": tokens, "usd": usd, "round": number}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return [c.SetPauses(replace(writer.state.pauses, **changes)) if changes else c.PauseSearch(reason)]

    submit(session, commands)


@click.command("continue")
@session_argument
def continue_(session: str) -> None:
    """Go on after a pause; conditions that held are taken back. `open` or `step` then asks again."""
    submit(session, lambda _: [c.ResumeSearch()])


@click.command()
@session_argument
@click.argument("text")
def instruct(session: str, text: str) -> None:
    """Set the standing instructions that SESSION's source of ideas is given with every question."""
    submit(session, lambda _: [c.Instruct(text)])


@click.command()
@session_argument
@click.argument("mode", type=o.ApprovalMode(), metavar="ask|ask:SECONDS|autopilot")
def mode(session: str, mode: str) -> None:
    """Who approves the ideas of SESSION: you, you with patience, or the policy."""
    submit(session, lambda _: [c.SetMode(mode)])


@click.command()
@session_argument
@click.option("--reason", default="closed by hand", help="Why, in words; kept in the journal.")
def close(session: str, reason: str) -> None:
    """End SESSION; what has not settled is cancelled. More rounds, a seed or an idea take it up again."""
    submit(session, lambda _: [c.EndSession(reason)])


class _OrNone(click.ParamType[Any]):
    """A value of another type, or ``none`` for no limit."""

    def __init__(self, inner: click.ParamType[Any]) -> None:
        self._inner = inner
        self.name = inner.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return "none" if value == "none" else self._inner.convert(value, param, ctx)


_COUNT = _OrNone(click.IntRange(1))
_LIMITS = ("rounds", "seconds", "kernels", "plateau", "light", "tokens", "usd")


@click.command()
@session_argument
@click.option("--rounds", type=_COUNT, metavar="N|none", help="Rounds after the first port.")
@click.option("--time", "seconds", type=_OrNone(o.Duration()), metavar="TIME|none", help="Time at work, over all runs.")
@click.option("--kernels", type=_COUNT, metavar="N|none", help="Kernels in the tree.")
@click.option("--plateau", type=_COUNT, metavar="N|none", help="Rounds without a new best.")
@click.option("--light", type=_OrNone(o.FiniteNumber(0, 10, min_open=True)), metavar="F|none",
              help="Fraction of the speed of light that is enough.")  # fmt: skip
@click.option("--budget-tokens", "tokens", type=_COUNT, metavar="N|none", help="Model tokens.")
@click.option("--budget-usd", "usd", type=_OrNone(o.FiniteNumber(0, min_open=True)), metavar="X|none", help="Dollars.")
def limits(session: str, **given: Any) -> None:
    """Change when SESSION stops by itself, or print its limits. A session that had ended for them goes on with `open`."""
    changes = {name: None if value == "none" else value for name, value in given.items() if value is not None}
    if not changes:
        show(_limit_lines(read_state(store.resolve(session)).limits))
        return
    after = submit(session, lambda writer: [c.SetLimits(replace(writer.state.limits, **changes))])
    show(_limit_lines(after.limits))


def _limit_lines(limits: Limits) -> list[Line]:
    values = [(name, getattr(limits, name)) for name in _LIMITS]
    return fields((name, Span("none" if value is None else f"{value:g}")) for name, value in values)
