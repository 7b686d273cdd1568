"""When the processes of a measurement's pairs start and end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from engine.trial.judge.process_pairs import ProcessPairs
from engine.trial.judge.timing.pair_times import KERNEL
from engine.trial.protocol import OTHER


class Pool:
    """Says what starts and ends, in order."""

    def __init__(self, *, keeps: bool, together: int) -> None:
        self.keeps_processes, self.pairs_together = keeps, together
        self.log: list[str] = []
        self._runners = 0

    @contextmanager
    def kernel(self, *_: object, **__: object) -> Iterator[Any]:
        self._runners += 1
        name = f"kernel {self._runners}"
        self.log.append(f"start {name}")
        yield SimpleNamespace(loaded_for=BED, wait_ready=lambda _: None)
        self.log.append(f"end {name}")

    def end_pair(self) -> None:
        self.log.append("end baselines")

    def null_runners(self, *_: object) -> dict[str, Any]:
        return {}

    def load_kernel(self, *_: object) -> None: ...

    def stand_by(self) -> None: ...

    def discard_prestarted(self) -> None: ...


BED = SimpleNamespace(draw_weights=lambda: None)


def taken(pool: Pool, done: int, most: int, *, raced: bool = False) -> list[str]:
    """What happens until the pair ``most`` is taken, where ``done`` were taken before."""

    def take(*_: object) -> str:
        pool.log.append("pair")
        return "pair"

    trial = SimpleNamespace(
        name="full", signature=(), bed=lambda: BED, load=lambda *_: None, baselines=SimpleNamespace(runners=lambda *_: {})
    )
    candidate = SimpleNamespace(contract="module", each=lambda: [SimpleNamespace(built=None)])
    weights = SimpleNamespace(renew=lambda *_: None, knows=lambda _: True)

    @contextmanager
    def turn(_: object) -> Iterator[None]:
        yield

    pairs: list[list[Any]] = [["pair"] * done]
    under_test = ProcessPairs([trial], pool, weights, (3, 8), turn)  # type: ignore[list-item, arg-type]
    judged: Any = {KERNEL: candidate, OTHER: candidate} if raced else {KERNEL: candidate}
    owed = lambda: frozenset(range(len(pairs[0]) < most))  # noqa: E731
    under_test.take(judged, lambda _: None, pairs, take, owed, (3, 5) if raced else None)  # type: ignore[arg-type]
    assert len(pairs[0]) == most
    return pool.log


@pytest.mark.parametrize(
    ("keeps", "together", "expected"),
    [
        (False, 1, "start 1, pair, end baselines, end 1, start 2, pair, end baselines, end 2, start 3, pair, end baselines"),
        (False, 2, "start 1, start 2, pair, pair, end baselines, end 2, end 1, start 3, pair, end baselines"),
        (True, 1, "start 1, start 2, pair, pair, end baselines, start 3, start 4, pair"),
    ],
)
def test_the_processes_of_several_pairs_live_together_as_planned(keeps: bool, together: int, expected: str) -> None:
    found = taken(Pool(keeps=keeps, together=together), done=1, most=4)
    assert ", ".join(found).replace("kernel ", "") == expected


def test_a_race_has_the_processes_of_one_pair() -> None:
    found = taken(Pool(keeps=False, together=2), done=0, most=3, raced=True)
    assert found[:4] == ["start kernel 1", "start kernel 2", "pair", "end baselines"]
