"""What the wrong elements of an output have in common, from counts that are taken block by block. Pure, without torch.

``WrongCounts`` is all that is known: how many elements are wrong, the box and the range in memory that hold them, how often
each index occurs modulo ``PERIODS``, and sums over the wrong values. ``observations`` names the pattern that explains them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from engine.domain.figure_text import percent_of
from engine.domain.mismatch import Observation, Pattern

PERIODS = 1024
"""Largest period of a stripe; smaller ones are powers of two."""
_DENSE = 0.5
"""Least share of a region's elements that are wrong, for it to count as wrong."""
_MOST_SLICES = 8
"""Most indices of a dimension that are listed."""
_HITS = 4
"""Least number of wrong elements per residue, on average, for a stripe: chance then fills more than half of all residues."""
_REPEATED = 0.75
"""Least share of a stripe's indices that hold a wrong element."""
_WIDE = 0.75
"""A sparse region that covers this share of a dimension is not bounded in it."""
_FIT = 1e-5
"""Largest share of the values' squares that a factor or an offset leaves unexplained."""
_LEAST_ALIKE = 8
"""Least number of wrong elements whose small differences can show one factor or offset."""
_MATCHES = 0.98
"""Least share of sampled elements that equal the transposed or shifted reference."""
_LEAST_SAMPLED = 8


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over wrong elements whose expected and actual values are finite: got o, expected e, difference d = o − e."""

    count: int = 0
    e_squared: float = 0.0
    o_squared: float = 0.0
    product: float = 0.0
    """Σ o·e"""
    d: float = 0.0
    d_squared: float = 0.0
    least: float = math.inf
    """The smallest o."""
    largest: float = -math.inf
    """The largest o."""


@dataclass(frozen=True, slots=True)
class WrongCounts:
    """Counts over all wrong elements of an output."""

    name: str
    shape: tuple[int, ...]
    wrong: int
    low: tuple[int, ...]
    """The smallest index of a wrong element in each dimension."""
    high: tuple[int, ...]
    """The largest index of a wrong element in each dimension."""
    residues: tuple[Sequence[int], ...]
    """For each dimension, wrong elements by index modulo ``PERIODS``."""
    first: int
    """Position in memory of the first wrong element."""
    last: int
    flat_residues: Sequence[int]
    """Wrong elements by position in memory modulo ``PERIODS``."""
    not_written: int = 0
    not_finite: int = 0
    finite: int = 0
    sums: Sums = Sums()
    sampled: int = 0
    """Elements for which the output was also compared with displaced elements of the reference."""
    swapped: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Two dimensions → sampled elements that are right if these are swapped in memory."""
    shifted: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """(Dimension, ±1) → sampled elements that equal the reference at the neighbouring index."""
    like: str = ""
    """A precision class that is not allowed, whose arithmetic errs as much."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def observations(counts: WrongCounts) -> tuple[Observation, ...]:
    """Where the wrong elements are, then what is wrong with them; empty if none is."""
    return (_place(counts), *_nature(counts)) if counts.wrong else ()


def _place(counts: WrongCounts) -> Observation:
    """The most specific region: one element, a stretch of memory, a few slices, a stripe, a box."""
    if counts.wrong == counts.elements:
        return _seen(Pattern.EVERYTHING, "all elements")
    if counts.wrong == 1:
        return _seen(Pattern.ELEMENT, f"one element: {_indexed(counts, counts.low)}", "one element")
    for attempt in (_stretch, _slices, _stripe) if counts.wrong < _volume(counts) else ():
        if (found := attempt(counts)) is not None:
            return found
    return _box(counts)


def _volume(counts: WrongCounts) -> int:
    return math.prod(high - low + 1 for low, high in zip(counts.low, counts.high, strict=True))


def _stretch(counts: WrongCounts) -> Observation | None:
    """A stretch of memory without gaps that is no box."""
    if len(counts.shape) < 2 or counts.wrong != counts.last - counts.first + 1:
        return None
    size = counts.wrong
    if counts.last == counts.elements - 1:
        return _seen(Pattern.TAIL, f"the last {size} elements in memory", "the end of the output in memory")
    if counts.first == 0:
        return _seen(Pattern.HEAD, f"the first {size} elements in memory", "the beginning of the output in memory")
    text = f"{size} consecutive elements in memory, from position {counts.first}"
    return _seen(Pattern.RANGE, text, "a stretch of consecutive elements in memory")


def _slices(counts: WrongCounts) -> Observation | None:
    """A few indices of a dimension that are not adjacent, where every index is counted."""
    best: tuple[int, list[int]] | None = None
    for dim, extent in enumerate(counts.shape):
        indices = [i for i, hits in enumerate(counts.residues[dim]) if hits] if extent <= PERIODS else []
        gaps = len(indices) >= 2 and indices[-1] - indices[0] >= len(indices)
        few = 0 < len(indices) <= min(_MOST_SLICES, extent // 2)
        # As many wrong elements elsewhere would hit more indices.
        if gaps and few and counts.wrong >= _HITS * len(indices) and (best is None or len(indices) < len(best[1])):
            best = dim, indices
    if best is None or _period(counts.residues[best[0]], counts.shape[best[0]], counts.wrong) is not None:
        return None
    dim, indices = best
    listed = ", ".join(map(str, indices))
    return _seen(Pattern.SLICES, f"at indices {listed} of dimension {dim}", f"at a few indices of {_which(counts, dim)}")


def _stripe(counts: WrongCounts) -> Observation | None:
    """A period of one dimension, or of the memory, that all wrong elements share."""
    found: list[tuple[float, int, int | None, tuple[int, ...]]] = []
    spans: list[tuple[int | None, Sequence[int], int]] = [
        *((dim, counts.residues[dim], extent) for dim, extent in reversed(list(enumerate(counts.shape)))),
        (None, counts.flat_residues, counts.elements),
    ]
    for dim, residues, extent in spans:
        period = _period(residues, extent, counts.wrong)
        if period is not None:
            found.append((len(period[1]) / period[0], len(found), dim, (period[0], *period[1])))
    if not found:
        return None
    _, _, dim, (every, *kept) = min(found, key=lambda one: (one[2] is None, one[0], one[1]))
    where = "of the positions in memory" if dim is None else f"of dimension {dim}"
    general = "of the positions in memory" if dim is None else f"of {_which(counts, dim)}"
    if len(kept) == 1:
        step = f"every {every}th index {{}}, from {kept[0]}".replace("2th", "2nd")
        place = "" if dim is None else f": {_notation(counts, {dim: f'{kept[0]}::{every}'})}"
        return _seen(Pattern.STRIPE, step.format(where) + place, step.format(general))
    span = f"{kept[0]} to {kept[-1]}" if kept[-1] - kept[0] + 1 == len(kept) else ", ".join(map(str, kept[:_MOST_SLICES]))
    more = "" if len(kept) <= _MOST_SLICES or "to" in span else " …"
    step = f"a stripe: indices {{}} that are {span}{more} modulo {every}"
    return _seen(Pattern.STRIPE, step.format(where), step.format(general))


def _period(residues: Sequence[int], extent: int, wrong: int) -> tuple[int, tuple[int, ...]] | None:
    """The period whose hit residues are the smallest share, and those residues; ``None`` if nothing is periodic."""
    best: tuple[int, tuple[int, ...]] | None = None
    every = 2
    while every <= PERIODS and 2 * every <= extent:
        folded = [sum(residues[at::every]) for at in range(every)]
        hit = tuple(at for at, count in enumerate(folded) if count)
        enough = wrong >= _HITS * len(hit) and 2 * len(hit) <= every
        if (
            enough
            and _repeats(residues, every, len(hit), extent)
            and (best is None or len(hit) * best[0] < len(best[1]) * every)
        ):
            best = every, hit
        every *= 2
    return best


def _repeats(residues: Sequence[int], every: int, hit: int, extent: int) -> bool:
    """Whether most indices of the stripe are hit, where single indices are counted: one tile, or a few rows, are no stripe."""
    return extent > PERIODS or sum(map(bool, residues)) >= _REPEATED * hit * extent / every


def _box(counts: WrongCounts) -> Observation:
    """The smallest box around the wrong elements."""
    volume = _volume(counts)
    dense, share = counts.wrong >= _DENSE * volume, percent_of(counts.wrong, volume)
    bounded = [d for d, n in enumerate(counts.shape) if counts.high[d] - counts.low[d] + 1 <= (n - 1 if dense else _WIDE * n)]
    if not bounded:
        share = f"{share} of the elements, everywhere" if dense else f"{share} of the elements"
        return _seen(Pattern.SCATTERED, f"scattered: {share}", "scattered over the whole output")
    region = _notation(counts, {d: _range(counts.low[d], counts.high[d]) for d in bounded})
    inside = "" if counts.wrong == volume else f", {share} of its elements"
    if len(bounded) > 1:
        kind, words = (Pattern.TILE, "one tile") if dense else (Pattern.SCATTERED, "within one part")
        return _seen(kind, f"{words}: {region}{inside}", f"{words}, bounded in {len(bounded)} dimensions")
    dim = bounded[0]
    low, high, extent = counts.low[dim], counts.high[dim], counts.shape[dim]
    if low == high:
        kind, words = Pattern.SLICE, "one index"
    elif high == extent - 1:
        kind, words = Pattern.TAIL, f"the last {high - low + 1} of {extent} indices"
    elif low == 0:
        kind, words = Pattern.HEAD, f"the first {high + 1} of {extent} indices"
    else:
        kind, words = Pattern.RANGE, f"{high - low + 1} of {extent} indices"
    return _seen(kind, f"{words} of dimension {dim}: {region}{inside}", f"{_PARTS[kind]} {_which(counts, dim)}")


_PARTS = {
    Pattern.SLICE: "one index of",
    Pattern.TAIL: "the end of",
    Pattern.HEAD: "the beginning of",
    Pattern.RANGE: "a part of",
}


def _nature(counts: WrongCounts) -> Iterator[Observation]:
    """What is wrong with the wrong elements."""
    for kind, count, words in (
        (Pattern.NOT_WRITTEN, counts.not_written, "not written"),
        (Pattern.NOT_FINITE, counts.not_finite - min(counts.not_written, counts.not_finite), "NaN or infinite"),
        (Pattern.FINITE, counts.finite, "finite where the reference is not"),
    ):
        if count:
            whole = count == counts.wrong
            yield _seen(kind, words if whole else f"{count} of them {words}", words if whole else f"some of them {words}")
    if counts.not_written or counts.like:
        if counts.like and not counts.not_written:
            yield _small(counts.sums) or _seen(
                Pattern.PRECISION, f"errors as small as those of {counts.like} arithmetic, which is not allowed"
            )
        return
    if (displaced := _displaced(counts)) is not None:
        yield displaced
    elif (simple := _simple(counts.sums)) is not None:
        yield simple


def _displaced(counts: WrongCounts) -> Observation | None:
    """The right values in the wrong places."""
    if counts.sampled < _LEAST_SAMPLED:
        return None
    for (one, other), matches in counts.swapped.items():
        if matches >= _MATCHES * counts.sampled:
            return _seen(Pattern.TRANSPOSED, f"the right values with dimensions {one} and {other} swapped in memory")
    for (dim, by), matches in counts.shifted.items():
        if matches >= _MATCHES * counts.sampled:
            way = "next" if by > 0 else "previous"
            text = f"each has the value of the {way} index of dimension {dim}"
            return _seen(Pattern.SHIFTED, text, f"each has the value of the {way} index of {_which(counts, dim)}")
    return None


def _simple(sums: Sums) -> Observation | None:
    """All wrong values are zero or equal, or a factor or an offset away from the expected ones."""
    if sums.count < 2:
        return None
    if sums.least == sums.largest:
        return _seen(Pattern.ZERO, "all 0") if not sums.least else _seen(Pattern.CONSTANT, f"all {sums.least:.6g}")
    if sums.e_squared > 0:
        factor = sums.product / sums.e_squared
        left = sums.o_squared - factor * sums.product
        if sums.o_squared > 0 and left <= _FIT * sums.o_squared and abs(factor - 1) > math.sqrt(_FIT):
            return _seen(Pattern.FACTOR, f"{factor:.6g} times the expected values")
    return _offset(sums)


def _offset(sums: Sums, digits: int = 6) -> Observation | None:
    mean = sums.d / sums.count
    left = sums.d_squared - sums.count * mean * mean
    if sums.d_squared > 0 and left <= _FIT * sums.d_squared:
        return _seen(Pattern.OFFSET, f"the expected values {'+' if mean > 0 else '-'} {abs(mean):.{digits}g}")
    return None


def _small(sums: Sums) -> Observation | None:
    """Differences as small as a precision class's that are one offset or one factor: a wrong constant, not arithmetic."""
    if sums.count < _LEAST_ALIKE or sums.least == sums.largest:
        return None
    if (offset := _offset(sums, 3)) is not None or not sums.e_squared:
        return offset
    excess = (sums.product - sums.e_squared) / sums.e_squared
    left = sums.d_squared - excess * excess * sums.e_squared
    return _seen(Pattern.FACTOR, f"{1 + excess:.6g} times the expected values") if left <= _FIT * sums.d_squared else None


def _seen(kind: Pattern, text: str, general: str = "") -> Observation:
    return Observation(kind, text, general or text)


def _which(counts: WrongCounts, dim: int) -> str:
    """A dimension without its size."""
    return "the last dimension" if dim == len(counts.shape) - 1 else f"dimension {dim}"


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}:{high + 1}"


def _notation(counts: WrongCounts, bounded: Mapping[int, str]) -> str:
    """``out[:, 496:512]``."""
    return f"{counts.name}[{', '.join(bounded.get(d, ':') for d in range(len(counts.shape)))}]"


def _indexed(counts: WrongCounts, index: Sequence[int]) -> str:
    return f"{counts.name}[{', '.join(map(str, index))}]"
