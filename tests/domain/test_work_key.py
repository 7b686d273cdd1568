"""The text forms of work keys, authors and modes in the journal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain import work as w
from engine.domain.model import ENGINE, ENGINEER, Author
from engine.domain.settings import Mode

SPELLED = {
    "prepare": w.Prepare(),
    "propose:3": w.Propose(3, ("k1",), 2),
    "implement:i2": w.Implement("i2"),
    "build:k1:0": w.Build("k1", 0),
    "verify:k1:1": w.Verify("k1", 1),
    "measure:k1:0": w.Measure("k1", 0),
    "repair:k1:2": w.Repair("k1", 2),
    "sanitize:k1:0": w.Sanitize("k1", 0),
    "race:k2:k1:1": w.Race("k2", "k1", 1),
    "profile:k1:0": w.ReadCounters("k1", 0),
    "tune:k1:0": w.Tune("k1", 0),
}


@pytest.mark.parametrize(("text", "work"), SPELLED.items(), ids=SPELLED)
def test_work_keys_have_the_journal_format(text: str, work: w.Work) -> None:
    assert str(work.key) == text
    assert w.WorkKey.parse(text) == work.key


def test_a_work_key_has_a_subject() -> None:
    subjects = [work.key.subject for work in SPELLED.values()]
    assert subjects == ["", "3", "i2", "k1", "k1", "k1", "k1", "k1", "k2", "k1", "k1"]
    assert w.WorkKey.parse("race:k2:k1:1").subjects == ("k2", "k1")


@given(st.text())
def test_every_text_parses_as_a_work_key(text: str) -> None:
    key = w.WorkKey.parse(text)
    assert w.WorkKey.parse(str(key)) == key


@pytest.mark.parametrize(
    ("name", "provider", "short", "model"),
    [
        ("engineer", "", "engineer", False),
        ("playbook", "", "playbook", False),
        ("paste", "", "paste", True),
        ("openai:gpt-5", "openai", "gpt-5", True),
        ("command:llm -m a:b", "command", "llm -m a:b", True),
    ],
)
def test_authors_have_a_provider_and_a_short_name(name: str, provider: str, short: str, model: bool) -> None:
    author = Author(name)
    assert (author.provider, author.short, author.is_model, str(author)) == (provider, short, model, name)


def test_the_engine_and_the_engineer() -> None:
    assert [(author.is_engine, author.is_engineer) for author in (ENGINE, ENGINEER, Author("script"))] == [
        (True, False), (False, True), (False, False),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["ask", "ask:1", "ask:3600", "autopilot"])
def test_modes_round_trip(text: str) -> None:
    mode = Mode.parse(text)
    assert str(mode) == text
    assert mode is not None
    assert mode.is_autopilot is (text == "autopilot")


@pytest.mark.parametrize("text", ["", "auto", "ask:", "ask:0", "ask:-1", "ask:1.5", "ask:²", "autopilot:3"])
def test_invalid_modes_are_rejected(text: str) -> None:
    assert Mode.parse(text) is None
