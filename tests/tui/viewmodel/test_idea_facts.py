"""What was paid for is shown: an idea's expected effect, risks and evidence; a kernel's tunables, attempts and prune reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import builders as b
from support import showcase

from engine.domain import events as e
from engine.domain.folds import advance
from engine.domain.model import ENGINEER, Author, Failure, FailureKind
from engine.domain.queries import SURPLUS
from engine.domain.state import IdeaStatus, SessionState
from tui.viewmodel import detail, ideas, kernels
from tui.viewmodel.lineage_lines import LineageLines

STATE = showcase.session()[0]


def with_idea(**changes: object) -> SessionState:
    """The showcase with other fields of the idea i10, whose parent is k14."""
    text = {name: changes.pop(name) for name in ("expected", "risks", "key") if name in changes}
    idea = STATE.ideas["i10"]
    changed = replace(idea, text=replace(idea.text, **text), **changes)  # type: ignore[arg-type]
    return replace(STATE, ideas=STATE.ideas | {"i10": changed})


def test_expected_effect_risks_and_the_parents_evidence_are_shown() -> None:
    state = with_idea(expected="fewer cold misses", risks="no effect on one core")
    facts = dict(ideas.idea_facts(state, state.ideas["i10"]))
    assert facts["expected"] == "fewer cold misses"
    assert facts["risks"] == "no effect on one core"
    assert facts["evidence"].startswith("1.92 ms · 61% SOL")
    page = "\n".join(line.text for line in detail.idea(state, state.kernels["k18"], 90, LineageLines()))
    assert "fewer cold misses" in page
    assert "no effect on one core" in page


def test_an_idea_parked_because_its_round_was_full_is_surplus() -> None:
    state = with_idea(status=IdeaStatus.PARKED, reason=SURPLUS)
    assert ideas.status(state, state.ideas["i10"]).word == "surplus"
    assert "its round was full" in dict(ideas.idea_facts(state, state.ideas["i10"]))["status"]
    put_aside = with_idea(status=IdeaStatus.PARKED)
    assert ideas.status(put_aside, put_aside.ideas["i10"]).word == "parked"


@pytest.mark.parametrize(
    ("changes", "source", "nobody"),
    [
        ({"author": ENGINEER, "key": ""}, "playbook", True),
        ({"author": ENGINEER, "key": "", "writer": "paste"}, "playbook", False),
        ({"author": ENGINEER, "key": ""}, "openai:gpt-test", False),
        ({"author": ENGINEER, "key": "", "implemented": True}, "playbook", False),
        ({"author": Author("agent:mcp"), "key": ""}, "playbook", False),
        ({"author": b.PLAYBOOK, "key": "online"}, "playbook", False),
    ],
)
def test_an_idea_in_words_has_no_writer_where_only_the_playbook_writes(
    changes: dict[str, object], source: str, nobody: bool
) -> None:
    state = with_idea(**changes)
    state = replace(state, models=replace(state.models, source=source, writer=""))
    idea = state.ideas["i10"]
    assert ideas.nobody_writes(state, idea) is nobody
    shown = "\n".join(line.text for line in ideas.card(state, idea, 120))
    assert ("nobody writes it" in shown) is nobody


def test_the_idea_page_shows_tunables_attempts_and_why_a_branch_is_pruned() -> None:
    pruned = advance(STATE, b.entries((e.BranchPruned("k7", "a dead end"),), start=STATE.seq + 1))
    failed = Failure(FailureKind.BUILD_FAILED, "k12.cpp:3: no such header")
    kernel = replace(pruned.kernels["k12"], attempt=1, failures=(failed,))
    state = replace(pruned, kernels=pruned.kernels | {"k12": kernel})
    page = "\n".join(line.text for line in detail.idea(state, kernel, 90, LineageLines()))
    assert "tunables   CHAINS=8" in page
    assert "with k7: a dead end" in page
    assert "attempts   2, 1 failed" in page
    assert "build failed: k12.cpp:3: no such header" in page


@pytest.mark.parametrize(("name", "shown"), [("agent:mcp", "agent:mcp"), ("openai:gpt-5", "gpt-5"), ("user:ada", "user:ada")])
def test_an_agent_is_told_apart_from_a_model(name: str, shown: str) -> None:
    assert kernels.author(name) == shown
