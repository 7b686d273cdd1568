"""``espalier``: the program's entry, its options and its help."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

import click

from engine.cli import exit_codes, streams
from engine.cli.command_groups import CommandGroup
from engine.cli.command_table import SECTIONS
from engine.cli.ui import TerminalUI, open_ui, set_plain
from engine.cli.verbosity import verbosity_options

COMPLETE = "_ESPALIER_COMPLETE"
"""Environment variable in which a shell's completion script asks for completions."""

EPILOG = """\
Exit status: 0 done; 1 the kernel or the search failed; 2 bad usage or input; 3 stopped, awaiting you or a provider;
4 correct, but the time is not corroborated, or the kernel is quarantined; 130 interrupted."""


class RootGroup(CommandGroup):
    """The root of the commands. Its epilog shows the environment variables and the configuration files in effect."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from engine.cli import environment

        with formatter.section("Environment"):
            formatter.write_dl(environment.variables())
        with formatter.section("Configuration (a table per command, the command line wins)"):
            formatter.write_dl(environment.configuration())
        formatter.write_paragraph()
        formatter.write_text(EPILOG)


def _print_version(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    if given and not ctx.resilient_parsing:
        from importlib import metadata

        try:
            click.echo(f"espalier {metadata.version('espalier')}")
        except metadata.PackageNotFoundError:
            click.echo("espalier (not installed)")
        ctx.exit()


@click.pass_context
def _home(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None and not open_ui():
        click.echo(ctx.get_help())


espalier = RootGroup(
    SECTIONS,
    name="espalier",
    help="Search for faster GPU kernels, with you in control.\n\nWithout a command it opens the home screen. To begin: "
    "`espalier run softmax`. `espalier COMMAND --help` describes a command.",
    callback=_home,
    invoke_without_command=True,
    params=[
        click.Option(["-V", "--version"], is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
                     help="Print the version."),
        click.Option(["--plain"], is_flag=True, expose_value=False, callback=set_plain,
                     help="Lines and numbered choices instead of a screen, for screen readers."),
        *verbosity_options(),
    ],
)  # fmt: skip


def main(arguments: Sequence[str] | None = None, ui: TerminalUI | None = None) -> int:
    """Run ``espalier`` and return its exit status: 0 done, 1 failed, 2 bad input, 3 awaiting you, 4 doubted, 130 interrupted.

    ``ui`` is opened by commands that have a screen; without one every command is headless.
    """
    if instruction := os.environ.get(COMPLETE):
        return _complete(instruction)
    signal.signal(signal.SIGTERM, _interrupt)
    streams.replace_closed()
    streams.substitute_unencodable(sys.stdout, sys.stderr)
    given = list(sys.argv[1:] if arguments is None else arguments)
    return exit_codes.exit_status_of(lambda: _invoke(given, ui))


def _invoke(arguments: list[str], ui: TerminalUI | None) -> None:
    """``espalier.main`` of click without its own handling of errors and exits."""
    if os.environ.get("ESPALIER_WORKSPACE"):
        from engine.cli.workspace import obey_workspace

        obey_workspace(arguments)
    with espalier.make_context("espalier", arguments, obj=ui) as context:
        espalier.invoke(context)


def _complete(instruction: str) -> int:
    """Print completions for a shell. A failure prints nothing: the output goes into somebody's prompt."""
    from click.shell_completion import shell_complete

    try:
        return shell_complete(espalier, {}, "espalier", COMPLETE, instruction)
    except (Exception, KeyboardInterrupt):
        return 1


class _Terminated(KeyboardInterrupt):
    """SIGTERM came.

    Not KeyboardInterrupt itself: CPython ends a program by SIGINT, whatever its exit status, if one passed through ``exec`` of
    a text, as where a dataclass is made during an import, even if it was handled.
    """


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise _Terminated
