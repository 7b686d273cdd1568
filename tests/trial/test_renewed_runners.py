"""Plan kernels on a GPU, one after the other in the same process: each finds a fresh context, and nothing of those before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from support.emulated_driver import LEFT, EmulatedHost, LentByDescriptor
from support.plan_bench import PlanBench as Bench
from support.plan_bench import pid_of

from engine.domain.model import FailureKind
from engine.trial.judge.failures import TrialFailed
from engine.trial.judge.runners.runner_client import RunnerClient
from engine.trial.shared.layout import POISONS

MOST = 3


@pytest.fixture(scope="module")
def host() -> Iterator[EmulatedHost]:
    made = EmulatedHost()
    made.start()
    yield made
    made.close()


@pytest.fixture
def bench(host: EmulatedHost) -> Iterator[Bench]:
    made = Bench(host, LentByDescriptor, MOST)
    yield made
    made.close()


def has_ended(bench: Bench, pid: int) -> bool:
    bench.host.settle()
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_the_next_kernel_gets_the_same_process_and_nothing_of_the_last(bench: Bench) -> None:
    """Its context, its variable, what it left in memory, and what it was lent are gone."""
    with bench.runner() as first:
        pid = pid_of(first)
        runs, context, found, mapped = bench.call(first, b"count", calls=3)[:4]
        assert (runs, context, mapped) == (3, 1, 2)
        assert found == LEFT, "its own second call finds it"
        assert bench.call(first, b"count")[1] == 1, "the same kernel on another shape goes on"
    assert not first.alive
    with bench.runner() as second:
        assert (pid_of(second), second.is_renewed) == (pid, True)
        assert not second.has_run
        runs, context, found, mapped = bench.call(second, b"count")[:4]
        assert (runs, context, mapped) == (1, 2, 2)
        assert found in POISONS


@pytest.mark.slow
def test_twenty_kernels_leave_no_descriptor_and_no_mapping(bench: Bench) -> None:
    counts = []
    for number in range(20):
        with bench.runner() as runner:
            _, context, _, mapped = bench.call(runner, b"count")[:4]
            assert (context, mapped) == (number + 1, 2)
            counts.append(len(os.listdir(f"/proc/{pid_of(runner)}/fd")))
    assert len(set(counts)) == 1, counts


@pytest.mark.parametrize(("kernel", "kind"), [(b"fault", FailureKind.CRASHED), (b"overrun", FailureKind.REJECTED)])
def test_a_process_that_reported_a_fault_is_ended(bench: Bench, kernel: bytes, kind: FailureKind) -> None:
    first = bench.runner()
    pid = pid_of(first)

    def judge() -> None:
        with first:
            bench.call(first, kernel)
            first.check_workspace()

    with pytest.raises(TrialFailed) as failed:
        judge()
    assert failed.value.failure.kind is kind
    assert has_ended(bench, pid)
    with bench.runner() as second:
        assert not second.is_renewed
        assert bench.call(second, b"count")[:2] == [1, 1]


def test_the_process_of_a_kernel_that_is_wrong_goes_on(bench: Bench) -> None:
    first = bench.runner()
    pid = pid_of(first)

    def judge() -> None:
        with first:
            bench.call(first, b"count")
            raise TrialFailed(FailureKind.MISMATCH, "wrong")

    with pytest.raises(TrialFailed):
        judge()
    with bench.runner() as second:
        assert pid_of(second) == pid


def test_a_process_that_owes_a_reply_is_ended(bench: Bench) -> None:
    """The reply to its load would be taken for that to its renewal."""
    with bench.runner() as first:
        pid = pid_of(first)
        bench.send(first, b"count")
    assert has_ended(bench, pid)


def test_a_process_that_was_not_used_goes_on_as_it_is(bench: Bench) -> None:
    with bench.runner() as first:
        pid = pid_of(first)
    with bench.runner() as second:
        assert (pid_of(second), second.is_renewed) == (pid, False)
        assert bench.call(second, b"count")[:2] == [1, 1]


def test_a_renewal_that_fails_costs_no_kernel_its_verdict(bench: Bench) -> None:
    for _ in range(2):
        with bench.runner() as first:
            pid = pid_of(first)
            bench.call(first, b"lose")
        bench.spares.stand_by()
        assert has_ended(bench, pid)
    with bench.runner() as first:
        bench.call(first, b"lose")
    with bench.runner() as second:
        assert not second.is_renewed
        assert bench.call(second, b"count")[:2] == [1, 1]


@pytest.mark.slow
def test_at_most_so_many_processes_wait(bench: Bench) -> None:
    runners = [bench.runner() for _ in range(MOST + 1)]
    for runner in runners:
        bench.call(runner, b"count")
        bench.spares.give_back(runner)
    again = [bench.runner() for _ in range(MOST + 1)]
    assert [runner.is_renewed for runner in again] == [True] * MOST + [False]
    for runner in again:
        runner.close()


@pytest.mark.slow
def test_a_kernel_with_host_code_meets_no_process_of_another(bench: Bench) -> None:
    """Neither one that waits nor one that is in use: it is ended, not renewed."""
    with bench.runner() as waiting:
        first = pid_of(waiting)
        bench.call(waiting, b"count")
    host_code = bench.runner(few_queues=False)
    assert has_ended(bench, first)
    bench.spares.expose(host_code)
    with bench.runner() as beside:
        second = pid_of(beside)
        bench.call(beside, b"count")
    assert has_ended(bench, second)
    host_code.close()
    with bench.runner() as before:
        third = pid_of(before)
        bench.call(before, b"count")
        bench.spares.expose()
    assert has_ended(bench, third)
    with bench.runner() as after:
        fourth = pid_of(after)
        bench.call(after, b"count")
    with bench.runner() as last:
        assert pid_of(last) == fourth


def test_in_a_race_no_process_has_served_another_kernel(bench: Bench) -> None:
    with bench.runner() as first:
        pid = pid_of(first)
        bench.call(first, b"count")
    with bench.runner(fresh=True) as racing:
        assert not racing.is_renewed
    assert has_ended(bench, pid)


def test_what_starts_beside_a_kept_process_with_host_code_serves_no_other_kernel(bench: Bench) -> None:
    """After its check the process of a module was kept, and those that were started meanwhile served the next module."""
    kept = bench.new(few_queues=False)
    bench.spares.expose(kept)
    bench.spares.start(1, lambda: bench.new(few_queues=False))
    (started,) = cast(list[RunnerClient], bench.spares._waiting)
    pid = pid_of(started)
    kept.close()
    bench.spares.discard_touched()
    assert has_ended(bench, pid)
