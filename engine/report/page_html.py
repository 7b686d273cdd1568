"""The report as one self-contained HTML page: inline style and SVG, no script, nothing fetched. Pure.

Every text of a session goes through ``escape``; a content security policy in the page forbids scripts and requests besides, so
that a mistake here could still run nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from pygments import highlight  # type: ignore[import-untyped]
from pygments.formatters.html import HtmlFormatter  # type: ignore[import-untyped]
from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]

from engine.domain import stats
from engine.domain.model import Dialect, Interval
from engine.report import page_svg
from engine.report.page import IdeaRow, Page, RoundTable, TreeRow, Winner, headline
from engine.report.page_budget import SpendingRow
from engine.report.page_style import STYLE
from engine.report.page_words import CLIMB, GAINS, PROMISES, ROOFLINE, clock, factor, promise
from engine.report.text import ratio, times

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_BAR = 4.5
"""Width in rem of the longest bar."""
_LEXERS = {Dialect.CUDA: "cuda", Dialect.CPP: "cpp", Dialect.PYTHON: "python"}

_SECTIONS = (
    ("winner", "The winner"),
    ("tree", "Tree"),
    ("climb", "Best so far"),
    ("roofline", "Roofline"),
    ("rounds", "Rounds and ideas"),
    ("decisions", "Decisions"),
    ("budget", "Budget"),
    ("conditions", "Conditions"),
    ("code", "Code"),
)


def render(page: Page) -> str:
    """The whole page."""
    bodies = {
        "winner": _lineage(page),
        "tree": _tree(page),
        "climb": _chart(page_svg.climb(page.climb), CLIMB),
        "roofline": _chart(page_svg.roofline(page.roofline) if page.roofline else "", ROOFLINE),
        "rounds": "".join(_rounds(page)),
        "decisions": _decisions(page),
        "budget": _budget(page),
        "conditions": _conditions(page),
        "code": _code(page.winner) if page.winner else "",
    }
    shown = [(key, title) for key, title in _SECTIONS if bodies[key]]
    links = "".join(f'<a href="#{key}">{title}</a>' for key, title in shown)
    sections = "".join(f'<section id="{key}"><h2>{title}</h2>{bodies[key]}</section>\n' for key, title in shown)
    title = escape(f"{page.title}: {page.session}")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{_header(page)}\n<main>\n<nav>{links}</nav>\n{sections}</main>\n"
        f"<footer>Session {escape(page.session)}, {escape(page.ended)}. Every figure is computed from its journal; intervals "
        f"are 95 %.</footer>\n</body>\n</html>\n"
    )


def _header(page: Page) -> str:
    facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in page.facts)
    return (
        f'<header><p class="eyebrow">Espalier · {escape(page.session)}</p><h1>{escape(page.title)}</h1>'
        f'{_hero(page)}<dl class="facts">{facts}</dl></header>'
    )


def _hero(page: Page) -> str:
    found = page.winner
    if found is None:
        return '<div class="hero undecided"><div class="what"><b>No verified kernel</b></div></div>'
    kind = "hero" if found.shown else "hero undecided"
    light = f" · {found.light} of the speed of light" if found.light else ""
    return (
        f'<div class="{kind}"><div class="big">{ratio(found.speedup.value)}×</div><div class="what">'
        f"<b>{escape(found.kernel)} {escape(found.title)}</b><span>{escape(headline(found, page.baseline))}{light}</span>"
        "</div></div>"
    )


def _lineage(page: Page) -> str:
    if page.winner is None:
        return ""
    rows = [
        (f'<span class="k">{escape(step.kernel)}</span> {escape(step.title)}', escape(step.author), _ratio(step.gain),
         _ratio(step.speedup))
        for step in page.winner.lineage
    ]  # fmt: skip
    heads = ("kernel", "s:idea by", "n:over its parent", f"n:over {page.baseline}")
    return f'<p class="lead">{escape(GAINS)}</p><div class="card">{_table(heads, rows)}</div>'


def _tree(page: Page) -> str:
    if not page.rows:
        return ""
    most = max((math.log1p(row.speedup.value) for row in page.rows if row.speedup and row.tone != "warn"), default=1.0)
    heads = ("kernel", "outcome", "n:time", f"n:over {page.baseline}", "", "class", "")
    head = "".join(_th(one) for one in heads)
    body = "".join(_tree_row(row, most) for row in page.rows)
    return f'<div class="card"><table class="tree"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _tree_row(row: TreeRow, most: float) -> str:
    bar = ""
    if row.speedup is not None and row.tone != "warn" and most > 0 and math.isfinite(row.speedup.value):
        width = _BAR * math.log1p(max(row.speedup.value, 0.0)) / most
        bar = f'<span class="bar {"good" if row.tone == "good" else ""}" style="width:{width:.2f}rem"></span>'
    chosen = f' <span class="faint">{escape(row.tunables)}</span>' if row.tunables else ""
    first = (
        f'<tr{" class=leads" if row.leads else ""}><td class="name" title="{escape(row.title, quote=True)}">'
        f'<span class="strokes">{escape(row.strokes)}</span><span class="k">{escape(row.kernel)}</span> '
        f'{escape(row.title)}{chosen}</td><td><span class="tag {row.tone}">{escape(row.outcome)}</span></td>'
    )
    why = f'class="why" title="{escape(row.remark, quote=True)}">{escape(row.remark)}</td></tr>'
    ratio = f'<span class="faint">{times(row.speedup)}</span>' if row.tone == "warn" and row.speedup else _ratio(row.speedup)
    if not row.time:
        return f'{first}<td colspan="5" {why}'
    return (
        f'{first}<td class="n">{escape(row.time)}</td><td class="n">{ratio}</td><td>{bar}</td>'
        f'<td class="soft">{escape(row.precision)}</td><td {why}'
    )


def _chart(svg: str, words: str) -> str:
    return f'<div class="card">{svg}<p class="legend">{escape(words)}</p></div>' if svg else ""


def _rounds(page: Page) -> Iterator[str]:
    for one in page.rounds:
        yield f"<h3>Round {one.number}{escape(f', from {one.parents}' if one.parents else ': the first port')}</h3>"
        yield f'<div class="card">{_ideas(one, page.baseline)}</div>'
        if one.dropped:
            yield f'<p class="legend">Dropped as repetitions or one too many: {escape("; ".join(one.dropped))}</p>'
    if page.promises:
        rows = [[escape(cell) for cell in promise(one)] for one in page.promises]
        heads = (PROMISES[0], *(f"n:{head}" for head in PROMISES[1:]))
        yield f'<h3>Predictions against measurements</h3><div class="card">{_table(heads, rows)}</div>'


def _ideas(one: RoundTable, baseline: str) -> str:
    heads = ("idea", "s:by", "s:on", "n:predicted", "n:measured gain", f"n:over {baseline}", "n:kernels right")
    return _table(heads, [_idea(row) for row in one.ideas], "ideas") if one.ideas else '<span class="soft">No idea.</span>'


def _idea(row: IdeaRow) -> Sequence[str]:
    predicted = factor(row.predicted) if row.predicted is not None else ""
    best = f' <span class="faint">{escape(row.kernel)}</span>' if row.kernel else ""
    fate = f' · <span class="warn">{escape(row.fate)}</span>' if row.fate else ""
    below = f'<br><span class="faint">{escape(row.category)}</span>{fate}'
    title = f'<span class="k">{escape(row.idea)}</span> {escape(row.title)}{below}'
    return (
        title, escape(row.author), escape(row.parent), predicted, _ratio(row.gain), f"{_ratio(row.speedup)}{best}",
        escape(row.tried),
    )  # fmt: skip


def _decisions(page: Page) -> str:
    rows = [
        (f'<span class="soft">{clock(d.seconds)}</span>', escape(d.who), escape(f"{d.what} {', '.join(d.about)}".rstrip()),
         escape(d.reason))
        for d in page.decisions
    ]  # fmt: skip
    heads = ("n:after", "s:who", "decided", "reason")
    return f'<div class="card">{_table(heads, rows)}</div>' if rows else ""


def _budget(page: Page) -> str:
    spent = page.spending
    lead = f'<p class="lead">{escape(f"At work for {clock(spent.active_seconds)}, the wait for the engineer left out.")}</p>'
    if not spent.by_model:
        return f'{lead}<div class="card"><span class="soft">No model was asked: ideas from {escape(spent.source)}.</span></div>'
    heads = ("", "n:calls", "n:recalled", "n:tokens in", "n:of them cached", "n:tokens out", "n:cost")
    models = _table(("model, role", *heads[1:]), [_spent(row) for row in (*spent.by_model, spent.total)])
    rounds = _table(("round", *heads[1:]), [_spent(row) for row in spent.by_round])
    return f'{lead}<div class="card">{models}</div><h3>By round</h3><div class="card">{rounds}</div>'


def _spent(row: SpendingRow) -> Sequence[str]:
    usage = row.usage
    counts = (row.calls, row.recalled, usage.input, usage.cached, usage.output)
    return (escape(row.what), *(f"{count:,}" for count in counts), escape(row.usd))


def _conditions(page: Page) -> str:
    rows = [(f'<span class="soft">{escape(name)}</span>', escape(words)) for name, words in page.conditions]
    return f'<div class="card">{_table(("s:", ""), rows)}</div>' if rows else ""


def _code(found: Winner) -> str:
    chosen = f" with {found.tunables}" if found.tunables else ""
    told = f"{found.file}: {found.dialect.value}, {found.contract} contract{chosen}"
    coloured = highlight(found.code, get_lexer_by_name(_LEXERS[found.dialect], stripnl=False), HtmlFormatter(nowrap=True))
    runs = "".join(
        f'<div><code>{escape(command)}</code><span class="soft">{escape(words)}</span></div>'
        for command, words in found.commands
    )
    return (
        f'<p class="lead">{escape(told)}</p><pre>{coloured}</pre><h3>How to run it</h3>'
        f'<div class="card run">{runs}</div>'
    )  # fmt: skip


def _ratio(found: Interval | None) -> str:
    if found is None:
        return ""
    tone = {"faster": "good", "slower": "warn"}.get(stats.significant(found), "soft")
    value, _, rest = times(found).partition(" ")
    return f'<span class="{tone}">{escape(value)}</span> <span class="faint">{escape(rest)}</span>'


def _th(head: str) -> str:
    kind, name = _kind(head)
    return f"<th{kind}>{escape(name)}</th>"


def _kind(head: str) -> tuple[str, str]:
    """The class of a column and its name: ``n:`` figures on the right, ``s:`` short words that are not broken."""
    for mark in ("n", "s"):
        if head.startswith(f"{mark}:"):
            return f" class={mark}", head[2:]
    return "", head


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table of cells that are mark-up already."""
    kinds = [_kind(head)[0] for head in heads]
    head = f"<thead><tr>{''.join(_th(one) for one in heads)}</tr></thead>" if any(_kind(one)[1] for one in heads) else ""
    body = "".join(
        "<tr>" + "".join(f"<td{kinds[n] if heads else ''}>{cell}</td>" for n, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return f"<table{f' class={kind}' if kind else ''}>{head}<tbody>{body}</tbody></table>"
