"""How a trial fails: by the kernel's fault, or because a process that the judge trusts was lost. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from engine.domain.errors import DeviceError, EspalierError, ProblemError, head_and_tail, printable
from engine.domain.mismatch import Mismatch
from engine.domain.model import Failure, FailureKind
from engine.trial.messages import Fault

_LONGEST_TEXT, _LONGEST_REASON = 5000, 400


class TrustedProcessLost(EspalierError):
    """A baseline's or the null kernel's process died or hangs: a fault of the machine or of the reference."""


class TrialFailed(Exception):
    """The kernel failed its trial. Used inside the judge only: the engine gets a ``FailedVerdict``."""

    def __init__(self, kind: FailureKind, reason: str, log: str = "", evidence: tuple[Mismatch, ...] = ()) -> None:
        super().__init__(reason)
        self.failure = Failure(kind, reason, mismatches=evidence)
        self.log = log
        self.at_fault = ""
        """The contestant that failed, if several kernels are judged; see ``blaming``."""


@contextmanager
def blaming(name: str) -> Iterator[None]:
    """Attribute a failure inside to this contestant."""
    try:
        yield
    except TrialFailed as failed:
        failed.at_fault = failed.at_fault or name
        raise


def failure(kind: FailureKind, reason: str, log: str = "", *, trusted: bool) -> Exception:
    """The exception for a runner's fault; a trusted one's is the reference's or the machine's."""
    if trusted:
        return ProblemError(f"the baseline cannot be measured: {reason}")
    return TrialFailed(kind, reason, log)


def loss(kind: FailureKind, reason: str, log: str = "", *, trusted: bool) -> Exception:
    """The exception for a runner that died or does not reply; a trusted one can be restarted."""
    if trusted:
        return TrustedProcessLost(f"the baseline cannot be measured: {reason}")
    return TrialFailed(kind, reason, log)


def death(status: int, text: str, when: str, *, trusted: bool) -> Exception:
    """The exception for a runner that ended; ``text``: what it wrote to standard error."""
    shown = printable(text)
    return loss(
        FailureKind.CRASHED, f"{_how_ended(status, when)}{_last_words(shown)[:_LONGEST_REASON]}", shown, trusted=trusted
    )


def reported(fault: Fault, *, trusted: bool) -> Exception:
    """The exception for a fault that a runner reports."""
    text = printable(head_and_tail(fault.text, _LONGEST_TEXT))
    lines = [line for line in text.strip().splitlines() if line.strip()] or ["no message"]
    if fault.kind == "impossible" and trusted:
        return DeviceError(lines[-1])
    kind = FailureKind(fault.kind) if fault.kind in set(FailureKind) else FailureKind.CRASHED
    return failure(kind, lines[-1][:_LONGEST_REASON], text, trusted=trusted)


_SIGNALS = {
    4: "illegal instruction", 6: "aborted", 7: "bus error", 8: "arithmetic error", 9: "killed", 11: "segmentation fault",
}  # fmt: skip


def _how_ended(status: int, when: str) -> str:
    """The reason of a runner that ended; ``status`` as from ``waitpid``, negative if unknown."""
    if status < 0 or not os.WIFSIGNALED(status):
        return f"its process exited {when}"
    number = os.WTERMSIG(status)
    how = f"signal {number} ({_SIGNALS[number]})" if number in _SIGNALS else f"signal {number}"
    hint = ": a write to an input or past a buffer?" if number in (7, 11) else ""
    return f"terminated by {how} {when}{hint}"


def _last_words(text: str) -> str:
    """``: `` and what a process that died wrote last: an exception's message without what the C++ runtime adds; or nothing."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f": {lines[-1].removeprefix('what():').strip()}" if lines else ""
