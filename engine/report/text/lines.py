"""Lines of text with a tone per part, and the format of every figure. The printer maps tones to colours."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from engine.domain.figure_text import digit_figures
from engine.domain.figure_text import digits as digits
from engine.domain.figure_text import percent as percent
from engine.domain.figure_text import ratio as ratio
from engine.domain.figure_text import ratio_figures as ratio_figures
from engine.domain.figures import Interval
from engine.domain.stats import is_measurable, significant

_LONGEST_STEM = 120
_GAP = 2
"""Spaces between the columns of a table."""
_LEAST_LAST = 16
"""Characters of a row's last cell that a table keeps while it has columns to spare."""


class Tone(StrEnum):
    """What a part of a line means."""

    PLAIN = "plain"
    STRONG = "strong"
    FAINT = "faint"
    GOOD = "good"
    BAD = "bad"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a line, without line breaks."""

    text: str
    tone: Tone = Tone.PLAIN


Line = tuple[Span, ...]


def line(*parts: Span | str) -> Line:
    """A line of spans. Plain strings have the tone ``PLAIN``."""
    return tuple(Span(part) if isinstance(part, str) else part for part in parts)


def plain(spans: Line) -> str:
    """The line's text without tones."""
    return "".join(span.text for span in spans).rstrip()


def one_line(text: str) -> str:
    """The text with each run of whitespace replaced by one space."""
    return " ".join(text.split())


def file_stem(name: str) -> str:
    """A name from elsewhere as the stem of a file in the working folder: letters, digits, ``.``, ``_`` and ``-``."""
    return re.sub(r"[^\w.-]+", "_", name[:_LONGEST_STEM]).lstrip(".-") or "kernel"


def shortened(text: str, width: int) -> str:
    """The text, cut with an ellipsis if it is longer than ``width``."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)].rstrip()}…"


def shortened_within(text: str, width: int) -> str:
    """The text, cut within if it is longer than ``width``; more of its end is kept: there names of sessions differ."""
    kept = max(1, width) - 1
    end = kept * 3 // 5
    return text if len(text) <= width else f"{text[: kept - end]}…{text[len(text) - end :]}"


def cut(spans: Line, width: int) -> Line:
    """The line, cut with an ellipsis if it is longer than ``width``."""
    if sum(len(span.text) for span in spans) <= width:
        return spans
    kept: list[Span] = []
    left = width - 1
    for span in spans:
        if len(span.text) > left:
            kept.append(Span(f"{span.text[:left].rstrip()}…", span.tone))
            break
        kept.append(span)
        left -= len(span.text)
    return tuple(kept)


_SCALES = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))


def duration(us: float) -> str:
    """A time in microseconds as µs, ms or s with three significant digits: ``812 µs``, ``5.43 ms``, ``1.20 s``."""
    scale, unit = _scale(us)
    return f"{digits(us / scale)} {unit}"


def duration_interval(interval: Interval) -> str:
    """``5.43 ms [5.40, 5.47]``; the ends use the unit and the decimals of the value."""
    scale, unit = _scale(interval.value)
    scaled_down = Interval(interval.value / scale, interval.low / scale, interval.high / scale)
    value, low, high = digit_figures(scaled_down)
    return f"{value} {unit} [{low}, {high}]"


def _scale(us: float) -> tuple[float, str]:
    return next(((scale, unit) for scale, unit in _SCALES if us >= scale), _SCALES[-1])


def scaled(value: float) -> str:
    """A large figure with its SI prefix, ready for a unit: ``12.3 G``, ``4.56 T``."""
    for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= scale:
            figure = digits(value / scale)
            return f"{figure.rstrip('0').rstrip('.') if '.' in figure else figure} {prefix}"
    return f"{digits(value)} "


def times(interval: Interval) -> str:
    """A ratio with its interval: ``1.52× [1.49, 1.55]``. Where the interval says nothing: ``not measurable [0.08, 197]``."""
    value, low, high = ratio_figures(interval)
    return f"{value}× [{low}, {high}]" if is_measurable(interval) else f"{NOT_MEASURABLE} [{low}, {high}]"


NOT_MEASURABLE = "not measurable"
TOO_WIDE = "too few process pairs, or they differ too much"
"""Why a speedup is not measurable."""


def policy_words(policy: str) -> str:
    """A tolerance policy as people read it: ``class:fp32 (10×)``."""
    return re.sub(r"\b(\d+(?:\.\d+)?)x(?=\))", r"\1×", policy)


def speedup_tone(interval: Interval) -> Tone:
    """``GOOD`` or ``WARN`` if the interval excludes 1.0, else ``PLAIN``."""
    return {"faster": Tone.GOOD, "slower": Tone.WARN}.get(significant(interval), Tone.PLAIN)


def tunables(chosen: Mapping[str, int]) -> str:
    """``BLOCK=128 UNROLL=4``."""
    return " ".join(f"{name}={value}" for name, value in chosen.items())


def counted(number: int, thing: str) -> str:
    """``1 kernel``, ``2 kernels``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def table(rows: Sequence[Sequence[Span]], gap: int = _GAP) -> list[Line]:
    """Rows with left-aligned columns. A row's last cell does not widen its column."""
    widths = _widths(rows)
    return [tuple(_padded(row, widths, gap)) for row in rows]


def fitted(rows: Sequence[Sequence[Span]], width: int, *, wide: int, least: int, spare: Sequence[int]) -> list[Line]:
    """The table, no wider than a terminal of ``width`` columns; 0: as wide as it is.

    The columns ``spare`` are left out one after the other, until column ``wide`` has ``least`` characters or all that it needs.
    It is cut to what is left for it. So is a row's last cell, of which a few characters are enough in a short row and in a
    column that may be spared.
    """
    if max((len(plain(found)) for found in table(rows)), default=0) <= (width or math.inf):
        return table(rows)
    needed, longest = max(len(row[wide].text) for row in rows if len(row) > wide), max(map(len, rows))
    narrow = [_narrow(row) if len(row) < longest or longest - 1 in spare else row for row in rows]
    for left_out in range(len(spare) + 1):
        beside = table([_without(row, (wide, *spare[:left_out])) for row in narrow])
        room = max(1, width - _GAP - max(len(plain(found)) for found in beside))
        if room >= min(least, needed):
            break
    kept = [_without(row, spare[:left_out]) for row in rows]
    shown = [[Span(shortened(cell.text, room), cell.tone) if c == wide else cell for c, cell in enumerate(row)] for row in kept]
    return [cut(found, width) for found in table(shown)]


def _without(row: Sequence[Span], columns: Sequence[int]) -> list[Span]:
    """The row with nothing in these columns, and without empty cells at its end: a table shows no column that is empty."""
    kept = [Span("") if c in columns else cell for c, cell in enumerate(row)]
    while len(kept) > 1 and not kept[-1].text:
        kept.pop()
    return kept


def _narrow(row: Sequence[Span]) -> list[Span]:
    """The row with few characters in its last cell."""
    return [*row[:-1], Span(shortened(row[-1].text, _LEAST_LAST))]


def _widths(rows: Sequence[Sequence[Span]]) -> dict[int, int]:
    widths: dict[int, int] = {}
    for row in rows:
        for column, cell in enumerate(row[:-1]):
            widths[column] = max(widths.get(column, 0), len(cell.text))
    return widths


def _padded(row: Sequence[Span], widths: Mapping[int, int], gap: int) -> Iterator[Span]:
    for column, cell in enumerate(row[:-1]):
        if widths[column]:
            yield Span(cell.text.ljust(widths[column] + gap), cell.tone)
    yield from row[-1:]


def fields(rows: Iterable[tuple[str, Span | str]]) -> list[Line]:
    """One line per name and value, with the values aligned."""
    return table([[Span(name, Tone.FAINT), Span(words) if isinstance(words, str) else words] for name, words in rows])
