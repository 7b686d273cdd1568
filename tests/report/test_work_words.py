"""Work in words, as progress lines, headers and notices name it: no line for people shows a key of the journal."""

from __future__ import annotations

import pytest
from support import builders as b

from engine.domain import events as e
from engine.domain.model import CallRole
from engine.domain.state import SessionState
from engine.domain.work_key import WorkKey, WorkKind
from engine.report.text import progress
from engine.report.text.lines import plain
from engine.report.text.work import work_words


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("build:k3:0", "building k3"), ("race:k2:k1:0", "racing k2, k1"), ("sustain:k3", "measuring k3 back to back"),
        ("tune:k3", "tuning k3"), ("propose:2", "proposing ideas for round 2"), ("prepare", "preparing the session"),
        ("simmer:k3", "simmer k3"),
    ],
)  # fmt: skip
def test_work_is_named_by_what_it_does(key: str, words: str) -> None:
    """Also of a kind that only a newer program knows."""
    assert work_words(WorkKey.parse(key)) == words


@pytest.mark.parametrize("kind", WorkKind)
def test_every_kind_of_work_has_words(kind: WorkKind) -> None:
    assert not work_words(WorkKey(kind, ("k1",))).startswith(f"{kind} ")


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (e.WorkFailed("build:k1:0", "no compiler"), "building k1 failed: no compiler"),
        (e.WorkFailed("propose:1", "no network"), "proposing ideas for round 1 failed: no network"),
        (e.WorkRetried(("build:k1:0", "verify:k2:0")), "retrying: building k1, verifying k2"),
        (e.WorkRetried(()), "retrying the search"),
        (e.SessionResumed(("build:k1:0", "race:k2:k1:0"), ""),
         "session resumed; interrupted, begins again: building k1, racing k2, k1"),
        (e.SessionResumed((), "a torn line was cut off"), "session resumed; a torn line was cut off"),
        (e.SessionResumed((), ""), "session resumed"),
        (e.WorkRequeued("verify:k2:0", "gpu1"), "verifying k2 goes to another worker: gpu1 was lost"),
        (e.BudgetReached("implement:i2", "$5 are spent"), "call skipped: $5 are spent (writing code for i2)"),
        (e.CallStarted("c1", "propose:1", CallRole.IDEAS, "paste", b.digest("p")), "c1 awaits your answer: ideas for round 1"),
        (e.CallStarted("c1", "implement:i2", CallRole.CODE, "paste", b.digest("p")), "c1 awaits your answer: code for i2"),
    ],
)  # fmt: skip
def test_progress_lines_name_work_in_words(event: e.Event, words: str) -> None:
    state = SessionState()
    _, told = progress.entry_lines(state, b.entries([event], start=1))
    assert [plain(spans) for _, spans in told] == [words]
