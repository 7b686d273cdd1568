"""The memory plan of a trial: how the judge fits itself to a device. ``memory_planning`` chooses it."""

from __future__ import annotations

from dataclasses import dataclass, replace

MOST_SLOTS = 8
GIB = 1 << 30
BLOCKS = 256 << 20
"""Most bytes that comparing two outputs takes: large ones are read in blocks of a fixed size."""
MOST_SLICES = 32
"""Slices of the rows for float64: with more of them less memory is saved than each call costs."""
KEPT_WIDE = 256 << 20
"""Most bytes of a reference in float64 that is kept from one call to the next."""
SAME_PAIRS = 4
"""Most process pairs of the ranking baseline against itself. They take one process more: neighbours share one."""
_HOLDOUT_SLOTS = 2


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """What one workload takes, in bytes."""

    inputs: int
    weights: int
    """Parameters and buffers."""
    outputs: int
    own: int
    """What eager PyTorch allocates beside its operands, most at a time: outputs and intermediates."""
    exact: int
    """What the reference allocates in float64 beside its operands, most at a time."""
    exact_inputs: int
    exact_weights: int
    exact_outputs: int = 0
    rows: int = 0
    """Rows that are independent, so that the reference can run in float64 in slices of them; 1: none; 0: not known."""

    @property
    def operands(self) -> int:
        return self.inputs + self.weights + self.outputs

    @property
    def exact_peak(self) -> int:
        """The reference in float64, from drawing its inputs to its outputs."""
        return self.exact_weights + max(self.inputs + self.exact_inputs, self.exact_inputs + self.exact)

    def exact_in(self, slices: int) -> int:
        """``exact_peak`` in so many slices of the rows: inputs and outputs are whole."""
        if slices == 1:
            return self.exact_peak
        return self.exact_weights + self.inputs + self.exact_outputs + (self.exact_inputs + self.exact) // slices


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """What the judge may plan with, in bytes."""

    device: int
    host: int
    process: int
    """What a process takes on the device by itself: a context on a GPU."""
    shared: bool = False
    """Whether the device's memory is the host's: on a CPU."""
    limited: bool = False
    """Whether a limit was imposed."""


@dataclass(frozen=True, slots=True)
class TrialProcesses:
    """The processes that take part beside the judge."""

    baselines: int = 1
    """All that are measured, with the ranking one against itself."""
    interleaved: int = 1
    """The baselines that are called beside every kernel."""
    pairs: int = 6
    """Most process pairs of a measurement."""
    holdouts: tuple[int, ...] = ()
    """Bytes of the operands of each hold-out shape."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How the judge uses memory for one workload."""

    slots: int
    """Copies of all operands in lent memory."""
    keeps_inputs: bool
    """Whether a slot's inputs are kept until its check; otherwise they are drawn again from their seed."""
    keeps_processes: bool
    """Whether processes serve later pairs too. Else each ends with its pair, and the baselines' end before a kernel's start."""
    copies_on_host: bool
    """Whether outputs that await their check take no further memory of the device: they stay in place or, in a race, wait on
    the host."""
    exact_on_host: bool
    """Whether the reference runs in float64 on the host."""
    exact_slices: int = 1
    """In how many slices of its rows the reference runs in float64."""
    device_bytes: int = 0
    """Needed on the device, most at a time."""
    host_bytes: int = 0
    """Needed on the host of a GPU."""
    phase: str = ""
    """When most is needed."""
    warm_bytes: int = 0
    """Heap that every process of a module faults in on a CPU."""
    baselines_ahead: int = 0
    """On a GPU, where processes end with their pair: how many further contexts for baselines are created together, before the
    first pair of the ranking baseline against itself."""
    baselines_together: bool = False
    """On a GPU, where processes end with their pair: whether the processes of these pairs are loaded together, too."""
    pairs_ahead: int = 0
    """On a GPU, where processes end with their pair: for how many pairs of a measurement contexts are created early."""
    pairs_together: int = 1
    """On a GPU, where processes end with their pair: of how many pairs of a measurement the processes live at a time."""
    keeps_checked: bool = False
    """Whether the process of a checked kernel lives on while the baselines are measured before it."""
    holds_outputs: bool = True
    """Whether a module's process may hold outputs of an earlier call during the next; hold-out shapes are smaller."""

    @property
    def holdout_slots(self) -> int:
        """Copies of a hold-out's operands."""
        return min(self.slots, _HOLDOUT_SLOTS)

    @property
    def frugal(self) -> bool:
        """Whether it has fewer slots, or processes that live shorter, than the plan of a small workload."""
        return self.slots < MOST_SLOTS or not self.keeps_processes


ROOMY = MemoryPlan(MOST_SLOTS, keeps_inputs=True, keeps_processes=True, copies_on_host=False, exact_on_host=False)
"""Where memory is not scarce."""


@dataclass(frozen=True, slots=True)
class TooLarge:
    """No plan fits: the most frugal one, and where it lacks memory."""

    plan: MemoryPlan
    room: MemoryRoom
    divisor: int = 0
    """A workload with one part in this many of the operands would fit; 0: none, because processes alone take the room."""

    @property
    def place(self) -> str:
        """``device`` or ``host``."""
        return "device" if self.plan.device_bytes > self.room.device else "host"

    @property
    def needed(self) -> int:
        return self.plan.device_bytes if self.place == "device" else self.plan.host_bytes

    @property
    def free(self) -> int:
        return self.room.device if self.place == "device" else self.room.host


@dataclass(frozen=True, slots=True)
class WorkloadMemory:
    """What one workload needs on one device, and how it fits."""

    workload: str
    needs: MemoryNeeds
    room: MemoryRoom
    found: tuple[MemoryPlan, ...] | TooLarge
    """The plan in use, then those to fall back on."""

    @property
    def fits(self) -> bool:
        return not isinstance(self.found, TooLarge)

    @property
    def plan(self) -> MemoryPlan:
        """The plan in use, or the one that lacks least."""
        return self.found.plan if isinstance(self.found, TooLarge) else self.found[0]

    def with_plans(self, found: tuple[MemoryPlan, ...]) -> WorkloadMemory:
        return replace(self, found=found)
