"""What a round is called: no kernel is of a round that never opened."""

from __future__ import annotations

import pytest
from support import builders as b

from engine.domain import events as e
from engine.domain.state import SessionState
from engine.report.text import progress
from engine.report.text.kernel import kernel_lines
from engine.report.text.lines import plain
from engine.report.text.rounds import of_round, round_name
from tui.viewmodel import detail
from tui.viewmodel.lineage_lines import LineageLines


def test_a_round_that_opened_has_its_number() -> None:
    state = b.fold(*b.first_round())
    assert (of_round(state, 0), round_name(state, 0)) == ("of round 0", "round 0")


def test_a_kernel_seeded_after_the_last_round_is_after_it() -> None:
    seeded = (b.proposed("i2", round_number=1), e.IdeaSelected("i2"), b.drafted("k2", idea="i2", round_number=1))
    state = b.fold(*b.first_round(), *seeded)
    assert (of_round(state, 1), round_name(state, 1)) == ("after round 0", "after round 0")
    page = "\n".join(line.text for line in detail.idea(state, state.kernels["k2"], 80, LineageLines()))
    assert "i2 after round 0" in page
    assert "after round 0" in "\n".join(map(plain, kernel_lines(state, state.kernels["k2"])))


@pytest.mark.parametrize("strategy", ["branching", "adaptive"])
def test_only_a_strategy_that_does_not_go_on_tuning_says_that_every_value_was_tried(strategy: str) -> None:
    state = b.fold(*b.first_round(strategy=strategy))
    (entry,) = b.entries([e.IdeasProposed(1, (), from_source=True)], start=len(b.first_round()))
    (words,) = map(plain, progress.lines(state, entry, state))
    assert ("every tunable value was tried" in words) == (strategy == "branching")


def test_before_any_round() -> None:
    assert of_round(SessionState(), 0) == "of round 0"
    assert of_round(SessionState(), 1) == "before round 0"
