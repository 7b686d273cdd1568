"""The report's charts as inline SVG, written by hand: no script, no font, no colour of its own (classes, coloured by the page).

Both axes of the roofline and the speedup axis are logarithmic. Every text that comes from a session is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from engine.report.page_charts import Climb, Dot, Roofline
from engine.report.text import digits, scaled

_WIDTH = 760
_HEIGHT = 320
_LEFT = 58
_RIGHT = 18
_TOP = 22
_BOTTOM = 44


@dataclass(frozen=True, slots=True)
class _Axis:
    """A stretch of values on a stretch of the picture."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = True

    def __call__(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.logarithmic else (self.low, self.high)
        place = math.log(max(value, 1e-300)) if self.logarithmic else value
        return self.start + (self.end - self.start) * (place - low) / (high - low)


def climb(found: Climb) -> str:
    """The speedup of every kernel in the order they were tried, the best so far as stairs; empty where nothing was measured."""
    values = [dot.y for dot in found.dots if dot.y is not None and dot.y > 0]
    if not values:
        return ""
    last = max(end for _, _, end in found.rounds)
    x = _Axis(0.4, last + 0.6, _LEFT, _WIDTH - _RIGHT, logarithmic=False)
    y = _Axis(min(0.9, *values) / 1.15, max(1.1, *values) * 1.2, _HEIGHT - _BOTTOM, _TOP)
    parts = [*_bands(found, x), *_speed_grid(y, found.baseline), *_stairs(found, x, y, last), *_climb_dots(found.dots, x, y)]
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, "kernels in the order they were drafted", "middle", "axis"))
    return _svg(
        parts, f"Speedup over {found.baseline} of every kernel, in the order they were drafted; stairs: the best so far"
    )


def _bands(found: Climb, x: _Axis) -> Iterator[str]:
    for number, first, last in found.rounds:
        left, right = x(first - 0.5), x(last + 0.5)
        if number % 2 == 0:
            size = f'width="{right - left:.1f}" height="{_HEIGHT - _BOTTOM - _TOP}"'
            yield f'<rect class="band" x="{left:.1f}" y="{_TOP}" {size}/>'
        if right - left >= 14:
            words = f"round {number}" if right - left > 64 else f"r{number}"
            yield _text((left + right) / 2, _HEIGHT - _BOTTOM + 16, words, "middle", "tick")


def _speed_grid(y: _Axis, baseline: str) -> Iterator[str]:
    for value in _ticks(y.low, y.high):
        kind = "unit" if value == 1.0 else "grid"
        yield f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        yield _text(_LEFT - 8, y(value) + 4, f"{value:g}×", "end", "tick")
    if y.low < 1.0 < y.high:
        yield _text(_WIDTH - _RIGHT - 2, y(1.0) - 5, baseline, "end", "tick")


def _stairs(found: Climb, x: _Axis, y: _Axis, last: float) -> Iterator[str]:
    if not found.best:
        return
    points = [(x(found.best[0][0]), y(found.best[0][1]))]
    for place, value in found.best[1:]:
        points += [(x(place), points[-1][1]), (x(place), y(value))]
    points.append((x(last + 0.5), points[-1][1]))
    yield f'<polyline class="best" points="{" ".join(f"{px:.1f},{py:.1f}" for px, py in points)}"/>'


def _climb_dots(dots: Sequence[Dot], x: _Axis, y: _Axis) -> Iterator[str]:
    floor = _HEIGHT - _BOTTOM - 7
    for dot in dots:
        place = x(dot.x)
        if dot.y is None:
            words = f"<title>{escape(dot.kernel)}: failed</title>"
            yield f'<path class="lost" d="M{place - 3:.1f} {floor - 3}l6 6m0 -6l-6 6">{words}</path>'
        else:
            yield _dot(dot, place, y(dot.y), f"{dot.kernel}: {digits(dot.y)}×")
    for dot in dots:
        if dot.leads and dot.y is not None:
            side = "end" if dot.x > dots[-1].x * 0.8 else "start"
            yield _text(x(dot.x) + (-9 if side == "end" else 9), y(dot.y) - 8, f"{dot.kernel} {digits(dot.y)}×", side, "label")


def _dot(dot: Dot, x: float, y: float, words: str) -> str:
    kind = "leads" if dot.leads else "sound" if dot.sound else "screened"
    return (
        f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{6 if dot.leads else 4}"><title>{escape(words)}</title></circle>'
    )


def roofline(found: Roofline) -> str:
    """The device's ceilings and where the kernels stand under them."""
    reached = [dot.y for dot in found.dots if dot.y]
    ridges = [rate / found.copy for _, rate in found.peaks]
    x = _Axis(min(found.intensity, *ridges) / 6, max(found.intensity, *ridges) * 8, _LEFT + 14, _WIDTH - _RIGHT)
    top = max(rate for _, rate in found.peaks)
    y = _Axis(min([found.copy * x.low * 2, *reached]) / 2, top * 2.2, _HEIGHT - _BOTTOM, _TOP)
    parts = [*_roof_grid(x, y), *_roofs(found, x, y)]
    parts.append(f'<line class="unit" x1="{x(found.intensity):.1f}" x2="{x(found.intensity):.1f}" '
                 f'y1="{_HEIGHT - _BOTTOM}" y2="{_TOP}"/>')  # fmt: skip
    parts += [
        _dot(dot, x(found.intensity), y(dot.y), f"{dot.kernel}: {scaled(dot.y)}")
        for dot in sorted(found.dots, key=lambda d: d.leads)
        if dot.y
    ]
    parts += [
        _text(x(found.intensity) + 11, y(dot.y) + 4, f"{dot.kernel} {scaled(dot.y)}", "start", "label")
        for dot in found.dots
        if dot.leads and dot.y
    ]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(_text(middle, _HEIGHT - 6, f"operations a byte (this problem: {digits(found.intensity)})", "middle", "axis"))
    return _svg(parts, f"Roofline: ceilings measured on this device, and the kernels; bound by {found.bound}")


def _roof_grid(x: _Axis, y: _Axis) -> Iterator[str]:
    for value in _decades(y.low, y.high):
        yield f'<line class="grid" x1="{_LEFT + 14}" x2="{_WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        yield _text(_LEFT + 8, y(value) + 4, scaled(value), "end", "tick")
    for value in _decades(x.low, x.high):
        yield f'<line class="grid" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" x1="{x(value):.1f}" x2="{x(value):.1f}"/>'
        yield _text(x(value), _HEIGHT - _BOTTOM + 16, f"{value:g}", "middle", "tick")


def _roofs(found: Roofline, x: _Axis, y: _Axis) -> Iterator[str]:
    left = max(x.low, y.low / found.copy)
    top = max(rate for _, rate in found.peaks)
    yield _line("roof", (x(left), y(found.copy * left)), (x(top / found.copy), y(top)))
    slope = left * (top / found.copy / left) ** (0.3 if 0.4 < _share(found.intensity, left, top / found.copy) < 0.85 else 0.78)
    yield _text(x(slope) - 8, y(found.copy * slope) - 8, f"copy {digits(found.copy / 1e9)} GB/s", "end", "roofname")
    for unit, rate in found.peaks:
        yield _line("roof", (x(rate / found.copy), y(rate)), (x(x.high), y(rate)))
        yield _text(_WIDTH - _RIGHT - 4, y(rate) - 6, f"{unit} {scaled(rate)}", "end", "roofname")


def _share(value: float, low: float, high: float) -> float:
    """How far along the way from ``low`` to ``high`` a value lies, in logarithms."""
    return math.log(value / low) / math.log(high / low)


def _line(kind: str, start: tuple[float, float], end: tuple[float, float]) -> str:
    return f'<line class="{kind}" x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"/>'


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10 … between the ends; where they lie close together, finer ones."""
    steps = (1, 2, 5) if high / low > 3 else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    values = [step * 10.0**power for power in range(-4, 6) for step in steps]
    return [float(f"{value:.6g}") for value in values if low <= value <= high]


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten between the ends; with few of them, their thirds."""
    powers = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    return powers if len(powers) > 1 else _ticks(low, high)


def _text(x: float, y: float, words: str, anchor: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(parts: Sequence[str], words: str) -> str:
    label = escape(words, quote=True)
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
