"""``espalier idea``: commands on the ideas of a session."""

from __future__ import annotations

from typing import Any

import click

from engine.cli import options as o
from engine.cli.exit_codes import BAD_INPUT, CommandExit
from engine.cli.output import show, show_json, terminal_width
from engine.cli.session_access import Target, read_state, session_argument, steers
from engine.domain import commands as c
from engine.domain.model import CATEGORIES, IdeaText
from engine.domain.predictions import records as author_records
from engine.domain.predictions import scored_predictions
from engine.domain.state import Idea, IdeaStatus, SessionState
from engine.journal import store
from engine.report.text.lines import Line, Span, Tone, counted, fields, fitted, line, one_line, ratio, table, times
from engine.report.text.rounds import round_name
from engine.report.text.shell import shell_name
from engine.report.text.tree import outcome

_BRANCH = click.IntRange(1, 64)
_CATEGORY = o.KnownValue(CATEGORIES)
_SPEEDUP = o.FiniteNumber(0, 1e6, min_open=True, max_open=True)
_STATUS = {IdeaStatus.PROPOSED: "awaiting approval", IdeaStatus.SELECTED: "approved"}

idea_argument = click.argument("idea", type=o.IDEA)
ideas_argument = click.argument("ideas", type=o.IDEA, nargs=-1)


@click.command("list")
@session_argument
@click.option("--awaiting", is_flag=True, help="Only those awaiting approval.")
@o.json_option
def list_ideas(session: str, awaiting: bool, as_json: bool) -> None:
    """List the ideas of SESSION, round by round."""
    state = read_state(store.resolve(session))
    ideas = [i for i in state.ideas.values() if not awaiting or i.status is IdeaStatus.PROPOSED]
    if as_json:
        show_json({"ideas": ideas})
    else:
        show(_idea_lines(state, ideas) or ["no idea awaits approval" if awaiting else "no idea yet"])


def _idea_lines(state: SessionState, ideas: list[Idea]) -> list[Line]:
    lines: list[Line] = []
    heads = fitted([_idea_row(state, i) for i in ideas], terminal_width(), wide=4, least=24, spare=(2, 1, 5, 6))
    for one, head in zip(ideas, heads, strict=True):
        lines.append(head)
        if words := _remark(one):
            lines.append(line(Span(f"      {words}", Tone.FAINT)))
    return lines


def _remark(one: Idea) -> str:
    """What the line below an idea says: why to approve it, or why it has no kernel."""
    if one.status is IdeaStatus.PROPOSED:
        return f"{one.text.category}: {one_line(one.text.rationale)}"
    return "" if one.kernels else one_line(one.note or one.reason)


def _status(one: Idea) -> str:
    return _STATUS.get(one.status, one.status.value)


def _idea_row(state: SessionState, one: Idea) -> list[Span]:
    tone = Tone.WARN if one.status is IdeaStatus.PROPOSED else Tone.PLAIN
    predicted = f"predicted {ratio(one.text.predicted)}×" if one.text.predicted is not None else ""
    return [
        Span(one.id, Tone.STRONG),
        Span(round_name(state, one.round), Tone.FAINT),
        Span(f"on {one.parent}" if one.parent else "", Tone.FAINT),
        Span(_status(one), tone),
        Span(one_line(one.text.title)),
        Span(predicted, Tone.FAINT),
        Span(", ".join(one.kernels), Tone.FAINT),
    ]


@click.command("show")
@session_argument
@idea_argument
@o.json_option
def show_idea(session: str, idea: str, as_json: bool) -> None:
    """Show one IDEA of SESSION: rationale, prediction, kernels and what they measured."""
    folder = store.resolve(session)
    state = read_state(folder)
    known = state.ideas.get(idea)
    if known is None:
        hint = f"`espalier idea list {shell_name(folder)}` lists the ideas"
        raise CommandExit(BAD_INPUT, f"unknown idea {idea[:100]!r} in {folder.name}: {hint}")
    notes = [note for note in state.notes if note.target == known.id]
    scored = [one for one in scored_predictions(state) if one.idea == known.id]
    if as_json:
        show_json({"idea": known, "measured": scored[0].measured if scored else None, "notes": notes})
        return
    text = known.text
    over = f" over {known.parent}" if known.parent else ""
    rows: list[tuple[str, Span | str]] = [
        ("status", f"{_status(known)}{': ' + one_line(known.reason) if known.reason else ''}"),
        ("round", round_name(state, known.round).removeprefix("round ")),
        ("parent", known.parent or ""), ("by", f"{known.author}"), ("category", text.category),
        ("rationale", one_line(text.rationale)), ("expected", one_line(text.expected)), ("risks", one_line(text.risks)),
        ("predicted", f"{ratio(text.predicted)}×{over}" if text.predicted is not None else ""),
        ("measured", f"{times(scored[0].measured)} over its parent" if scored else ""),
        ("attached", ", ".join(known.materials)), ("writer", known.writer), ("note", known.note),
        ("kernels", _kernel_words(state, known)), *(("note", one_line(note.text)) for note in notes),
    ]  # fmt: skip
    show([line(Span(f"{known.id} {one_line(text.title)}", Tone.STRONG)), *fields(row for row in rows if row[1])])


def _kernel_words(state: SessionState, one: Idea) -> str:
    return ", ".join(f"{k} {outcome(state.kernels[k])}" for k in one.kernels if k in state.kernels)


@click.command()
@session_argument
@o.json_option
def predictions(session: str, as_json: bool) -> None:
    """Compare each idea's predicted speedup over its parent with the measured one; summarise by author."""
    state = read_state(store.resolve(session))
    predictions, authors = scored_predictions(state), author_records(state)
    if as_json:
        show_json({"predictions": predictions, "authors": authors})
        return
    rows = [
        [Span(one.idea, Tone.STRONG), Span(one.author, Tone.FAINT), Span(f"predicted {ratio(one.predicted)}×"),
         Span(f"measured {times(one.measured)}", Tone.GOOD if one.hit else Tone.WARN)]
        for one in predictions
    ]  # fmt: skip
    show(table(rows) or ["no predicted idea has been measured yet"])
    for record in authors:
        fruitless = f"; {counted(record.fruitless, 'idea')} without a verified kernel" if record.fruitless else ""
        words = f"right direction in {record.hits} of {record.count}, typical error {ratio(record.error)}×"
        lean = f", bias {ratio(record.bias)}×" if record.count else ""
        show([line(Span(record.author, Tone.STRONG), f": {words}{lean}{fruitless}")])


@click.command()
@steers
@click.argument("title")
@click.option("--category", type=_CATEGORY, default=CATEGORIES[0], show_default=True, metavar="NAME",
              help=f"One of: {', '.join(CATEGORIES)}.")  # fmt: skip
@click.option("--why", default="", metavar="TEXT", help="What limits the parent, what changes, and the expected effect.")
@click.option("--predict", type=_SPEEDUP, metavar="X", help="Predicted speedup over the parent.")
@click.option("--parent", type=o.KERNEL, metavar="K", help="The kernel it builds on. Default: the incumbent.")
@click.option("--branch", type=_BRANCH, metavar="N", help="Number of implementations.")
@click.option("--attach", type=o.KERNEL, multiple=True, metavar="K", help="Attach a kernel for the writer; repeatable.")
@click.option("--approve", is_flag=True, help="Approve it immediately.")
def add(target: Target, title: str, category: str, why: str, predict: float | None, **aim: Any) -> None:
    """Add an idea of your own to SESSION. `espalier kernel seed SESSION KERNEL --idea ID` adds its kernel."""
    text = IdeaText(title, category, why, predict)
    target.submit(c.WriteIdea(text, aim["parent"], aim["branch"], aim["approve"], aim["attach"]))


@click.command()
@steers
@ideas_argument
def approve(target: Target, ideas: tuple[str, ...]) -> None:
    """Approve IDEAS of SESSION, or all that await approval."""
    target.submit(c.SelectIdeas(ideas))
    target.advise(f"espalier open {target.name}")


@click.command()
@steers
@idea_argument
@click.option("--title", metavar="TEXT", help="The title.")
@click.option("--why", metavar="TEXT", help="The rationale.")
@click.option("--category", type=_CATEGORY, metavar="NAME", help=f"One of: {', '.join(CATEGORIES)}.")
@click.option("--parent", type=o.KERNEL, metavar="K", help="The kernel it builds on.")
@click.option("--branch", type=_BRANCH, metavar="N", help="Number of implementations.")
@click.option("--predict", type=_SPEEDUP, metavar="X", help="Predicted speedup over the parent.")
@click.option(
    "--writer", metavar="NAME", help="Who writes its code, e.g. openai:MODEL; an empty NAME means the session's writer."
)
def edit(target: Target, idea: str, title: str | None, why: str | None, category: str | None, **aim: Any) -> None:
    """Change an undecided IDEA of SESSION; of an approved one that is not written yet, only its writer.

    Options that are not given keep their values.
    """
    target.submit(c.EditIdea(idea, title, why, category, aim["parent"], aim["branch"], aim["predict"], aim["writer"]))


@click.command()
@steers
@click.argument("ideas", type=o.IDEA, nargs=-1, required=True)
def order(target: Target, ideas: tuple[str, ...]) -> None:
    """Implement undecided IDEAS of SESSION in this order, before the others."""
    target.submit(c.ReorderIdeas(ideas))


@click.command()
@steers
@idea_argument
@click.argument("kernel", type=o.KERNEL)
@click.option("--remove", is_flag=True, help="Detach it.")
def attach(target: Target, idea: str, kernel: str, remove: bool) -> None:
    """Attach KERNEL to IDEA of SESSION as material for its writer, e.g. to combine two kernels."""
    target.submit(c.DetachKernel(idea, kernel) if remove else c.AttachKernel(idea, kernel))


@click.command()
@steers
@idea_argument
@click.argument("reason", default="")
def reject(target: Target, idea: str, reason: str) -> None:
    """Reject IDEA of SESSION. The proposer reads REASON in its next prompt."""
    target.submit(c.RejectIdea(idea, reason))


@click.command()
@steers
@idea_argument
def park(target: Target, idea: str) -> None:
    """Park IDEA of SESSION: it leaves its round undecided and can be approved later."""
    target.submit(c.ParkIdea(idea))
