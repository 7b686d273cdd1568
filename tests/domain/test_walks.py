"""Whole sessions under the real rules: random ones stay valid, and a journal cut anywhere grows the same tree."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders as b
from support.applicable import misfit
from support.random_walk import RandomWalk

from engine.domain import events as e
from engine.domain import queries, races, rules
from engine.domain.folds import advance
from engine.domain.model import RaceOutcome, Succession
from engine.domain.settings import Limits
from engine.domain.state import SessionState, Stage
from engine.journal import codec

SEEDS = range(150)


@pytest.fixture(scope="module")
def walks() -> list[RandomWalk]:
    """Complete random walks. Each checks every event when it is written."""
    made = [RandomWalk(seed) for seed in SEEDS]
    for walk in made:
        walk.to_its_end()
    return made


@pytest.mark.slow
def test_a_random_session_ends_closed_or_waits_for_a_decision_or_a_resume(walks: list[RandomWalk]) -> None:
    ends = {_end(walk.state) for walk in walks}
    assert ends == {"closed", "awaits a decision", "broken"}


def _end(state: SessionState) -> str:
    assert rules.automatic(state) == ()
    assert rules.next_work(state) == ()
    if state.closed is not None:
        return "closed"
    if state.broken:
        return "broken"
    asked = queries.pending_ideas(state) or state.paused is not None
    assert asked, "nothing is owed, nobody is asked, and yet the session is open"
    return "awaits a decision"


def test_the_random_walks_reach_every_event(walks: list[RandomWalk]) -> None:
    """A kind of event or a stage that never occurs would not be tested."""
    seen = {entry.event.KIND for walk in walks for entry in walk.log}
    elsewhere = {
        e.CommandAnswered,
        e.WorkerJoined,
        e.BuilderJoined,
        e.WorkerPrepared,
        e.WorkerLost,
        e.WorkAssigned,
        e.WorkRequeued,
        e.WorkRetried,
    }
    assert seen == set(codec.kinds()) - {kind.KIND for kind in elsewhere}, (
        "an inbox, a fleet and a retry have events that are not from rules"
    )
    assert {kernel.stage for walk in walks for kernel in walk.state.kernels.values()} >= {
        Stage.MEASURED, Stage.FAILED, Stage.CANCELLED, Stage.BUILD,
    }  # fmt: skip
    assert len({refusal.split("'")[0][:20] for walk in walks for refusal in walk.refusals}) > 10
    assert max(len(walk.state.kernels) for walk in walks) > 20


def test_every_rejection_is_one_line(walks: list[RandomWalk]) -> None:
    assert all(refusal and "\n" not in refusal for walk in walks for refusal in walk.refusals)


@pytest.mark.slow
def test_a_journal_of_a_walk_replays_to_the_same_state(walks: list[RandomWalk]) -> None:
    for walk in walks:
        replayed = advance(SessionState(), (codec.decode(codec.encode(entry)) for entry in walk.log))
        assert b.contents(replayed) == b.contents(walk.state)


@pytest.mark.slow
@given(st.sampled_from(SEEDS), st.lists(st.floats(0, 1), max_size=5))
def test_folding_in_batches_equals_folding_at_once(seed: int, cuts: list[float]) -> None:
    walk = RandomWalk(seed)
    walk.to_its_end()
    places = sorted(int(cut * len(walk.log)) for cut in cuts)
    state = SessionState()
    for begin, end in zip([0, *places], [*places, len(walk.log)], strict=True):
        state = advance(state, walk.log[begin:end])
    assert b.contents(state) == b.contents(advance(SessionState(), walk.log))


def test_folding_never_mutates_a_state(walks: list[RandomWalk]) -> None:
    log = max(walks, key=lambda walk: len(walk.log)).log
    states = [SessionState()]
    before = [b.contents(states[0])]
    for entry in log:
        states.append(advance(states[-1], (entry,)))
        before.append(b.contents(states[-1]))
    assert [b.contents(state) for state in states] == before


def test_the_rules_depend_only_on_the_state(walks: list[RandomWalk]) -> None:
    for walk in walks[:30]:
        again = advance(SessionState(), walk.log)
        assert rules.next_work(again) == rules.next_work(walk.state)
        assert rules.automatic(again) == rules.automatic(walk.state)
        assert rules.resume_events(again, "") == rules.resume_events(walk.state, "")


def test_the_incumbent_is_verified_and_measured_on_this_device(walks: list[RandomWalk]) -> None:
    for walk in walks:
        for kernel in queries.ranked(walk.state):
            assert kernel.verification is not None
            assert kernel.epoch == walk.state.epoch
            assert kernel.stage in (Stage.MEASURED, Stage.MEASURE)


@pytest.mark.slow
def test_an_eligible_incumbent_is_replaced_only_by_the_winner_of_a_race(walks: list[RandomWalk]) -> None:
    """In every walk, an eligible incumbent is replaced only after losing a race on its present measurement."""
    raced = 0
    for walk in walks:
        state = SessionState()
        for entry in walk.log:
            before, state = state, advance(state, (entry,))
            led = before.kernels.get(before.incumbent)
            could = led is not None and queries.may_lead(before, led)
            if not isinstance(entry.event, e.IncumbentChanged):
                assert before.incumbent == state.incumbent
                if could and queries.may_lead(state, state.kernels[before.incumbent]):
                    assert queries.incumbent(state) is state.kernels[before.incumbent]
                continue
            event = entry.event
            assert queries.incumbent(state) is state.kernels[event.kernel]
            if not could:
                assert event.why is (Succession.SUCCEEDED if event.over else Succession.FIRST)
                continue
            race = races.latest_race(before, event.kernel, event.over)
            assert race is not None
            assert race in before.races[before.reign_began :]
            assert race.outcome is (RaceOutcome.FASTER if race.kernel == event.kernel else RaceOutcome.SLOWER)
            assert race.ratio is not None
            assert event.why is Succession.RACED
            raced += 1
    assert raced > 20


def test_races_end_in_every_way(walks: list[RandomWalk]) -> None:
    raced = [race for walk in walks for race in walk.state.races]
    assert {race.outcome for race in raced} == set(RaceOutcome)
    assert {race.effort for race in raced} >= {0, 1, 2}
    changed = {entry.event.why for walk in walks for entry in walk.log if isinstance(entry.event, e.IncumbentChanged)}
    assert changed == set(Succession)


def test_no_race_is_running_when_none_is_owed(walks: list[RandomWalk]) -> None:
    for walk in walks:
        if walk.state.closed is None:
            assert not races.pending_races(walk.state) or walk.state.broken


def test_the_tree_is_a_tree(walks: list[RandomWalk]) -> None:
    for walk in walks:
        kernels = walk.state.kernels
        for kernel in kernels.values():
            lineage = queries.lineage(walk.state, kernel.id)
            assert lineage[-1] is kernel
            assert lineage[0].parent is None
            assert all(kernels[child].parent == kernel.id for child in kernel.children)
            assert kernel.id in walk.state.ideas[kernel.idea].kernels
        roots = [k.id for k in kernels.values() if k.parent is None]
        below = [k for root in roots for k in queries.descendants(walk.state, root)]
        assert sorted(below) == sorted(kernels)


# ---------------------------------------------------------------- cutting and resuming


def tree(state: SessionState) -> list[tuple[Any, ...]]:
    """A form of the tree that does not depend on the order of its growth."""
    kernels = ((k.id, k.parent, k.source, k.stage, k.attempt, k.failure, k.verification) for k in state.kernels.values())
    ideas = ((i.id, i.round, i.text.title, i.parent, i.status, i.kernels) for i in state.ideas.values())
    rounds = ((r.number, r.parents, r.answered, r.closed) for r in state.rounds.values())
    return [*kernels, *ideas, *rounds, (state.closed,)]


def resumed(log: Iterable[e.Entry], bench: b.FakeBench) -> SessionState:
    walk = b.Walk(log)
    walk.write(rules.resume_events(walk.state, ""))
    walk.drive(bench)
    return walk.state


_SETTINGS: list[Any] = [
    pytest.param({}, marks=pytest.mark.slow),
    {"strategy": "sequential"},
    {"strategy": "adaptive", "limits": Limits(rounds=None, kernels=5, plateau=None)},
    {"mode": "ask"},
    pytest.param({"ideas": 4, "branch": 1, "beam": 3}, marks=pytest.mark.slow),
    pytest.param({"repairs": 1}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("author", [pytest.param(b.PLAYBOOK, marks=pytest.mark.slow), b.MODEL], ids=lambda author: author.name)
@pytest.mark.parametrize("settings", _SETTINGS, ids=str)
def test_a_search_resumed_after_any_event_grows_the_same_tree(settings: dict[str, Any], author: Any) -> None:
    bench = b.FakeBench(author=author)
    whole = b.walk(bench, **settings)
    for cut in range(1, len(whole.log) + 1):
        assert tree(resumed(whole.log[:cut], bench)) == tree(whole.state), f"cut after event {cut}"


def test_a_search_interrupted_at_every_step_grows_the_same_tree() -> None:
    """A process that is killed after each work item, before it records the next one."""
    bench = b.FakeBench()
    whole = b.walk(bench)
    walk = b.Walk()
    walk.write((b.opened(),))
    for _ in range(500):
        walk.write(rules.resume_events(walk.state, ""))
        walk.settle()
        owed = rules.next_work(walk.state)
        if not owed:
            break
        walk.start(owed[0])
        walk.finish(owed[0], bench.perform(walk.state, owed[0]))
        walk.settle()
        if rest := rules.next_work(walk.state):
            walk.start(rest[0])
    assert tree(walk.state) == tree(whole.state)


@pytest.mark.parametrize("seed", range(20))
def test_work_done_in_any_order_leaves_nothing_open(seed: int) -> None:
    """Concurrent work finishes in any order: all ideas are implemented, all kernels settle."""
    dice = random.Random(seed)
    bench = b.FakeBench(author=b.MODEL)
    walk = b.Walk()
    walk.write((b.opened(),))
    hand: dict[str, Any] = {}
    while True:
        walk.settle()
        for work in rules.next_work(walk.state):
            if work.key not in hand and len(hand) < 5:
                walk.start(work)
                hand[work.key] = (work, bench.perform(walk.state, work))
        if not hand:
            break
        walk.finish(*hand.pop(dice.choice(list(hand))))
    assert walk.state.closed == "3 of 3 rounds done"
    assert not walk.state.started
    assert all(kernel.stage.settled for kernel in walk.state.kernels.values())
    assert len(walk.state.kernels) == 1 + 3 * 3 * 3


def test_the_random_walk_rejects_impossible_events() -> None:
    """The validity check of the walks can fail."""
    state = b.fold(*b.first_round())
    wrong: tuple[e.Event, ...] = (
        b.opened(), b.drafted("k1"), b.drafted("k3"), b.built(), b.measured(), e.RoundClosed(0), e.RoundOpened(2, ()),
        e.RoundOpened(1, ("k9",)), e.IdeaSelected("i1"), e.IdeaImplemented("i1", ()), e.KernelFailed("k1", b.failure()),
        e.SessionReopened(), e.KernelPinned("k9"), b.proposed("i1"), b.proposed("i2", parent="k9"),
    )  # fmt: skip
    assert all(misfit(state, event) for event in wrong)
    assert not misfit(state, e.RoundOpened(1, ("k1",)))
