"""A judge that starts: it takes nothing of a GPU before the engine, which then holds the device, asks for something.

Then its hosts start while it imports torch. It starts nothing for a next kernel once the engine has gone.
"""

from __future__ import annotations

import socket
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.problem import catalog
from engine.sandbox import python_process
from engine.trial import client
from engine.trial.judge.__main__ import begin
from engine.trial.judge.judge import Judge
from engine.trial.judge.runners.host_client import EarlyHosts, Host
from engine.trial.judge.runners.runner_client import RunnerClient
from engine.trial.messages import LoadKernel
from engine.trial.protocol import Candidate, OpenRequest, PrepareRequest, WorkloadBinary
from engine.trial.shared.cuda import driver


@pytest.mark.parametrize(("device", "large"), [("cpu", False), ("cuda:0", True)])
def test_a_trial_on_a_gpu_takes_large_pages_of_the_host(device: str, *, large: bool) -> None:
    """A model with 4 GiB of weights takes a third of the time to make. On a CPU eager runs as it ships."""
    for environment in (client._environment(device), python_process.environment(device, alone=True, threads=1)):
        assert (environment.get("THP_MEM_ALLOC_ENABLE") == "1") is large


def contexts_after(message: bytes, monkeypatch: pytest.MonkeyPatch, *, now: bool = False) -> list[str]:
    """What happens in a judge that is sent ``message`` some time after its start, in order; empty: the engine ends."""
    happened: list[str] = []
    monkeypatch.setattr(driver.Context, "open", lambda index: happened.append(f"context on cuda:{index}"))
    monkeypatch.setattr(Host, "launch", lambda self: happened.append("host"))
    engine, judge = socket.socketpair()
    with engine, judge:
        hosts = EarlyHosts("cuda:1", judge)
        waiting = threading.Thread(target=partial(begin, judge.fileno(), 1, hosts, now=now))
        waiting.start()
        waiting.join(0.2)
        happened.append("asked")
        engine.send(message)
        engine.shutdown(socket.SHUT_WR)
        waiting.join()
        assert judge.recv(100) == message, "the request is still there for the server"
        assert len(hosts.take()) == EarlyHosts.COUNT
        assert not hosts.take(), "for the first problem only"
    return happened


def test_the_context_is_created_once_the_engine_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge was started while another process measured, and its context disturbed that measurement."""
    assert contexts_after(b"request", monkeypatch) == ["asked", "host", "host", "host", "context on cuda:1"]


def test_hosts_start_at_once_where_cores_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    assert contexts_after(b"request", monkeypatch, now=True) == ["host", "host", "host", "asked", "context on cuda:1"]


def test_a_judge_that_is_asked_nothing_creates_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert contexts_after(b"", monkeypatch) == ["asked"]


def test_hosts_start_even_if_the_server_reads_the_request_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge that had imported torch before it was asked waited indefinitely: the server took the request from the thread"""
    started: list[Host] = []

    def launch(host: Host) -> None:
        started.append(host)

    monkeypatch.setattr(Host, "launch", launch)
    engine, judge = socket.socketpair()
    with engine, judge:
        hosts = EarlyHosts("cuda:1", judge)
        taken = hosts.take()
        assert started == [*taken]
        assert len(taken) == EarlyHosts.COUNT
        hosts.launch(wanted=True)  # the thread wakes at a later request
        assert len(started) == EarlyHosts.COUNT


def test_no_process_starts_for_a_next_kernel_where_there_is_none() -> None:
    """Processes were started although the engine had gone, and had to end again. A check takes one."""
    for over, checks_next, ahead in ((False, False, 3), (False, True, 1), (True, False, 0)):
        started: list[int] = []
        judge = Judge.__new__(Judge)
        judge._bounds, judge._checks_next = (3, 8), checks_next
        judge._process_pairs = SimpleNamespace(end_processes=lambda: None)
        judge._trials = [SimpleNamespace(beds=SimpleNamespace(in_use=True))]
        judge._pool = SimpleNamespace(discard_prestarted=lambda: None, prestart=started.append, has_checked=False)
        judge.tidy(lambda over=over: over)
        assert sum(started) == ahead


_DOUBLED = """
import torch


class {name}(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(8))

    def forward(self, x):
        return x * self.weight


def get_inputs():
    return [torch.rand(4, 8)]


def get_init_inputs():
    return []
"""


@pytest.mark.slow
def test_a_kernel_is_loaded_once_for_its_check_and_its_verification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process cost a start, a constructor and another draw of the weights."""
    (tmp_path / "reference.py").write_text(_DOUBLED.format(name="Model"))
    problem = catalog.find(str(tmp_path))
    workload = problem.workloads[0]
    loaded: list[str] = []
    load = RunnerClient.load

    def counted(runner: RunnerClient, order: LoadKernel, fds: list[int], **options: bool) -> None:
        loaded.append(order.contract)
        load(runner, order, fds, **options)

    monkeypatch.setattr(RunnerClient, "load", counted)
    judge = Judge(OpenRequest(problem, workload, (), "cpu", "class", "eager", (), True, confined=False))
    kernel = Candidate("module", "k", _DOUBLED.format(name="ModelNew"), {}, WorkloadBinary(workload))
    try:
        peaks = judge.peaks()
        judge.prepare(PrepareRequest(peaks, measure=False), lambda _: None)
        judge.check(kernel, lambda _: None)
        judge.tidy()
        judge.prepare(PrepareRequest(peaks), lambda _: None)
        assert judge.verify(kernel, lambda _: None).verification.trials > 1
        assert loaded.count("module") == 1
        judge.verify(kernel, lambda _: None)
        assert loaded.count("module") == 2
    finally:
        judge.close()
