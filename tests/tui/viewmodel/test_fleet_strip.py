"""The strip of workers: what each does, its rate, what waits, and a fleet that is larger than the strip."""

from __future__ import annotations

import pytest
from support import builders as b

from engine.domain import events as e
from engine.domain.folds import advance
from engine.domain.model import Interval
from engine.domain.state import SessionState
from engine.report.facts.fleet import fleet_rows
from tui.viewmodel import fleet


def state(*more: e.Event, workers: int = 2) -> SessionState:
    joined = [e.WorkerJoined(f"cuda:{n}", b.device(), "node7") for n in range(workers)]
    return advance(SessionState(), b.entries([b.opened(), *joined, *more]))


def drawn(shown: SessionState) -> list[str]:
    return ["".join(cell.text for cell in one.cells) for one in fleet.strip(shown)]


def test_without_a_fleet_there_is_no_strip() -> None:
    alone = advance(SessionState(), b.entries([b.opened()]))
    assert fleet.height(alone) == fleet.height(None) == 0
    assert fleet.strip(alone) == ()
    assert fleet_rows(alone, alone.at) is None


def test_each_worker_has_a_line_with_what_it_does() -> None:
    began = [e.WorkStarted("prepare"), e.WorkAssigned("prepare", "cuda:1", 1980, 54)]
    first, second = drawn(state(*began))
    assert first.split() == ["cuda:0", "idle", "0/min,", "0", "verdicts", "two", "cores"]
    assert "prepare" in second
    assert "1980 MHz, 54 °C" in second


def test_a_verdict_counts_for_its_worker_and_ends_its_work() -> None:
    work = [e.WorkStarted("measure:k1:0"), e.WorkAssigned("measure:k1:0", "cuda:0")]
    shown = state(b.prepared(), *work, e.KernelMeasured("k1", b.measurement(2.0), 1.0, "cuda:0"))
    rows = fleet_rows(shown, shown.at)
    assert rows is not None
    assert [one.verdicts for one in rows.workers] == [1, 0]
    assert rows.workers[0].per_minute > 0


def test_a_lost_worker_says_why_until_it_is_back() -> None:
    lost = e.WorkerLost("cuda:1", "its process was killed by signal 9")
    assert "lost: its process was killed by signal 9" in drawn(state(lost))[1]
    back = e.WorkerJoined("cuda:1", b.device(), "node7")
    assert "idle" in drawn(state(lost, back))[1]
    rows = fleet_rows(state(lost, back), 0.0)
    assert rows is not None
    assert rows.workers[1].losses == 1


@pytest.mark.parametrize(("workers", "height"), [(1, 1), (4, 4), (5, 4), (64, 4)])
def test_a_large_fleet_shares_the_last_line(workers: int, height: int) -> None:
    shown = state(e.WorkerLost(f"cuda:{workers - 1}", "gone"), workers=workers)
    lines = drawn(shown)
    assert len(lines) == fleet.height(shown) == height
    if workers > height:
        assert lines[-1].startswith(f"{workers - 3} more: 0 at work, {workers - 4} idle, 1 lost")


def test_the_rate_is_that_of_the_last_five_minutes() -> None:
    verdicts = [e.KernelMeasured("k1", b.measurement(2.0), 1.0, "cuda:0")] * 40
    shown = state(e.WorkerPrepared("cuda:0", {"eager": Interval(1, 1, 1)}, Interval(1, 1, 1)), *verdicts)
    rows = fleet_rows(shown, shown.at)
    later = fleet_rows(shown, shown.at + 1000)
    assert rows is not None
    assert later is not None
    assert rows.workers[0].verdicts == 40
    assert rows.workers[0].per_minute > 0
    assert later.workers[0].per_minute == 0
