"""Sessions on a suite: verdicts, races and incumbents by the geometric mean, in the journal, in prompts and texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import builders, sessions
from support.sessions import on_suite, opened, ports

from engine.cli.kernel_show import kernel_fields
from engine.domain import columns, predictions, queries, suite
from engine.domain.commands import Command
from engine.domain.errors import CommandRejected
from engine.domain.events import Entry, KernelRaced
from engine.domain.folds import advance
from engine.domain.model import ENGINE, Workload
from engine.domain.rules.lifecycle import parents
from engine.domain.settings import Limits
from engine.domain.state import SessionState, Stage
from engine.ideas.prompts import context
from engine.journal.blobs import Blobs
from engine.journal.codec import decode, encode
from engine.journal.journal import read
from engine.report.page.content import page
from engine.report.text.kernel import kernel_lines
from engine.report.text.lines import plain
from engine.report.text.tree import heading
from engine.session.dispatch import dispatch_command, dispatch_draft
from engine.session.fake_bench import FakeBench
from engine.session.live import LiveSession
from engine.session.seeds import recorded_code
from engine.session.steer import Steering, steer
from engine.toolchain.dispatch import parse_dispatch

NAMES = ("full", "small")


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[SessionState, tuple[Entry, ...]]:
    folder = tmp_path_factory.mktemp("session")

    async def search() -> None:
        bench = FakeBench(Blobs(folder).put, workloads=NAMES)
        async with LiveSession.create(folder, on_suite(opened()), ports(folder, bench=bench)) as live:
            await live.run()

    sessions.run(search)
    entries = read(folder).entries
    return advance(SessionState(), entries), entries


Searched = tuple[SessionState, tuple[Entry, ...]]


def best(state: SessionState) -> builders.m.Measurement:
    kernel = queries.incumbent(state)
    assert kernel is not None
    assert kernel.measurement is not None
    return kernel.measurement


def test_the_incumbent_has_the_best_geometric_mean(searched: Searched) -> None:
    state, _ = searched
    measured = best(state)
    assert [one.workload for one in measured.by_workload] == list(NAMES)
    means = {
        k.id: suite.geometric_mean([w.speedup["eager"] for w in k.measurement.by_workload]).value
        for k in queries.verified(state)
        if k.measurement is not None
    }
    incumbent = queries.incumbent(state)
    assert incumbent is not None
    assert incumbent.id == max(means, key=lambda name: means[name])
    assert measured.speedup["eager"].value == pytest.approx(means[incumbent.id])


def test_a_race_keeps_the_ratio_on_each_workload(searched: Searched) -> None:
    _, entries = searched
    races = [entry.event for entry in entries if isinstance(entry.event, KernelRaced)]
    assert races
    for race in races:
        assert [one.workload for one in race.by_workload] == list(NAMES)
        mean = suite.geometric_mean([one.ratio for one in race.by_workload]).value
        assert race.ratio is not None
        assert race.ratio.value == pytest.approx(mean)


def test_the_journal_keeps_it_all(searched: Searched) -> None:
    _, entries = searched
    assert [decode(encode(entry)) for entry in entries] == list(entries)


def test_prompts_show_the_suite_and_where_a_kernel_loses(searched: Searched) -> None:
    state, _ = searched
    facts = context.workload_facts(state)
    assert "Suite `both`: the kernel is compiled once for each of these 2 workloads" in facts
    assert "- `small`: batch_size = 128, dim = 16384; eager 1000 us" in facts
    for kernel in queries.verified(state):
        told = list(context.evidence(state, kernel))
        assert sum(line.startswith("on `") for line in told) == len(NAMES)
        assert [line.split("`")[1] for line in told if line.startswith("loses on")] == [
            one.workload for one in columns.behind(state, kernel)
        ]
    assert any(columns.behind(state, kernel) for kernel in queries.verified(state))


def test_kernel_show_has_a_row_for_each_workload(searched: Searched) -> None:
    state, _ = searched
    kernel = queries.incumbent(state)
    assert kernel is not None
    lines = [plain(line) for line in kernel_lines(state, kernel)]
    worst = suite.worst(best(state), "eager")
    assert worst is not None
    assert any("geometric mean of 2 workloads, worst " + worst.workload in line for line in lines)
    assert [line.split()[0] for line in lines[-2:]] == list(NAMES)
    assert [line.endswith("worst") for line in lines[-2:]] == [name == worst.workload for name in NAMES]
    fields = kernel_fields(state, kernel)["workloads"]
    assert isinstance(fields, tuple)
    assert len(fields) == len(NAMES)


def test_the_heading_and_the_report_name_the_suite(searched: Searched) -> None:
    state, entries = searched
    assert "suite both on cpu" in plain(heading(state))
    facts = dict(page("s", entries, lambda blob: b"").facts)
    assert facts["workloads"] == "suite both: full, small; speedups are geometric means"


SHAPES = tuple(Workload(f"rows_{rows}", {"batch_size": rows, "dim": 64}) for rows in (1, 8, 64, 512, 4096))
SHAPE_NAMES = [one.name for one in SHAPES]


def run_on_shapes(folder: Path, kernels: int | None = None, *, new: bool = True) -> SessionState:
    """A search on autopilot over five shapes, to its end, or to this many kernels."""
    asked = opened(limits=Limits(rounds=3, kernels=kernels))
    asked = replace(asked, problem=replace(asked.problem, workloads=(*asked.problem.workloads, *SHAPES)))

    async def search() -> None:
        given = ports(folder, bench=FakeBench(Blobs(folder).put, workloads=SHAPE_NAMES))
        live = LiveSession.create(folder, on_suite(asked, SHAPE_NAMES), given) if new else LiveSession.resume(folder, given)
        async with live as session:
            await session.run()

    sessions.run(search)
    return steer(folder, lambda _: []).after


def test_the_search_combines_the_best_kernels_of_the_shapes(tmp_path: Path) -> None:
    state = run_on_shapes(tmp_path)
    made = next(kernel for kernel in state.kernels.values() if len(kernel.members) > 1)
    idea = state.ideas[made.idea]
    assert (made.author, idea.author, idea.text.key) == (ENGINE, ENGINE, "dispatch:k6,k10")
    assert {one.member for one in made.choices} == set(made.members)
    assert made.stage is Stage.MEASURED
    assert queries.incumbent(state) == made
    assert predictions.best_gain(state, idea) is not None, "what was promised is compared with what was measured"
    assert made.id not in {kernel.id for kernel in queries.frontier(state)}
    assert made.id not in parents(state)
    assert state.closed is not None
    entries = read(tmp_path).entries
    assert [decode(encode(entry)) for entry in entries] == list(entries)


@pytest.mark.slow
def test_a_dispatch_of_the_best_kernels_is_judged_and_is_never_a_parent(tmp_path: Path) -> None:
    searched = run_on_shapes(tmp_path, 10)
    base = columns.best_single(searched)
    chosen = {one.name: kernel.id for one, kernel in columns.dispatched(searched)}
    assert base is not None
    assert base.id in chosen.values()
    assert len(set(chosen.values())) > 1

    def dispatch(writer: Steering) -> list[Command]:
        return [dispatch_command(writer.state, lambda one: recorded_code(tmp_path, one), writer.store_blob)]

    seeded = steer(tmp_path, dispatch).after
    made = next(kernel for kernel in seeded.kernels.values() if kernel.members)
    assert (made.parent, set(made.members)) == (base.id, set(chosen.values()))
    found = parse_dispatch(recorded_code(tmp_path, made).text, made.dialect)
    assert {one.name: found.choose(one.settings).member.name for one in columns.workloads(seeded)} == chosen
    with pytest.raises(CommandRejected, match=f"{made.id} is the dispatch of"):
        steer(tmp_path, dispatch)

    after = run_on_shapes(tmp_path, new=False)
    assert after.kernels[made.id].stage is Stage.MEASURED
    assert made.id not in {kernel.id for kernel in queries.frontier(after)}
    assert made.id not in parents(after)
    assert f"of {', '.join(made.members)}" in "\n".join(map(plain, kernel_lines(after, after.kernels[made.id])))
    assert [decode(encode(entry)) for entry in read(tmp_path).entries] == list(read(tmp_path).entries)


def test_a_session_on_one_workload_has_no_dispatch(tmp_path: Path) -> None:
    state = sessions.whole(tmp_path / "s")
    with pytest.raises(CommandRejected, match="this session has one workload: run it with --suite"):
        dispatch_command(state, lambda one: recorded_code(tmp_path / "s", one), lambda data: "")


def test_a_dispatch_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    """The session goes on without it."""
    state = run_on_shapes(tmp_path, 10)
    assert state.opened is not None
    alike = tuple(replace(one, settings={}) for one in state.opened.problem.workloads)
    undecided = replace(state, opened=replace(state.opened, problem=replace(state.opened.problem, workloads=alike)))
    found = dispatch_draft(undecided, lambda one: recorded_code(tmp_path, one), lambda data: "")
    assert (found.drafts, found.note) == (
        (),
        "the workloads of the suite differ in no setting that each of them states: nothing can decide",
    )
