"""A kernel with the machine code of a measured one takes over its verdict, and never leads with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import builders as b

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import model as m
from engine.domain import queries, races, rules
from engine.domain import work as w
from engine.domain.errors import CommandRejected
from engine.domain.folds import advance
from engine.domain.state import SessionState, Stage

CODE = "a" * 64


def built(kernel: str, machine_code: str = CODE) -> e.KernelBuilt:
    return replace(b.built(kernel), machine_code=machine_code)


def then(state: SessionState, *events: e.Event) -> SessionState:
    return advance(state, b.entries(events, start=state.seq + 1))


def drafted(kernel: str, **changes: object) -> e.KernelDrafted:
    return replace(b.drafted(kernel, idea="i2", parent="k1", round_number=1), **changes)  # type: ignore[arg-type]


MEASURED = (
    *b.first_round(1.0), e.RoundOpened(1, ("k1",)), b.proposed("i2", round_number=1), e.IdeaSelected("i2"), drafted("k2"),
    built("k2"), b.verified("k2", 2.0), b.measured("k2", 2.0),
)  # fmt: skip


def settled(state: SessionState) -> SessionState:
    while events := rules.automatic(state):
        state = then(state, *events)
    return state


def copied(*before: e.Event, third: e.Event | None = None) -> SessionState:
    return settled(b.fold(*MEASURED, *before, drafted("k3") if third is None else third, built("k3")))


def test_it_takes_over_the_verdict_without_a_trial() -> None:
    state = copied()
    one, other = state.kernels["k2"], state.kernels["k3"]
    assert (other.stage, other.same_as) == (Stage.MEASURED, "k2")
    assert one.measurement is not None
    assert other.measurement == replace(one.measurement, conditions=(*one.measurement.conditions, "same machine code as k2"))
    assert other.verification == one.verification
    assert not [work for work in rules.next_work(state) if isinstance(work, w.Verify) and work.kernel == "k3"]


def test_it_never_leads_races_or_becomes_a_parent() -> None:
    state = copied()
    kernel = state.kernels["k3"]
    assert not queries.may_lead(state, kernel)
    assert not races.may_race(state, kernel)
    assert kernel not in queries.frontier(state)
    with pytest.raises(CommandRejected, match="remeasure it"):
        rules.decide(state, c.RaceKernel("k3", "k1"))


UNLIKE: dict[str, tuple[tuple[e.Event, ...], e.Event]] = {
    "another machine code": ((built("k2", "b" * 64),), drafted("k3")),
    "unknown machine code": ((built("k2", ""),), drafted("k3")),
    "another contract": ((), drafted("k3", contract=m.Contract.PLAN)),
    "another dialect": ((), drafted("k3", dialect=m.Dialect.CUDA)),
    "a seed": ((), drafted("k3", seed=True)),
    "a root": ((), drafted("k3", parent=None)),
    "quarantined": ((e.KernelQuarantined("k2", ("too fast",)),), drafted("k3")),
    "accepted by hand": ((e.KernelQuarantined("k2", ("too fast",)), e.KernelAccepted("k2", "counted")), drafted("k3")),
    "failed": ((e.KernelFailed("k2", b.failure()),), drafted("k3")),
    "another device": ((b.prepared(name="another"),), drafted("k3")),
    "not corroborated": (
        (e.KernelMeasured("k2", replace(b.measurement(2.0), corroborated=False), 0.1),), drafted("k3"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", UNLIKE)
def test_it_is_measured_itself_where_the_verdict_is_another_kernels(why: str) -> None:
    before, third = UNLIKE[why]
    kernel = copied(*before, third=third).kernels["k3"]
    assert (kernel.stage, kernel.same_as) == (Stage.VERIFY, "")


def test_a_trial_that_began_is_finished() -> None:
    state = settled(b.fold(*MEASURED[:-3], drafted("k3"), built("k2"), built("k3"), e.WorkStarted("verify:k3:0")))
    state = settled(then(state, b.verified("k2", 2.0), b.measured("k2", 2.0)))
    assert state.kernels["k3"].stage is Stage.VERIFY


def test_one_built_before_the_other_was_measured_waits_no_longer() -> None:
    state = settled(b.fold(*MEASURED[:-3], drafted("k3"), built("k2"), built("k3")))
    assert state.kernels["k3"].stage is Stage.VERIFY
    assert settled(then(state, b.verified("k2", 2.0), b.measured("k2", 2.0))).kernels["k3"].same_as == "k2"


@pytest.mark.parametrize("lost", [e.KernelFailed("k2", b.failure()), e.KernelQuarantined("k2", ("too fast",))])
def test_it_is_measured_after_all_when_the_verdict_falls(lost: e.Event) -> None:
    state = settled(then(copied(), lost))
    kernel = state.kernels["k3"]
    assert (kernel.stage, kernel.same_as, kernel.again) == (Stage.BUILD, "", 1)
    rebuilt = settled(then(state, built("k3")))
    assert rebuilt.kernels["k3"].stage is Stage.VERIFY


def test_remeasuring_gives_it_a_verdict_of_its_own() -> None:
    state = copied()
    state = settled(then(state, *rules.decide(state, c.Remeasure("k3")), built("k3")))
    assert (state.kernels["k3"].stage, state.kernels["k3"].same_as) == (Stage.VERIFY, "")


def test_drafts_with_a_known_normal_form_are_not_tried() -> None:
    first = w.StoredDraft("one.cpp", m.Dialect.CPP, m.Contract.HOST, b.digest("one"), b.PLAYBOOK, {}, "form")
    renamed = replace(first, name="two.cpp", source=b.digest("two"))
    tuned = replace(renamed, name="three.cpp", source=b.digest("three"), tunables={"BLOCK": 2})
    state = b.fold(*b.first_round(1.0, mode="ask"), e.RoundOpened(1, ("k1",)), b.proposed("i2", round_number=1, branch=3))
    state = then(state, e.IdeaSelected("i2"))
    *drafts, implemented = rules.record(state, w.Implement("i2"), w.Drafts((first, renamed, tuned)))
    assert [(draft.name, draft.form) for draft in drafts if isinstance(draft, e.KernelDrafted)] == [
        ("one.cpp", "form"), ("three.cpp", "form"),
    ]  # fmt: skip
    assert isinstance(implemented, e.IdeaImplemented)
    assert implemented.note == "the same code as k2 but for comments, layout and names"
