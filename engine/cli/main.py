"""``espalier``: the table of commands. A command's module is loaded when the command is called.

Loads click and no room, so that ``espalier --help`` answers at once.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence
from types import FrameType

import click

from engine.cli import exit_codes, streams
from engine.cli.ui import TerminalUI, open_ui

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Search": {
        "run": ("engine.cli.run:run", "Steer a new session on a problem; headless, run it on autopilot."),
        "open": ("engine.cli.step:open_session", "Go on with a session."),
        "step": ("engine.cli.step:step", "Go on by one round, headless."),
        "fork": ("engine.cli.fork:fork", "Go on from an earlier point, in a session of its own."),
        "follow": ("engine.cli.follow:follow", "Watch a session that another process is running."),
        "replay": ("engine.cli.replay:replay", "Watch a recorded session, or print it with --headless."),
        "rerun": ("engine.cli.rerun:rerun", "Verify and measure a session's kernels again on this machine."),
        "ablate": ("engine.cli.rerun:ablate", "Take the winning lineage apart, idea by idea, on this machine."),
    },
    "Steer": {
        "idea": ("engine.cli.idea:idea", "Add, list, approve, edit, reject or park ideas."),
        "seed": ("engine.cli.kernel:seed", "Bring a kernel into a session by hand."),
        "pin": ("engine.cli.kernel:pin", "Keep a kernel among the parents of the next rounds."),
        "unpin": ("engine.cli.kernel:unpin", "Let go of a pinned kernel."),
        "prune": ("engine.cli.kernel:prune", "Close a branch: no parent of anything further."),
        "reopen": ("engine.cli.kernel:reopen", "Take a pruned branch up again."),
        "again": ("engine.cli.kernel:again", "Verify and measure a settled kernel afresh."),
        "race": ("engine.cli.kernel:race", "Race kernels against each other, or spend more on what was undecided."),
        "cancel": ("engine.cli.kernel:cancel", "Stop a kernel that has not settled, or one call to a model."),
        "accept": ("engine.cli.kernel:accept", "Believe a kernel in quarantine."),
        "discard": ("engine.cli.kernel:discard", "Fail a kernel in quarantine."),
        "note": ("engine.cli.kernel:note", "Put words on a kernel, an idea, a round or the session."),
        "instruct": ("engine.cli.session:instruct", "Set standing instructions for the source of ideas."),
        "mode": ("engine.cli.session:mode", "Ask before compute, ask with patience, or autopilot."),
        "limits": ("engine.cli.session:limits", "Change when a session stops by itself."),
        "pause": ("engine.cli.session:pause", "Ask for no further ideas and code, now or on a condition."),
        "continue": ("engine.cli.session:continue_", "Go on after a pause."),
        "close": ("engine.cli.session:close", "End a session."),
    },
    "Models": {
        "prompts": ("engine.cli.model:prompts", "What models were asked, and prompts that await your reply."),
        "answer": ("engine.cli.model:answer", "Give the reply to a prompt by hand."),
        "spend": ("engine.cli.model:spend", "Tokens and dollars spent, by round, role and model."),
    },
    "Kernels": {
        "eval": ("engine.cli.evaluate:evaluate", "One kernel, one verdict."),
        "profile": ("engine.cli.profile:profile", "Read the device's counters in one call of a session's kernel."),
        "scaffold": ("engine.cli.scaffold:scaffold", "Write a first kernel to start from."),
        "export": ("engine.cli.export:export", "Write a session's best kernel, or the session itself, as a file."),
    },
    "Look around": {
        "problems": ("engine.cli.lists:problems", "The problems that ship."),
        "sessions": ("engine.cli.session:sessions", "Sessions, the latest first."),
        "bank": ("engine.cli.lists:bank", "Verified kernels of all sessions, to seed others with."),
        "doctor": ("engine.cli.doctor:doctor", "What this machine has, lacks, and what to do about it."),
    },
}


class Commands(click.Group):
    """Commands by section, each imported on first use."""

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


def _print_version(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    if given and not ctx.resilient_parsing:
        from importlib import metadata

        try:
            click.echo(f"espalier {metadata.version('espalier')}")
        except metadata.PackageNotFoundError:
            click.echo("espalier (not installed)")
        ctx.exit()


@click.group(cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version.")
@click.pass_context
def espalier(ctx: click.Context) -> None:
    """Train a tree of GPU kernels by hand: ideas in words, branches in code, and a verdict that cannot be fooled."""
    if ctx.invoked_subcommand is None and not open_ui():
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None, ui: TerminalUI | None = None) -> int:
    """Run ``espalier`` and return its exit status: 0 done, 1 failed, 2 bad input, 130 interrupted.

    ``ui``: opened by commands that have a screen; without one everything is headless.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    streams.substitute_unencodable(sys.stdout, sys.stderr)
    given = list(sys.argv[1:] if arguments is None else arguments)
    return exit_codes.exit_status_of(lambda: _invoke(given, ui))


def _invoke(arguments: list[str], ui: TerminalUI | None) -> None:
    """``espalier.main`` of click without its own handling of errors and exits."""
    with espalier.make_context("espalier", arguments, obj=ui) as context:
        espalier.invoke(context)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
