"""What the workloads of one judge share. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.domain.model import Device
from engine.domain.preparation import Peaks
from engine.trial.judge.interleaving import PairSetup
from engine.trial.judge.module_weights import ModuleWeights
from engine.trial.judge.process_pool import ProcessPool


@dataclass(frozen=True, slots=True)
class JudgeTools:
    """What the workloads of one judge share."""

    device: Device
    pool: ProcessPool
    setup: PairSetup
    weights: ModuleWeights
    peaks: Callable[[], Peaks]
    measure_peaks_again: Callable[[], None]
    workloads: int
    """Workloads of the suite: the effort on each is less, the more there are."""
    most_pairs: int
