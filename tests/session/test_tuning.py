"""Tuning on each workload of a suite: in a session, on request and before it closes; in texts, tables and dispatches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import sessions
from support.scripted import ScriptedProposer
from support.sessions import on_suite, opened, ports

from engine.domain import columns, queries, rules
from engine.domain import commands as c
from engine.domain import events as e
from engine.domain.errors import CommandRejected
from engine.domain.model import Contract, Dialect, Draft, Workload, WorkloadChoice
from engine.domain.settings import Limits
from engine.domain.state import Kernel, SessionState, Stage
from engine.journal.blobs import Blobs
from engine.journal.codec import decode, encode
from engine.journal.journal import read
from engine.report.page.content import page
from engine.report.text.kernel import kernel_lines
from engine.report.text.lines import plain
from engine.session import fake_bench
from engine.session.dispatch import dispatch_command
from engine.session.fake_bench import FakeBench
from engine.session.live import LiveSession
from engine.session.seeds import recorded_code
from engine.session.steer import steer
from engine.toolchain.dispatch import is_dispatch, parse_dispatch
from tui.viewmodel.workload_table import workload_table

SHAPES = tuple(Workload(f"rows_{rows}", {"batch_size": rows, "dim": 64}) for rows in (1, 8, 64))
NAMES = [one.name for one in SHAPES]
BEST = {"rows_1": 1, "rows_8": 4, "rows_64": 8}
"""The fastest value of LANES on each workload."""
CODE = sessions.source("tunable").replace("{}", "{ /* LANES */ }")
TUNABLE = f"// @tune LANES = 2, 1, 4, 8\n{CODE}"
PLAIN = sessions.draft("plain", "time_us = 900")
SCRIPT = ScriptedProposer(
    rounds={0: (sessions.proposal("root", None),), 1: (sessions.proposal("lanes", "k1"),)},
    drafts={"root": (PLAIN,), "lanes": (Draft(TUNABLE, Dialect.CPP, Contract.HOST, "lanes.cpp", {"LANES": 2}),)},
)


def time_us(kernel: Kernel, code: str, workload: str = "") -> float:
    """A kernel with LANES is the faster the nearer its value is to the best one of the workload."""
    if "LANES" not in code:
        return 900.0
    chosen = kernel.tunables
    if is_dispatch(code, Dialect.CPP):
        shape = next(one.settings for one in SHAPES if one.name == workload)
        chosen = parse_dispatch(code, Dialect.CPP).choose(shape).tunables
    return 200.0 * (1.0 + abs(math.log2(chosen["LANES"] / BEST.get(workload, 2))))


Searched = Callable[..., SessionState]


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Searched:
    """A whole session on the suite, by the script; ``act`` steers it before it goes on."""
    monkeypatch.setattr(fake_bench, "_time_us", time_us)
    asked = opened()
    asked = on_suite(replace(asked, problem=replace(asked.problem, workloads=(*asked.problem.workloads, *SHAPES))), NAMES)

    async def run(new: bool, limits: Limits | None) -> None:
        bench = FakeBench(Blobs(tmp_path).put, workloads=NAMES)
        made = ports(tmp_path, bench=bench, ideas=SCRIPT)
        begun = replace(asked, settings=replace(asked.settings, limits=limits)) if limits is not None else asked
        live = LiveSession.create(tmp_path, begun, made) if new else LiveSession.resume(tmp_path, made)
        async with live as session:
            await session.run()

    def searched(*, new: bool = True, limits: Limits | None = None) -> SessionState:
        sessions.run(lambda: run(new, limits))
        return steer(tmp_path, lambda _: []).after

    return searched


def test_a_session_tunes_its_best_kernel_on_each_workload_before_it_closes(search: Searched, tmp_path: Path) -> None:
    state = search()
    entries = read(tmp_path).entries
    (tuned,) = [entry.event for entry in entries if isinstance(entry.event, e.KernelTuned)]
    assert (tuned.kernel, {one.workload: one.tunables["LANES"] for one in tuned.by_workload}) == ("k2", BEST)
    assert tuned.trials <= 12
    made = state.kernels["k3"]
    assert (made.parent, made.members, made.stage) == ("k2", ("k2",), Stage.MEASURED)
    assert made.choices == tuple(WorkloadChoice(name, "k2", {"LANES": lanes}) for name, lanes in BEST.items())
    best = queries.incumbent(state)
    assert best is not None
    assert best.id == "k3"
    assert state.closed is not None
    assert "k3" not in {kernel.id for kernel in queries.frontier(state)}, "further ideas go to the code that was tuned"
    assert [decode(encode(entry)) for entry in entries] == list(entries)


def test_what_runs_on_each_workload_is_in_every_text(search: Searched, tmp_path: Path) -> None:
    state = search()
    lines = [plain(line) for line in kernel_lines(state, state.kernels["k3"])]
    assert [line.split()[-2:] for line in lines[-3:]] == [["k2", f"LANES={BEST[name]}"] for name in NAMES]
    assert any("tuned" in line and "rows_64 LANES=8 " in line for line in map(plain, kernel_lines(state, state.kernels["k2"])))
    table = workload_table(state)
    row = next(row for row in table.rows if row.kernel == "k3")
    assert [cell.text.split()[-1] for cell in row.cells[1:]] == [str(BEST[name]) for name in NAMES]
    facts = dict(page("s", read(tmp_path).entries, lambda blob: b"").facts)
    assert facts["k3 on rows_64"] == "k2 LANES=8"


def test_a_dispatch_takes_the_values_of_a_tuned_kernel(search: Searched, tmp_path: Path) -> None:
    state = search()
    base = columns.best_single(state)
    assert base is not None
    assert base.id == "k3"
    with pytest.raises(CommandRejected, match=r"no cpp kernel is faster than k3 on any workload by its interval"):
        dispatch_command(state, lambda one: recorded_code(tmp_path, one), lambda data: "")


def test_a_kernel_is_tuned_once_and_only_where_it_can_be(search: Searched) -> None:
    state = search()
    for kernel, reason in {
        "k1": "k1 declares no tunables",
        "k2": "k2 was tuned already: remeasure it to tune it again",
        "k3": "k3 is a dispatch: name one of its members",
    }.items():
        with pytest.raises(CommandRejected, match=reason):
            rules.decide(state, c.TuneKernel(kernel))
    assert state.opened is not None
    single = replace(state, opened=replace(state.opened, settings=replace(state.opened.settings, suite="")))
    with pytest.raises(CommandRejected, match="this session has one workload"):
        rules.decide(single, c.TuneKernel("k2"))


def test_a_full_session_is_not_tuned_unless_someone_asks(search: Searched, tmp_path: Path) -> None:
    state = search(limits=Limits(rounds=3, kernels=2))
    assert (list(state.kernels), state.kernels["k2"].tuning) == (["k1", "k2"], None)
    asked = steer(tmp_path, lambda _: [c.TuneKernel("k2")]).after
    assert (asked.tunings, asked.closed) == (("k2",), None)
    after = search(new=False)
    assert (after.tunings, after.kernels["k3"].stage, after.closed is None) == ((), Stage.MEASURED, False)


def test_a_tuning_that_fails_is_said_and_holds_up_nothing(search: Searched, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(SCRIPT.drafts["lanes"][0], source=CODE.replace("LANES", "LANES WIDE"))
    monkeypatch.setitem(SCRIPT.drafts, "lanes", (broken,))
    state = search()
    tuning = state.kernels["k2"].tuning
    assert tuning is not None
    assert "nothing to tune" in tuning.note
    assert state.closed is not None
