"""Profiles as text, their comparison with the parent's, and how they are recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import builders as b

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import rules
from engine.domain.errors import CommandRejected
from engine.domain.folds import advance
from engine.domain.model import ENGINE
from engine.domain.profile import Profile, line, rows
from engine.domain.state import SessionState

FOUND = Profile(
    0, "ncu", "NVIDIA H200", 1, {"duration_us": 812.345, "dram_percent": 86.5, "registers": 32.0, "shared_bytes": 3072.0},
    {"long scoreboard": 60.0, "barrier": 30.0, "wait": 5.0, "sleeping": 1.0},
)  # fmt: skip
PARENT = replace(FOUND, metrics={**FOUND.metrics, "duration_us": 1000.0}, stalls={"long scoreboard": 80.0})


def state(*more: e.Event) -> SessionState:
    story = (
        b.opened(), b.prepared(), e.RoundOpened(0, ()), b.proposed("i1"), e.IdeaSelected("i1"), b.drafted("k1"),
        e.IdeaImplemented("i1", ("k1",)), *more,
    )  # fmt: skip
    return advance(SessionState(), tuple(e.Entry(n, b.START + n, ENGINE, event) for n, event in enumerate(story)))


def test_metrics_as_text_with_the_parents_values() -> None:
    assert line(FOUND) == (
        "duration 812.3 us, memory throughput 86%, registers a thread 32, shared memory a block 3,072 bytes, "
        "stalls: long scoreboard 60%, stalls: barrier 30%, stalls: wait 5%"
    )
    moved = {row.label: row.moved for row in rows(FOUND, PARENT)}
    assert moved["duration"] == "from 1000 us"
    assert moved["registers a thread"] == "unchanged"
    assert moved["stalls: long scoreboard"] == "from 80%"
    assert moved["stalls: barrier"] == "from 0%", "the parent's warps did not wait for that"


def test_another_device_and_an_unprofiled_parent_are_not_compared() -> None:
    for before in (None, replace(PARENT, device="NVIDIA A100"), Profile(0, note="no ncu")):
        assert not any(row.moved for row in rows(FOUND, before))


def test_a_failed_profile_says_why() -> None:
    assert line(Profile(0, note="no ncu")) == "counters not read: no ncu"


def test_a_profile_is_kept_with_its_kernel() -> None:
    (event,) = rules.decide(state(), c.RecordProfile("k1", FOUND))
    assert state(event).kernels["k1"].profile == FOUND
    with pytest.raises(CommandRejected):
        rules.decide(state(), c.RecordProfile("k9", FOUND))


def test_a_failed_profile_does_not_replace_an_earlier_one_and_a_new_one_does() -> None:
    first, refused = e.KernelProfiled("k1", FOUND), e.KernelProfiled("k1", Profile(0, note="no ncu"))
    assert state(refused).kernels["k1"].profile == Profile(0, note="no ncu")
    assert state(first, refused).kernels["k1"].profile == FOUND
    assert state(first, e.KernelProfiled("k1", PARENT)).kernels["k1"].profile == PARENT


def test_a_profile_belongs_to_one_attempt() -> None:
    failed = e.AttemptFailed("k1", 0, b.failure(), 0.25)
    revised = e.AttemptRevised("k1", 1, b.digest("new source"))
    assert state(e.KernelProfiled("k1", FOUND), failed, revised).kernels["k1"].profile is None
    assert state(failed, revised, e.KernelProfiled("k1", FOUND)).kernels["k1"].profile is None, "of an earlier attempt"
