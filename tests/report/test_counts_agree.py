"""How many kernels are verified: the same figures in every list, page and object that tells it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.domain import queries
from engine.journal import journal, store
from engine.report.facts.summary import summarise
from engine.report.page.content import page
from engine.report.text.rounds import counted_rounds
from tui.viewmodel.preview import session_facts

SESSIONS = Path(__file__).resolve().parents[2] / "sessions"


@pytest.mark.parametrize(("strategy", "words"), [("adaptive", "3 decisions"), ("branching", "3 rounds"), ("", "3 rounds")])
def test_rounds_of_the_adaptive_strategy_are_counted_as_decisions(strategy: str, words: str) -> None:
    assert counted_rounds(3, strategy) == words


@pytest.mark.parametrize("name", ["softmax", "conv2d", "conv2d_autopilot", "gqa_decode_bf16"])
def test_lists_pages_and_objects_count_the_same_kernels(name: str) -> None:
    folder = SESSIONS / name
    entries, state = journal.read(folder).entries, store.state_of(folder)
    verified, kernels = len(queries.verified(state)), len(state.kernels)
    row, found = store.summary(folder), summarise(state, folder)
    assert (row.verified, row.kernels) == (found.verified, found.kernels) == (verified, kernels)
    preview = "\n".join(line.text for line in session_facts(name, entries, state).lines)
    rounds = counted_rounds(row.rounds, row.strategy)
    assert f"{rounds} · {verified} of {kernels} kernels verified" in preview
    search = dict(page(name, entries, lambda _: b"").facts)["search"]
    assert search.startswith(f"{rounds}, {kernels} kernels: {verified} verified, ")
    assert sum(map(int, re.findall(r"(\d+) (?:verified|failed|cancelled|in quarantine)", search))) == kernels
