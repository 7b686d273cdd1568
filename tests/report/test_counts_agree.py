"""How many kernels are verified: the same figures in every list, page and object that tells it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.domain import queries
from engine.journal import journal, store
from engine.report.facts.summary import summarise
from engine.report.page.content import page
from tui.viewmodel.preview import session_facts

SESSIONS = Path(__file__).resolve().parents[2] / "sessions"


@pytest.mark.parametrize("name", ["softmax", "conv2d", "conv2d_autopilot", "gqa_decode_bf16"])
def test_lists_pages_and_objects_count_the_same_kernels(name: str) -> None:
    folder = SESSIONS / name
    entries, state = journal.read(folder).entries, store.state_of(folder)
    verified, kernels = len(queries.verified(state)), len(state.kernels)
    row, found = store.summary(folder), summarise(state, folder)
    assert (row.verified, row.kernels) == (found.verified, found.kernels) == (verified, kernels)
    preview = "\n".join(line.text for line in session_facts(name, entries, state).lines)
    assert f"{row.rounds} rounds · {verified} of {kernels} kernels verified" in preview
    search = dict(page(name, entries, lambda _: b"").facts)["search"]
    assert search.startswith(f"{row.rounds} rounds, {kernels} kernels: {verified} verified, ")
    assert sum(map(int, re.findall(r"(\d+) (?:verified|failed|cancelled|in quarantine)", search))) == kernels
