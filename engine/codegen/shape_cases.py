"""One text from the texts of several shapes: where they differ in numbers only, expressions over the shapes take their place.

Every number of the result has, on each shape, the value that it has in the text of that shape. Knows the names of ``problem.h``
and of plan expressions, and no kernel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

from engine.domain.model import Number
from engine.problem import header

NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?[fL]?(?![\w.])")
"""A number in a generated text: not a part of a name."""
MAX_FACTOR = 4096
"""Largest constant factor between a number and a size of the shapes."""
MAX_PRODUCT = 2**31
"""Products of two sizes stay below: they are multiplied as C's int."""

Values = tuple[str, ...]
"""One number of the text, as each shape has it."""


def skeleton(lines: Sequence[str]) -> str:
    """The text without its numbers: equal for texts that ``merged`` accepts."""
    return NUMBER.sub("#", "\n".join(lines))


def merged(texts: Sequence[Sequence[str]], write: Callable[[Values, str], str]) -> list[str]:
    """The lines of one text for all; ``write`` writes a number that differs, given the line. The texts have one skeleton."""
    lines: list[str] = []
    for row in zip(*texts, strict=True):
        written = (
            values[0] if len(set(values)) == 1 else write(values, row[0])
            for values in zip(*map(NUMBER.findall, row), strict=True)
        )
        lines.append(NUMBER.sub(lambda _, written=written: next(written), row[0]))  # type: ignore[misc]
    return lines


def differing(texts: Sequence[Sequence[str]]) -> list[Values]:
    """The numbers that differ, each once."""
    found: dict[Values, None] = {}

    def note(values: Values, _: str) -> str:
        found[values] = None
        return values[0]

    merged(texts, note)
    return list(found)


def plan_expression(cases: ShapeCases, deciding: Sequence[str], values: Values) -> str:
    """The number as an expression of a plan."""
    if found := cases.formula(values, 2**63):
        return found
    (first, _), *others = cases.conditions(deciding, values)
    text = first
    for value, conditions in others:
        sign, step = ("+", int(value) - int(first)) if int(value) > int(first) else ("-", int(first) - int(value))
        chosen = " + ".join(" * ".join(f"({part})" for part in one.split(" && ")) for one in conditions)
        text += f" {sign} {step} * {chosen if len(conditions) == 1 else f'({chosen})'}"
    return f"({text})"


@dataclass(frozen=True)
class ShapeCases:
    """The shapes of a text, and what tells them apart.

    ``tables``: for each shape the names of ``problem.h``. ``sizes``: those that the text is written for. ``others``: further
    ones, compared where the sizes of two shapes are equal.
    """

    tables: Sequence[Mapping[str, Number]]
    sizes: Sequence[str]
    others: Sequence[str] = ()
    _names: dict[tuple[Number, ...], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self._known():
            self._names.setdefault(self._column(name), name)

    def _known(self) -> Iterator[str]:
        yield from self.sizes
        yield from reversed([name for name in self.tables[0] if name.endswith("_NUMEL")])  # outputs before inputs

    def _column(self, name: str) -> tuple[Number, ...]:
        return tuple(table[name] for table in self.tables)

    @cached_property
    def varying(self) -> tuple[str, ...]:
        """The sizes that differ from shape to shape; of those that are equal on every shape, the first."""
        columns: dict[tuple[Number, ...], str] = {}
        for name in self.sizes:
            if len(set(column := self._column(name))) > 1:
                columns.setdefault(column, name)
        return tuple(columns.values())

    def deciding(self, values: Sequence[Values]) -> tuple[str, ...] | None:
        """Few names that tell the shapes apart wherever their sizes or ``values`` differ; ``None`` where none do."""
        wanted = list(zip(*(self._column(name) for name in self.varying), *values, strict=True)) or [()] * len(self.tables)
        candidates = [*self.varying, *(n for n in self.others if len(set(self._column(n))) > 1)]
        chosen: list[str] = []
        while not self._separated(chosen, wanted):
            left = [name for name in candidates if name not in chosen]
            if not left:
                return None
            chosen.append(max(left, key=lambda name: len(set(self._keys([*chosen, name])))))
        return tuple(chosen)

    def _keys(self, names: Sequence[str]) -> list[tuple[Number, ...]]:
        return [tuple(table[name] for name in names) for table in self.tables]

    def _separated(self, names: Sequence[str], wanted: Sequence[tuple[object, ...]]) -> bool:
        groups: dict[tuple[Number, ...], tuple[object, ...]] = {}
        return all(groups.setdefault(key, one) == one for key, one in zip(self._keys(names), wanted, strict=True))

    def formula(self, values: Values, most: int = MAX_PRODUCT) -> str:
        """The number as a size, a multiple of one below ``most``, or a product of two; empty if it is none."""
        if not all(value.isdecimal() for value in values):
            return ""
        numbers = tuple(map(int, values))
        if name := self._names.get(numbers):
            return name
        for column, name in self._names.items():
            if not all(isinstance(size, int) and size > 0 for size in column):
                continue
            if max(numbers) < most and (factor := _factor(numbers, column)):
                return f"({name} * {factor})"
            if factor := _factor(column, numbers):
                return f"({name} / {factor})"
        return self._product(numbers) if max(numbers) < most else ""

    def _product(self, numbers: tuple[int, ...]) -> str:
        for one, other in product(self.varying, repeat=2):
            if tuple(a * b for a, b in zip(self._column(one), self._column(other), strict=True)) == numbers:
                return f"({one} * {other})"
        return ""

    def conditions(self, deciding: Sequence[str], values: Values) -> list[tuple[str, list[str]]]:
        """Each different value with the conditions, one of which holds where it applies; the most frequent value first.

        A condition is a conjunction of comparisons, joined by ``&&``.
        """
        keys = self._keys(deciding)
        found: list[tuple[str, list[str]]] = []
        for value, _ in Counter(values).most_common():
            places = dict.fromkeys(key for key, one in zip(keys, values, strict=True) if one == value)
            found.append((value, [self._condition(deciding, key) for key in places]))
        return found

    def _condition(self, names: Sequence[str], key: tuple[Number, ...]) -> str:
        return " && ".join(f"{name} == {header.literal(value)}" for name, value in zip(names, key, strict=True))

    def requirements(self, deciding: Sequence[str]) -> list[str]:
        """Conditions that all hold on these shapes, and on no shape with other sizes."""
        terms: list[str] = []
        first = {self._column(name): name for name in reversed(self.varying)}
        for name in self.sizes:
            column = self._column(name)
            if len(set(column)) == 1:
                terms.append(f"{name} == {header.literal(column[0])}")
            elif (known := first[column]) != name:
                terms.append(f"{name} == {known}")
        asked = list(dict.fromkeys((*self.varying, *deciding)))
        every = list(dict.fromkeys(self._condition(asked, key) for key in self._keys(asked)))
        if asked:
            terms.append(" || ".join(f"({one})" for one in every))
        return terms


def _factor(numbers: Sequence[Number], column: Sequence[Number]) -> int:
    """The whole number that ``numbers`` are the column times; 0 if there is none."""
    factor, rest = divmod(numbers[0], column[0]) if column[0] else (0, 1)
    if rest or not 1 < factor <= MAX_FACTOR:
        return 0
    return int(factor) if all(a == b * factor for a, b in zip(numbers, column, strict=True)) else 0
