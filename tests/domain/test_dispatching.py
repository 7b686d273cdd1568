"""Dispatches that the search makes by itself: when one is worth a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from domain.test_suite import suite_session
from support import builders as b

from engine.domain import columns, rules, suite
from engine.domain import events as e
from engine.domain import work as w
from engine.domain.folds import advance
from engine.domain.model import AGENT, Contract, Dialect, RaceOutcome, Succession
from engine.domain.rules import adaptive
from engine.domain.rules.record import wants_precision
from engine.domain.settings import Limits, Mode
from engine.domain.state import SessionState, Stage
from engine.domain.strategy.evidence import combines, evidence

Speedups = Mapping[str, float]
LEFT, RIGHT = {"full": 2.0, "small": 1.0}, {"full": 1.0, "small": 3.0}


def between_rounds(*kernels: Speedups, rounds: int = 1, **changed: object) -> SessionState:
    """After these rounds, on autopilot. The first had kernels of these speedups, and k1 leads; the others found nothing."""
    named = tuple((f"k{place}", dict(one)) for place, one in enumerate(kernels, 1))
    given = suite_session(*named)
    leader = (e.IncumbentChanged("k1", "", Succession.FIRST),) if named else ()
    raced = (e.KernelRaced(name, "k1", RaceOutcome.UNDECIDED, b.interval(1.0)) for name, _ in named[1:])
    events: list[e.Event] = [*leader, *raced, e.IdeasProposed(0, (), True), e.RoundClosed(0)]
    for number in range(1, rounds + 1):
        idea = f"i{number}"
        events += [e.RoundOpened(number, ("k1",)), b.proposed(idea, round_number=number), e.IdeaRejected(idea, "")]
        events.append(e.RoundClosed(number))
    return replace(then(given, *events), mode=Mode("autopilot"), **changed)  # type: ignore[arg-type]


def then(state: SessionState, *events: e.Event) -> SessionState:
    return advance(state, b.entries(events, start=state.seq + 1))


def test_the_best_kernels_of_the_columns_are_combined() -> None:
    state = between_rounds(LEFT, RIGHT)
    proposed, selected = rules.automatic(state)
    assert isinstance(proposed, e.IdeasProposed)
    (idea,) = proposed.ideas
    assert (idea.text.title, idea.text.key, idea.parent) == ("Dispatch of k1 and k2", "dispatch:k1,k2", "k1")
    assert idea.author.is_engine
    assert idea.text.predicted == pytest.approx((1.0 * 3.0) ** 0.5)
    assert "k1 is not the fastest on 1 of 2 workloads (small)" in idea.text.rationale
    assert selected == e.IdeaSelected(idea.id)


@pytest.mark.parametrize(
    ("kernels", "why"),
    [
        ((LEFT,), "there is one kernel"),
        ((LEFT, {"full": 1.0, "small": 1.001}), "the intervals overlap"),
        (({"full": 2.0, "small": 3.0}, RIGHT), "the first is the best everywhere"),
        ((), "there is no incumbent"),
    ],
)
def test_nothing_is_combined_where(kernels: tuple[Speedups, ...], why: str) -> None:
    assert not combined(between_rounds(*kernels)), why


def combined(state: SessionState) -> bool:
    return any(
        isinstance(event, e.IdeasProposed) and any(idea.text.key.startswith("dispatch:") for idea in event.ideas)
        for event in rules.automatic(state)
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"mode": Mode("ask")},
        {"paused": "by the engineer"},
        {"capped": "the cap of dollars is reached"},
        {"limits": Limits(rounds=9, kernels=2)},
        {"limits": Limits(rounds=9, seconds=10.0), "active_seconds": 11.0},
    ],
    ids=["ask", "paused", "capped", "full", "late"],
)
def test_nothing_is_combined_without_leave(changed: dict[str, object]) -> None:
    assert combined(between_rounds(LEFT, RIGHT))
    mode = changed.pop("mode", Mode("autopilot"))
    state = between_rounds(LEFT, RIGHT, **changed)
    assert not combined(replace(state, mode=mode))  # type: ignore[arg-type]


def test_the_same_kernels_are_combined_once() -> None:
    state = between_rounds(LEFT, RIGHT)
    events = rules.automatic(state)
    assert not combined(then(state, *events, e.IdeaImplemented("i2", (), "nothing can decide")))


def test_a_better_single_kernel_is_awaited_while_rounds_find_one() -> None:
    """What is combined before is combined again."""
    assert not combined(between_rounds(LEFT, RIGHT, rounds=0))
    assert combined(between_rounds(LEFT, RIGHT, rounds=1))
    assert combined(between_rounds(LEFT, RIGHT, rounds=0, limits=Limits(rounds=0))), "no round follows"
    assert combined(between_rounds(LEFT, RIGHT, rounds=0, limits=Limits(kernels=3))), "the last kernel is kept for it"
    assert not combined(between_rounds(LEFT, RIGHT, rounds=0, limits=Limits(kernels=3, raised_later=True)))


def test_a_dispatch_promises_the_mean_of_its_members() -> None:
    state = between_rounds(LEFT, RIGHT)
    assert columns.promise(state, columns.dispatched(state)) == pytest.approx(3.0**0.5)
    assert columns.promise(state, ()) == 0.0


def test_the_strategy_learns_nothing_from_a_dispatch() -> None:
    """It combines kernels: the category would be credited with what its members gained."""
    state = between_rounds(LEFT, RIGHT)
    after = then(state, *rules.automatic(state), e.IdeaImplemented("i2", (), "nothing can decide"))
    assert evidence(after).trials == evidence(state).trials
    assert evidence(after).asked == evidence(state).asked


def test_the_adaptive_strategy_builds_on_the_members_of_a_dispatch() -> None:
    """Also on a pinned one, which the engineer asked for."""
    state = between_rounds(LEFT, RIGHT)
    drafted = replace(b.drafted("k3", parent="k1", seed=True), members=("k1", "k2"))
    both = suite.measurement({"full": b.measurement(2.0), "small": b.measurement(3.0)})
    measured = (b.built("k3"), b.verified("k3"), e.KernelMeasured("k3", both, 0.1), e.KernelPinned("k3"))
    after = then(state, drafted, *measured)
    assert after.kernels["k3"].stage is Stage.MEASURED
    assert after.opened is not None
    searched = replace(after, opened=replace(after.opened, settings=replace(after.opened.settings, strategy="adaptive")))
    assert "k3" in evidence(searched).kernels, "it may be raced again"
    decided = adaptive.decision(searched, may_ask=True)
    assert decided.ranked
    assert "k3" not in decided.ranked


def test_no_agent_is_awaited_for_a_dispatch() -> None:
    """A session whose ideas come from coding agents alone would have waited for its code forever."""
    state = between_rounds(LEFT, RIGHT)
    after = then(state, *rules.automatic(state))
    agents = replace(after, models=replace(after.models, source=AGENT))
    assert [str(work.key) for work in rules.next_work(agents)] == ["implement:i2"]


def test_a_key_alone_makes_no_dispatch() -> None:
    """A playbook may use such a key: its idea has code of its own."""
    state = between_rounds(LEFT, RIGHT)
    after = then(state, *rules.automatic(state))
    idea = after.ideas["i2"]
    assert combines(idea)
    assert not combines(replace(idea, author=b.PLAYBOOK))


@pytest.mark.parametrize(
    ("screened", "precise"),
    [
        ({"full": 0.1, "small": 3.0}, True),
        ({"full": 0.1, "small": 1.01}, False),
        ({"full": 0.1, "small": 0.9}, False),
    ],
    ids=["the best on one", "not by both intervals", "slower on all"],
)
def test_a_slow_kernel_that_is_the_best_on_a_workload_is_measured_precisely(screened: Speedups, precise: bool) -> None:
    """A product that splits the depth was 0.53x over the suite, and twice as fast as the incumbent where there are 64 rows."""
    state = then(between_rounds({"full": 2.0, "small": 1.0}), b.drafted("k2", parent="k1"), b.built("k2"))
    screen = suite.measurement({name: b.measurement(value) for name, value in screened.items()})
    assert wants_precision(state, "k2", screen) == precise
    module = replace(state.kernels["k2"], contract=Contract.MODULE)
    modules = replace(state, kernels={**state.kernels, "k2": module})
    assert not wants_precision(modules, "k2", screen), "modules are not combined"


def test_the_last_kernel_of_a_limit_is_kept_for_a_promised_dispatch() -> None:
    state = between_rounds(LEFT, RIGHT, limits=Limits(rounds=9, kernels=3))
    asked = then(state, e.RoundOpened(2, ("k1",)), b.proposed("i2", round_number=2), e.IdeaSelected("i2"))
    drafts = w.Drafts((w.StoredDraft("k3.cpp", Dialect.CPP, Contract.HOST, b.digest("other code"), b.PLAYBOOK),))
    (implemented,) = rules.record(asked, w.Implement("i2"), drafts)
    assert implemented == e.IdeaImplemented("i2", (), "the last kernel of the limit is kept for a dispatch")
    after = then(asked, implemented, e.RoundClosed(2))
    assert combined(after)
    by_hand = replace(asked, mode=Mode("ask"))
    assert [type(event) for event in rules.record(by_hand, w.Implement("i2"), drafts)] == [e.KernelDrafted, e.IdeaImplemented]
