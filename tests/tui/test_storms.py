"""Bursts of keys, clicks, resizes and toasts over every screen: no freeze, no exception, no damaged journal."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import storm

ACTS = 12


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("opening", list(storm.OPENINGS))
def test_a_storm_leaves_screen_and_journal_whole(
    opening: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    assert storm.run(opening, tmp_path, seed, ACTS).acts == ACTS
