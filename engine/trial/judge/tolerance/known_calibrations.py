"""The calibrations of one judge: those known from earlier evaluations, and those measured here. Imports torch."""

from __future__ import annotations

from engine.domain.figure_text import exact
from engine.domain.model import Workload
from engine.problem.chance_holdout import BY_CHANCE
from engine.problem.reference import Reference
from engine.trial.judge.caches import preparation_cache
from engine.trial.judge.caches.preparation_cache import Calibrations, KeptCalibration
from engine.trial.judge.tolerance.calibration import Calibration, calibrate, complete, completed_as, keep_calibration, restore


def shape_text(workload: Workload) -> str:
    """The settings of a workload on one line."""
    return ", ".join(f"{k}={exact(v)}" for k, v in workload.settings.items())


class KnownCalibrations:
    """Calibrates a workload and its hold-out shapes, unless that is known."""

    def __init__(self, encoded: bytes, tolerance: str) -> None:
        self._known = preparation_cache.decode(encoded)
        self._tolerance = tolerance
        self._main: tuple[Reference, Calibration] | None = None
        self._found: dict[str, KeptCalibration] = {}

    @property
    def known(self) -> bool:
        """Whether the workload has been calibrated before."""
        return self._known is not None

    def of_workload(self, reference: Reference, *, ahead: bool = False) -> Calibration:
        """The workload's calibration. Raises ProblemError where no kernel can be judged.

        ``ahead``: with the reference's errors on all distributions.
        """
        if self._main is None:
            known = self._known.main if self._known is not None else None
            if known is None:
                found = calibrate(reference, self._tolerance, ahead=ahead)
            else:
                found = restore(reference, self._tolerance, known)
            self._main = (reference, found)
        while ahead and self._main[1].unmeasured:
            self.complete(min(self._main[1].unmeasured))
        return self._main[1]

    def complete(self, distribution: str) -> Calibration:
        """The workload's calibration with the reference's errors on a distribution, measured now if they have not been."""
        assert self._main is not None
        reference, found = self._main
        if distribution in found.unmeasured:
            self._main = (reference, complete(reference, found, distribution))
        return self._main[1]

    def of_holdout(self, reference: Reference, main: Calibration) -> Calibration:
        """A hold-out shape's calibration; that of a shape drawn at random is never known."""
        shape = shape_text(reference.workload)
        known = self._known.holdouts.get(shape) if self._known is not None else None
        found = calibrate(reference, self._tolerance, main) if known is None else restore(reference, self._tolerance, known)
        self._keep(reference, found)
        return found

    def complete_holdout(self, reference: Reference, found: Calibration, distribution: str) -> Calibration:
        """The same for ``found``, of a hold-out shape: the errors are measured on the workload."""
        self.complete(distribution)
        return self.up_to_date(reference, found)

    def up_to_date(self, reference: Reference, found: Calibration) -> Calibration:
        """``found``, of a hold-out shape, with what has been measured on the workload since."""
        assert self._main is not None
        main = self._main[1]
        if not found.unmeasured <= main.unmeasured:
            found = completed_as(main, found)
            self._keep(reference, found)
        return found

    def _keep(self, reference: Reference, found: Calibration) -> None:
        if not reference.workload.name.endswith(BY_CHANCE):
            self._found[shape_text(reference.workload)] = keep_calibration(reference, found)

    def encode(self) -> bytes:
        """What is known by now, for later evaluations; empty before the workload is calibrated."""
        if self._main is None:
            return b""
        before = self._known.holdouts if self._known is not None else {}
        return preparation_cache.encode(Calibrations(keep_calibration(*self._main), {**before, **self._found}))
