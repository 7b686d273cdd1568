"""``espalier kernel``: steering single kernels of a session."""

from __future__ import annotations

import re
from collections.abc import Callable

import click

from engine.cli import options as o
from engine.cli.exit_codes import BAD_INPUT, CommandExit
from engine.cli.session_access import Target, reason_option, steers
from engine.domain import columns, queries
from engine.domain import commands as c
from engine.session.dispatch import dispatch_command
from engine.session.seeds import check_session_runs, read_seed, recorded_code, seed_command
from engine.session.steer import Steering

_IDEA = re.compile(r"i[0-9]+")

kernel_argument = click.argument("kernel", type=o.KERNEL)


def _kernel_command(name: str, help_text: str, make: Callable[[str], c.Command], work: bool = False) -> click.Command:
    @click.command(name, help=help_text)
    @steers
    @kernel_argument
    def command(target: Target, kernel: str) -> None:
        target.submit(make(kernel))
        if work:
            target.advise(f"espalier open {target.name}")

    return command


pin = _kernel_command("pin", "Pin KERNEL: it stays among the parents of the next rounds of SESSION.", c.PinKernel)
unpin = _kernel_command("unpin", "Unpin KERNEL of SESSION.", c.UnpinKernel)
reopen = _kernel_command("reopen", "Reopen the branch of SESSION that was pruned at KERNEL.", c.ReopenBranch)
remeasure = _kernel_command(
    "remeasure", "Verify and measure a settled KERNEL of SESSION again. Queued; `open` or `step` runs it.", c.Remeasure, True
)


@click.command()
@steers
@click.argument("kernel", type=o.KERNEL, required=False)
@click.option("--against", type=o.KERNEL, metavar="K", help="The other kernel. Default: the incumbent.")
@click.option(
    "--leaders", "count", type=click.IntRange(1), metavar="N", help="Race the N fastest kernels against the incumbent."
)
def race(target: Target, kernel: str | None, against: str | None, count: int | None) -> None:
    """Race measured kernels of SESSION, interleaved, on fresh samples. Queued; `open` or `step` runs it.

    With KERNEL: that kernel against the incumbent, or against --against. With --leaders: the fastest kernels against the
    incumbent. With neither: repeat every undecided race against the incumbent, each time with twice the samples.
    """
    if kernel is None and against is not None:
        raise click.UsageError("--against needs a KERNEL to race")
    if kernel is not None and count is not None:
        raise click.UsageError("give a KERNEL or --leaders, not both")
    several: c.Command = c.RaceUndecided() if count is None else c.RaceLeaders(count)
    after = target.submit(c.RaceKernel(kernel, against) if kernel is not None else several)
    best = queries.incumbent(after)
    if against is not None and best is not None and best.id == kernel:
        target.show([f"{kernel} is the incumbent: the race gives the speedup of {against} over {kernel}"])
    target.advise(f"espalier open {target.name}")


@click.command()
@steers
def dispatch(target: Target) -> None:
    """Add the dispatch of SESSION's best kernels: one file that runs, on each shape, the best kernel there.

    For a session on a suite. The best single kernel runs wherever no other one beats it by its interval; the nearest workload
    decides for shapes between. `open` or `step` verifies and measures it like any kernel and races it against the incumbent;
    `export` writes it as one module.
    """

    def commands(writer: Steering) -> list[c.Command]:
        return [dispatch_command(writer.state, lambda one: recorded_code(target.folder, one), writer.store_blob)]

    target.submit_all(commands)
    target.advise(f"espalier open {target.name}")


@click.command()
@steers
@click.argument("kernel", type=o.KERNEL, required=False)
def tune(target: Target, kernel: str | None) -> None:
    """Tune KERNEL on each workload of SESSION's suite. Default: the best single kernel. Queued; `open` or `step` runs it.

    Up to eight combinations of its tunables run on every workload, by successive halving. If other values are faster somewhere,
    a kernel with them is added, verified, measured and raced. The nearest workload decides for shapes between. A session tunes
    its best single kernel itself before it closes.
    """

    def commands(writer: Steering) -> list[c.Command]:
        best = columns.best_single(writer.state)
        if kernel is None and best is None:
            raise CommandExit(BAD_INPUT, f"no kernel of {target.name} is verified and measured yet: name one")
        return [c.TuneKernel(kernel or (best.id if best is not None else ""))]

    target.submit_all(commands)
    target.advise(f"espalier open {target.name}")


@click.command()
@steers
@kernel_argument
@reason_option
def prune(target: Target, kernel: str, reason: str) -> None:
    """Close the branch of SESSION at KERNEL: it and its descendants no longer become parents."""
    target.submit(c.PruneBranch(kernel, reason))


@click.command()
@steers
@kernel_argument
@reason_option
def cancel(target: Target, kernel: str, reason: str) -> None:
    """Stop a KERNEL of SESSION that has not settled. `espalier model cancel` stops a call to a model."""
    target.submit(c.CancelKernel(kernel, reason))


@click.command()
@steers
@kernel_argument
@click.argument("text", metavar="NOTE")
def accept(target: Target, kernel: str, text: str) -> None:
    """Accept a quarantined KERNEL of SESSION. NOTE gives the reason; it is kept in the journal."""
    target.submit(c.AcceptKernel(kernel, text))


@click.command()
@steers
@kernel_argument
@reason_option
def discard(target: Target, kernel: str, reason: str) -> None:
    """Fail a quarantined KERNEL of SESSION. Default reason: the evidence against it."""
    target.submit(c.DiscardKernel(kernel, reason))


@click.command()
@steers
@kernel_argument
@click.argument("text")
def note(target: Target, kernel: str, text: str) -> None:
    """Add a note to KERNEL of SESSION."""
    target.submit(c.AddNote(kernel, text))


@click.command()
@steers
@click.argument("kernel", type=o.SEED)
@click.option("--idea", type=o.IDEA, metavar="ID|TEXT", help="The idea it implements: one of the session's (i3), or a new one.")
@click.option("--parent", type=o.KERNEL, metavar="K", help="The kernel it builds on.")
@click.option("--tune", type=o.TunableValue(), multiple=True, metavar="NAME=VALUE", help="A tunable's value; repeatable.")
def seed(target: Target, kernel: str, idea: str | None, parent: str | None, tune: tuple[tuple[str, int], ...]) -> None:
    """Add KERNEL to SESSION: a file, or a kernel of another session as SESSION:K (`espalier bank` lists them).

    `open` or `step` then builds, verifies and measures it.
    """

    def commands(writer: Steering) -> list[c.Command]:
        opened = writer.state.opened
        loaded = read_seed(kernel, dict(tune), opened.problem if opened is not None else None)
        check_session_runs(loaded.kernel, queries.device_label(writer.state))
        known = idea if idea in writer.state.ideas else None
        if known is None and idea is not None and _IDEA.fullmatch(idea):
            hint = f"`espalier idea list {target.name}` lists the ideas"
            raise CommandExit(BAD_INPUT, f"unknown idea {idea!r} in {target.folder.name}: {hint}")
        title = "" if known or idea is None else idea
        return [seed_command(writer.store_blob, loaded, parent, known, title, columns.workloads(writer.state))]

    target.submit_all(commands)
    target.advise(f"espalier open {target.name}")
