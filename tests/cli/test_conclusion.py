"""What a command that ended advises to do next."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import builders as b

from engine.cli.conclusion import next_steps
from engine.domain.settings import Limits


@pytest.mark.parametrize("strategy", ["branching", "adaptive"])
def test_three_more_rounds_are_three_more_than_the_limit_that_was_reached(strategy: str, tmp_path: Path) -> None:
    """The adaptive strategy numbers a round for each of its decisions, and its limit counts rounds of many kernels."""
    limits = Limits(rounds=2, kernels=None, plateau=None, light=None)
    state = b.walk(b.FakeBench(author=b.MODEL), strategy=strategy, ideas=2, branch=2, limits=limits).state
    assert state.closed == "2 of 2 rounds done"
    *_, more = next_steps(state, tmp_path, None)
    assert f"--rounds 5, then espalier open {tmp_path}: three more rounds" in more
