"""The report as one self-contained HTML page, or as Markdown for a pull request or a wiki: Jinja templates over the content.

Every expression is escaped: in HTML by Jinja's autoescape, in Markdown by ``escape_markdown``. A content security policy in the
page also forbids scripts and requests. Jinja and Pygments are imported only when a page is rendered.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from engine.domain import stats
from engine.domain.errors import printable
from engine.domain.model import Interval
from engine.export.attempts import fenced
from engine.report.facts.usage import CallTotals
from engine.report.page.axes import FRAME, climb_axes, roofline_axes
from engine.report.page.content import Page, TreeRow, Winner, headline
from engine.report.text.lines import digits, one_line, ratio, scaled, shortened, times

if TYPE_CHECKING:
    from jinja2 import Environment

TEXTS = {
    "POLICY": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
    "GAINS": "The gain over the parent is the ratio of two speedups over the same baseline. `espalier ablate` races each "
    "kernel of the lineage directly against its parent.",
    "CLIMB": "Each dot is a kernel: filled if measured precisely, hollow if only screened or not corroborated. "
    "A cross is a failed kernel. The line follows the incumbent. A kernel takes the lead by winning a race, so dots may lie "
    "above the line.",
    "ROOFLINE": "Ceilings are measured on this device. All kernels share one arithmetic intensity: the reference's operations "
    "over its compulsory bytes.",
}  # fmt: skip
_LONGEST_BAR = 4.5
"""rem"""
_CLIMB_BAR = 24
"""Characters"""
_TITLE = 44


_MARKUP = re.compile(r"[\\`*_\[\]#|~]|:(?=//)")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "$": "&#36;"}


def html(page: Page) -> str:
    """The page as HTML: inline style and SVG, no script, nothing fetched."""
    roofline = roofline_axes(page.roofline) if page.roofline is not None else None
    axes = {"frame": FRAME, "climb_axes": climb_axes(page.climb), "roofline_axes": roofline}
    return _rendered("report.html.j2", page, lambda value: value, bars=_bars(page.rows), **axes)


def markdown(page: Page) -> str:
    """The page as Markdown: tables, a tree in a code block, no image."""
    from markupsafe import Markup

    def escaped(value: object) -> object:
        return value if isinstance(value, Markup) else Markup(escape_markdown(str(value)))

    commands = page.winner.commands if page.winner else ()
    return _rendered(
        "report.md.j2", page, escaped,
        tree_text="\n".join(map(_tree_line, page.rows)),
        climb_text="\n".join(_climb_lines(page)),
        commands_text="\n".join(f"{command}  # {words}" for command, words in commands),
    )  # fmt: skip


def _rendered(template: str, page: Page, finished: Callable[[object], object], **values: object) -> str:
    from markupsafe import Markup

    found = environment(finished)
    found.filters |= {
        "clock": clock, "money": money,
        "fenced": lambda text, language: Markup(fenced(text, language)),
        "highlighted": lambda winner: Markup(_highlighted(winner)),
    }  # fmt: skip
    line = headline(page.winner, page.baseline) if page.winner else ""
    return found.get_template(template).render(page=page, texts=TEXTS, headline=line, **values).lstrip()


def environment(finished: Callable[[object], object]) -> Environment:
    """The templates' environment: every expression is escaped, an undefined name is an error. ``finished`` escapes further."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        autoescape=True, finalize=lambda value: finished(_clean(value)), loader=PackageLoader("engine.report.page"),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    found.filters |= {
        "times": times, "digits": digits, "ratio": ratio, "scaled": scaled, "tone": _tone, "thousands": "{:,}".format,
        "px": "{:.1f}".format,
    }  # fmt: skip
    return found


def _clean(value: object) -> object:
    """A name from elsewhere cannot reverse the text around it or hold control characters."""
    return type(value)(printable(value)) if isinstance(value, str) else value


def escape_markdown(text: str) -> str:
    """One line that renders as plain text: no link, tag, table cell, mention or formula."""
    escaped = _MARKUP.sub(lambda found: f"\\{found.group()}", one_line(text))
    escaped = re.sub("[&<>@$]", lambda found: _ENTITIES[found.group()], escaped)
    return re.sub(r"(?i)\b(www)\.", r"\1\\.", escaped)


def clock(seconds: float) -> str:
    """``0:07``, ``12:34``, ``1:02:03``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def money(total: CallTotals) -> str:
    """Dollars; says so if the price is unknown."""
    if not total.usage.total:
        return "–"
    if total.unpriced and not total.usd:
        return "price unknown"
    return f"${total.usd:.4f}" + (f" and {total.unpriced} of unknown price" if total.unpriced else "")


def _tone(found: Interval) -> str:
    return {"faster": "good", "slower": "warn"}.get(stats.significant(found), "soft")


def _bars(rows: Sequence[TreeRow]) -> dict[str, float]:
    """Kernel → length of its bar, logarithmic in the speedup."""
    speedups = {row.kernel: row.speedup.value for row in rows if row.speedup and row.tone != "warn"}
    lengths = {kernel: math.log1p(max(value, 0.0)) for kernel, value in speedups.items() if math.isfinite(value)}
    most = max(lengths.values(), default=0.0)
    return {kernel: _LONGEST_BAR * length / most for kernel, length in lengths.items()} if most > 0 else {}


def _tree_line(row: TreeRow) -> str:
    """One line of the tree. It stands in a code block and needs no escaping."""
    speedup = f"  {times(row.speedup)}" if row.speedup else ""
    title = shortened(one_line(row.title), _TITLE)
    words = " ".join(filter(None, (f"{row.strokes}{row.kernel}", title, one_line(row.tunables))))
    remark = f"  {one_line(row.remark)}" if row.remark else ""
    return f"{'* ' if row.incumbent else '  '}{words}: {row.outcome}{speedup}{remark}"


def _climb_lines(page: Page) -> Iterator[str]:
    """One bar per kernel that took the lead. Of an infinite speedup, as in a damaged journal, it is as long as the longest."""
    most = max((step.speedup for step in page.climb.incumbents if math.isfinite(step.speedup)), default=0.0) or 1.0
    for step in page.climb.incumbents:
        bar = "█" * max(1, round(_CLIMB_BAR * min(step.speedup / most, 1.0)))
        yield f"{step.kernel:>5}  {bar} {digits(step.speedup)}×"


def _highlighted(winner: Winner) -> str:
    from pygments import highlight  # type: ignore[import-untyped]
    from pygments.formatters.html import HtmlFormatter  # type: ignore[import-untyped]
    from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]

    lexer = get_lexer_by_name(winner.dialect.language, stripnl=False)
    return str(highlight(winner.code, lexer, HtmlFormatter(nowrap=True)))
