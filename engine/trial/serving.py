"""The judge as a process: ``python -m engine.trial.serving FD`` answers the engine on an inherited socket. Imports torch."""

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
from engine.problem import graph, graph_ir
from engine.trial import protocol as p
from engine.trial.calibration import fresh_seed
from engine.trial.drawing import called_with, draw_to, made_with
from engine.trial.judge import Judge
from engine.trial.seat import TrialFailed
from engine.trial.wire import Channel, ChannelClosed, Message

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Answer until the engine closes the channel; then end every process that was started.

    Where the engine dies while a reference computes, which may go on for ever, this process ends with it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the system counts what a kernel has under way as its user's
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    judge: Judge | None = None
    try:
        while True:
            request: p.Request
            request, _ = channel.receive(p.Request)
            judge, reply = _answer(judge, request, channel)
            channel.send(reply)
            if judge is not None and not isinstance(request, p.Verify):
                judge.tidy()
    except ChannelClosed:
        pass
    finally:
        if judge is not None:
            with contextlib.suppress(Exception):
                judge.close()


def _answer(judge: Judge | None, request: p.Request, channel: Channel) -> tuple[Judge | None, Message]:
    def say(text: str) -> None:
        channel.send(p.Progress(text))

    try:
        if isinstance(request, p.Open):
            if judge is not None:
                judge.close()
            judge = Judge(request)
            holdouts = tuple(r.signature() for r in judge.holdouts)
            sandbox = "bubblewrap" if judge.confined else "limits"
            return judge, p.Opened(judge.device, judge.signature, holdouts, sandbox, judge.sandbox_reason or "")
        assert judge is not None
        match request:
            case p.Prepare(measure):
                return judge, judge.insist(lambda: judge.prepare(say, measure=measure))
            case p.Trace():
                return judge, p.Traced(graph_ir.to_json(graph.trace_reference(judge.reference)))
            case p.Draw(workload, folder, calls, module):
                reference = judge.reference_for(workload)
                files = draw_to(reference, Path(folder), calls)
                return judge, p.Drawn(files, (*made_with(reference, fresh_seed()), called_with(reference)) if module else ())
            case p.Verify(candidate):
                return judge, judge.insist(lambda: judge.verify(candidate, say), trying=True)
            case p.Measure(candidate):
                return judge, judge.insist(lambda: judge.measure(candidate, say), trying=True)
            case p.Versus(candidate, other, effort):
                return judge, judge.insist(lambda: judge.versus(candidate, other, say, effort), trying=True)
    except TrialFailed as failed:
        return judge, p.Refused(failed.failure, failed.log, failed.at_fault == p.OTHER)
    except EspalierError as error:
        return judge, p.Unable(type(error).__name__, str(error))
    except ChannelClosed:
        raise
    except Exception as error:
        return judge, _unexpected(error)


def _unexpected(error: Exception) -> p.Unable:
    """Out of memory is the device's fault and has a remedy; anything else is ours, and is told with its place."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if "out of memory" in str(error).lower() or isinstance(error, MemoryError):
        remedy = "choose a smaller workload or free the device"
        return p.Unable(DeviceError.__name__, f"out of memory while judging: {remedy} ({text})")
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(where.filename)}:{where.lineno}"
    return p.Unable("Unexpected", f"the judge stumbled at {place}: {type(error).__name__}: {text}")


if __name__ == "__main__":
    main()
