"""Two hundred seeded sessions with faults: they end, and no fault changes another kernel's verdict."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults import injecting

SEEDS = 200
_SHARE = 20


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return injecting.whole(tmp_path_factory.mktemp("whole") / "session")


@pytest.mark.parametrize(
    "first", [pytest.param(n, marks=[] if n < 2 * _SHARE else pytest.mark.slow) for n in range(0, SEEDS, _SHARE)]
)
def test_a_session_with_faults_ends_like_one_without(first: int, expected: dict[str, object], tmp_path: Path) -> None:
    for seed in range(first, first + _SHARE):
        folder = tmp_path / str(seed)
        result = injecting.limited(lambda seed=seed, folder=folder: injecting.run_seed(seed, folder))
        injecting.check(result, expected, folder)


def test_the_seeds_cover_every_fault_site() -> None:
    planned = {
        (site, fault)
        for seed in range(SEEDS)
        for site, turns in injecting.Dice(seed).planned.items()
        for fault in turns.values()
    }
    assert {site for site, _ in planned} == set(injecting.SITES)
    assert len(planned) > 100
