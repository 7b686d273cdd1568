"""The judge as a process: ``python -m engine.trial.judge.server FD ENGINE`` serves the engine on an inherited socket.

``ENGINE`` is the engine's process id. Imports torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import traceback
from pathlib import Path

from engine.domain.errors import DeviceError, EspalierError
from engine.problem import graph
from engine.trial import protocol as p
from engine.trial.judge.calibration import fresh_seed
from engine.trial.judge.input_dump import call_template, construction_arguments, dump_inputs
from engine.trial.judge.judge import Judge
from engine.trial.judge.runner_client import TrialFailed
from engine.trial.messages import Channel, ChannelClosed, Message

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Answer requests until the engine closes the channel, then end every process that was started.

    If the engine dies, this process is killed, even while a reference computes.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):  # the engine died while torch was being imported
        return
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # descriptors in flight to a runner count for its user
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    judge: Judge | None = None
    try:
        while True:
            request: p.Request
            request, _ = channel.receive(p.Request)
            judge, reply = _answer(judge, request, channel)
            channel.send(reply)
            if judge is not None and not isinstance(request, p.VerifyRequest):
                judge.tidy()
    except ChannelClosed:
        pass
    finally:
        if judge is not None:
            with contextlib.suppress(Exception):
                judge.close()


def _answer(judge: Judge | None, request: p.Request, channel: Channel) -> tuple[Judge | None, Message]:
    def say(text: str) -> None:
        channel.send(p.JudgeProgress(text))

    try:
        if isinstance(request, p.OpenRequest):
            if judge is not None:
                judge.close()
            judge = Judge(request)
            holdouts = tuple(r.signature() for r in judge.holdouts)
            sandbox = "bubblewrap" if judge.confined else "limits"
            return judge, p.OpenReply(judge.device, judge.signature, holdouts, sandbox, judge.sandbox_reason or "")
        assert judge is not None
        match request:
            case p.PrepareRequest(measure):
                return judge, judge.retry(lambda: judge.prepare(say, measure=measure))
            case p.TraceRequest():
                return judge, p.TraceReply(graph.trace_reference(judge.reference))
            case p.DrawRequest(workload, folder, calls, module):
                reference = judge.reference_for(workload)
                files = dump_inputs(reference, Path(folder), calls)
                return judge, p.DrawReply(
                    files, (*construction_arguments(reference, fresh_seed()), call_template(reference)) if module else ()
                )
            case p.VerifyRequest(candidate):
                return judge, judge.retry(lambda: judge.verify(candidate, say), trying=True)
            case p.MeasureRequest(candidate):
                return judge, judge.retry(lambda: judge.measure(candidate, say), trying=True)
            case p.CompareRequest(candidate, other, effort):
                return judge, judge.retry(lambda: judge.versus(candidate, other, say, effort), trying=True)
    except TrialFailed as failed:
        return judge, p.FailedVerdict(failed.failure, failed.log, failed.at_fault == p.OTHER)
    except EspalierError as error:
        return judge, p.JudgeFailed(type(error).__name__, str(error))
    except ChannelClosed:
        raise
    except Exception as error:
        return judge, _unexpected(error)


def _unexpected(error: Exception) -> p.JudgeFailed:
    """Out of memory becomes a DeviceError with a remedy. Anything else is a bug of the judge, reported with its location."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if "out of memory" in str(error).lower() or isinstance(error, MemoryError):
        remedy = "choose a smaller workload or free the device"
        return p.JudgeFailed(DeviceError.__name__, f"out of memory while judging: {remedy} ({text})")
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(where.filename)}:{where.lineno}"
    return p.JudgeFailed("Unexpected", f"internal error of the judge at {place}: {type(error).__name__}: {text}")


if __name__ == "__main__":
    main()
