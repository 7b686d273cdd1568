"""Facts cached per kernel match the engine's: forwards, backwards, and across sessions."""

from __future__ import annotations

import random

from support import builders as b
from support import showcase

from engine.domain import events as e
from engine.domain import queries
from engine.domain.folds import advance
from engine.domain.state import SessionState, Stage
from tui.viewmodel import kernels, tree_facts

_, LOG = showcase.session()


def checked(state: SessionState) -> None:
    found, best = tree_facts.tree_facts(state), queries.incumbent(state)
    assert (found.incumbent and found.incumbent.id) == (best and best.id)
    ratios = [ratio.value for k in state.kernels.values() if (ratio := queries.speedup(state, k)) is not None]
    assert found.fastest == max(ratios, default=0.0)
    for stage in Stage:
        here = [k for k in state.kernels.values() if k.stage is stage]
        assert found.stages.get(stage, 0) == len(here)
        assert found.under_way.get(stage, 0) == sum(kernels.under_way(state, k) for k in here)
    assert list(found.quarantined) == [k.id for k in state.kernels.values() if k.stage is Stage.QUARANTINED]


def test_facts_match_the_engine_after_every_entry_in_any_order() -> None:
    states = [advance(SessionState(), LOG[:length]) for length in range(len(LOG) + 1)]
    for state in states:
        checked(state)
    random.Random(1).shuffle(states)
    for state in states:
        checked(state)


def test_facts_after_a_device_change_and_an_accepted_kernel() -> None:
    state = advance(SessionState(), LOG)
    checked(state)
    state = advance(state, b.entries([e.KernelAccepted("k22", "seen"), b.prepared(name="another")], start=state.seq + 1))
    checked(state)
    assert tree_facts.tree_facts(state).incumbent is None
