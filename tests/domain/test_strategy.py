"""The adaptive strategy: draws, posterior, choices, and that the engineer's decisions hold."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders as b

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import queries, rules
from engine.domain import work as w
from engine.domain.model import ENGINE, Author
from engine.domain.round_plan import CategoryRate, Focus
from engine.domain.rules import adaptive
from engine.domain.settings import Limits
from engine.domain.state import IdeaStatus, SessionState, Stage
from engine.domain.strategy import reasons
from engine.domain.strategy.belief import Constants, believed
from engine.domain.strategy.choice import decided
from engine.domain.strategy.draws import Draws
from engine.domain.strategy.evidence import TUNE, Evidence, OpenIdea, Trial, evidence
from engine.domain.strategy.regression import Prior, expected_improvement, fitted
from engine.domain.strategy.steps import Ask, Pair
from engine.domain.strategy.values import Parent
from engine.journal import codec

LIMITS = Limits(rounds=None, kernels=14, plateau=None, light=None)


def searched(**settings: object) -> SessionState:
    """A whole session of the adaptive strategy on a fake bench."""
    return b.walk(b.FakeBench(author=b.MODEL), **{"strategy": "adaptive", "limits": LIMITS, **settings}).state


def known(*trials: Trial, **more: object) -> Evidence:
    """Kernel k0 at 1.0×, and a kernel for each trial that names one, 1.2× over its parent."""
    kernels = {"k0": Parent("k0", None, 0.0, 1e-4)}
    for trial in trials:
        if trial.child is not None:
            value = kernels[trial.parent].value + math.log(1.2)
            kernels[trial.child] = Parent(trial.child, trial.parent, value, 1e-4, trial.stem)
    return replace(Evidence(0, 1, kernels, trials, (), {}, {}), **more)  # type: ignore[arg-type]


def test_draws_are_a_function_of_seed_and_label() -> None:
    assert [Draws(1, "a").uniform() for _ in range(3)] == [Draws(1, "a").uniform()] * 3
    assert len({Draws(seed, label).uniform() for seed in range(20) for label in ("a", "b", "c")}) == 60
    stream = Draws(7, "normal")
    values = [stream.normal() for _ in range(4000)]
    assert abs(fmean(values)) < 0.06
    assert pstdev(values) == pytest.approx(1.0, abs=0.05)


def test_the_posterior_moves_from_the_prior_to_the_data() -> None:
    prior = Prior((0.0, 1.0), (0.5, 0.5))
    assert fitted(prior, []).means == pytest.approx((0.0, 1.0))
    rows = [((1.0, x / 10), 0.3 - 0.5 * x / 10) for x in range(-10, 11)] * 10
    found = fitted(prior, rows)
    assert found.means == pytest.approx((0.3, -0.5), abs=0.02)
    assert found.noise < 0.05


@given(st.floats(-2, 2), st.floats(0.001, 2))
def test_expected_improvement_is_at_least_the_mean_and_never_negative(mean: float, deviation: float) -> None:
    found = expected_improvement(mean, deviation)
    assert found >= max(0.0, mean) - 1e-9
    assert found <= max(0.0, mean) + deviation


def test_an_author_whose_predictions_are_inverted_is_read_the_other_way() -> None:
    trials: list[Trial] = []
    kernels = {"k0": Parent("k0", None, 0.0, 1e-6)}
    for number in range(1, 25):
        predicted = 0.4 if number % 2 else -0.4
        kernels[f"k{number}"] = Parent(f"k{number}", "k0", -predicted, 1e-6, f"s{number}")
        trials.append(Trial("k0", f"s{number}", predicted, "a", "memory access", f"k{number}"))
    belief = believed(Evidence(0, 1, kernels, tuple(trials), (), {}, {}), Constants())
    assert belief.posterior.means[1] < -0.3


def test_an_idea_that_gained_is_tried_on_another_lineage() -> None:
    trials = (Trial("k0", "wide loads", 0.2, "a", "memory access", "k1"), Trial("k0", "unroll", 0.3, "a", "instructions", "k2"))
    found = [decided(replace(known(*trials), step=step), None, may_ask=False).pair for step in range(20)]
    repeated = [pair for pair in found if pair is not None and not pair.idea]
    assert repeated
    assert {(pair.parent, pair.stem) for pair in repeated} <= {("k1", "unroll"), ("k2", "wide loads")}


def tunable(found: Evidence, *names: str) -> Evidence:
    kernels = {name: replace(kernel, tunable=name in names) for name, kernel in found.kernels.items()}
    return replace(found, kernels=kernels)


def test_a_kernel_is_tuned_where_the_ideas_at_hand_promise_less() -> None:
    trials = (Trial("k0", "a", 0.2, "a", "memory access", "k1"),)
    weak, strong = (OpenIdea("i2", "k1", "s2", predicted, "a", "occupancy") for predicted in (-0.9, 0.9))
    for idea, tuned in ((weak, True), (strong, False)):
        found = tunable(known(*trials, open=(idea,)), "k1")
        pairs = [decided(replace(found, step=step), None, may_ask=False).pair for step in range(20)]
        assert (sum(pair is not None and pair.stem == TUNE for pair in pairs) > 10) is tuned
        assert all(pair is not None and (pair.parent, pair.idea) in {("k1", ""), ("k1", idea.id)} for pair in pairs)
    done = tunable(known(*trials, tuned=frozenset({"k1"})), "k1")
    assert decided(done, None, may_ask=False).pair is None
    assert decided(known(*trials), None, may_ask=False).pair is None


def test_what_tuning_gains_is_learnt_over_all_kernels() -> None:
    tuned = tuple(Trial(f"k{n - 1}", TUNE, 0.0, "engine", "occupancy", f"k{n}") for n in range(1, 6))
    before, after = believed(known(), Constants()), believed(known(*tuned), Constants())
    assert before.tuning_gain()[0] == Constants().tuned
    assert after.tuning_gain()[0] > 0.1
    assert after.tuning_gain()[1] < before.tuning_gain()[1]
    pair = Pair("k5", TUNE, 0.1, *after.tuning_gain())
    assert ": 5 tuned kernels gained 1.20× on average; " in reasons.of_pair(after, pair, None, "")


def test_reasons_show_what_was_measured_in_plain_words() -> None:
    """Not the shrunk mean of one trial, and ``1 idea``, not ``1 ideas``."""
    trials = (Trial("k0", "s1", 0.2, "a", "memory access", "k1"),)
    belief = believed(known(*trials), Constants())
    gained = reasons.times(belief.stems["s1"].gained)
    words = reasons.of_pair(belief, Pair("k1", "s1", 0.0, 0.1, 0.1, 0.8, "i1"), None, "")
    assert (
        words
        == f"expected gain 1.11× [0.91, 1.34] over k1: the same idea gained {gained} in 1 kernel; 80% chance to be verified"
    )
    repeated = reasons.of_pair(belief, Pair("k2", "s1", 0.0, 0.1, 0.1, 0.8), None, "k1")
    assert f": it is new to this lineage and gained {gained} in k1; " in repeated
    step = decided(known(*trials), Focus("k1", 1.2, len(trials)), may_ask=True)
    assert reasons.of_parents(step, step.ask).endswith(": 1 idea left to try there")


@pytest.mark.slow
def test_the_strategy_proposes_and_approves_a_tuning_idea_with_its_reason() -> None:
    class Tunable(b.FakeBench):
        def _drafts(self, state: SessionState, idea_id: str) -> w.Drafts:
            drafts = super()._drafts(state, idea_id).drafts
            return w.Drafts(tuple(replace(draft, tunables={"BLOCK": number}) for number, draft in enumerate(drafts)))

    state = b.walk(Tunable(author=b.MODEL), strategy="adaptive", limits=replace(LIMITS, kernels=30)).state
    tuned = [idea for idea in state.ideas.values() if idea.author == ENGINE]
    assert tuned
    assert {idea.text.key for idea in tuned} == {f"tune:{idea.parent}:1" for idea in tuned}
    assert all("expected gain" in idea.advice and "tuned" in idea.advice for idea in tuned if idea.kernels)
    assert all(len(idea.kernels) <= 2 for idea in tuned)


def test_a_rejected_idea_is_not_tried_on_another_lineage() -> None:
    trials = (Trial("k0", "wide loads", 0.2, "a", "memory access", "k1"), Trial("k0", "unroll", 0.3, "a", "instructions", "k2"))
    now = known(*trials, rejected=frozenset({"unroll", "wide loads"}))
    assert all(decided(replace(now, step=step), None, may_ask=False).pair is None for step in range(20))


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "repeats"), [({}, False), ({"writer": "playbook"}, False), ({"writer": "paste"}, True)])
def test_an_idea_of_the_playbook_is_tried_elsewhere_only_if_someone_can_write_it(
    settings: dict[str, str], repeats: bool
) -> None:
    sessions = [b.walk(b.FakeBench(author=Author("playbook")), strategy="adaptive", limits=LIMITS, seed=seed, **settings).state
                for seed in range(4)]  # fmt: skip
    assert any(idea.repeats for state in sessions for idea in state.ideas.values()) is repeats


def test_without_ideas_it_asks_for_some() -> None:
    assert decided(known(), None, may_ask=True).ask == Ask(("k0",), 3)


def test_what_waits_elsewhere_is_tried_when_no_idea_comes_for_the_best_parents() -> None:
    """A playbook ends: the ideas that were kept for later are tried, on whatever kernel they wait."""
    trials = tuple(Trial("k0", f"s{n}", 0.2, "a", "memory access", f"k{n}") for n in range(1, 6))
    found = known(
        *trials, rejected=frozenset(trial.stem for trial in trials), open=(OpenIdea("i9", "k0", "s9", -0.9, "a", ""),)
    )
    found = replace(found, kernels={**found.kernels, "k0": replace(found.kernels["k0"], value=-3.0)})
    step = decided(found, None, may_ask=False)
    assert "k0" not in step.ranked
    assert step.pair is not None
    assert (step.pair.parent, step.pair.idea) == ("k0", "i9")
    tuned = tunable(replace(found, open=()), "k0")
    pair = decided(tuned, None, may_ask=False).pair
    assert pair is not None
    assert (pair.parent, pair.stem) == ("k0", TUNE)


def test_without_new_ideas_the_best_at_hand_is_tried_wherever_it_waits() -> None:
    """A playbook has no idea for the kernel of a restart, and none for the best parents."""
    trials = tuple(Trial("k0" if n == 1 else f"k{n - 1}", f"s{n}", 0.2, "a", "", f"k{n}") for n in range(1, 9))
    waiting = (OpenIdea("i9", "k3", "s9", 0.9, "a", ""), OpenIdea("i10", "k8", "s10", -0.9, "a", ""))
    found = known(*trials, open=waiting, fixed=frozenset(trial.stem for trial in trials))
    tuned = [Trial("k8", TUNE, 0.0, "engine", "occupancy", f"k{n}") for n in range(9, 14)]
    kernels = {str(t.child): Parent(str(t.child), "k8", found.kernels["k8"].value - 0.01, 1e-4, TUNE) for t in tuned}
    found = replace(found, kernels={**found.kernels, **kernels}, trials=(*trials, *tuned))
    steps = [decided(replace(found, step=step), None, may_ask=False) for step in range(20)]
    assert all(step.focus is not None for step in steps)
    steps = [decided(replace(found, step=step, invents=False), None, may_ask=False) for step in range(20)]
    assert all(step.focus is None and step.pair is not None and step.pair.idea == "i9" for step in steps)


def test_trials_on_a_kernel_count_that_is_not_the_best_of_its_idea() -> None:
    """An idea with two kernels is one trial; the slower one is a parent like any other."""
    kernels = {
        "k0": Parent("k0", None, 0.0, 1e-4),
        "k1": Parent("k1", "k0", 0.3, 1e-4, "s1"),
        "k2": Parent("k2", "k0", 0.1, 1e-4, "s1"),
    }
    trials = (Trial("k0", "s1", 0.2, "a", "", "k1"), Trial("k2", "s2", 0.2, "a", "", None, True))
    belief = believed(Evidence(0, 1, kernels, trials, (), {}, {}), Constants())
    assert belief.parents["k2"].tried == {"s2"}
    assert belief.stems["s2"].failed == 1


def test_a_better_prediction_is_preferred() -> None:
    ideas = (OpenIdea("i1", "k0", "a", 0.05, "m", "occupancy"), OpenIdea("i2", "k0", "b", 0.8, "m", "occupancy"))
    chosen = [decided(replace(known(), open=ideas, step=n), None, may_ask=False).pair for n in range(20)]
    assert sum(pair is not None and pair.idea == "i2" for pair in chosen) >= 17


def test_categories_that_gained_elsewhere_are_preferred() -> None:
    prior = (CategoryRate("memory access", 40, 30, 0.4), CategoryRate("occupancy", 40, 2, 0.02))
    belief = believed(known(prior=prior), Constants())
    assert belief.categories["memory access"] > 0.05 > 0 > belief.categories["occupancy"]
    assert believed(known(), Constants()).categories == {}


@pytest.mark.slow
def test_a_session_is_a_function_of_its_seed() -> None:
    one, same, other = searched(), searched(), searched(seed=5)
    assert [k.parent for k in one.kernels.values()] == [k.parent for k in same.kernels.values()]
    assert [(i.parent, i.status) for i in one.ideas.values()] != [(i.parent, i.status) for i in other.ideas.values()]


def test_every_round_and_choice_carries_its_reason() -> None:
    state = searched()
    assert len(state.kernels) == 14
    assert len(state.rounds) < 40, "an idea whose code is already in the tree counts as tried"
    tried = [idea for idea in state.ideas.values() if idea.kernels and idea.round > 0]
    assert tried
    assert all("expected gain" in idea.advice for idea in tried)
    plans = [r.plan for r in state.rounds.values() if r.number > 0]
    assert all(plan is not None and "over the baseline" in plan.reason for plan in plans)
    kept = [idea for idea in state.ideas.values() if idea.status is IdeaStatus.PARKED]
    assert all(idea.advice.startswith("kept for later") or idea.reason for idea in kept)


def test_the_journal_keeps_the_plan() -> None:
    walk = b.walk(b.FakeBench(author=b.MODEL), strategy="adaptive", limits=LIMITS)
    assert [codec.decode(codec.encode(entry)) for entry in walk.log] == walk.log
    old = codec.encode(e.Entry(1, b.START, b.PLAYBOOK, e.RoundOpened(1, ("k1",))))
    assert b"plan" not in old


def test_an_idea_that_the_engineer_puts_aside_stays_aside() -> None:
    walk = b.walk(b.FakeBench(author=b.MODEL), strategy="adaptive", limits=LIMITS, mode="ask")
    pending = queries.pending_ideas(walk.state)
    assert pending
    for idea in pending[1:]:
        walk.write(rules.decide(walk.state, c.ParkIdea(idea.id)))
    aside = {idea.id for idea in pending[1:]}
    walk.write(rules.decide(walk.state, c.SetMode("autopilot")))
    walk.drive(b.FakeBench(author=b.MODEL))
    assert all(walk.state.ideas[i].status is IdeaStatus.PARKED and not walk.state.ideas[i].advice for i in aside)
    assert sum(k.stage is Stage.MEASURED for k in walk.state.kernels.values()) > 1


def test_a_pinned_kernel_stays_among_the_parents_and_a_pruned_one_is_none() -> None:
    walk = b.walk(b.FakeBench(author=b.MODEL), strategy="adaptive", limits=LIMITS)
    worst = queries.ranked(walk.state)[-1].id
    best = queries.ranked(walk.state)[0].id
    walk.write(rules.decide(walk.state, c.PinKernel(worst)))
    assert worst in adaptive.decision(walk.state, may_ask=True).ranked
    if best != "k1":
        walk.write(rules.decide(walk.state, c.PruneBranch(best)))
        assert best not in evidence(walk.state).kernels


def test_the_gate_shows_what_is_expected_of_each_idea() -> None:
    walk = b.walk(b.FakeBench(author=b.MODEL), strategy="adaptive", limits=LIMITS, mode="ask")
    lines = adaptive.advice(walk.state)
    assert set(lines) == {idea.id for idea in queries.pending_ideas(walk.state)}
    assert sum(line.startswith("next: ") for line in lines.values()) <= 1
    assert all("expected gain" in line for line in lines.values())
    assert adaptive.advice(b.walk(b.FakeBench(), mode="ask").state) == {}


def test_as_many_kernels_as_ideas_times_implementations_count_as_a_round() -> None:
    state = searched(limits=Limits(rounds=2, plateau=None, light=None), ideas=2, branch=2)
    assert state.closed == "2 of 2 rounds done"
    assert 8 <= sum(k.round > 0 for k in state.kernels.values()) <= 9


def test_a_kernel_whose_time_is_not_corroborated_is_a_parent_only_while_there_is_no_other() -> None:
    walk = b.walk(b.FakeBench(author=b.MODEL), strategy="adaptive", limits=LIMITS)
    state = walk.state
    kernels = {
        name: replace(k, measurement=replace(k.measurement, corroborated=False)) if k.measurement else k
        for name, k in state.kernels.items()
    }
    measured = [k.id for k in queries.ranked(state)]
    doubted = replace(state, kernels=kernels)
    assert set(evidence(doubted).kernels) == set(measured)
    one = {**kernels, measured[0]: state.kernels[measured[0]]}
    assert set(evidence(replace(state, kernels=one)).kernels) == {measured[0]}


def test_ideas_that_never_fit_another_parent_lose_their_weight_after_a_few_failures() -> None:
    """Where decisions exclude each other, no idea of one lineage fits another."""
    first = tuple(Trial("k0", f"s{n}", 0.2, "a", "memory access", f"k{n}") for n in range(1, 4))
    misfits = tuple(Trial(f"k{1 + n % 3}", f"s{1 + (n + 1) % 3}", 0.2, "a", "memory access", None, True) for n in range(4))
    before, after = (believed(known(*trials), Constants()) for trials in (first, (*first, *misfits)))
    assert before.success("s1", repeated=True) > 0.6
    assert after.success("s1", repeated=True) < 0.1
    assert after.success("s9", repeated=False) == 0.75


def test_a_restart_begins_with_an_idea_of_its_own() -> None:
    """An idea that gained elsewhere is not what a restart is for."""
    trials = tuple(Trial("k0" if n == 1 else f"k{n - 1}", f"s{n}", 0.2, "a", "memory access", f"k{n}") for n in range(1, 5))
    found = known(*trials)
    restarted = Focus("k1", 4.0, len(trials))
    step = decided(found, restarted, may_ask=True)
    assert step.ranked == ("k1",)
    assert step.pair is None
    assert step.ask == Ask(("k1",), 3)
    own = replace(found, open=(OpenIdea("i9", "k1", "s9", 0.1, "a", "memory access"),))
    pair = decided(own, restarted, may_ask=False).pair
    assert pair is not None
    assert pair.idea == "i9"


def test_a_restart_without_an_idea_left_gives_way_to_the_ideas_at_hand() -> None:
    trials = tuple(Trial("k0" if n == 1 else f"k{n - 1}", f"s{n}", 0.2, "a", "memory access", f"k{n}") for n in range(1, 5))
    found = known(*trials, rejected=frozenset({"s1", "s2", "s3", "s4"}), open=())
    found = replace(found, open=(OpenIdea("i9", "k4", "s9", 0.1, "a", "memory access"),))
    restarted = Focus("k1", 4.0, len(trials))
    asked = decided(found, restarted, may_ask=True)
    assert asked.ask == Ask(("k1",), 3)
    pair = decided(found, restarted, may_ask=False).pair
    assert pair is not None
    assert pair.idea == "i9"


def polished(times: int) -> Evidence:
    """Three ideas that gain, then ``times`` polishes of the last kernel that gain nothing; each kernel has an open idea."""
    trials = [Trial("k0" if n == 1 else f"k{n - 1}", f"s{n}", 0.2, "a", "memory access", f"k{n}") for n in range(1, 4)]
    found = known(*trials)
    polishes = [Trial("k3", "polish", 0.05, "a", "memory access", f"k{n}") for n in range(4, 4 + times)]
    kernels = {p.child: Parent(str(p.child), "k3", found.kernels["k3"].value - 0.01, 1e-4, "polish") for p in polishes}
    ideas = tuple(OpenIdea(f"i{k}", k, "polish", 0.05, "a", "memory access") for k in ("k2", "k3"))
    new = OpenIdea("new", "k2", "s9", 0.05, "a", "memory access")
    return replace(found, kernels={**found.kernels, **kernels}, trials=(*trials, *polishes), open=(*ideas, new))  # type: ignore[dict-item]


def test_a_run_of_one_idea_ends_in_a_restart_behind_an_idea_that_was_new() -> None:
    assert not believed(polished(3), Constants()).exhausted
    assert believed(polished(4), Constants()).exhausted
    assert decided(polished(3), None, may_ask=False).focus is None, "other ideas are left at the best kernel"
    step = decided(polished(6), None, may_ask=False)
    assert step.focus is not None
    assert step.focus.root in ("k0", "k1", "k2")
    assert step.ranked == (step.focus.root,)


def test_ideas_taken_over_from_another_parent_do_not_hide_that_one_idea_prevails() -> None:
    found = polished(4)
    others = tuple(Trial("k3", f"s{n}", 0.2, "a", "memory access", None, True) for n in range(20, 26))
    assert believed(replace(found, trials=(*found.trials, *others)), Constants()).exhausted


def test_a_restart_after_a_run_tries_what_its_root_has_not_tried() -> None:
    found = polished(6)
    tried = (*found.trials, Trial("k2", "polish", 0.05, "a", "memory access", None))
    pair = decided(replace(found, trials=tried), Focus("k2", 9.0, len(tried)), may_ask=False).pair
    assert pair is not None
    assert pair.idea == "new"


@pytest.mark.parametrize("promising", ["k0", "k1", "k2"])
def test_a_restart_after_a_run_goes_where_an_untried_idea_promises_most(promising: str) -> None:
    found = polished(6)
    new = tuple(OpenIdea(f"n{k}", k, f"n{k}", 0.9 if k == promising else -0.9, "a", "occupancy") for k in ("k0", "k1", "k2"))
    step = decided(replace(found, open=(*found.open[:2], *new)), None, may_ask=False)
    assert step.focus is not None
    assert step.focus.root == promising


@pytest.mark.parametrize(("stem", "extended"), [("s9", True), ("polish", False)])
def test_an_improvement_extends_a_restart_unless_it_is_by_a_familiar_idea(stem: str, extended: bool) -> None:
    found = polished(6)
    focus = Focus("k1", 1.5, len(found.trials))
    trial = Trial("k1", stem, 0.2, "a", "memory access", "k20")
    kernels = {**found.kernels, "k20": Parent("k20", "k1", found.kernels["k1"].value + 0.3, 1e-4, stem)}
    step = decided(replace(found, kernels=kernels, trials=(*found.trials, trial)), focus, may_ask=False)
    assert step.focus is not None
    assert step.focus.left == (Constants().grace if extended else 0.5)


def test_the_gains_of_an_idea_that_hardly_differ_make_it_certain() -> None:
    """An idea measured often is judged by the scatter of its own gains, one measured once by the scatter of all."""
    belief = believed(polished(8), Constants())
    assert belief.deviation("unknown") == belief.posterior.noise
    assert belief.deviation("s1") == pytest.approx(belief.posterior.noise / math.sqrt(1.5))
    assert belief.deviation("polish") < 0.6 * belief.posterior.noise / math.sqrt(5.0)


def test_a_failure_spends_half_of_what_a_kernel_spends_of_a_restart() -> None:
    begun = tuple(Trial("k0" if n == 1 else f"k{n - 1}", f"s{n}", 0.2, "a", "memory access", f"k{n}") for n in range(1, 5))
    failed = Trial("k1", "s8", 0.2, "a", "memory access", None)
    step = decided(known(*begun, failed, failed), Focus("k1", 4.0, len(begun)), may_ask=True)
    assert step.focus is not None
    assert step.focus.left == 3.0


@pytest.mark.parametrize("earlier", [0, 1000])
def test_a_restart_is_spent_in_a_long_session_too(earlier: int) -> None:
    """Trials leave the window of the evidence, but not the count."""
    begun = tuple(Trial("k0" if n == 1 else f"k{n - 1}", f"s{n}", 0.2, "a", "memory access", f"k{n}") for n in range(1, 5))
    failed = (Trial("k1", "s8", 0.2, "a", "memory access", None),) * 8
    focus = Focus("k1", 4.0, earlier + len(begun))
    assert decided(known(*begun, *failed, count_earlier=lambda: earlier), focus, may_ask=True).focus != focus
    assert known(*begun, *failed, count_earlier=lambda: earlier).tried == earlier + 12
    assert known(*begun, *failed, count_earlier=lambda: earlier).since(focus.tried) == failed
    spent = decided(known(*begun, *failed[:2], count_earlier=lambda: earlier), focus, may_ask=True).focus
    assert spent is not None
    assert (spent.left, spent.tried) == (3.0, earlier + 6)


@pytest.mark.parametrize("seed", range(4))
def test_trials_stand_in_the_order_in_which_they_were_made(seed: int) -> None:
    """An idea that is kept for later is tried after ideas that were proposed after it."""
    state = searched(seed=seed)
    tried = [int(trial.child[1:]) for trial in evidence(state).trials if trial.child is not None]
    proposed = sorted((i for i in state.ideas.values() if i.kernels and i.parent), key=lambda i: int(i.id[1:]))
    assert tried == sorted(tried)
    assert [idea.round for idea in proposed] != sorted(idea.round for idea in proposed), "the session kept no idea for later"
