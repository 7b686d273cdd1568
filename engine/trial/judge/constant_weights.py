"""Which weights a module is judged on: with constants varied, or as its constructor makes them.

Parameters and buffers that a model's constructor fills with one number vary, so that leaving them out shows. Kernels with a C
launcher and plans are given them. A module constructs its own, from the same seed and under the same variation; one whose names
and shapes differ from the reference's may not get them, and is then judged on the constructor's own. That may be because it
leaves them out: it is measured, and not corroborated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from engine.domain.model import FailureKind, Measurement
from engine.domain.regimes import Sustained
from engine.trial.judge.failures import TrialFailed
from engine.trial.judge.judged_calls import CheckTally, judged_call
from engine.trial.judge.runner_client import RunnerClient
from engine.trial.judge.test_bed import TestBed
from engine.trial.protocol import Candidate

_MOST_NAMES = 4
Found = TypeVar("Found", Measurement, Sustained)


class ConstantWeights:
    """The decision for every module of one judge."""

    def __init__(self) -> None:
        self._caveats: dict[str, str] = {}
        """By source; empty for modules that are judged on varied constants."""

    def knows(self, candidate: Candidate) -> bool:
        """Whether nothing is left to decide."""
        return candidate.contract != "module" or candidate.source in self._caveats

    def varied(self, *candidates: Candidate) -> bool:
        """Whether constants vary for all of these kernels, as far as is known."""
        return not any(self.caveat(candidate) for candidate in candidates)

    def caveat(self, candidate: Candidate) -> str:
        """Why constants do not vary for this kernel; empty if they do."""
        return self._caveats.get(candidate.source, "") if candidate.contract == "module" else ""

    def marked(self, found: Found, *candidates: Candidate) -> Found:
        """``found``, not corroborated where one of these kernels is not known to be right with other constants."""
        doubts = tuple(f"not corroborated: {caveat}" for one in candidates if (caveat := self.caveat(one)))
        return replace(found, corroborated=False, doubts=found.doubts + doubts) if doubts else found

    def renew(self, bed: TestBed, *candidates: Candidate, scalars: bool = False) -> None:
        """Fresh weights on ``bed`` for these kernels; with ``scalars``, modules are also called with other ones."""
        modules = any(one.contract == "module" for one in candidates)
        bed.new_model(varied=self.varied(*candidates), scalars=scalars and modules, constructed=modules)

    def settle(self, bed: TestBed, runner: RunnerClient, candidate: Candidate, reload: Callable[[], None]) -> None:
        """Call a loaded module once with constants varied, and if it is wrong, ``reload`` it and call it without.

        Raises TrialFailed if it is wrong with both, or takes every parameter and is wrong with varied ones.
        """
        if self.knows(candidate) or not bed.varied_constants:
            return
        bed.refill(0)
        try:
            judged_call(bed, runner, 0, CheckTally())
        except TrialFailed as failed:
            if failed.failure.kind is not FailureKind.MISMATCH or not runner.alive:  # outputs that cannot be compared end it
                raise
            wrong = failed
        else:
            self._caveats[candidate.source] = ""
            return
        unmatched = runner.unmatched
        bed.new_model(varied=False, scalars=bed.varies_scalars)
        reload()
        bed.refill(0)
        judged_call(bed, runner, 0, CheckTally())
        if not unmatched:
            reason = f"{wrong.failure.reason}, with constant parameters varied; right with the constructor's own: left out?"
            raise TrialFailed(FailureKind.MISMATCH, reason, wrong.log, wrong.failure.mismatches)
        names = ", ".join(name[:40] for name in unmatched[:_MOST_NAMES])
        more = f" and {len(unmatched) - _MOST_NAMES} more" if len(unmatched) > _MOST_NAMES else ""
        self._caveats[candidate.source] = f"constant parameters were not varied: the module does not take {names}{more}"
