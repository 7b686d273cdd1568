"""Steering a session without a screen: each command here submits one of the domain's commands, under the same rules."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import click

from engine.cli import options as o
from engine.cli.kernels import read_seed
from engine.cli.output import show
from engine.cli.reading import state_of
from engine.cli.running import typed
from engine.domain import commands as c
from engine.domain.events import Entry, SessionResumed
from engine.domain.model import Limits, Pauses
from engine.domain.state import SessionState, advance
from engine.journal import journal, store
from engine.report import progress
from engine.report.text import Line, Span, fields
from engine.session import assembly
from engine.session.live import LiveSession

T = TypeVar("T")
_CALL = re.compile(r"c[0-9]+")

session_argument = click.argument("session")
kernel_argument = click.argument("kernel")
reason_option = click.option("--reason", default="", help="Why, in words; kept in the journal.")


def submit(session: str, commands: Callable[[LiveSession], Sequence[c.Command]]) -> SessionState:
    """Submit commands to a session and print what they caused.

    Raises JournalError and its kinds, CommandRejected with the reason.
    """
    folder = store.resolve(session)
    before, after = asyncio.run(assembly.steer(folder, commands))
    entries = journal.read(folder).entries
    if mended := _mended(entries):
        show([f"the journal was mended: {mended}"], err=True)
    lines = _caused(entries, before)
    show(lines or ["nothing changed: it is so already"])
    return after


def _mended(entries: tuple[Entry, ...]) -> str:
    """What this command had to mend before it could write; every one that writes begins by recording that."""
    return next((entry.event.repaired for entry in reversed(entries) if isinstance(entry.event, SessionResumed)), "")


def _caused(entries: tuple[Entry, ...], before: SessionState) -> list[Line]:
    lines: list[Line] = []
    state = before
    for entry in entries:
        if entry.seq > before.seq:
            earlier, state = state, advance(state, (entry,))
            lines += progress.lines(earlier, entry, state)
    return lines


def _kernel_command(name: str, words: str, make: Callable[[str], c.Command]) -> click.Command:
    @click.command(name, help=words)
    @session_argument
    @kernel_argument
    def command(session: str, kernel: str) -> None:
        submit(session, lambda _: [make(kernel)])

    return command


pin = _kernel_command("pin", "Keep KERNEL among the parents of the next rounds of SESSION.", c.PinKernel)
unpin = _kernel_command("unpin", "Let go of a pinned KERNEL of SESSION.", c.UnpinKernel)
reopen = _kernel_command("reopen", "Take the branch below KERNEL, which was pruned, up again.", c.ReopenBranch)
again = _kernel_command("again", "Verify and measure a settled KERNEL afresh; `open` or `step` does it.", c.MeasureAgain)


@click.command()
@session_argument
@click.argument("kernel", required=False)
@click.option("--against", metavar="K", help="The kernel to race it with; default: the best.")
@click.option("--leaders", "count", type=click.IntRange(1), metavar="N", help="Race the N best kernels, each against the best.")
def race(session: str, kernel: str | None, against: str | None, count: int | None) -> None:
    """Race measured kernels of SESSION, interleaved and on fresh samples; `open` or `step` does it.

    With KERNEL that one, against the best or another; with --leaders the best ones; with neither, every race against the best
    that was undecided. More is spent on a race each time it was undecided.
    """
    if kernel is None and against is not None:
        raise click.UsageError("--against needs a KERNEL to race it with")
    if kernel is not None and count is not None:
        raise click.UsageError("name a KERNEL or give --leaders, not both")
    wanted: c.Command = c.RaceUndecided() if count is None else c.RaceLeaders(count)
    submit(session, lambda _: [c.RaceKernel(kernel, against) if kernel is not None else wanted])


@click.command()
@session_argument
@kernel_argument
@reason_option
def prune(session: str, kernel: str, reason: str) -> None:
    """Close the branch at KERNEL: neither it nor what is below it is a parent of anything further."""
    submit(session, lambda _: [c.PruneBranch(kernel, reason)])


@click.command()
@session_argument
@click.argument("subject", metavar="KERNEL|CALL")
@reason_option
def cancel(session: str, subject: str, reason: str) -> None:
    """Stop a KERNEL of SESSION that has not settled (k7), or one open CALL to a model (c3: `espalier prompts` lists them).

    Without its call an idea gets no code beyond what is written, a kernel that was to be repaired fails, and a round waits for
    ideas of yours. The same is not asked again by itself.
    """
    if not _CALL.fullmatch(subject):
        submit(session, lambda _: [c.CancelKernel(subject, reason)])
        return
    submit(session, lambda _: [c.CancelCall(subject, reason)])
    show([f"next: espalier open {typed(store.resolve(session))}"])


@click.command()
@session_argument
@kernel_argument
@click.argument("note")
def accept(session: str, kernel: str, note: str) -> None:
    """Believe a KERNEL in quarantine; NOTE says why, and stays in the journal."""
    submit(session, lambda _: [c.AcceptKernel(kernel, note)])


@click.command()
@session_argument
@kernel_argument
@reason_option
def discard(session: str, kernel: str, reason: str) -> None:
    """Fail a KERNEL in quarantine. Without a reason its evidence is one."""
    submit(session, lambda _: [c.DiscardKernel(kernel, reason)])


@click.command()
@session_argument
@click.option("--above-usd", "usd", type=o.Number(0), metavar="X", help="When more than this has been spent.")
@click.option("--above-tokens", "tokens", type=click.IntRange(0), metavar="N", help="When more tokens have been spent.")
@click.option("--before-round", "number", type=click.IntRange(1), metavar="N", help="Before this round opens.")
@click.option("--never", is_flag=True, help="Take all conditions back.")
@reason_option
def pause(session: str, usd: float | None, tokens: int | None, number: int | None, never: bool, reason: str) -> None:
    """Ask for no further ideas and code of SESSION until `continue`: from now on, or once a condition holds.

    What has been drafted is still built, verified and measured.
    """

    def commands(live: LiveSession) -> list[c.Command]:
        if never:
            return [c.SetPauses(Pauses())]
        if usd is None and tokens is None and number is None:
            return [c.Pause(reason)]
        now = live.state.pauses
        return [c.SetPauses(Pauses(_or(tokens, now.tokens), _or(usd, now.usd), _or(number, now.round)))]

    submit(session, commands)


def _or(given: T | None, before: T | None) -> T | None:
    return before if given is None else given


@click.command("continue")
@session_argument
def go_on(session: str) -> None:
    """Go on after a pause; conditions that held are taken back. `open` or `step` then asks again."""
    submit(session, lambda _: [c.Continue()])


@click.command()
@session_argument
@click.argument("text")
@click.option("--on", "target", default="", metavar="K|I|R", help="A kernel (k3), an idea (i2) or a round (r1).")
def note(session: str, text: str, target: str) -> None:
    """Put words on a kernel, an idea, a round, or SESSION itself."""
    submit(session, lambda _: [c.AddNote(target, text)])


@click.command()
@session_argument
@click.argument("text")
def instruct(session: str, text: str) -> None:
    """Set the standing instructions that SESSION's source of ideas is given with every question."""
    submit(session, lambda _: [c.Instruct(text)])


@click.command()
@session_argument
@click.argument("mode", type=o.Mode(), metavar="ask|ask:SECONDS|autopilot")
def mode(session: str, mode: str) -> None:
    """Who approves the ideas of SESSION: you, you with patience, or the policy."""
    submit(session, lambda _: [c.SetMode(mode)])


@click.command()
@session_argument
@click.option("--reason", default="closed by hand", help="Why, in words; kept in the journal.")
def close(session: str, reason: str) -> None:
    """End SESSION; what has not settled is cancelled. More rounds, a seed or an idea take it up again."""
    submit(session, lambda _: [c.CloseSession(reason)])


@click.command()
@session_argument
@kernel_argument
@click.option("--idea", metavar="TEXT", help="The idea it implements: one of the session's (i3), or a new one in words.")
@click.option("--parent", metavar="K", help="The kernel it builds on.")
@click.option("--tune", type=o.Tuning(), multiple=True, metavar="NAME=VALUE", help="A tunable's value; repeatable.")
def seed(session: str, kernel: str, idea: str | None, parent: str | None, tune: tuple[tuple[str, int], ...]) -> None:
    """Bring KERNEL into SESSION: a file, or a kernel of another session as SESSION:K (`espalier bank` lists them).

    `open` or `step` then builds, verifies and measures it.
    """
    brought = read_seed(kernel, dict(tune))

    def commands(live: LiveSession) -> list[c.Command]:
        opened = live.state.opened
        assert opened is not None, "a journal begins with it"
        assembly.check_dialect(brought.kernel, live.state.device.label if live.state.device else opened.device)
        known = idea if idea in live.state.ideas else None
        return [assembly.planting(live, brought, parent, known, "" if known or idea is None else idea)]

    submit(session, commands)
    show([f"next: espalier step {typed(store.resolve(session))}"])


class _OrNone(click.ParamType[Any]):
    """A value of another type, or ``none`` for no limit."""

    def __init__(self, inner: click.ParamType[Any]) -> None:
        self._inner = inner
        self.name = inner.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return "none" if value == "none" else self._inner.convert(value, param, ctx)


_COUNT = _OrNone(click.IntRange(1))
_NAMES = ("rounds", "seconds", "kernels", "plateau", "light", "tokens", "usd")


@click.command()
@session_argument
@click.option("--rounds", type=_COUNT, metavar="N|none", help="Rounds after the first port.")
@click.option("--time", "seconds", type=_OrNone(o.Seconds()), metavar="TIME|none", help="Time at work, over all runs.")
@click.option("--kernels", type=_COUNT, metavar="N|none", help="Kernels in the tree.")
@click.option("--plateau", type=_COUNT, metavar="N|none", help="Rounds without a new best.")
@click.option("--light", type=_OrNone(o.Number(0, 10, min_open=True)), metavar="F|none",
              help="Fraction of the speed of light that is enough.")  # fmt: skip
@click.option("--budget-tokens", "tokens", type=_COUNT, metavar="N|none", help="Model tokens.")
@click.option("--budget-usd", "usd", type=_OrNone(o.Number(0, min_open=True)), metavar="X|none", help="Dollars.")
def limits(session: str, **given: Any) -> None:
    """Change when SESSION stops by itself, or print its limits. A session that had ended for them goes on with `open`."""
    changes = {name: None if value == "none" else value for name, value in given.items() if value is not None}
    if not changes:
        show(_limit_lines(state_of(store.resolve(session)).limits))
        return
    after = submit(session, lambda live: [c.SetLimits(replace(live.state.limits, **changes))])
    show(_limit_lines(after.limits))


def _limit_lines(found: Limits) -> list[Line]:
    values = [(name, getattr(found, name)) for name in _NAMES]
    return fields((name, Span("none" if value is None else f"{value:g}")) for name, value in values)
