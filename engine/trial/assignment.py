"""What a bench judges kernels on, and how it measures. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import SystemRandom

from engine.domain.model import Contract, Problem, Workload
from engine.domain.preparation import Peaks
from engine.problem.chance_holdout import draw_holdout


@dataclass(frozen=True, slots=True)
class Assignment:
    """The problem, workload and device of a bench, and how it measures."""

    problem: Problem
    workload: Workload
    device: str
    tolerance: str = "class"
    baseline: str = "eager"
    further_baselines: tuple[str, ...] = ()
    """Baselines beside the ranking one."""
    cold: bool = True
    same: tuple[float, float, float] | None = None
    """The session's A/A interval (the ranking baseline against itself), if already measured."""
    fresh: bool = False
    """Measure every baseline again, even if it is cached."""
    prepared: bool = False
    """Use the preparation of an earlier evaluation or session, if there is one and it is not to be made ``fresh``."""
    peaks: Peaks | None = None
    """The session's device ceilings, if already measured: all its kernels are compared with the same ones."""
    chance: Workload | None = None
    """A hold-out shape of the first workload, drawn at random, for as long as the bench lives."""
    rest: tuple[Workload, ...] = ()
    """The further workloads of a suite: a kernel is judged on all of them together."""
    suite: str = ""
    """The suite's name; empty for a single workload."""
    sames: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    """Over a suite: the session's A/A interval on each workload, if already measured."""
    cores: tuple[int, ...] = ()
    """The machine's cores that the bench holds and measures on; empty: all of them, or a GPU."""
    contract: Contract | None = None
    """The contract of the kernel that is judged first, if known: its processes start while the check is calibrated."""
    unit: str = ""
    """In a fleet: the one device among several of a kind, whose baselines and calibrations are its own."""

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """Everything that a kernel is judged on, in the suite's order."""
        return (self.workload, *self.rest)

    @property
    def holdouts(self) -> tuple[Workload, ...]:
        """The hold-out shapes of the first workload."""
        return self.holdouts_of(self.workload)

    def holdouts_of(self, workload: Workload) -> tuple[Workload, ...]:
        """The hold-out shapes of one of the workloads."""
        fixed = self.problem.holdouts.get(workload.name, ())
        drawn = self.chance if workload == self.workload else None
        return (*fixed, drawn) if drawn is not None else tuple(fixed)

    def with_chance(self) -> Assignment:
        """This assignment with a hold-out shape drawn at random, if it has none and the problem has bounds for one."""
        if self.chance is not None:
            return self
        return replace(self, chance=draw_holdout(self.problem, self.workload, SystemRandom()))
