"""``espalier``: the table of commands and how they are found. A command's module is loaded when it is called.

Loads click and nothing of the rooms, so that ``espalier --help`` answers at once.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import IO

import click

from engine.cli import encoding, ending

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Search": {
        "run": ("engine.cli.run:run", "Steer a new session on a problem; headless, run it on autopilot."),
        "open": ("engine.cli.going:open_session", "Go on with a session."),
        "step": ("engine.cli.going:step", "Go on by one round, headless."),
        "fork": ("engine.cli.fork:fork", "Go on from an earlier point, in a session of its own."),
        "follow": ("engine.cli.follow:follow", "Watch a session that another process is running."),
        "replay": ("engine.cli.replay:replay", "Watch a recorded session, or print it with --headless."),
        "rerun": ("engine.cli.rerun:rerun", "Verify and measure a session's kernels again on this machine."),
        "ablate": ("engine.cli.ablate:ablate", "Take the winning lineage apart, idea by idea, on this machine."),
    },
    "Steer": {
        "idea": ("engine.cli.ideas:idea", "Add, list, approve, edit, reject or park ideas."),
        "seed": ("engine.cli.steer:seed", "Bring a kernel into a session by hand."),
        "pin": ("engine.cli.steer:pin", "Keep a kernel among the parents of the next rounds."),
        "unpin": ("engine.cli.steer:unpin", "Let go of a pinned kernel."),
        "prune": ("engine.cli.steer:prune", "Close a branch: no parent of anything further."),
        "reopen": ("engine.cli.steer:reopen", "Take a pruned branch up again."),
        "again": ("engine.cli.steer:again", "Verify and measure a settled kernel afresh."),
        "race": ("engine.cli.steer:race", "Race kernels against each other, or spend more on what was undecided."),
        "cancel": ("engine.cli.steer:cancel", "Stop a kernel that has not settled, or one call to a model."),
        "accept": ("engine.cli.steer:accept", "Believe a kernel in quarantine."),
        "discard": ("engine.cli.steer:discard", "Fail a kernel in quarantine."),
        "note": ("engine.cli.steer:note", "Put words on a kernel, an idea, a round or the session."),
        "instruct": ("engine.cli.steer:instruct", "Set standing instructions for the source of ideas."),
        "mode": ("engine.cli.steer:mode", "Ask before compute, ask with patience, or autopilot."),
        "limits": ("engine.cli.steer:limits", "Change when a session stops by itself."),
        "pause": ("engine.cli.steer:pause", "Ask for no further ideas and code, now or on a condition."),
        "continue": ("engine.cli.steer:go_on", "Go on after a pause."),
        "close": ("engine.cli.steer:close", "End a session."),
    },
    "Models": {
        "prompts": ("engine.cli.spending:prompts", "What models were asked, and prompts that await your reply."),
        "answer": ("engine.cli.spending:answer", "Give the reply to a prompt by hand."),
        "spend": ("engine.cli.spending:spend", "Tokens and dollars spent, by round, role and model."),
    },
    "Kernels": {
        "eval": ("engine.cli.evaluate:evaluate", "One kernel, one verdict."),
        "profile": ("engine.cli.profile:profile", "Read the device's counters in one call of a session's kernel."),
        "scaffold": ("engine.cli.scaffold:scaffold", "Write a first kernel to start from."),
        "export": ("engine.cli.export:export", "Write a session's best kernel, or the session itself, as a file."),
    },
    "Look around": {
        "problems": ("engine.cli.listing:problems", "The problems that ship."),
        "sessions": ("engine.cli.listing:sessions", "Sessions, the latest first."),
        "bank": ("engine.cli.listing:bank", "Verified kernels of all sessions, to seed others with."),
        "doctor": ("engine.cli.doctor:doctor", "What this machine has, lacks, and what to do about it."),
    },
}


_INSTEAD = (
    "use `espalier sessions`, `espalier run PROBLEM --headless`, `espalier open SESSION --headless` or "
    "`espalier replay SESSION --headless`"
)


class Commands(click.Group):
    """Commands by section, each loaded from its module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in SECTIONS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for section in SECTIONS.values():
            if cmd_name in section:
                module, _, attribute = section[cmd_name][0].partition(":")
                command: click.Command = getattr(importlib.import_module(module), attribute)
                return command
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, words) for name, (_, words) in section.items()])


def _version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib import metadata

        try:
            click.echo(f"espalier {metadata.version('espalier')}")
        except metadata.PackageNotFoundError:
            click.echo("espalier (not installed)")
        ctx.exit()


@click.group(cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version.")
@click.pass_context
def espalier(ctx: click.Context) -> None:
    """Train a tree of GPU kernels by hand: ideas in words, branches in code, and a verdict that cannot be fooled."""
    if ctx.invoked_subcommand is None and not open_face():
        click.echo(ctx.get_help())


def open_face(action: str = "home", subject: object = None) -> bool:
    """Open the terminal face, if it is installed and there is a terminal; ``False`` when it was not opened.

    ``tui.app.main(action, subject)`` is called with ``home`` and nothing, ``new`` and a ``NewSession``, or ``open``,
    ``replay`` or ``follow`` and a session's folder. It raises like a command does and returns nothing. Raises Ended where
    there is a terminal on which no screen can be drawn.
    """
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout)) or importlib.util.find_spec("tui") is None:
        return False
    if trouble := _undrawable():
        raise ending.Ended(ending.BAD_INPUT, f"no screen can be drawn here, {trouble}: {_INSTEAD}")
    importlib.import_module("tui.app").main(action, subject)
    return True


def _is_terminal(stream: IO[str] | None) -> bool:
    return stream is not None and stream.isatty()


def _undrawable() -> str:
    """Why no screen can be drawn on this terminal; empty where one can. The face draws on standard error."""
    term = os.environ.get("TERM", "")
    if term in ("", "dumb", "unknown"):
        return f"TERM is {term or 'not set'}"
    if not _is_terminal(sys.__stderr__):
        return "standard error goes elsewhere"
    if not encoding.is_utf8(sys.__stderr__):
        return "the locale is not UTF-8 (LC_ALL=C.UTF-8 makes it so)"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``espalier`` and return its exit status: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    signal.signal(signal.SIGTERM, _terminated)
    encoding.never_refuse(sys.stdout, sys.stderr)
    given = list(sys.argv[1:] if arguments is None else arguments)
    return ending.guarded(lambda: _call(given))


def _call(arguments: list[str]) -> None:
    """What ``espalier.main`` does, less its own ideas of how a program ends."""
    with espalier.make_context("espalier", arguments) as context:
        espalier.invoke(context)


def _terminated(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
