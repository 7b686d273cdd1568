"""Commands on one kernel of a session."""

from __future__ import annotations

import re
from collections.abc import Callable

import click

from engine.cli import options as o
from engine.cli.output import show
from engine.cli.session_access import reason_option, session_argument, shell_name, submit
from engine.domain import commands as c
from engine.domain import queries
from engine.journal import store
from engine.session.seeds import check_dialect, read_seed, seed_command
from engine.session.writer import SessionWriter

_CALL = re.compile(r"c[0-9]+")

kernel_argument = click.argument("kernel")


def _kernel_command(name: str, help_text: str, make: Callable[[str], c.Command]) -> click.Command:
    @click.command(name, help=help_text)
    @session_argument
    @kernel_argument
    def command(session: str, kernel: str) -> None:
        submit(session, lambda _: [make(kernel)])

    return command


pin = _kernel_command("pin", "Keep KERNEL among the parents of the next rounds of SESSION.", c.PinKernel)
unpin = _kernel_command("unpin", "Let go of a pinned KERNEL of SESSION.", c.UnpinKernel)
reopen = _kernel_command("reopen", "Take the branch below KERNEL, which was pruned, up again.", c.ReopenBranch)
again = _kernel_command("again", "Verify and measure a settled KERNEL afresh; `open` or `step` does it.", c.Remeasure)


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
    several: c.Command = c.RaceUndecided() if count is None else c.RaceLeaders(count)
    submit(session, lambda _: [c.RaceKernel(kernel, against) if kernel is not None else several])


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
    show([f"next: espalier open {shell_name(store.resolve(session))}"])


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
@click.argument("text")
@click.option("--on", "target", default="", metavar="K|I|R", help="A kernel (k3), an idea (i2) or a round (r1).")
def note(session: str, text: str, target: str) -> None:
    """Put words on a kernel, an idea, a round, or SESSION itself."""
    submit(session, lambda _: [c.AddNote(target, text)])


@click.command()
@session_argument
@kernel_argument
@click.option("--idea", metavar="TEXT", help="The idea it implements: one of the session's (i3), or a new one in words.")
@click.option("--parent", metavar="K", help="The kernel it builds on.")
@click.option("--tune", type=o.TunableValue(), multiple=True, metavar="NAME=VALUE", help="A tunable's value; repeatable.")
def seed(session: str, kernel: str, idea: str | None, parent: str | None, tune: tuple[tuple[str, int], ...]) -> None:
    """Bring KERNEL into SESSION: a file, or a kernel of another session as SESSION:K (`espalier bank` lists them).

    `open` or `step` then builds, verifies and measures it.
    """
    loaded = read_seed(kernel, dict(tune))

    def commands(writer: SessionWriter) -> list[c.Command]:
        check_dialect(loaded.kernel, queries.device_label(writer.state))
        known = idea if idea in writer.state.ideas else None
        return [seed_command(writer.store_blob, loaded, parent, known, "" if known or idea is None else idea)]

    submit(session, commands)
    show([f"next: espalier step {shell_name(store.resolve(session))}"])
