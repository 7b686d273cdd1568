"""The ideas and implementations that a playbook offers in a given state."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import builders as b
from support.calls import calls

from engine.domain import events as e
from engine.domain import queries
from engine.domain import work as w
from engine.domain.model import CATEGORIES, Contract, Dialect, Draft, IdeaText
from engine.domain.state import SessionState
from engine.ideas.playbook import PLAYBOOK, Available, Playbook, available
from engine.ideas.proposer import CodeRequest, IdeaRequest, Implementation

LAUNCH = 'extern "C" void launch(const float* x, float* out, void* workspace) {}\n'


def _entry(key: str, category: int, predicted: float, *, after: str = "", files: int = 1, dialect: str = "cpp") -> str:
    names = ", ".join(f'"{key}{n}.{"cu" if dialect == "cuda" else dialect}"' for n in range(files))
    after = f"after = [{after}]\n" if after else ""
    return (
        f'[[idea]]\nkey = "{key}"\ntitle = "Do {key}"\ncategory = "{CATEGORIES[category]}"\nrationale = "Because."\n'
        f"predicted = {{ {dialect} = {predicted} }}\n{after}{dialect} = [{names}]\n"
    )


TOML = (
    '[root]\ncpp = ["naive.cpp"]\n'
    + _entry("alpha", 0, 1.5, files=2)
    + _entry("beta", 0, 3.0)
    + _entry("gamma", 1, 1.2)
    + _entry("delta", 2, 2.0, after='"alpha", "beta"')
    + _entry("gpu_only", 3, 9.0, dialect="cuda")
)
TUNED = "// @tune BLOCK = 4, 8, 16\n// @tune UNROLL = 1, 2\n// @require BLOCK * UNROLL <= 16\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    playbook = tmp_path / "playbook"
    playbook.mkdir()
    (playbook / "playbook.toml").write_text(TOML)
    for name in ("naive.cpp", "beta0.cpp", "gamma0.cpp", "delta0.cpp"):
        (playbook / name).write_text(f"// {name}\n{LAUNCH}")
    for name in ("alpha0.cpp", "alpha1.cpp"):
        (playbook / name).write_text(f"// {name}\n{TUNED}{LAUNCH}")
    (playbook / "gpu_only0.cu").write_text(f"// @launch k(x, out) grid(1) block(32)\n{LAUNCH}")
    return tmp_path


class SessionStory:
    """A session's state, built kernel by kernel: ``("k2", "alpha", 2.0, "k1")`` implements idea ``alpha`` twice as fast."""

    def __init__(self, *kernels: tuple[str, str, float, str], **settings: Any) -> None:
        root = b.first_round(1.0, **settings)
        rooted = [
            replace(event, ideas=(_idea("i1", "root", None),)) if isinstance(event, e.IdeasProposed) else event
            for event in root
        ]
        events: list[e.Event] = [*rooted, e.RoundOpened(1, ("k1",))]
        for number, (kernel, key, speedup, parent) in enumerate(kernels, 2):
            idea = f"i{number}"
            events += [e.IdeasProposed(1, (_idea(idea, key, parent),), False), e.IdeaSelected(idea)]
            events += b.measured_kernel(kernel, speedup, idea=idea, parent=parent, round_number=1)
            events += [e.IdeaImplemented(idea, (kernel,))]
        self.events = events

    def then(self, *events: e.Event) -> SessionState:
        return b.fold(*self.events, *events)


def _idea(idea: str, key: str, parent: str | None, branch: int = 3) -> e.ProposedIdea:
    text = IdeaText(f"Do {key}", CATEGORIES[0], "Because.", None, key)
    return e.ProposedIdea(idea, text, parent, PLAYBOOK, branch)


def propose(
    playbook: Playbook, state: SessionState, count: int = 9, code: Mapping[str, str] | None = None, **changes: Any
) -> dict[str, str | None]:
    """Key → parent of the proposals, in order."""
    current = queries.open_round(state)
    request = IdeaRequest(
        state, current.number if current else 0, current.parents if current else (), count, Dialect.CPP, code or {}
    )
    proposals: tuple[w.Proposal, ...] = asyncio.run(playbook.propose(replace(request, **changes), calls()))
    assert {p.author for p in proposals} <= {PLAYBOOK}
    return {p.text.key: p.parent for p in proposals}


def implement(playbook: Playbook, state: SessionState, idea: str, source: str | None = None) -> Implementation:
    return asyncio.run(playbook.implement(CodeRequest(state, state.ideas[idea], Dialect.CPP, source), calls()))


def test_round_zero_proposes_the_naive_port(folder: Path) -> None:
    state = b.fold(b.opened(), b.prepared(), e.RoundOpened(0, ()))
    assert propose(Playbook(folder), state) == {"root": None}
    assert propose(Playbook(folder), state, dialect=Dialect.CUDA) == {}
    assert propose(Playbook(None), state) == {}


def test_the_fallback_generates_the_naive_port_if_the_playbook_has_none(folder: Path) -> None:
    draft = Draft("generated", Dialect.CUDA, Contract.PLAN, "naive.cu")
    state = b.fold(b.opened(), b.prepared(), e.RoundOpened(0, ()), e.IdeasProposed(0, (_idea("i1", "root", None),), True))
    request = CodeRequest(state, state.ideas["i1"], Dialect.CUDA, None)
    playbook = Playbook(folder, lambda dialect: draft if dialect is Dialect.CUDA else None)
    assert propose(playbook, state, dialect=Dialect.CUDA) == {"root": None}
    assert propose(playbook, state, dialect=Dialect.PYTHON) == {}
    assert asyncio.run(playbook.implement(request, calls())).drafts == (draft,)
    assert [d.name for d in asyncio.run(playbook.implement(replace(request, dialect=Dialect.CPP), calls())).drafts] == [
        "naive.cpp"
    ]
    assert "no naive port" in asyncio.run(Playbook(folder).implement(request, calls())).note


def test_ideas_come_best_predicted_first_with_categories_spread(folder: Path) -> None:
    assert list(propose(Playbook(folder), SessionStory().then())) == ["beta", "gamma", "alpha"]
    assert list(propose(Playbook(folder), SessionStory().then(), count=2)) == ["beta", "gamma"]


def test_an_idea_is_proposed_only_once(folder: Path) -> None:
    state = SessionStory().then(e.IdeasProposed(1, (_idea("i2", "beta", "k1"),), True), e.IdeaRejected("i2", "no"))
    assert list(propose(Playbook(folder), state)) == ["alpha", "gamma"]


def test_the_parent_of_an_idea_is_the_best_kernel_it_builds_on(folder: Path) -> None:
    slow_then_fast = SessionStory(("k2", "alpha", 2.0, "k1"), ("k3", "beta", 3.0, "k1"), ("k4", "gamma", 9.0, "k1"))
    assert propose(Playbook(folder), slow_then_fast.then()) == {"delta": "k3"}
    fast_then_slow = SessionStory(("k2", "alpha", 4.0, "k1"), ("k3", "beta", 3.0, "k1"))
    assert propose(Playbook(folder), fast_then_slow.then())["delta"] == "k2"


def test_a_pruned_kernel_is_not_a_parent(folder: Path) -> None:
    story = SessionStory(("k2", "alpha", 2.0, "k1"), ("k3", "beta", 3.0, "k1"))
    assert propose(Playbook(folder), story.then(e.BranchPruned("k3", "")))["delta"] == "k2"
    assert "delta" not in propose(Playbook(folder), story.then(e.BranchPruned("k3", ""), e.BranchPruned("k2", "")))


def test_a_tuned_kernel_counts_as_the_idea_of_its_parent(folder: Path) -> None:
    story = SessionStory(("k2", "alpha", 2.0, "k1"), ("k3", "tune:k2:1", 5.0, "k2"))
    assert propose(Playbook(folder), story.then())["delta"] == "k3"


def test_without_a_naive_port_a_seed_is_the_parent(folder: Path) -> None:
    root = b.first_round(1.0)
    seeded = [
        e.IdeasProposed(0, (_idea("i1", "seed:k1", None),), True) if isinstance(event, e.IdeasProposed) else event
        for event in root
    ]
    state = b.fold(*seeded, e.RoundOpened(1, ("k1",)))
    assert propose(Playbook(folder), state)["beta"] == "k1"


def test_in_a_sequential_search_only_the_latest_kernel_is_built_on(folder: Path) -> None:
    story = SessionStory(("k2", "alpha", 2.0, "k1"), strategy="sequential")
    assert propose(Playbook(folder), story.then(), parents=("k2",)) == {"delta": "k2"}
    assert "beta" in propose(Playbook(folder), story.then(), parents=("k1",))


def test_the_best_kernels_are_tuned_after_all_playbook_ideas(folder: Path) -> None:
    text = f"{TUNED}{LAUNCH}"
    story = SessionStory(("k2", "alpha", 2.0, "k1"), ("k3", "beta", 3.0, "k1"))
    state = story.then(e.IdeasProposed(1, (_idea("i9", "gamma", "k1"), _idea("i10", "delta", "k3")), True))
    assert propose(Playbook(folder), state, code={"k1": LAUNCH, "k2": text, "k3": LAUNCH}) == {"tune:k2:1": "k2"}
    assert propose(Playbook(folder), story.then(), count=1, code={"k2": text}) == {"delta": "k3"}


def test_every_implementation_comes_before_its_variants(folder: Path) -> None:
    state = SessionStory().then(e.IdeasProposed(1, (_idea("i2", "alpha", "k1", branch=4),), True))
    drafts = implement(Playbook(folder), state, "i2").drafts
    assert [d.name for d in drafts] == ["alpha0.cpp", "alpha1.cpp", "alpha0.cpp", "alpha1.cpp"]
    assert [dict(d.tunables) for d in drafts[:2]] == [{"BLOCK": 4, "UNROLL": 1}] * 2
    assert all(d.tunables != drafts[0].tunables for d in drafts[2:])
    assert all(d.tunables["BLOCK"] * d.tunables["UNROLL"] <= 16 for d in drafts)
    assert drafts == implement(Playbook(folder), state, "i2").drafts


def test_an_edited_idea_keeps_its_implementations_and_uses_its_new_branch(folder: Path) -> None:
    text = replace(_idea("i2", "alpha", "k1").text, title="In my words")
    proposed = e.IdeasProposed(1, (_idea("i2", "alpha", "k1"),), True)
    state = SessionStory().then(proposed, e.IdeaEdited("i2", text, "k1", 1))
    assert [d.name for d in implement(Playbook(folder), state, "i2").drafts] == ["alpha0.cpp"]


def test_a_playbook_does_not_implement_ideas_in_words(folder: Path) -> None:
    state = SessionStory().then(e.IdeasProposed(1, (_idea("i2", "", "k1"),), False))
    made = implement(Playbook(folder), state, "i2")
    assert made.drafts == ()
    assert "--idea i2" in made.note


def test_code_without_a_valid_combination_is_skipped_with_a_note(folder: Path) -> None:
    path = folder / "playbook" / "alpha1.cpp"
    path.write_text(f"// @tune BLOCK = 4\n// @require BLOCK > DIM\n{LAUNCH}")
    state = SessionStory().then(e.IdeasProposed(1, (_idea("i2", "alpha", "k1"),), True))
    made = implement(Playbook(folder), state, "i2")
    assert {d.name for d in made.drafts} == {"alpha0.cpp"}
    assert made.note.startswith("alpha1.cpp: ")
    assert "@require BLOCK > DIM" in made.note


def test_playbook_contents_are_counted_by_dialect(folder: Path) -> None:
    assert available(folder, Dialect.CPP) == Available(True, 4)
    assert available(folder, Dialect.CUDA) == Available(False, 1)
    assert available(folder / "nothing", Dialect.CPP) == Available(False, 0)
