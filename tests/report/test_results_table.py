"""The table of results marks every time that is no result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import builders as b

from benchmarks import results
from engine.cli.exit_codes import DONE, DOUBTED, FAILED
from engine.domain import work as w
from engine.domain.model import Contract, Dialect, Failure, FailureKind
from engine.journal.bank import BankEntry
from engine.session.workbench import KernelTrial

DOUBT = "not corroborated: every process pair was disturbed by CPU contention"
UNSURE = replace(b.measurement(2.0), corroborated=False, doubts=(DOUBT,))
ENTRY = BankEntry(
    "softmax", "small", Dialect.CPP, Contract.HOST, "two cores", "eager", b.interval(2.0), "Fuse passes", "a.cpp", "ab" * 32,
    Path("a.cpp"), {}, Path("s"), "k2",
)  # fmt: skip
FINALS: dict[str, Any] = {
    "measured": w.Measured(b.measurement(2.0), 1.0),
    "not corroborated": w.Measured(UNSURE, 1.0),
    "quarantined": w.Suspected(("names files",), None, b.measurement(9.0), 1.0),
    "failed": w.Failed(Failure(FailureKind.MISMATCH, "wrong")),
}


def tried(final: str) -> KernelTrial:
    return KernelTrial(FINALS[final], b.verification(), 0.1, 0.2, 0.3)


def row(final: str) -> results.Row:
    trial = tried(final)
    return results.Row((), results.doubts(trial), trial.measurement is not None, bool(results.doubts(trial)))


@pytest.mark.parametrize(
    ("final", "time", "ratio"),
    [
        ("measured", "1.50 ms", "2.00× [1.96, 2.04]"),
        ("not corroborated", "1.50 ms, not corroborated", "(2.00× [1.96, 2.04])"),
        ("quarantined", "quarantined: names files", ""),
        ("failed", "failed: wrong", ""),
    ],
)
def test_a_row_gives_no_doubted_figure_as_a_result(final: str, time: str, ratio: str) -> None:
    cells = results.cells(ENTRY, tried(final), ("eager",))
    assert (cells[3].split(" (")[0], cells[4]) == (time, ratio)


@pytest.mark.parametrize(
    ("finals", "status"),
    [
        (["measured"], DONE),
        (["measured", "not corroborated"], DOUBTED),
        (["quarantined", "measured"], DOUBTED),
        (["quarantined", "failed"], FAILED),
        ([], FAILED),
    ],
)
def test_the_exit_status_tells_doubt_from_failure(finals: list[str], status: int) -> None:
    assert results.exit_status([row(final) for final in finals]) == status


def test_every_doubt_is_printed_below_the_table() -> None:
    assert [results.doubts(tried(final)) for final in FINALS] == [(), (DOUBT,), ("names files",), ()]


def test_every_shipped_incumbent_is_measured_on_what_its_session_judged_it_on() -> None:
    sessions = Path(__file__).resolve().parents[2] / "sessions"
    leaders = list(results.leaders(sessions, []))
    assert len(leaders) == len([one for one in sessions.iterdir() if not one.name.endswith("_autopilot")])
    found = {one.problem: results.assignment_of(one, "cuda:0", ("eager",), fresh=True) for one in leaders}
    shapes = {problem: (one.suite, len(one.workloads)) for problem, one in found.items()}
    assert shapes["rmsnorm_bf16"] == ("models", 8)
    assert shapes["softmax"] == ("", 1)
