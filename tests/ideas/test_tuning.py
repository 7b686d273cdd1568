"""Tuning ideas, which change only the values of tunables."""

from __future__ import annotations

from typing import Any

import pytest
from support import builders as b

from engine.domain import events as e
from engine.domain.model import CATEGORIES, Author, IdeaText
from engine.domain.state import SessionState
from engine.domain.work import Proposal
from engine.ideas.tuning import constants, is_tuning, tuned_drafts, tuning_ideas

AUTHOR = Author("playbook")
TEXT = "// @tune BLOCK = 4, 8, 16\n// @tune LANES = 8\n// @tune UNROLL = 1, 2, 4\n// @require BLOCK * UNROLL <= 32\n"


def kernel(name: str, speedup: float, idea: str = "i1", text: str = TEXT, **tunables: int) -> tuple[e.Event, ...]:
    given = {"BLOCK": 4, "LANES": 8, "UNROLL": 1, **tunables} if text == TEXT else tunables
    return b.measured_kernel(name, speedup, idea=idea, source=text, tunables=given)


def tune(idea: str, parent: str, number: int = 1, branch: int = 3) -> e.IdeasProposed:
    text = IdeaText(f"Tune {parent}", CATEGORIES[4], "", None, f"tune:{parent}:{number}")
    return e.IdeasProposed(1, (e.ProposedIdea(idea, text, parent, AUTHOR, branch),), True)


def state(*events: Any) -> SessionState:
    flat = [event for group in events for event in (group if isinstance(group, tuple) else (group,))]
    return b.fold(b.opened(), b.prepared(), e.RoundOpened(1, ()), b.proposed("i1"), *flat)


def proposals(of: SessionState, *names: str, text: str = TEXT) -> list[Proposal]:
    return list(tuning_ideas(of, [of.kernels[n] for n in names], dict.fromkeys(names, text), AUTHOR))


def test_a_kernel_with_untried_neighbours_gets_a_tuning_idea() -> None:
    found = proposals(state(kernel("k1", 2.0)), "k1")
    assert [(p.text.title, p.text.key, p.parent) for p in found] == [
        ("Tune BLOCK, UNROLL of k1 around its best values", "tune:k1:1", "k1")
    ]
    assert found[0].text.category == "occupancy"
    assert "4 neighbouring combinations" in found[0].text.rationale
    assert is_tuning(found[0].text.key)


def test_variants_are_untried_and_change_one_value_nearest_first() -> None:
    tried = kernel("k2", 1.0, BLOCK=8)
    here = state(kernel("k1", 2.0), tried, tune("i2", "k1"))
    drafts = tuned_drafts(here, here.ideas["i2"], TEXT)
    assert [(d.tunables["BLOCK"], d.tunables["UNROLL"]) for d in drafts] == [(4, 2), (16, 1), (4, 4)]
    assert {(d.source, d.name) for d in drafts} == {(TEXT, "k1.cpp")}


def test_at_most_branch_variants_are_drafted() -> None:
    here = state(kernel("k1", 2.0), tune("i2", "k1", branch=1))
    assert len(tuned_drafts(here, here.ideas["i2"], TEXT)) == 1


@pytest.mark.parametrize(
    "text", ["int x;\n", "// @tune BLOCK = 4\n", "// @tune BLOCK = many\n", "// @tune B = 1, 2\n// @require NO > 1\n"]
)
def test_code_without_untried_values_is_not_tuned(text: str) -> None:
    assert proposals(state(kernel("k1", 2.0, text=text)), "k1", text=text) == []


def test_requirements_see_the_constants_of_the_problem() -> None:
    text = "// @tune BLOCK = 4, 8, 16\n// @require X_DIM1 % BLOCK == 0\n// @require BLOCK < 8 * SMS\n"
    here = state(kernel("k1", 2.0, text=text, BLOCK=4))
    assert constants(here)["SMS"] == 2
    assert "1 neighbouring combination of" in proposals(here, "k1", text=text)[0].text.rationale


def test_kernels_with_the_same_code_are_tuned_once_at_the_best() -> None:
    here = state(kernel("k1", 1.0), kernel("k2", 2.0, BLOCK=8))
    assert [p.parent for p in proposals(here, "k2", "k1")] == ["k2"]


@pytest.mark.parametrize("decision", [None, e.IdeaRejected("i2", "no"), e.IdeaParked("i2"), e.IdeaSelected("i2")])
def test_code_is_not_tuned_again_before_its_last_tuning_is_done(decision: e.Event | None) -> None:
    events = (kernel("k1", 2.0), tune("i2", "k1"), *([decision] if decision else []))
    assert proposals(state(*events), "k1") == []


def test_the_next_step_starts_from_the_best_values() -> None:
    through = (
        kernel("k1", 2.0),
        tune("i2", "k1"),
        e.IdeaSelected("i2"),
        kernel("k2", 3.0, idea="i2", BLOCK=8),
        e.IdeaImplemented("i2", ("k2",)),
    )
    here = state(*through)
    assert [p.text.key for p in proposals(here, "k2", "k1")] == ["tune:k2:1"]
    assert [(p.text.key, p.text.title[-8:]) for p in proposals(here, "k1", "k2")] == [("tune:k1:2", ", step 2")]


def test_a_kernel_without_untried_neighbours_is_not_tuned() -> None:
    text = "// @tune BLOCK = 4, 8\n"
    here = state(kernel("k1", 2.0, text=text, BLOCK=4), kernel("k2", 1.0, text=text, BLOCK=8))
    assert proposals(here, "k1", "k2", text=text) == []
