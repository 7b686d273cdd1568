"""Tunables of a kernel: ``@tune`` and ``@require`` lines, allowed combinations, and which of them to try first. Pure."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from engine.domain.errors import KernelCodeError
from engine.domain.model import Dialect, Number, Tunable
from engine.toolchain.directives import Directive, directives
from engine.toolchain.dispatch import is_dispatch
from engine.toolchain.expressions import Cursor, Expression, Token, evaluate, parse, tokenize
from engine.toolchain.triton.source import autotuned

MAX_TUNABLES = 16
MAX_VALUES = 64
MAX_VALUE = 2**31 - 1
"""Tunables become C literals, so they are C ints."""
MAX_CANDIDATES = 2048
"""Combinations considered; larger spaces are sampled."""

Combination = Mapping[str, int]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One ``@require`` line: allows the combinations for which its expression is not zero."""

    expression: Expression
    text: str
    line: int
    column: int

    def is_met(self, names: Mapping[str, Number]) -> bool:
        """Raises KernelCodeError for an expression that cannot be evaluated."""
        return evaluate(self.expression, names) != 0


@dataclass(frozen=True)
class ListedCombinations:
    """The configurations of ``@triton.autotune``: allows the listed combinations of its tunables, whatever the others are."""

    listed: tuple[Combination, ...]
    text: str
    line: int
    column: int

    @cached_property
    def _known(self) -> frozenset[tuple[Number, ...]]:
        return frozenset(tuple(one.values()) for one in self.listed)

    def is_met(self, names: Mapping[str, Number]) -> bool:
        """Whether the values of its tunables are listed together."""
        return tuple(names.get(name, 0) for name in self.listed[0]) in self._known


Rule = Requirement | ListedCombinations
"""What limits the combinations of tunables."""


def parse_tunables(code: str, dialect: Dialect) -> tuple[Tunable, ...]:
    """The ``@tune NAME = v1, v2, ...`` lines of the code; in a Triton file after the names of ``@triton.autotune``.

    A dispatch has none: its ``@member`` lines have the values.

    Raises:
        KernelCodeError: a malformed line or a duplicate name.
    """
    tunables: dict[str, Tunable] = {}
    if is_dispatch(code, dialect):
        return ()
    for one in _autotuned(code, dialect):
        for listed in one.listed[0]:
            tunables[listed] = Tunable(listed, tuple(dict.fromkeys(each[listed] for each in one.listed)))
    if len(tunables) > MAX_TUNABLES or any(len(one.values) > MAX_VALUES for one in tunables.values()):
        raise KernelCodeError(f"@triton.autotune: {MAX_TUNABLES} tunables of {MAX_VALUES} values at most")
    for directive in directives(code, dialect, "tune"):
        name, tunable = _tunable(directive)
        if tunable.name in tunables:
            raise name.error(f"duplicate tunable '{tunable.name}': give all its values in one line")
        if len(tunables) == MAX_TUNABLES:
            raise name.error(f"too many tunables: {MAX_TUNABLES} at most")
        tunables[tunable.name] = tunable
    return tuple(tunables.values())


def _autotuned(code: str, dialect: Dialect) -> tuple[ListedCombinations, ...]:
    """The configurations of a Triton file. Those of several functions get the function's name in front of theirs."""
    if dialect is not Dialect.TRITON:
        return ()
    found = autotuned(code)
    several = len(found) > 1
    return tuple(
        ListedCombinations(
            tuple({f"{one.function}_{name}" if several else name: v for name, v in each.items()} for each in one.listed),
            f"a configuration of '{one.function}'", one.line, one.column,
        )
        for one in found
    )  # fmt: skip


def _tunable(directive: Directive) -> tuple[Token, Tunable]:
    cursor = Cursor(tokenize(directive.text, directive.line, directive.column))
    name = cursor.name("a name after @tune")
    cursor.expect("=", "after the name")
    values = [_value(cursor)]
    while comma := cursor.accept(","):
        value = _value(cursor)
        if value in values:
            raise comma.error(f"duplicate value {value} for '{name.text}'")
        if len(values) == MAX_VALUES:
            raise comma.error(f"'{name.text}' has too many values: {MAX_VALUES} at most")
        values.append(value)
    cursor.end("after the values: write `@tune NAME = v1, v2, ...`")
    return name, Tunable(name.text, tuple(values))


def _value(cursor: Cursor) -> int:
    sign = -1 if cursor.accept("-") else 1
    token = cursor.take()
    if token.kind != "integer":
        raise token.error(f"expected an integer, found {token}")
    digits = token.text
    magnitude = MAX_VALUE + 1 if len(digits) > 12 else int(digits, 16 if digits[:2].lower() == "0x" else 10)
    if magnitude > MAX_VALUE:
        raise token.error("value too large: tunables are C ints")
    return sign * magnitude


def parse_requires(code: str, dialect: Dialect) -> tuple[Rule, ...]:
    """The ``@require EXPR`` lines of the code; in a Triton file after the configurations of ``@triton.autotune``.

    Raises:
        KernelCodeError: a line that is not an expression.
    """
    if is_dispatch(code, dialect):
        return ()
    written = (
        Requirement(parse(d.text, d.line, d.column), d.text.strip(), d.line, d.column)
        for d in directives(code, dialect, "require")
    )
    return (*_autotuned(code, dialect), *written)


def default_values(tunables: Sequence[Tunable]) -> dict[str, int]:
    """The first value of each tunable."""
    return {tunable.name: tunable.values[0] for tunable in tunables}


def rule_text(rule: Rule) -> str:
    """A rule as it is named in messages."""
    return f"`@require {rule.text}`" if isinstance(rule, Requirement) else rule.text


def first_unmet(requires: Sequence[Rule], names: Mapping[str, Number], chosen: Combination) -> Rule | None:
    """The first requirement that this combination does not meet, if any.

    Raises:
        KernelCodeError: a requirement that cannot be evaluated.
    """
    known = {**names, **chosen}
    return next((rule for rule in requires if not rule.is_met(known)), None)


def variants(
    tunables: Sequence[Tunable], requires: Sequence[Rule], names: Mapping[str, Number], limit: int, seed: int
) -> tuple[Combination, ...]:
    """At most ``limit`` allowed combinations: the defaults first, then each as far as possible from all before it.

    Where a requirement forbids the defaults, the nearest allowed combination comes first. Distance is the sum over tunables of
    the distance between value indices, normalised per tunable. Ties go to the combination whose values were used least, then to
    a random order by ``seed``.

    Raises:
        KernelCodeError: a requirement that cannot be evaluated, or that no considered combination meets.
    """
    places = _pool(tunables, requires, seed)
    allowed = [p for p in places if first_unmet(requires, names, _combination(tunables, p)) is None]
    if not allowed:
        worst = first_unmet(requires, names, default_values(tunables))
        line, column = (worst.line, worst.column) if worst else (0, 0)
        text = rule_text(worst) if worst else ""
        raise KernelCodeError(f"no combination of tunables meets {text}", line, column)
    chosen = _far_apart(tunables, allowed, limit)
    return tuple(_combination(tunables, place) for place in chosen)


def neighbours(
    tunables: Sequence[Tunable],
    requires: Sequence[Rule],
    names: Mapping[str, Number],
    chosen: Combination,
    tried: Iterable[Combination],
) -> tuple[Combination, ...]:
    """Allowed untried combinations that differ from ``chosen`` in one tunable, nearest values first; or in two that a
    requirement ties, where it allows neither change alone.

    Raises:
        KernelCodeError: a requirement that cannot be evaluated.
    """
    seen = {tuple(sorted(t.items())) for t in tried} | {tuple(sorted(chosen.items()))}

    def allows(changes: Combination) -> bool:
        return first_unmet(requires, names, {**chosen, **changes}) is None

    moves = [_moves(tunable, chosen) for tunable in tunables]
    alone = [(far, {one.name: value}) for one, own in zip(tunables, moves, strict=True) for far, value in own]
    steps = [(far, changes) for far, changes in alone if allows(changes)]
    together = (
        (far + further, {tunables[a].name: value, tunables[b].name: other})
        for a, b in _tied(tunables, requires)
        for (far, value), (further, other) in itertools.product(moves[a], moves[b])
    )
    for far, changes in itertools.islice(together, MAX_CANDIDATES):
        if not any(allows({name: value}) for name, value in changes.items()) and allows(changes):
            steps.append((far, changes))
    steps.sort(key=lambda step: step[0])
    found = ({**chosen, **changes} for _, changes in steps)
    return tuple(one for one in found if tuple(sorted(one.items())) not in seen)


def _moves(tunable: Tunable, chosen: Combination) -> list[tuple[int, int]]:
    """The other values of a tunable, each behind its distance from the chosen one."""
    at = tunable.values.index(chosen[tunable.name]) if chosen.get(tunable.name) in tunable.values else 0
    return [(abs(place - at), value) for place, value in enumerate(tunable.values) if value != chosen.get(tunable.name)]


def _tied(tunables: Sequence[Tunable], requires: Sequence[Rule]) -> list[tuple[int, int]]:
    """The pairs of tunables, by their places, that one requirement names."""
    pairs: dict[tuple[int, int], None] = {}
    for rule in requires:
        named = set(rule.listed[0]) if isinstance(rule, ListedCombinations) else set(_NAME.findall(rule.text))
        places = [place for place, tunable in enumerate(tunables) if tunable.name in named]
        pairs |= dict.fromkeys(itertools.combinations(places, 2))
    return list(pairs)


_Point = tuple[int, ...]
"""A combination as indices into each tunable's values."""


def _combination(tunables: Sequence[Tunable], place: _Point) -> dict[str, int]:
    return {tunable.name: tunable.values[index] for tunable, index in zip(tunables, place, strict=True)}


def _pool(tunables: Sequence[Tunable], requires: Sequence[Rule], seed: int) -> list[_Point]:
    """The defaults, then the other combinations in random order by ``seed``; a sample where there are too many.

    Tunables that are listed together are varied together.
    """
    chance = random.Random(seed)
    axes = _axes(tunables, requires)
    start = (0,) * len(tunables)
    if math.prod(map(len, axes)) <= MAX_CANDIDATES:
        others = [p for choice in itertools.product(*axes) if (p := _point(choice)) != start]
        chance.shuffle(others)
    else:
        drawn = (_point(tuple(chance.choice(axis) for axis in axes)) for _ in range(MAX_CANDIDATES))
        others = [p for p in dict.fromkeys(drawn) if p != start]
    return [start, *others]


_Choice = tuple[tuple[int, int], ...]
"""Some tunables, each as (place among the tunables, index of its value)."""


def _axes(tunables: Sequence[Tunable], requires: Sequence[Rule]) -> list[list[_Choice]]:
    """The independent choices of a combination."""
    at = {tunable.name: place for place, tunable in enumerate(tunables)}
    listed = [rule for rule in requires if isinstance(rule, ListedCombinations) and all(name in at for name in rule.listed[0])]
    axes: list[list[_Choice]] = [
        [tuple((at[name], tunables[at[name]].values.index(value)) for name, value in each.items()) for each in rule.listed]
        for rule in listed
    ]
    taken = {name for rule in listed for name in rule.listed[0]}
    free = [place for place, tunable in enumerate(tunables) if tunable.name not in taken]
    single: list[list[_Choice]] = [[((place, index),) for index in range(len(tunables[place].values))] for place in free]
    return [*axes, *single]


def _point(choices: tuple[_Choice, ...]) -> _Point:
    return tuple(index for _, index in sorted(pair for choice in choices for pair in choice))


def _far_apart(tunables: Sequence[Tunable], allowed: Sequence[_Point], limit: int) -> list[_Point]:
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


def _uses(chosen: Collection[_Point], axis: int) -> dict[int, int]:
    counts: dict[int, int] = {}
    for place in chosen:
        counts[place[axis]] = counts.get(place[axis], 0) + 1
    return counts


def _reuse(place: _Point, used: Sequence[Mapping[int, int]]) -> int:
    return sum(counts.get(index, 0) for index, counts in zip(place, used, strict=True))


def _distance(one: _Point, other: _Point, spans: Sequence[int]) -> float:
    return sum(abs(a - b) / span for a, b, span in zip(one, other, spans, strict=True))
