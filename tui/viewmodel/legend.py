"""The legend of symbols, colours and abbreviations, by heading. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.domain.model import Interval
from tui.viewmodel import fmt, ideas, kernels
from tui.viewmodel.cells import Cell, Ink

Entry = tuple[Cell, str]
"""A symbol in its ink, and its meaning."""

_FASTER, _SLOWER, _BOTH = (Interval(value, value - 0.1, value + 0.1) for value in (1.42, 0.8, 1.0))


def legend() -> tuple[tuple[str, tuple[Entry, ...]], ...]:
    """(heading, its entries)."""
    return (
        ("Kernels", _BADGES),
        ("Outcomes", tuple(_outcomes())),
        ("Ideas", tuple(_statuses())),
        ("Figures", _FIGURES),
        ("Abbreviations", _ABBREVIATIONS),
    )


def _statuses() -> Iterator[Entry]:
    more = {"parked": "put aside, or surplus: the round was full; can be approved later"}
    for one in ideas.LEGEND:
        yield Cell(one.glyph, one.ink), f"{one.word}: {more[one.word]}" if one.word in more else one.word


def _outcomes() -> Iterator[Entry]:
    doubted = kernels.NOT_CORROBORATED
    more = {
        doubted.word: f"in the tree {doubted.short}; the judge's clock does not confirm the time: cannot win",
        "screened": "timed with few samples, too slow to measure further",
        "quarantined": "time or behaviour not plausible; accept or discard it",
        "undecided": "a race's interval contains 1, or the race is not corroborated",
        kernels.NOT_COMPARED.word: kernels.WHY_NOT_COMPARED,
    }
    for one in kernels.OUTCOMES:
        yield Cell(one.glyph, one.ink), f"{one.word}: {more[one.word]}" if one.word in more else one.word


_BADGES: tuple[Entry, ...] = (
    (Cell(kernels.INCUMBENT, Ink.BEST), "incumbent: holds the lead by a race"),
    (Cell(kernels.MARKED, Ink.MARK), "marked for comparing, racing or combining"),
    (Cell(kernels.PINNED, Ink.PIN), "pinned: a parent of later rounds"),
    (Cell(kernels.PRUNED, Ink.FAINT), "its branch is pruned"),
    (Cell(kernels.SEED, Ink.PIN), "seed: brought in by hand or from the bank"),
    (Cell("▾", Ink.LABEL), "has children; ▸ folded, +3: so many are hidden"),
)
_FIGURES: tuple[Entry, ...] = (
    (fmt.speedup(_FASTER), "the whole interval is faster than the baseline"),
    (fmt.speedup(_SLOWER), "the whole interval is slower"),
    (fmt.speedup(_BOTH), "the interval contains 1: no difference is shown"),
    (Cell(f"≈ {fmt.NO_FIGURE}", Ink.UNDECIDED), "not measurable: the interval contains 1 and spans more than a factor of ten"),
    (fmt.speedup(_FASTER, doubted=True), "no result: the time is not corroborated, or the kernel is quarantined"),
    (Cell("██▒", Ink.FASTER_BAR), "bar: solid to the interval's low end, lighter to its high end; ▏ is 1×"),
)
_ABBREVIATIONS: tuple[Entry, ...] = (
    (Cell("SOL", Ink.LABEL), "speed of light: share of what the device's own limits allow"),
    (Cell("95%", Ink.LABEL), "confidence interval of the median ratio"),
    (Cell("class", Ink.LABEL), "precision class: fp32, tf32 or half, by the output's error against float64"),
    (Cell("k3 i2", Ink.LABEL), "kernel 3, idea 2"),
    (Cell("128·4", Ink.LABEL), "tunables without their names, in the order of page 1"),
)
