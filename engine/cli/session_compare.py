"""``espalier session compare``: recorded sessions of one problem side by side."""

from __future__ import annotations

from pathlib import Path

import click

from engine.cli import options as o
from engine.cli.output import STDOUT, output_file, refuse_json_on_stdout, show, show_json, terminal_width, write_output
from engine.cli.session_access import read_entries
from engine.journal import store
from engine.report.facts.side_by_side import side_by_side
from engine.report.page.compare import html
from engine.report.text.side_by_side import lines


@click.command("compare")
@click.argument("sessions", type=o.SESSION, nargs=-1, required=True, metavar="SESSION SESSION ...")
@click.option("--output", "-o", type=o.OUTPUT, metavar="FILE",
              help="Write a page with the best-so-far curves to FILE (HTML); -: print the page, not the table.")  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@o.json_option
def compare(sessions: tuple[str, ...], output: Path | None, force: bool, as_json: bool) -> None:
    """Compare SESSIONs of one problem at equal budgets, for instance with and without an agent.

    Shows the incumbent of each at equal verdicts, tokens and device time, up to the budget of the session that spent least,
    and who had the ideas that won. Reads journals; measures nothing. With --json, also the best-so-far curves.
    """
    if len(sessions) < 2:
        raise click.UsageError("name at least two sessions")
    refuse_json_on_stdout(output, as_json)
    folders = [store.resolve(name) for name in sessions]
    found = side_by_side([(name, read_entries(at)) for name, at in zip(store.distinct_names(folders), folders, strict=True)])
    if output is not None:
        write_output(output_file(output, "", force), html(found))
    if as_json:
        show_json(found)
    elif output != STDOUT:
        show(lines(found, terminal_width()))
        if output is not None:
            show([f"wrote {output}"])
