"""The raw samples of a measurement, as the judge keeps them: read, never trusted to be well formed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

KERNEL = "kernel"


@dataclass(frozen=True, slots=True)
class Samples:
    """Claimed times in microseconds: name (``kernel`` or a baseline's) → one sequence a process."""

    times_us: Mapping[str, tuple[tuple[float, ...], ...]]

    def of(self, name: str) -> tuple[float, ...]:
        """All samples of that name, over its processes."""
        return tuple(time for process in self.times_us.get(name, ()) for time in process)


@lru_cache(maxsize=4)
def parse(text: str) -> Samples | None:
    """The samples of a blob ``{"columns": [...], "pairs": [{name: [[claimed, wall, idle], …]}]}``; ``None`` if it is none."""
    try:
        data = json.loads(text)
        column = data["columns"].index("claimed")
        times: dict[str, list[tuple[float, ...]]] = {}
        for pair in data["pairs"]:
            for name, rows in pair.items():
                times.setdefault(str(name), []).append(_column(rows, column))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None
    return Samples({name: tuple(processes) for name, processes in times.items()})


def _column(rows: Sequence[Sequence[float]], column: int) -> tuple[float, ...]:
    return tuple(float(row[column]) for row in rows)
