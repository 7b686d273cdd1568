"""The memory plan of a trial: what the judge takes on a device, and how it fits itself to what is free. Pure arithmetic.

Settings are tried from the most comfortable to the most frugal one. The first that stays within a comfortable share is used;
where none does, the first that fits at all. What does not fit is refused before memory is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

MOST_SLOTS = 8
GIB = 1 << 30
BLOCKS = 256 << 20
"""What comparing two outputs takes, in blocks of a fixed size."""
_SLACK = 1.1
"""Rounding, fragmentation, and the workspace of operators."""
_BLOCKWISE = 6
"""What a comparison takes of small outputs, in outputs in float64."""
_COMFORTABLE_OPERANDS = 6
"""A plan is comfortable if it needs at most so many times the operands,"""
_COMFORTABLE_EAGER = 2
"""or so many times what eager PyTorch needs,"""
_LITTLE, _LITTLE_SHARED = 32, 8
"""or, without what processes take by themselves, one part in so many of a GPU's room (of a machine's memory)."""
_FOR_PROCESSES = 2
"""In the last case processes by themselves may take one part in so many of the room."""
_SMALL = GIB
"""Operands up to this many bytes are comfortable on a GPU while everything takes at most half of the room: a process takes half
a GiB by itself, so no setting keeps such a problem within six times its operands, and frugal ones start processes for each
pair."""
_MOST_DIVISOR = 1 << 20
_AHEAD_OF_A_PAIR = 3
"""Processes that are created ahead for each pair: the kernel's, the baseline's, and one of the baseline's check before it;"""
_AHEAD_OF_ALL = 1
"""and so many more, while a kernel is checked."""
_LOCKED = 2
"""Page-locked memory of the host is allocated in powers of two."""
_HOLDOUT_SLOTS = 2
_RIVALS = 2
MOST_SLICES = 32
"""Slices of the rows for float64: with more of them less memory is saved than each call costs."""
SAME_PAIRS = 4
"""Most process pairs of the ranking baseline against itself, of one process more: each takes part in two pairs."""
_MOST_PAIRS_AHEAD = 2
"""A measurement has three pairs at least, and the kernel's screen is the first."""
_SAME_TOGETHER = 3
"""Fewest pairs of the ranking baseline against itself."""
_WARM, _WARM_OWN, _MOST_WARM = 4, 2, GIB
"""Heap of a module's process on a CPU: in operands; where processes end with their pair, in what eager allocates; at most."""


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
    """The same in float64."""
    exact_inputs: int
    exact_weights: int
    exact_outputs: int = 0
    rows: int = 0
    """Independent rows, in slices of which the reference can run in float64; 1: none; 0: nobody has asked."""

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
    """Whether processes live on for later pairs. Otherwise each pair's end with it, the baselines' before a kernel's begin."""
    copies_on_host: bool
    """Whether outputs take no more memory of the device until their check: they stay in place, in a race wait on the host."""
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
    """Where processes end with their pair on a GPU: contexts of baselines' further processes that are created together, before
    the first pair of the ranking baseline against itself."""
    baselines_together: bool = False
    """The same: whether the processes of those pairs are loaded together too."""
    pairs_ahead: int = 0
    """The same for a kernel's measurement: contexts are created for the processes of so many pairs."""
    pairs_together: int = 1
    """The same: pairs of a measurement whose processes live at a time."""
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
        """Whether it differs from what a small workload gets."""
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


def plans(needs: MemoryNeeds, room: MemoryRoom, processes: TrialProcesses) -> tuple[MemoryPlan, ...] | TooLarge:
    """The plan to use, then those to fall back on if memory runs out anyway, each with less than the one before."""
    every = [_sized(one, needs, room, processes) for one in _settings(shared=room.shared, rows=needs.rows)]
    fitting = [one for one in every if one.device_bytes <= room.device and one.host_bytes <= room.host]
    if not fitting:
        return TooLarge(min(every, key=lambda one: _lack(one, room)), room, _fitting_divisor(needs, room, processes))
    first = next((one for one in fitting if _is_comfortable(one, needs, room, processes)), None)
    copies_for_comfort = first is not None and first.copies_on_host and needs.rows == 1
    if first is None or copies_for_comfort or (first.exact_on_host and not fitting[0].exact_on_host):
        # On the host float64 takes seconds a call, and copies a second for 2 GB: rather more memory of a device that has it.
        on_device = [one for one in fitting if not (one.exact_on_host or one.copies_on_host)]
        first = _most_frugal(on_device) if on_device else first or _most_frugal(fitting)
    chosen = [first]
    for one in fitting[fitting.index(first) + 1 :]:
        if one.device_bytes < chosen[-1].device_bytes:
            chosen.append(one)
    held = [replace(one, holds_outputs=_has_room_to_hold(one, needs, room, processes)) for one in chosen]
    limits = [_most_for_processes(first, needs, room), *[0 for _ in chosen[1:]]]  # a fallback needs less than the one before
    return tuple(_with_processes_ahead(one, needs, room, processes, most) for one, most in zip(held, limits, strict=True))


def _has_room_to_hold(plan: MemoryPlan, needs: MemoryNeeds, room: MemoryRoom, processes: TrialProcesses) -> bool:
    """Whether the outputs of one more call fit, in the processes of both kernels of a race."""
    held = _RIVALS * (processes.pairs if plan.keeps_processes else 1) * needs.outputs
    return room.shared or plan.device_bytes + int(_SLACK * held) <= room.device


def _most_frugal(found: Sequence[MemoryPlan]) -> MemoryPlan:
    return min(found, key=lambda one: one.device_bytes)


def is_short_of_memory(found: tuple[MemoryPlan, ...] | TooLarge) -> bool:
    """Whether float64 in slices would help: nothing fits, or only with float64 or copies of outputs on the host."""
    return isinstance(found, TooLarge) or found[0].exact_on_host or found[0].copies_on_host


def warm_bytes(operands: int) -> int:
    """Heap that a module's process on a CPU faults in, where memory is not scarce."""
    return min(_WARM * operands, _MOST_WARM)


def _fitting_divisor(needs: MemoryNeeds, room: MemoryRoom, processes: TrialProcesses) -> int:
    """The least power of two by which the needs would have to be divided; 0 if nothing fits."""
    frugal = list(_settings(shared=room.shared, rows=needs.rows))
    divisor = 2
    while divisor <= _MOST_DIVISOR:
        less = MemoryNeeds(**{**{name: count // divisor for name, count in asdict(needs).items()}, "rows": needs.rows})
        few = replace(processes, holdouts=tuple(count // divisor for count in processes.holdouts))
        if any(not _lack(_sized(one, less, room, few), room) for one in frugal):
            return divisor
        divisor *= 2
    return 0


def _lack(plan: MemoryPlan, room: MemoryRoom) -> int:
    return max(0, plan.device_bytes - room.device) + max(0, plan.host_bytes - room.host)


def _is_comfortable(plan: MemoryPlan, needs: MemoryNeeds, room: MemoryRoom, processes: TrialProcesses) -> bool:
    """Within the bounds, or little beside what every process takes by itself."""
    if not room.shared and needs.operands <= _SMALL and plan.device_bytes <= room.device // _FOR_PROCESSES:
        return True
    alone = _sized(plan, needs, replace(room, process=0), processes).device_bytes
    share = room.device // (_LITTLE_SHARED if room.shared else _LITTLE)
    little = alone <= share and plan.device_bytes - alone <= room.device // _FOR_PROCESSES
    return little or plan.device_bytes <= _bound(needs)


def _bound(needs: MemoryNeeds) -> int:
    return max(_COMFORTABLE_OPERANDS * needs.operands, _COMFORTABLE_EAGER * (needs.operands + needs.own))


def _settings(*, shared: bool, rows: int = 0) -> Iterator[MemoryPlan]:
    """From the most comfortable to the most frugal."""
    for slots in range(MOST_SLOTS, 0, -1):
        yield replace(ROOMY, slots=slots)
    yield replace(ROOMY, slots=2, keeps_processes=False)
    frugal = replace(ROOMY, slots=1, keeps_processes=False)
    yield frugal
    yield replace(frugal, keeps_inputs=False)
    if rows > 1:
        sliced = replace(frugal, exact_slices=min(MOST_SLICES, rows))
        yield sliced
        yield replace(sliced, keeps_inputs=False)
        if not shared:
            yield replace(sliced, keeps_inputs=False, copies_on_host=True)
    if not shared:
        yield replace(frugal, keeps_inputs=False, copies_on_host=True)
        yield replace(frugal, exact_on_host=True)
        yield replace(frugal, keeps_inputs=False, exact_on_host=True, copies_on_host=True)


def _sized(plan: MemoryPlan, needs: MemoryNeeds, room: MemoryRoom, processes: TrialProcesses) -> MemoryPlan:
    """The plan with what it needs."""
    if room.shared:
        warm = warm_bytes(needs.operands) if plan.keeps_processes else min(_WARM_OWN * needs.own, _MOST_WARM)
        plan = replace(plan, warm_bytes=warm)
    phases = _phases(plan, needs, room, processes)
    phase = max(phases, key=lambda name: phases[name])
    host = 0
    if not room.shared:
        copies = _LOCKED * needs.outputs * plan.slots if plan.copies_on_host else 0
        exact = needs.exact_peak if plan.exact_on_host else 0
        host = int(_SLACK * (copies + exact))
    return replace(plan, device_bytes=int(_SLACK * phases[phase]) + _for_blocks(needs), host_bytes=host, phase=phase)


def _for_blocks(needs: MemoryNeeds) -> int:
    return min(BLOCKS, _BLOCKWISE * needs.exact)


def _most_for_processes(plan: MemoryPlan, needs: MemoryNeeds, room: MemoryRoom) -> int:
    """What a phase may take with further processes: what the bound leaves, or half of the room where the plan exceeds it."""
    if room.shared:
        return 0
    bound = _bound(needs) if plan.device_bytes <= _bound(needs) else room.device // _FOR_PROCESSES
    return int((min(bound, room.device) - _for_blocks(needs)) / _SLACK)


def _with_processes_ahead(
    plan: MemoryPlan, needs: MemoryNeeds, room: MemoryRoom, processes: TrialProcesses, most: int
) -> MemoryPlan:
    """The plan with processes that live longer, or start earlier, than they must: that saves seconds of each verdict.

    They take what another phase needs more; a phase takes up to ``most`` with them.
    """
    phases = _phases(plan, needs, room, processes)
    most = max(*phases.values(), most)
    runner = room.process + max(needs.own, plan.warm_bytes)
    if phases["baselines"] + runner <= most:
        plan, phases["baselines"] = replace(plan, keeps_checked=True), phases["baselines"] + runner
    if not (room.shared or plan.keeps_processes) and room.process:
        baselines = phases["baselines"] + (_SAME_TOGETHER - 1) * processes.baselines * runner
        if baselines <= most:
            plan, phases["baselines"] = replace(plan, baselines_together=True), baselines
        spare = {name: (most - needed) // room.process for name, needed in phases.items()}
        checking, measuring = spare["verification"] - _AHEAD_OF_ALL, spare["measurement"]
        ahead = max(0, min(_MOST_PAIRS_AHEAD, min(checking, measuring) // _AHEAD_OF_A_PAIR, spare["baselines"]))
        plan = replace(plan, baselines_ahead=min(SAME_PAIRS - 1, spare["baselines"]), pairs_ahead=ahead)
        together = phases["measurement"] + (_MOST_PAIRS_AHEAD - 1) * (1 + processes.interleaved) * runner
        phases["baselines"] += ahead * room.process
        phases["verification"] += (ahead * _AHEAD_OF_A_PAIR + (_AHEAD_OF_ALL if ahead else 0)) * room.process
        phases["measurement"] += ahead * _AHEAD_OF_A_PAIR * room.process
        if together <= most:
            plan = replace(plan, pairs_together=_MOST_PAIRS_AHEAD)
            phases["measurement"] = max(together, phases["measurement"])
    phase = max(phases, key=lambda name: phases[name])
    return replace(plan, device_bytes=int(_SLACK * phases[phase]) + _for_blocks(needs), phase=phase)


def _phases(plan: MemoryPlan, needs: MemoryNeeds, room: MemoryRoom, processes: TrialProcesses) -> dict[str, int]:
    """What each phase of a trial needs on the device."""
    exact = needs.outputs if plan.exact_on_host else needs.exact_in(plan.exact_slices)
    kept = needs.inputs * (plan.slots if plan.keeps_inputs else 0)
    judge = room.process + plan.slots * needs.operands + needs.weights + max(kept, needs.inputs)
    checked = judge - (0 if plan.keeps_inputs else needs.inputs) + exact
    copies = 0 if plan.copies_on_host else plan.slots * needs.outputs
    rivals = plan.slots * needs.outputs if room.shared else 0
    runner = room.process + max(needs.own, plan.warm_bytes)
    null = room.process + (needs.outputs if room.shared else 0)
    alive = processes.pairs if plan.keeps_processes else 1
    itself = max(0, SAME_PAIRS + 1 - alive) if plan.keeps_processes else 1
    baselines = alive * processes.baselines * runner if plan.keeps_processes else 0
    beside = max(baselines, alive * processes.interleaved * runner) + null
    held = sum(processes.holdouts) if plan.keeps_processes else max(processes.holdouts, default=0)
    holdouts = plan.holdout_slots * held
    calibration = room.process + 2 * needs.inputs + needs.weights + max(exact, needs.inputs + needs.weights + needs.own)
    return {
        "calibration": calibration + (0 if plan.keeps_inputs else -needs.inputs),
        "baselines": judge + (alive * processes.baselines + itself) * runner + null,
        "verification": checked + copies + runner + beside + holdouts,
        "measurement": checked + copies + alive * runner + beside + (holdouts if plan.keeps_processes else 0),
        "race": checked + 2 * copies + rivals + 2 * alive * runner + baselines + null,
    }
