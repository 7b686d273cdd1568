"""What a command that ended advises to do next."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support import builders as b
from support import sessions

from engine.cli.conclusion import next_steps
from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import queries, rules
from engine.domain.folds import advance
from engine.domain.model import FailureKind, Succession
from engine.domain.settings import Limits
from engine.domain.state import IdeaStatus, SessionState
from engine.journal import journal
from engine.journal.lock import WriterLock


def test_more_rounds_are_not_advised_where_no_idea_is_left(tmp_path: Path) -> None:
    """Raising the limit changed nothing: the session stayed ended."""
    state = sessions.whole(tmp_path / "s", limits=Limits(rounds=None, plateau=None))
    assert state.closed == "no further ideas"
    *_, more = next_steps(state, tmp_path, None)
    assert more == f"espalier kernel seed {tmp_path} FILE, then espalier open {tmp_path}: from a kernel of yours"


def test_where_only_parked_ideas_are_left_one_of_them_is_advised(tmp_path: Path) -> None:
    ended = sessions.whole(tmp_path / "s", limits=Limits(rounds=None, plateau=None))
    name = next(reversed(ended.ideas))
    state = replace(ended, ideas={**ended.ideas, name: replace(ended.ideas[name], status=IdeaStatus.PARKED)})
    *_, more = next_steps(state, tmp_path, None)
    assert more == f"espalier idea approve {tmp_path} {name}, then espalier open {tmp_path}: 1 parked idea"
    assert e.SessionReopened() in rules.decide(state, c.SelectIdeas((name,)))


def test_a_kernel_that_claims_more_and_is_not_corroborated_is_to_be_measured_again(tmp_path: Path) -> None:
    ended = sessions.whole(tmp_path / "s", limits=Limits(rounds=1))
    best = queries.incumbent(ended)
    assert best is not None
    name = next(k.id for k in queries.ranked(ended) if k.id != best.id)

    def steps(claim: float) -> str:
        unsure = replace(b.measurement(claim), corroborated=False, doubts=("disturbed",))
        kernel = replace(ended.kernels[name], measurement=unsure)
        return "\n".join(next_steps(replace(ended, kernels={**ended.kernels, name: kernel}), tmp_path, None))

    again = f"espalier kernel remeasure {tmp_path} {name}, then espalier open {tmp_path}"
    assert f"{again}: on an idle machine, as it claims 900×" in steps(900.0)
    assert "remeasure" not in steps(0.001)
    assert "remeasure" not in "\n".join(next_steps(ended, tmp_path, None))


def test_a_kernel_during_whose_work_the_engine_was_killed_twice_is_to_be_measured_again(tmp_path: Path) -> None:
    """Two kills during the naive port's verification end the search: its advice was a kernel of one's own."""
    begun = (b.opened(), b.prepared(), e.RoundOpened(0, ()), b.proposed("i1"), *b.measured_kernel()[:2])
    started = e.WorkStarted("verify:k1:0")
    killed = b.fold(*begun, started, e.SessionResumed((started.work,)), started)
    ended = (*rules.resume_events(killed, ""), e.SessionClosed("no verified kernel to build on"))
    state = advance(killed, b.entries(ended, start=killed.seq + 1))
    again = f"espalier kernel remeasure {tmp_path} k1, then espalier open {tmp_path}"
    assert f"{again}: the engine crashed 2 times during this verify step" in next_steps(state, tmp_path, None)
    crashed = advance(state, b.entries([e.KernelFailed("k1", b.failure(FailureKind.CRASHED))], start=state.seq + 1))
    assert "remeasure" not in "\n".join(next_steps(crashed, tmp_path, None))


def test_of_a_kernel_without_a_parent_the_code_is_advised(tmp_path: Path) -> None:
    """Its differences from a parent, as advised of others, were an error."""
    first = (*b.first_round(), e.IncumbentChanged("k1", "", Succession.FIRST), e.SessionClosed("ended by hand"))
    naive = "\n".join(next_steps(b.fold(*first), tmp_path, None))
    assert f"espalier kernel show {tmp_path} k1 --code: its code" in naive
    assert "--diff" not in naive
    assert "--diff: how it differs" in "\n".join(next_steps(sessions.whole(tmp_path / "s"), tmp_path, None))


@pytest.mark.parametrize(
    ("limits", "options", "raised"),
    [
        (Limits(rounds=None, light=0.05), " --sol none", Limits(rounds=9, light=None)),
        (Limits(rounds=None, kernels=5), " --kernels none", Limits(rounds=9)),
        (Limits(rounds=1), "", Limits(rounds=9)),
    ],
)
def test_the_advised_limits_let_the_session_go_on(limits: Limits, options: str, raised: Limits, tmp_path: Path) -> None:
    """Where SOL, the plateau or another limit had been reached, more rounds alone changed nothing."""
    state = sessions.whole(tmp_path / "s", limits=limits)
    *_, more = next_steps(state, tmp_path, None)
    assert re.search(rf"--rounds \d+{options}, then espalier open", more)
    assert e.SessionReopened() in rules.decide(state, c.SetLimits(raised))


@pytest.mark.parametrize("strategy", ["branching", "adaptive"])
def test_three_more_rounds_are_three_more_than_the_limit_that_was_reached(strategy: str, tmp_path: Path) -> None:
    """The adaptive strategy numbers a round for each of its decisions, and its limit counts rounds of many kernels."""
    limits = Limits(rounds=2, kernels=None, plateau=None, light=None)
    state = b.walk(b.FakeBench(author=b.MODEL), strategy=strategy, ideas=2, branch=2, limits=limits).state
    assert state.closed == "2 of 2 rounds done"
    *_, more = next_steps(state, tmp_path, None)
    assert f"--rounds 5, then espalier open {tmp_path}: three more rounds" in more


def test_no_session_that_another_process_runs_is_advised_to_be_opened(tmp_path: Path) -> None:
    """``open`` is refused then, and what commands leave is done by that process."""
    folder = tmp_path / "s"
    state = sessions.whole(folder, limits=Limits(rounds=1))
    waiting = b.fold(*b.first_round(), b.proposed("i2"))
    lock = WriterLock(folder)
    held, asked = next_steps(replace(state, closed=None), folder, None), next_steps(waiting, folder, None)
    lock.release()
    assert held[-1] == f"espalier follow {folder}: watch it; another process has it open"
    assert f"espalier idea approve {folder} [IDEA ...] or espalier idea reject {folder} IDEA" in asked
    assert "espalier open" not in "\n".join((*held, *asked))
    assert next_steps(replace(state, closed=None), folder, None) == [f"espalier open {folder}: resume the search"]


def test_a_dispatch_that_measured_kernels_promise_is_advised(tmp_path: Path) -> None:
    """The recorded session's race of that dispatch measured 1.236."""
    entries = journal.read(Path(__file__).parents[2] / "sessions" / "gemm_fp8").entries
    ended = next(place for place, entry in enumerate(entries) if isinstance(entry.event, e.SessionClosed))
    before, after = (advance(SessionState(), part) for part in (entries[: ended + 1], entries))
    (step,) = [words for words in next_steps(before, tmp_path, None) if "kernel dispatch" in words]
    assert (
        step
        == f"espalier kernel dispatch {tmp_path}, then espalier open {tmp_path}: k3 and k4 by shape, 1.24× of k3 as measured"
    )
    assert not [words for words in next_steps(after, tmp_path, None) if "kernel dispatch" in words], "k7 is that dispatch"
