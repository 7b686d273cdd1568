"""The report as Markdown, for a pull request or a wiki: tables, a tree in a code block, no image. Pure.

Every text of a session goes through ``safe``, so that a title can neither close a table cell nor open a link, a tag or a
heading; code goes into a fence that is longer than any run of backticks in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from engine.domain.model import Interval
from engine.report.attempts import fenced
from engine.report.page import IdeaRow, Page, RoundTable, TreeRow, Winner, headline
from engine.report.page_budget import SpendingRow
from engine.report.page_words import GAINS, PROMISES, clock, factor, promise
from engine.report.text import digits, one_line, scaled, shortened, times

_MARKUP = re.compile(r"[\\`*_\[\]#|~]|:(?=//)")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "$": "&#36;"}
_TITLE = 44
_BAR = 24


def safe(text: str) -> str:
    """One line that reads as it was written and is nothing but text: no link, no tag, no cell, no mention, no formula."""
    escaped = _MARKUP.sub(lambda found: f"\\{found.group()}", one_line(text))
    escaped = re.sub("[&<>@$]", lambda found: _ENTITIES[found.group()], escaped)
    return re.sub(r"(?i)\b(www)\.", r"\1\\.", escaped)


def render(page: Page) -> str:
    """The whole page."""
    parts = [
        *_head(page),
        *_lineage(page),
        *_section("Tree", [fenced("\n".join(_tree(page)), "text")] if page.rows else []),
        *_section("Best so far", _climb(page)),
        *_section("Roofline", _roofline(page)),
        *_section("Rounds and ideas", list(_rounds(page))),
        *_section("Decisions", _decisions(page)),
        *_section("Budget", _budget(page)),
        *_section("Conditions", [_table(("what", "is"), [(safe(a), safe(b)) for a, b in page.conditions])]),
        *(_code(page.winner) if page.winner else ()),
        f"Session {safe(page.session)}, {safe(page.ended)}. Every figure is computed from its journal; intervals are 95 %.",
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, body: Sequence[str]) -> list[str]:
    return [f"## {title}", *body] if body else []


def _head(page: Page) -> Iterator[str]:
    yield f"# {safe(page.title)}"
    if page.winner is None:
        yield "**No verified kernel.**"
    else:
        light = f"; {safe(page.winner.light)} of the speed of light" if page.winner.light else ""
        yield f"**{safe(page.winner.kernel)} {safe(page.winner.title)}**: {safe(headline(page.winner, page.baseline))}{light}"
    yield _table(("what", "is"), [(safe(name), safe(value)) for name, value in page.facts])


def _lineage(page: Page) -> list[str]:
    if page.winner is None:
        return []
    rows = [(safe(s.kernel), safe(s.title), safe(s.author), _ratio(s.gain), _ratio(s.speedup)) for s in page.winner.lineage]
    heads = ("kernel", "idea", "idea by", "over its parent", f"over {safe(page.baseline)}")
    return _section("The winner", [GAINS, _table(heads, rows)])


def _tree(page: Page) -> Iterator[str]:
    """Lines of plain text: a code block needs no escaping but its fence."""
    for row in page.rows:
        yield _tree_line(row)


def _tree_line(row: TreeRow) -> str:
    ratio = f"  {times(row.speedup)}" if row.speedup else ""
    words = " ".join(
        filter(None, (f"{row.strokes}{row.kernel}", shortened(one_line(row.title), _TITLE), one_line(row.tunables)))
    )
    remark = f"  {one_line(row.remark)}" if row.remark else ""
    return f"{'* ' if row.leads else '  '}{words}: {row.outcome}{ratio}{remark}"


def _climb(page: Page) -> list[str]:
    if not page.climb.best:
        return []
    most = max(value for _, value in page.climb.best)
    kernels = {dot.x: dot.kernel for dot in page.climb.dots}
    lines = [
        f"{kernels[place]:>5}  {'█' * max(1, round(_BAR * value / most))} {digits(value)}×" for place, value in page.climb.best
    ]
    return [f"Speedup over {safe(page.baseline)} of each kernel that took the lead.", fenced("\n".join(lines), "text")]


def _roofline(page: Page) -> list[str]:
    found = page.roofline
    if found is None:
        return []
    rows = [("copy", f"{digits(found.copy / 1e9)} GB/s")]
    rows += [(safe(unit), f"{scaled(rate)}FLOP/s") for unit, rate in found.peaks]
    rows.append(("intensity of the problem", f"{digits(found.intensity)} operations a byte, bound by {safe(found.bound)}"))
    rows += [(f"reached by {safe(dot.kernel)}", f"{scaled(dot.y)}FLOP/s") for dot in found.dots if dot.leads and dot.y]
    return [_table(("ceiling, as measured here", ""), rows)]


def _rounds(page: Page) -> Iterator[str]:
    for one in page.rounds:
        yield f"### Round {one.number}{f', from {safe(one.parents)}' if one.parents else ': the first port'}"
        yield _ideas(one, page.baseline)
        if one.dropped:
            yield f"Dropped as repetitions or one too many: {safe('; '.join(one.dropped))}"
    if page.promises:
        yield "### Predictions against measurements"
        yield _table(PROMISES, [[safe(cell) for cell in promise(one)] for one in page.promises])


def _ideas(one: RoundTable, baseline: str) -> str:
    heads = ("idea", "", "by", "on", "predicted", "measured gain", f"over {safe(baseline)}", "kernels right", "")
    return _table(heads, [_idea(row) for row in one.ideas]) if one.ideas else "No idea."


def _idea(row: IdeaRow) -> Sequence[str]:
    predicted = factor(row.predicted) if row.predicted is not None else ""
    best = f"{_ratio(row.speedup)} {safe(row.kernel)}".strip()
    cells = (safe(row.idea), safe(row.title), safe(row.author), safe(row.parent), predicted, _ratio(row.gain), best)
    return (*cells, safe(row.tried), safe(row.fate))


def _decisions(page: Page) -> list[str]:
    rows = [
        (clock(d.seconds), safe(d.who), safe(f"{d.what} {', '.join(d.about)}".rstrip()), safe(d.reason)) for d in page.decisions
    ]
    return [_table(("after", "who", "decided", "reason"), rows)] if rows else []


def _budget(page: Page) -> list[str]:
    spent = page.spending
    lead = f"At work for {clock(spent.active_seconds)}, the wait for the engineer left out."
    if not spent.by_model:
        return [lead, f"No model was asked: ideas from {safe(spent.source)}."]
    heads = ("calls", "recalled", "tokens in", "of them cached", "tokens out", "cost")
    models = _table(("model, role", *heads), [_spent(row) for row in (*spent.by_model, spent.total)])
    return [lead, models, "### By round", _table(("round", *heads), [_spent(row) for row in spent.by_round])]


def _spent(row: SpendingRow) -> Sequence[str]:
    usage = row.usage
    counts = (row.calls, row.recalled, usage.input, usage.cached, usage.output)
    return (safe(row.what), *(f"{count:,}" for count in counts), safe(row.usd))


def _code(found: Winner) -> Iterator[str]:
    yield "## Code"
    chosen = f" with {safe(found.tunables)}" if found.tunables else ""
    yield f"{safe(found.file)}: {found.dialect.value}, {safe(found.contract)} contract{chosen}"
    yield fenced(found.code, found.dialect)
    yield "### How to run it"
    yield fenced("\n".join(f"{command}  # {words}" for command, words in found.commands), "sh")


def _ratio(found: Interval | None) -> str:
    return safe(times(found)) if found is not None else ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are escaped already."""
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)
