"""Doubts about a kernel's time: what they are, and the status that they give a verdict. Pure.

A kernel is *doubted* if it is quarantined, or measured without being corroborated, unless the engineer accepted it. A doubted
kernel is never the incumbent, and no figure of it is a result.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.domain.model import Measurement
from engine.domain.regimes import Regime
from engine.domain.state import Kernel, SessionState, Stage

MEASURED = "measured"
NOT_CORROBORATED = "not_corroborated"
QUARANTINED = "quarantined"
UNEXPLAINED = "not corroborated by the judge's clock"
_FORMER = "not corroborated"
"""How such lines begin among the conditions of journals that have no field for doubts."""


def of_measurement(measured: Measurement) -> tuple[str, ...]:
    """Why a time is not corroborated: at least one line, or none if it is."""
    if measured.corroborated:
        return ()
    recorded = measured.doubts or tuple(line for line in measured.conditions if line.startswith(_FORMER))
    return recorded or (UNEXPLAINED,)


def combined(evidence: Sequence[str], measured: Measurement | None, regime: Regime = Regime.SINGLE) -> tuple[str, ...]:
    """The evidence of a quarantine and the doubts about a time, each line once.

    Doubts about the sustained time count where that regime decides.
    """
    doubts = of_measurement(measured) if measured is not None else ()
    sustained = measured.sustained if measured is not None and regime is Regime.SUSTAINED else None
    return tuple(dict.fromkeys((*evidence, *doubts, *(sustained.doubts if sustained is not None else ()))))


def is_confirmed(measured: Measurement, regime: Regime) -> bool:
    """Whether the time of single calls is corroborated and, where that regime decides, the sustained one."""
    sustained = measured.sustained if regime is Regime.SUSTAINED else None
    return measured.corroborated and (sustained is None or sustained.corroborated)


def of_kernel(kernel: Kernel) -> tuple[str, ...]:
    """All doubts about a kernel, those that the engineer dismissed by accepting it included."""
    return combined(kernel.evidence, kernel.measurement)


def is_quarantined(kernel: Kernel) -> bool:
    return kernel.stage is Stage.QUARANTINED


def is_corroborated(kernel: Kernel) -> bool:
    """Whether its time is corroborated. A kernel without a time is not."""
    return kernel.measurement is not None and kernel.measurement.corroborated


def is_doubted(kernel: Kernel) -> bool:
    """Whether it is quarantined, or measured and neither corroborated nor accepted by the engineer."""
    measured = kernel.stage is Stage.MEASURED and kernel.measurement is not None
    return is_quarantined(kernel) or (measured and not is_corroborated(kernel) and not kernel.accepted)


def doubted(state: SessionState) -> tuple[Kernel, ...]:
    """The doubted kernels of the present device, in drafting order."""
    return tuple(kernel for kernel in state.kernels.values() if kernel.epoch == state.epoch and is_doubted(kernel))


def status(kernel: Kernel) -> str:
    """``not_corroborated`` where it is measured and doubted; else its kind of failure, or its stage."""
    if kernel.stage is Stage.MEASURED and is_doubted(kernel):
        return NOT_CORROBORATED
    if kernel.stage is Stage.FAILED and kernel.failure is not None:
        return kernel.failure.kind.value
    return kernel.stage.value
