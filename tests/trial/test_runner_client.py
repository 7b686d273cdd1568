"""The judge's side of a runner: replies are read in the order of what was sent."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from weakref import WeakKeyDictionary

import pytest
from trial.ground import tiny

from engine.domain.model import FailureKind
from engine.problem.reference import Reference
from engine.trial.judge import devices, process_pool, test_bed
from engine.trial.judge.failures import TrialFailed
from engine.trial.judge.process_pool import ProcessPool
from engine.trial.judge.runners.gate import ArmingLimit, DeviceOutputs, Segments
from engine.trial.judge.runners.held_outputs import HeldOutputs
from engine.trial.judge.runners.runner_client import RunnerClient
from engine.trial.judge.runners.trusted_runner import TrustedRunner
from engine.trial.judge.timing.call_times import Timing
from engine.trial.judge.timing.pair_times import KERNEL
from engine.trial.judge.tolerance.calibration import calibrate
from engine.trial.messages import AllStopped, ArenaHandle, Armed, ClaimedTimes, Fault, RunKernel, Segment, SegmentFreed
from engine.trial.protocol import OTHER
from engine.trial.shared.cuda.device_memory import DeviceHandle, Means


def test_a_baseline_that_is_loaded_for_another_workload_while_it_loads_is_waited_for() -> None:
    """Its replies for the first one stood in the channel, and the next call was refused as forged."""
    done: list[str] = []
    client = TrustedRunner.__new__(TrustedRunner)
    client._runner = SimpleNamespace(channel=SimpleNamespace(send_order=lambda _: done.append("called")))
    client._warming = client._switching = False
    client._kept = WeakKeyDictionary()

    def stand_by() -> None:
        client._warming = False
        done.append("waited")

    client.stand_by, client.load = stand_by, lambda *_: done.append("loaded")
    for _ in range(2):
        client.warm(None, [])
    assert done == ["loaded", "called", "waited", "loaded", "called"]


@pytest.mark.slow
def test_a_trusted_runner_goes_on_with_what_it_has_loaded_for_another_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a suite's workloads was loaded again for every kernel."""
    loaded: list[object] = []
    plain = RunnerClient.load
    monkeypatch.setattr(RunnerClient, "load", lambda self, *args: (loaded.append(self), plain(self, *args)))
    device = devices.describe("cpu")
    reference = Reference(tiny(), tiny().workloads[0])
    pool = ProcessPool(tiny(), device, cold=True, confined=False)
    pool.keeps_loads = True
    started: set[RunnerClient] = set()
    beds = [test_bed.TestBed(reference, calibrate(reference, "class"), device, slots=slots) for slots in (3, 1)]
    try:
        pool._copies_outputs(beds[0])  # loads one to see whether the judge can read its memory
        loaded.clear()
        for bed in (*beds, *beds):
            runners = [*pool.null_runners(bed, {}).values(), *pool.baselines(bed, ["eager"], 0).values()]
            started.update(runners)
            pool.stand_by()
            for runner in runners:
                runner.call(RunKernel(bed.slots - 1))
        assert len(loaded) == 2 * len(beds) - 1, "a null runner and a baseline's on each"
    finally:
        for runner in started:
            runner.close()
        pool.close()
        for bed in beds:
            bed.close()


@pytest.mark.parametrize(("device", "processes"), [("cpu", 2), ("cuda", 1)])
def test_on_a_gpu_one_null_runner_serves_every_path(device: str, processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The preparation started one that no module used, and every module waited for another one's context."""
    started: list[SimpleNamespace] = []

    def runner(*_: object, **__: object) -> SimpleNamespace:
        started.append(SimpleNamespace(alive=True, loaded_for=None, warm=lambda *_, **__: None, switch=lambda _: False))
        return started[-1]

    monkeypatch.setattr(process_pool, "TrustedRunner", runner)
    pool = ProcessPool(tiny(), replace(devices.describe("cpu"), kind=device), cold=True, confined=False)
    monkeypatch.setattr(pool, "_load", lambda *_, **__: (None, []))
    pool.start_null_runners({KERNEL: "host"})
    bed = object()
    found = pool.null_runners(bed, {KERNEL: "module", OTHER: "plan"})
    assert set(found) == {"null", "null:native"}
    assert len(started) == processes
    assert all(one.loaded_for is bed for one in started)


class Replies:
    """A channel from which these replies come, one after the other."""

    def __init__(self, *replies: object) -> None:
        self._replies = list(replies)

    def waiting(self, _: float = 0.0) -> bool:
        return False

    def send_order(self, _: RunKernel) -> None:
        """It needs none."""

    def receive_times(self, *_: object) -> tuple[object, list[int]]:
        return self._replies.pop(0), []


def test_a_burst_of_one_call_may_report_memory() -> None:
    """A slow module allocates while its outputs are held; its burst of one call was refused as forged on a GPU."""
    client = RunnerClient.__new__(RunnerClient)
    done = dict.fromkeys(("resume", "halt"), lambda *_, **__: None)
    client._host = SimpleNamespace(stop=lambda _: AllStopped(False), **done)
    client._runner = SimpleNamespace(
        channel=Replies(SegmentFreed(1 << 40), ClaimedTimes(10.0, 12.0, 0.0, outputs=(1 << 41,))), local_pid=None
    )
    client._first_s, client._seconds, client._has_children = 5.0, 5.0, False
    client._trusted, client.gate, client.checks_gated = False, SimpleNamespace(), True
    client._segments, client.held = Segments(), HeldOutputs()
    client._timing = lambda reply, *_: reply  # type: ignore[method-assign]
    assert client.call(RunKernel(0, calls=1)).device_us == 10.0
    assert client.delivered == DeviceOutputs(client._segments, (1 << 41,))


@pytest.mark.parametrize(("calls", "seconds"), [(1, 20.0), (2, 40.0), (200, 40.0)])
def test_the_first_burst_of_a_slow_kernel_has_time_for_both_of_its_calls(calls: int, seconds: float) -> None:
    """A kernel of 11 s a call was measured in single calls, and would have timed out back to back."""
    client = RunnerClient.__new__(RunnerClient)
    done = dict.fromkeys(("resume", "halt"), lambda *_, **__: None)
    client._host = SimpleNamespace(stop=lambda _: AllStopped(False), used_since_stop_us=lambda _: 0.0, **done)
    client._runner = SimpleNamespace(channel=Replies(), local_pid=None)
    client._first_s, client._seconds, client._has_children, client._trusted = 20.0, 20.0, False, True
    client.gate, client.checks_gated, client.held = None, False, HeldOutputs()
    limits: list[float] = []
    client._receive = lambda limit: (limits.append(limit), ClaimedTimes(10.0, 12.0, 0.0))[1]  # type: ignore[method-assign]
    client.call(RunKernel(0, calls=calls))
    assert limits == [seconds]


class Gate:
    """A gate that notes what is enqueued on the judge's stream."""

    def __init__(self, *, reported: bool = True) -> None:
        self.number, self.enqueued, self._reported = 0, list[str](), reported

    def open(self, release: Callable[[], None]) -> None:
        release()
        self.enqueued.append("opened")

    def follow(self, then: Callable[[], None]) -> None:
        if "waits" not in self.enqueued:
            self.enqueued.append("waits")
            then()

    def end(self) -> bool:
        return self._reported

    def abandon(self) -> None:
        self.enqueued.append("abandoned")

    def device_us(self) -> tuple[float, float]:
        return 400.0, 90.0

    def close(self) -> None:
        self.enqueued.append("closed")


def gated(gate: Gate, early: bool, *replies: object) -> Timing:
    """The times of a gated call to which a runner replies so; ``early``: the first reply comes before the gate opens."""
    client = RunnerClient.__new__(RunnerClient)
    client._host = SimpleNamespace(
        stop=lambda _: AllStopped(False),
        resume=lambda *_, **__: None,
        end=lambda *_, **__: None,
        used_since_stop_us=lambda _: 0.0,
    )
    channel = Replies(*replies)
    if early:
        waits = iter([False, True])  # nothing was sent before the order
        channel.waiting = lambda _=0.0: next(waits)  # type: ignore[method-assign]
    client._runner, client.gate = SimpleNamespace(channel=channel, local_pid=None), gate
    client._first_s, client._seconds, client._has_children = 5.0, 5.0, False
    client._trusted, client._segments, client.held, client._arming = False, Segments(), HeldOutputs(), ArmingLimit()
    client.party = KERNEL
    hook = SimpleNamespace(after=lambda: gate.enqueued.append("read"))
    return client.gated_call(0, lambda: gate.enqueued.append("released"), hook)


DONE = ClaimedTimes(124.0, 300.0, 0.0)
ORDER = ["released", "opened", "waits", "read"]


@pytest.mark.parametrize(
    ("early", "replies", "late"),
    {
        "enqueued before": (True, [Armed(), DONE], False),
        "enqueued later": (False, [Armed(), DONE], True),
        "enqueued after it has reported memory": (False, [SegmentFreed(1 << 40), Armed(), DONE], True),
        "says so twice": (False, [Armed(), Armed(), DONE], True),
        "never says so": (False, [DONE], True),
    }.values(),
)
def test_the_judge_waits_for_a_gated_call_once_it_is_enqueued(early: bool, replies: list[object], late: bool) -> None:
    gate = Gate()
    found = gated(gate, early, *replies)
    assert gate.enqueued == ORDER
    assert (found.late, found.wall_us, found.release_us, found.claimed_us) == (late, 400.0, 90.0, 124.0)


def test_a_gated_call_without_a_report_fails_and_a_fault_is_told() -> None:
    with pytest.raises(TrialFailed, match="has not reported the end"):
        gated(Gate(reported=False), False, Armed(), DONE)
    gate = Gate()
    with pytest.raises(TrialFailed, match="it broke"):
        gated(gate, False, Fault("crashed", "it broke"))
    assert gate.enqueued == ["released", "opened", "abandoned", "closed"]


@pytest.mark.parametrize(("trusted", "used_us", "fails"), [(False, 50.0, False), (False, 500.0, True), (True, 500.0, False)])
def test_a_stopped_process_uses_no_processor_time(trusted: bool, used_us: float, fails: bool) -> None:
    """Nothing that a process does while it is stopped is in a call's time."""
    client = RunnerClient.__new__(RunnerClient)
    client._host = SimpleNamespace(used_since_stop_us=lambda _: used_us)
    client._runner = SimpleNamespace(channel=Replies())
    client._trusted, client.gate = trusted, None
    if not fails:
        assert client._at_rest() is client._runner.channel
        return
    with pytest.raises(TrialFailed, match=r"0\.5 ms of processor time while stopped"):
        client._at_rest()


def header(means: Means, size: int) -> bytes:
    return DeviceHandle(means, 0, size, token=b"\0" * 64).header()


@pytest.mark.parametrize(
    ("handle", "descriptors"),
    [
        (ArenaHandle("cuda-fd", 64, False, b"forged"), 1),
        (ArenaHandle("cuda-fd", 1 << 40, False, header(Means.DESCRIPTOR, 64)), 1),
        (ArenaHandle("cuda-fd", 64, False, header(Means.TOKEN, 64)), 1),
        (ArenaHandle("cuda-ipc", 64, False, header(Means.DESCRIPTOR, 64)), 1),
        (ArenaHandle("cuda-fd", 64, False, header(Means.DESCRIPTOR, 64)), 3),
        (ArenaHandle("cuda-fd", 64, False, header(Means.DESCRIPTOR, 64)), 0),
    ],
)  # fmt: skip
def test_a_forged_segment_rejects_the_kernel_and_leaves_no_descriptor_open(handle: ArenaHandle, descriptors: int) -> None:
    """It was an error of the device, or memory beyond its end was read."""
    sent = [os.open(os.devnull, os.O_RDONLY) for _ in range(descriptors)]
    client = RunnerClient.__new__(RunnerClient)
    client._runner = SimpleNamespace(channel=SimpleNamespace(receive_times=lambda *_: (Segment(4096, handle), list(sent))))
    client._segments, client._trusted, client.gate, client._host = (
        Segments(),
        False,
        None,
        SimpleNamespace(end=lambda *_, **__: None),
    )
    with pytest.raises(TrialFailed) as failed:
        client._next_reply(1.0)
    assert failed.value.failure.kind is FailureKind.REJECTED
    for descriptor in sent:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
