"""``espalier session``: steering a session as a whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from engine.cli import options as o
from engine.cli.output import show, show_json
from engine.cli.session_access import Target, read_state, reason_option, steers
from engine.domain import commands as c
from engine.domain.figure_text import exact
from engine.domain.settings import LARGEST_COUNT, LARGEST_SOL, Limits, Pauses
from engine.report.text.lines import Line, Span, fields
from engine.session.steer import Steering


@click.command()
@steers
@click.option("--above-usd", "usd", type=o.FiniteNumber(0), metavar="X", help="Once more dollars have been spent.")
@click.option("--above-tokens", "tokens", type=click.IntRange(0), metavar="N", help="Once more tokens have been spent.")
@click.option("--before-round", "number", type=click.IntRange(1, LARGEST_COUNT), metavar="N", help="Before this round opens.")
@click.option("--never", is_flag=True, help="Remove all conditions.")
@reason_option
def pause(target: Target, usd: float | None, tokens: int | None, number: int | None, never: bool, reason: str) -> None:
    """Pause SESSION now, or once a condition holds: no further ideas or code are requested until `session resume`.

    Kernels that are already written are still built, verified and measured.
    """

    if never and any(given is not None for given in (usd, tokens, number)):
        raise click.UsageError("give --never or conditions, not both")

    def commands(writer: Steering) -> list[c.Command]:
        if never:
            return [c.SetPauses(Pauses())]
        given = {"tokens": tokens, "usd": usd, "round": number}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return [c.SetPauses(replace(writer.state.pauses, **changes)) if changes else c.PauseSearch(reason)]

    target.submit_all(commands)


@click.command()
@steers
def resume(target: Target) -> None:
    """Resume SESSION after a pause and remove the conditions that held. `espalier open` then runs it."""
    target.submit(c.ResumeSearch())
    target.advise(f"espalier open {target.name}")


@click.command()
@steers
@click.argument("text")
def instruct(target: Target, text: str) -> None:
    """Set the standing instructions that every prompt of SESSION's proposer contains. An empty TEXT removes them."""
    target.submit(c.Instruct(text))


@click.command()
@steers
@click.argument("mode", type=o.ApprovalMode(), metavar="ask|ask:SECONDS|autopilot")
def mode(target: Target, mode: str) -> None:
    """Set who approves the ideas of SESSION: you (ask), Espalier after SECONDS without you, or Espalier at once."""
    target.submit(c.SetMode(mode))


@click.command()
@steers
@click.argument("text")
@click.option("--on", "subject", type=o.SUBJECT, metavar="K|I|R", help="A kernel (k3), an idea (i2) or a round (r1).")
def note(target: Target, text: str, subject: str | None) -> None:
    """Add a note to SESSION, or to a kernel, an idea or a round of it."""
    target.submit(c.AddNote(subject or "", text))


@click.command()
@steers
def undo(target: Target) -> None:
    """Take back the latest decision in SESSION: an approval, rejection, edit, pin, prune, limit, mode, pause or note.

    Repeat it for the one before. It is refused once something was spent on it: a model was asked, or a kernel written.
    Of several ideas approved together, only those whose implementation has not begun are undone. The journal keeps
    both the decision and the undo.
    """
    target.submit(c.UndoDecision())


@click.command("end")
@steers
@click.option("--reason", default="ended by hand", metavar="TEXT", help="Kept in the journal.")
def end_session(target: Target, reason: str) -> None:
    """End SESSION and cancel what has not settled. More rounds, a seed or an idea of yours reopen it."""
    target.submit(c.EndSession(reason))


_COUNT = o.OrNone(click.IntRange(1, LARGEST_COUNT))
_LIMITS = {
    "rounds": "rounds", "seconds": "seconds", "kernels": "kernels", "plateau": "plateau", "light": "sol", "tokens": "tokens",
    "usd": "usd",
}  # fmt: skip
"""Field of ``Limits`` → how it is called here."""


@click.command()
@steers
@click.option("--rounds", type=_COUNT, metavar="N|none", help="Rounds after the naive port.")
@click.option("--time", "seconds", type=o.OrNone(o.Duration()), metavar="TIME|none", help="Active time, over all runs.")
@click.option("--kernels", type=_COUNT, metavar="N|none", help="Kernels in the tree.")
@click.option("--plateau", type=_COUNT, metavar="N|none", help="Rounds without a new incumbent.")
@click.option("--sol", "light", type=o.OrNone(o.FiniteNumber(0, LARGEST_SOL, min_open=True)), metavar="F|none",
              help="Fraction of the speed of light (SOL) to reach, e.g. 0.95.")  # fmt: skip
@click.option("--budget-tokens", "tokens", type=o.OrNone(click.IntRange(1)), metavar="N|none", help="Model tokens.")
@click.option("--budget-usd", "usd", type=o.OrNone(o.FiniteNumber(0, min_open=True)), metavar="X|none", help="Dollars.")
def limits(target: Target, **given: Any) -> None:
    """Change when SESSION stops by itself; without options, print its limits. `open` resumes a session that had reached one."""
    changes: dict[str, Any] = {name: None if value == "none" else value for name, value in given.items() if value is not None}
    if changes:
        after = target.submit_all(lambda writer: [c.SetLimits(replace(writer.state.limits, **changes))])
        target.show(_limit_lines(after.limits))
        return
    found = read_state(target.folder).limits
    if target.as_json:
        show_json(
            {"session": str(target.folder.absolute()), "limits": {_LIMITS[name]: getattr(found, name) for name in _LIMITS}}
        )
    else:
        show(_limit_lines(found))


def _limit_lines(limits: Limits) -> list[Line]:
    values = [(label, getattr(limits, name)) for name, label in _LIMITS.items()]
    return fields((label, Span("none" if value is None else exact(value))) for label, value in values)
