"""Tunables of a kernel: their lines, which combinations are allowed, and which are worth trying first.

Pure: every choice is a function of its arguments, the seed among them. Whether a variant is any good is not known here.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.build.directives import Directive, directives
from engine.build.expressions import Cursor, Expression, Token, evaluate, parse, tokenize
from engine.domain.errors import SourceError
from engine.domain.model import Dialect, Number, Tunable

MOST_TUNABLES = 16
MOST_VALUES = 64
LARGEST_VALUE = 2**31 - 1
"""Tunables become C literals, so they are C ints."""
POOL = 2048
"""Combinations looked at when a choice is made; larger spaces are sampled."""

Combination = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Requirement:
    """One ``@require`` line: a combination is allowed when its value is not zero."""

    expression: Expression
    text: str
    line: int
    column: int


def parse_tunables(source: str, dialect: Dialect) -> tuple[Tunable, ...]:
    """The ``@tune NAME = v1, v2, ...`` lines of a source, in order.

    Raises:
        SourceError: a line that is malformed, or one name tuned twice.
    """
    found: dict[str, Tunable] = {}
    for directive in directives(source, dialect, "tune"):
        name, tunable = _tunable(directive)
        if tunable.name in found:
            raise name.error(f"'{tunable.name}' is tuned twice: give all its values in one line")
        if len(found) == MOST_TUNABLES:
            raise name.error(f"too many tunables: {MOST_TUNABLES} at most")
        found[tunable.name] = tunable
    return tuple(found.values())


def _tunable(directive: Directive) -> tuple[Token, Tunable]:
    cursor = Cursor(tokenize(directive.text, directive.line, directive.column))
    name = cursor.name("a name after @tune")
    cursor.expect("=", "after the name")
    values = [_value(cursor)]
    while comma := cursor.accept(","):
        value = _value(cursor)
        if value in values:
            raise comma.error(f"'{name.text}' has the value {value} twice")
        if len(values) == MOST_VALUES:
            raise comma.error(f"'{name.text}' has too many values: {MOST_VALUES} at most")
        values.append(value)
    cursor.end("after the values: write `@tune NAME = v1, v2, ...`")
    return name, Tunable(name.text, tuple(values))


def _value(cursor: Cursor) -> int:
    sign = -1 if cursor.accept("-") else 1
    token = cursor.take()
    if token.kind != "integer":
        raise token.error(f"expected an integer, found {token}")
    digits = token.text
    magnitude = LARGEST_VALUE + 1 if len(digits) > 12 else int(digits, 16 if digits[:2].lower() == "0x" else 10)
    if magnitude > LARGEST_VALUE:
        raise token.error("this value is too large: tunables are C ints")
    return sign * magnitude


def parse_requires(source: str, dialect: Dialect) -> tuple[Requirement, ...]:
    """The ``@require EXPR`` lines of a source, in order.

    Raises:
        SourceError: a line that is no expression.
    """
    return tuple(
        Requirement(parse(d.text, d.line, d.column), d.text.strip(), d.line, d.column)
        for d in directives(source, dialect, "require")
    )


def default(tunables: Sequence[Tunable]) -> dict[str, int]:
    """The first value of each tunable."""
    return {tunable.name: tunable.values[0] for tunable in tunables}


def broken(requires: Sequence[Requirement], names: Mapping[str, Number], chosen: Combination) -> Requirement | None:
    """The first requirement that this combination does not meet, if any.

    Raises:
        SourceError: a requirement that cannot be evaluated.
    """
    known = {**names, **chosen}
    return next((r for r in requires if evaluate(r.expression, known) == 0), None)


def variants(
    tunables: Sequence[Tunable], requires: Sequence[Requirement], names: Mapping[str, Number], limit: int, seed: int
) -> tuple[Combination, ...]:
    """At most ``limit`` allowed combinations: the defaults first, then each as far from those before as can be.

    Where a requirement forbids the defaults, the allowed combination nearest to them comes first. Far apart is the
    sum over tunables of the distance between the values' places, each tunable counting alike; ties go to the
    combination whose values were used least, then to chance as ``seed`` has it.

    Raises:
        SourceError: a requirement that cannot be evaluated, or that no combination seen meets.
    """
    places = _pool(tunables, seed)
    allowed = [p for p in places if broken(requires, names, _combination(tunables, p)) is None]
    if not allowed:
        worst = broken(requires, names, default(tunables))
        line, column = (worst.line, worst.column) if worst else (0, 0)
        raise SourceError(f"no combination of tunables meets `@require {worst.text if worst else ''}`", line, column)
    chosen = _spread(tunables, allowed, limit)
    return tuple(_combination(tunables, place) for place in chosen)


def neighbours(
    tunables: Sequence[Tunable],
    requires: Sequence[Requirement],
    names: Mapping[str, Number],
    chosen: Combination,
    tried: Iterable[Combination],
) -> tuple[Combination, ...]:
    """Allowed combinations that differ from ``chosen`` in one tunable and were not tried, nearest values first.

    Raises:
        SourceError: a requirement that cannot be evaluated.
    """
    seen = {tuple(sorted(t.items())) for t in tried} | {tuple(sorted(chosen.items()))}
    steps: list[tuple[int, int, dict[str, int]]] = []
    for order, tunable in enumerate(tunables):
        at = tunable.values.index(chosen[tunable.name]) if chosen.get(tunable.name) in tunable.values else 0
        for place, value in enumerate(tunable.values):
            candidate = {**chosen, tunable.name: value}
            if tuple(sorted(candidate.items())) not in seen and broken(requires, names, candidate) is None:
                steps.append((abs(place - at), order, candidate))
    steps.sort(key=lambda step: step[:2])
    return tuple(candidate for _, _, candidate in steps)


_Place = tuple[int, ...]
"""A combination as indices into each tunable's values."""


def _combination(tunables: Sequence[Tunable], place: _Place) -> dict[str, int]:
    return {tunable.name: tunable.values[index] for tunable, index in zip(tunables, place, strict=True)}


def _pool(tunables: Sequence[Tunable], seed: int) -> list[_Place]:
    """The defaults, then the other combinations in seeded order; a sample of them when there are too many."""
    chance = random.Random(seed)
    sizes = [len(tunable.values) for tunable in tunables]
    start = (0,) * len(sizes)
    if math.prod(sizes) <= POOL:
        others = [p for p in itertools.product(*map(range, sizes)) if p != start]
        chance.shuffle(others)
    else:
        drawn = (tuple(chance.randrange(size) for size in sizes) for _ in range(POOL))
        others = [p for p in dict.fromkeys(drawn) if p != start]
    return [start, *others]


def _spread(tunables: Sequence[Tunable], allowed: Sequence[_Place], limit: int) -> list[_Place]:
    spans = [max(len(tunable.values) - 1, 1) for tunable in tunables]
    first = min(allowed, key=lambda place: _distance(place, (0,) * len(spans), spans))
    chosen = [first]
    nearest = {p: _distance(p, first, spans) for p in allowed if p != first}
    while nearest and len(chosen) < limit:
        used = [_uses(chosen, axis) for axis in range(len(spans))]
        best = max(nearest, key=lambda p: (round(nearest[p], 9), -_reuse(p, used)))
        chosen.append(best)
        del nearest[best]
        for place, distance in nearest.items():
            nearest[place] = min(distance, _distance(place, best, spans))
    return chosen


def _uses(chosen: Collection[_Place], axis: int) -> dict[int, int]:
    counts: dict[int, int] = {}
    for place in chosen:
        counts[place[axis]] = counts.get(place[axis], 0) + 1
    return counts


def _reuse(place: _Place, used: Sequence[Mapping[int, int]]) -> int:
    return sum(counts.get(index, 0) for index, counts in zip(place, used, strict=True))


def _distance(one: _Place, other: _Place, spans: Sequence[int]) -> float:
    return sum(abs(a - b) / span for a, b, span in zip(one, other, spans, strict=True))
