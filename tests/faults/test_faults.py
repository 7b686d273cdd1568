"""Two hundred seeded sessions in which something breaks: they end, and no kernel's verdict is another's fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults import injecting

SEEDS = 200
_SHARE = 20


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return injecting.whole(tmp_path_factory.mktemp("whole") / "session")


@pytest.mark.parametrize("first", range(0, SEEDS, _SHARE))
def test_whatever_breaks_the_session_ends_as_it_would_have(first: int, wanted: dict[str, object], tmp_path: Path) -> None:
    for seed in range(first, first + _SHARE):
        folder = tmp_path / str(seed)
        told = injecting.limited(lambda seed=seed, folder=folder: injecting.run_seed(seed, folder))
        injecting.check(told, wanted, folder)


def test_the_seeds_strike_everywhere() -> None:
    planned = {
        (site, fault)
        for seed in range(SEEDS)
        for site, turns in injecting.Dice(seed).planned.items()
        for fault in turns.values()
    }
    assert {site for site, _ in planned} == set(injecting.SITES)
    assert len(planned) > 100
