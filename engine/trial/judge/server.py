"""The judge as a process, which serves the engine on an inherited socket. Imports torch.

``python -m engine.trial.judge FD supervised SOCKET DEVICE [hosts]`` runs in a sandbox, with a socket to its supervisor. Without
one the arguments are ``FD engine PID DEVICE``, with the engine's process id. ``hosts``: a problem will be prepared.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.domain.errors import DeviceError, EspalierError
from engine.domain.model import Device
from engine.problem.graph_ir import TracedShape
from engine.problem.reference import Reference
from engine.problem.reference_step import limit_steps
from engine.problem.torch_modes import vector_math
from engine.problem.torch_modes.imports import without_collections
from engine.trial import protocol as p
from engine.trial.channel import Channel, ChannelClosed
from engine.trial.judge import devices
from engine.trial.judge.failures import TrialFailed
from engine.trial.judge.inputs.cases import fresh_seed
from engine.trial.judge.inputs.input_dump import dump_inputs, module_arguments
from engine.trial.judge.judge import Judge
from engine.trial.judge.runners.host_client import EarlyHosts
from engine.trial.judge.timing import roofline
from engine.trial.judge.timing.contention import OtherWork
from engine.trial.messages import Message

_PR_SET_PDEATHSIG = 1
_MEMORY_SHARE = 0.9
"""Of the machine's memory, what this process may allocate on a CPU. On a GPU, processes reserve far more than they use."""
_MOST_PROCESSES = 8192
_STEP_S = 600
"""Seconds that the reference may take to be read, to make its inputs or its model, or for one forward."""


def main(supervisor: socket.socket | None, hosts: EarlyHosts | None) -> None:
    """Answer requests until the engine closes the channel, then end every process that was started.

    If the engine dies, this process is killed, even while a reference computes. ``hosts`` are for the first problem.
    """
    if supervisor is None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(sys.argv[3]):  # the engine died while torch was being imported
            return
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # descriptors in flight to a runner count for its user
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    limit_steps(_STEP_S)
    vector_math.settle()
    judge: Judge | None = None
    if hosts is not None:
        _import_for_tracing()  # the engine may not ask yet
    try:
        while True:
            request: p.Request
            request, fds = channel.receive(p.Request)
            if supervisor is not None and judge is None:
                _limit_resources(request)
            try:
                judge, reply = _answer(judge, request, channel, fds, _Trial(supervisor, hosts))
            finally:
                for fd in fds:
                    os.close(fd)
            channel.send(reply)
            if isinstance(reply, p.JudgeFailed) and "CUDA error" in reply.reason:
                return  # its context is lost: the engine starts a new judge
            if judge is not None and not isinstance(request, p.VerifyRequest):
                judge.tidy(channel.has_ended)
    except ChannelClosed:
        pass
    finally:
        if judge is not None:
            with contextlib.suppress(Exception):
                judge.close()


def _limit_resources(request: p.Request) -> None:
    """Limits that hold before a reference runs. Inputs for tools are written to files of the engine's."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, memory), (resource.RLIMIT_NPROC, _MOST_PROCESSES)]
    if isinstance(request, p.DeviceRequest) and request.device == "cpu":
        limits.append((resource.RLIMIT_DATA, int(memory * _MEMORY_SHARE)))
    for what, limit in limits:
        _, hard = resource.getrlimit(what)
        ceiling = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (ceiling, ceiling))


@dataclass(frozen=True, slots=True)
class _Trial:
    """What was started with this process."""

    supervisor: socket.socket | None
    hosts: EarlyHosts | None


def _answer(
    judge: Judge | None, request: p.Request, channel: Channel, fds: list[int], trial: _Trial
) -> tuple[Judge | None, Message]:
    def say(text: str) -> None:
        channel.send(p.JudgeProgress(text))

    try:
        if isinstance(request, p.DeviceRequest | p.PeaksRequest):
            return judge, _about_device(request, alone=trial.supervisor is not None)
        if isinstance(request, p.OpenRequest):
            return _opened(judge, request, trial, say)
        assert judge is not None
        match request:
            case p.PrepareRequest():
                return judge, judge.retry(lambda: judge.prepare(request, say))
            case p.PlanRequest() | p.TraceRequest():
                return judge, _about_problem(judge, request)
            case p.DrawRequest(workload, module):
                return judge, _drawn(judge.reference_for(workload), fds, module=module)
            case _:
                return judge, judge.retry(lambda: _tried(judge, request, say), trying=True)
    except TrialFailed as failed:
        return judge, p.FailedVerdict(failed.failure, failed.log, failed.at_fault == p.OTHER)
    except EspalierError as error:
        return judge, p.JudgeFailed(type(error).__name__, str(error))
    except ChannelClosed:
        raise
    except Exception as error:
        return judge, _unexpected(error)


def _tried(
    judge: Judge,
    request: p.CheckRequest | p.VerifyRequest | p.MeasureRequest | p.SustainRequest | p.CompareRequest,
    say: Callable[[str], None],
) -> Message:
    match request:
        case p.CheckRequest(candidate):
            return judge.check(candidate, say)
        case p.VerifyRequest(candidate):
            return judge.verify(candidate, say)
        case p.MeasureRequest(candidate):
            return judge.measure(candidate, say)
        case p.SustainRequest(candidate):
            return judge.sustain(candidate, say)
        case p.CompareRequest(candidate, other, effort, regime):
            return judge.versus(candidate, other, say, effort, regime)


def _opened(
    earlier: Judge | None, request: p.OpenRequest, trial: _Trial, say: Callable[[str], None]
) -> tuple[Judge | None, Message]:
    if earlier is not None:
        earlier.close()
    _import_for_tracing()
    if request.device != "cpu":
        _use_memory_sparingly()
    started = trial.hosts.take() if trial.hosts is not None else ()
    judge = Judge(request, trial.supervisor, say, started)
    return judge, p.OpenReply(judge.signatures)


def _use_memory_sparingly() -> None:
    """Let freed memory of one size serve tensors of another: this process has few and large ones, of several sizes.

    On an H100, Swish on 6.4 GB takes 64 instead of 72 GiB so.
    """
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")


def _import_for_tracing() -> None:
    """Import what fake tensors, on which a reference is traced, need."""
    with without_collections():
        importlib.import_module("torch._dynamo.config")


def _drawn(reference: Reference, fds: list[int], *, module: bool) -> p.DrawReply:
    dump_inputs(reference, fds)
    if not module:
        return p.DrawReply()
    return p.DrawReply(module_arguments(reference, fresh_seed(), reference.inputs(0)))


def _about_problem(judge: Judge, request: p.PlanRequest | p.TraceRequest) -> p.PlanReply | p.TraceReply:
    if isinstance(request, p.PlanRequest):
        return p.PlanReply(judge.memory_plans())
    from engine.problem import graph

    return p.TraceReply(tuple(TracedShape(r.signature(), graph.trace_reference(r)) for r in judge.references))


def _about_device(request: p.DeviceRequest | p.PeaksRequest, *, alone: bool) -> p.DeviceReply | p.PeaksReply:
    device = devices.describe(request.device)
    if isinstance(request, p.PeaksRequest):
        return _peaks(device, alone)
    bus_id = ""
    if device.kind == "cuda":
        with contextlib.suppress(DeviceError):
            bus_id = devices.bus_id(device.index)
    return p.DeviceReply(device, bus_id)


_QUIET_SHARE = 0.1
"""Share of the cores' time that others may use while ceilings are measured: of nine runs the fastest counts."""


def _peaks(device: Device, alone: bool) -> p.PeaksReply:
    """``alone``: whether other processes can be told from this trial's."""
    if device.kind == "cpu":
        torch.set_num_threads(device.units)
    others = OtherWork(device.kind, alone=alone)
    found = roofline.measure_peaks(device)
    if device.kind == "cuda":
        torch.cuda.empty_cache()
    return p.PeaksReply(found, quiet=not (device.kind == "cpu" and alone and others.is_present(_QUIET_SHARE)))


def _unexpected(error: Exception) -> p.JudgeFailed:
    """Out of memory becomes a DeviceError with a remedy. Anything else is a bug of the judge, reported with its location."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if "out of memory" in str(error).lower() or isinstance(error, MemoryError):
        remedy = "choose a smaller workload or free the device"
        return p.JudgeFailed(DeviceError.__name__, f"out of memory while judging: {remedy} ({text})")
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(where.filename)}:{where.lineno}"
    return p.JudgeFailed("Unexpected", f"internal error of the judge at {place}: {type(error).__name__}: {text}")
