"""Whatever happens in a session, no place that names a best kernel names one whose time is doubted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.random_walk import RandomWalk

from engine.domain import corroboration, predictions, queries, races
from engine.domain import work as w
from engine.domain.folds import advance
from engine.domain.model import Measurement, RaceOutcome
from engine.domain.state import Kernel, SessionState
from engine.export import rewards
from engine.journal.bank import kernels_to_bank
from engine.report.facts import charts, summary
from engine.report.text import tree
from tui.viewmodel import kernels as shown
from tui.viewmodel.tree_facts import tree_facts

SEEDS = range(48)


class DoubtfulWalk(RandomWalk):
    """A random session in which every second measurement and race is doubted."""

    def finish(self, work: w.Work, result: w.Result) -> None:
        doubted = self.dice.random() < 0.5
        match result:
            case w.Verified(verification, screen, seconds) if doubted:
                result = w.Verified(verification, unsure(screen), seconds)
            case w.Measured(measurement, seconds) if doubted:
                result = w.Measured(unsure(measurement), seconds)
            case w.Raced(ratio, pairs, samples) if doubted:
                result = w.Raced(ratio, pairs, samples, corroborated=False, doubts=("planted",))
        super().finish(work, result)


def unsure(measurement: Measurement) -> Measurement:
    return replace(measurement, corroborated=False, doubts=("small: not corroborated: planted",))


@pytest.fixture(scope="module")
def states() -> list[SessionState]:
    """The states of whole sessions, after every tenth event and at the end."""
    found = []
    for seed in SEEDS:
        walk = DoubtfulWalk(seed)
        walk.to_its_end()
        state = SessionState()
        for place, entry in enumerate(walk.log):
            state = advance(state, (entry,))
            if place % 10 == 0:
                found.append(state)
        found.append(state)
    return found


def best_ones(state: SessionState) -> Iterable[Kernel]:
    """Every kernel that something calls the best, the incumbent, or the one to beat."""
    found = [queries.incumbent(state), queries.successor(state), tree_facts(state).incumbent, shown.incumbent(state)]
    found += [races.kernel_to_beat(state), races.winner(state), queries.finalist(state), *races.challengers(state)]
    found += queries.incumbents(state)
    names = [step.kernel for step in charts.climb(state).incumbents]
    names += [dot.kernel for dot in charts.climb(state).dots if dot.precise or dot.incumbent]
    if (summarised := summary.summarise(state, Path("s")).best) is not None:
        names.append(summarised.kernel)
    return [kernel for kernel in (*found, *(state.kernels[name] for name in names)) if kernel is not None]


@pytest.mark.slow
def test_walks_have_doubted_kernels_that_claim_more_than_the_incumbent(states: list[SessionState]) -> None:
    """Otherwise the other tests would show nothing."""
    claims = 0
    for state in states:
        best = queries.incumbent(state)
        ratio = queries.speedup(state, best) if best is not None else None
        for kernel in corroboration.doubted(state):
            claim = kernel.measurement.speedup["eager"] if kernel.measurement is not None else None
            claims += ratio is not None and claim is not None and claim.low > ratio.high
    assert claims > 100


@pytest.mark.slow
def test_no_doubted_kernel_is_the_best_anywhere(states: list[SessionState]) -> None:
    for state in states:
        assert not [kernel.id for kernel in best_ones(state) if corroboration.is_doubted(kernel)]


def test_no_doubted_kernel_is_in_the_bank(states: list[SessionState], tmp_path: Path) -> None:
    for state in states[-40:]:
        assert not {entry.kernel for entry in kernels_to_bank(tmp_path, state)} & {
            kernel.id for kernel in corroboration.doubted(state)
        }


def test_kernels_that_are_not_corroborated_rank_below_all_others(states: list[SessionState]) -> None:
    for state in states:
        for found in (queries.ranked(state), queries.frontier(state)):
            unsound = [not queries.is_sound(kernel) for kernel in found]
            assert unsound == sorted(unsound)


def test_no_doubted_time_is_a_gain_a_score_or_a_reward(states: list[SessionState]) -> None:
    for state in states:
        for kernel in corroboration.doubted(state):
            assert predictions.gain(state, kernel) is None
            assert rewards.kernel_reward(state, kernel) == rewards.UNKNOWN


def test_a_race_that_is_not_corroborated_is_never_won(states: list[SessionState]) -> None:
    doubted = [race for state in states for race in state.races if race.doubts]
    assert doubted
    assert not [race for race in doubted if race.outcome is RaceOutcome.FASTER]


@pytest.mark.slow
def test_every_doubted_kernel_has_a_doubt_and_is_told(states: list[SessionState]) -> None:
    for state in states:
        told = {one.kernel: one for one in summary.summarise(state, Path("s")).doubted}
        assert set(told) == {kernel.id for kernel in corroboration.doubted(state)}
        for name, one in told.items():
            assert one.doubts
            assert one.status in ("not_corroborated", "quarantined")
            assert one.status == corroboration.status(state.kernels[name])
        rows = [words.text for name, words in tree.evidence(state) if name == "doubted"]
        assert bool(rows) is bool(told)
        assert not [words for words in rows if words.count("not corroborated") > 1]


@given(st.integers(0, 10_000))
def test_the_fold_of_any_walk_never_makes_a_doubted_kernel_the_incumbent(seed: int) -> None:
    walk = DoubtfulWalk(seed)
    for _ in range(150):
        if not walk.step():
            break
        best = queries.incumbent(walk.state)
        assert best is None or not corroboration.is_doubted(best)
