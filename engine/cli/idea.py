"""``espalier idea SESSION …``: commands on the ideas of a session."""

from __future__ import annotations

from typing import Any

import click

from engine.cli import options as o
from engine.cli.output import show, show_json
from engine.cli.session_access import read_state, submit
from engine.domain import commands as c
from engine.domain.model import CATEGORIES, IdeaText
from engine.domain.predictions import records as author_records
from engine.domain.predictions import scored_predictions
from engine.domain.state import Idea, IdeaStatus
from engine.journal import store
from engine.report.text.lines import Line, Span, Tone, counted, line, one_line, table, times

_BRANCH = click.IntRange(1, 64)
_CATEGORY = click.Choice(CATEGORIES)


@click.group()
@click.argument("session")
@click.pass_context
def idea(ctx: click.Context, session: str) -> None:
    """Add, list, order, approve, edit, reject or park ideas of SESSION. What is approved is implemented by `open` or `step`."""
    ctx.obj = session


@idea.command("list")
@click.option("--waiting", is_flag=True, help="Only those that await a decision.")
@o.json_option
@click.pass_obj
def list_ideas(session: str, waiting: bool, as_json: bool) -> None:
    """All ideas, round by round."""
    state = read_state(store.resolve(session))
    ideas = [i for i in state.ideas.values() if not waiting or i.status is IdeaStatus.PROPOSED]
    if as_json:
        show_json({"ideas": ideas})
    else:
        show(_idea_lines(ideas) or ["no idea awaits a decision" if waiting else "no idea yet"])


def _idea_lines(ideas: list[Idea]) -> list[Line]:
    lines: list[Line] = []
    heads = table([_idea_row(i) for i in ideas])
    for one, head in zip(ideas, heads, strict=True):
        lines.append(head)
        if one.status is IdeaStatus.PROPOSED:
            lines.append(line(Span(f"      {one.text.category}: {one_line(one.text.rationale)}", Tone.FAINT)))
    return lines


def _idea_row(one: Idea) -> list[Span]:
    tone = Tone.WARN if one.status is IdeaStatus.PROPOSED else Tone.PLAIN
    predicted = f"predicted {one.text.predicted:g}×" if one.text.predicted is not None else ""
    return [
        Span(one.id, Tone.STRONG),
        Span(f"round {one.round}", Tone.FAINT),
        Span(f"on {one.parent}" if one.parent else "", Tone.FAINT),
        Span("awaiting" if one.status is IdeaStatus.PROPOSED else one.status.value, tone),
        Span(one_line(one.text.title)),
        Span(predicted, Tone.FAINT),
        Span(", ".join(one.kernels) or one.note or one.reason, Tone.FAINT),
    ]


@idea.command()
@o.json_option
@click.pass_obj
def predictions(session: str, as_json: bool) -> None:
    """Each idea's predicted speedup over its parent against the measured one, and every author's record."""
    state = read_state(store.resolve(session))
    predictions, authors = scored_predictions(state), author_records(state)
    if as_json:
        show_json({"predictions": predictions, "authors": authors})
        return
    rows = [
        [Span(one.idea, Tone.STRONG), Span(one.author, Tone.FAINT), Span(f"predicted {one.predicted:.3g}×"),
         Span(f"measured {times(one.measured)}", Tone.GOOD if one.hit else Tone.WARN)]
        for one in predictions
    ]  # fmt: skip
    show(table(rows) or ["no prediction has been put to the test yet"])
    for record in authors:
        fruitless = f"; {counted(record.fruitless, 'idea')} gave no right kernel" if record.fruitless else ""
        words = f"right direction in {record.hits} of {record.count}, typically off by {record.error:.2f}×"
        lean = f", promises {record.bias:.2f}× what comes" if record.count else ""
        show([line(Span(record.author, Tone.STRONG), f": {words}{lean}{fruitless}")])


@idea.command()
@click.argument("title")
@click.option("--category", type=_CATEGORY, default=CATEGORIES[0], show_default=True, metavar="NAME",
              help=f"One of: {', '.join(CATEGORIES)}.")  # fmt: skip
@click.option("--why", default="", help="What binds the parent, what changes, what should move and by how much.")
@click.option("--predict", type=o.FiniteNumber(0, 1e6, min_open=True, max_open=True), help="Speedup over the parent.")
@click.option("--parent", metavar="K", help="The kernel it builds on; default: the best one.")
@click.option("--branch", type=_BRANCH, help="Implementations wanted.")
@click.option("--beside", multiple=True, metavar="K", help="A kernel that may help, e.g. to cross two; repeatable.")
@click.option("--approve", is_flag=True, help="Approve it in the same breath.")
@click.pass_obj
def add(session: str, /, title: str, category: str, why: str, predict: float | None, **aim: Any) -> None:
    """Add an idea of your own; `espalier seed SESSION KERNEL --idea ID` brings its kernel."""
    text = IdeaText(title, category, why, predict)
    after = submit(session, lambda _: [c.WriteIdea(text, aim["parent"], aim["branch"], aim["approve"], aim["beside"])])
    added = tuple(after.ideas.values())[-1]
    state = "approved" if added.status is IdeaStatus.SELECTED else "awaiting a decision"
    show([f"idea {added.id} added, {state}: {one_line(added.text.title)}"])


@idea.command()
@click.argument("ideas", nargs=-1)
@click.pass_obj
def approve(session: str, ideas: tuple[str, ...]) -> None:
    """Approve IDEAS, or all that await a decision."""
    submit(session, lambda _: [c.SelectIdeas(ideas)])


@idea.command()
@click.argument("idea")
@click.option("--title")
@click.option("--why", help="The rationale.")
@click.option("--category", type=_CATEGORY, metavar="NAME", help=f"One of: {', '.join(CATEGORIES)}.")
@click.option("--parent", metavar="K", help="The kernel it builds on.")
@click.option("--branch", type=_BRANCH, help="Implementations wanted.")
@click.option("--predict", type=o.FiniteNumber(0, 1e6, min_open=True, max_open=True), help="Speedup over the parent.")
@click.option("--writer", metavar="SOURCE", help="Who is to write its code, e.g. openai:MODEL.")
@click.pass_obj
def edit(session: str, /, idea: str, title: str | None, why: str | None, category: str | None, **aim: Any) -> None:
    """Change an undecided IDEA; what is not named stays."""
    edited = c.EditIdea(idea, title, why, category, aim["parent"], aim["branch"], aim["predict"], aim["writer"])
    submit(session, lambda _: [edited])


@idea.command()
@click.argument("ideas", nargs=-1, required=True)
@click.pass_obj
def order(session: str, ideas: tuple[str, ...]) -> None:
    """Take undecided IDEAS up in this order; those not named follow as they stood."""
    submit(session, lambda _: [c.ReorderIdeas(ideas)])


@idea.command()
@click.argument("idea")
@click.argument("kernel")
@click.option("--remove", is_flag=True, help="Take it away again.")
@click.pass_obj
def attach(session: str, idea: str, kernel: str, remove: bool) -> None:
    """Put KERNEL beside IDEA for whoever writes its code: this may help."""
    submit(session, lambda _: [c.DetachKernel(idea, kernel) if remove else c.AttachKernel(idea, kernel)])


@idea.command()
@click.argument("idea")
@click.argument("reason", default="")
@click.pass_obj
def reject(session: str, idea: str, reason: str) -> None:
    """Reject IDEA; the source of ideas is told the REASON."""
    submit(session, lambda _: [c.RejectIdea(idea, reason)])


@idea.command()
@click.argument("idea")
@click.pass_obj
def park(session: str, idea: str) -> None:
    """Not now: IDEA leaves its round undecided and can be approved later."""
    submit(session, lambda _: [c.ParkIdea(idea)])
