"""Messages between the engine, the judge, the host and the runner; ``channel`` carries them.

A runner's messages are *claims*: the judge uses nothing in them that it has not checked itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

NOBODY = 0
"""Not a process id."""
PROFILED = "ESPALIER_PROFILED"
"""Environment variable that makes ``engine.trial.runner.profile_target`` mark where a call starts and ends."""
COUNTED_CALLS = "espalier: counted calls: "
"""``engine.trial.runner.profile_loop`` prints this and the number of calls that were counted."""


SAMPLED_ADDRESSES = "espalier: sampled addresses: "
"""``engine.trial.runner.sample_loop`` prints this and a ``SampledAddresses`` as JSON."""


class SampledAddresses(msgspec.Struct, frozen=True):
    """Samples of the program counter: ``inside`` the kernel's shared object by offset in it, ``elsewhere`` by file name."""

    inside: dict[int, int]
    elsewhere: dict[str, int]


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages; the class name travels as the tag."""


class Slot(msgspec.Struct, frozen=True):
    """The place of one copy (slot) of an operand in lent memory."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    """Bytes from the start of its arena."""
    nbytes: int
    writable: bool = False
    """Whether it lies in the arena that the kernel may write to: an output, or an input that the reference changes."""


class ArenaHandle(msgspec.Struct, frozen=True):
    """How a runner maps lent memory. ``kind``: ``memfd``, ``cuda-fd`` or ``cuda-ipc``. Descriptors travel with the message."""

    kind: str
    size: int
    writable: bool
    header: bytes = b""


# judge → host, host → judge


class Spawn(Message, frozen=True):
    """Fork a runner; its channel travels as a descriptor."""

    few_queues: bool = False
    """Whether its device context gets two work queues instead of eight: enough for calls on one stream, and made in half the
    time. With a single one, 0.05 us less passes between two events than in a baseline's process (H200)."""


class Spawned(Message, frozen=True):
    pid: int


class Freeze(Message, frozen=True):
    """Stop every process of the sandbox but the host: nothing is written while outputs are judged."""

    pid: int


class Stop(Message, frozen=True):
    """Stop every process but the host, and say whether all have: answered by ``AllStopped`` or ``StillRunning``."""

    pid: int


class AllStopped(Message, frozen=True):
    """Every process has stopped. ``children``: whether some of them were started by a runner."""

    children: bool


class StillRunning(Message, frozen=True):
    """A process of the candidate's could not be stopped."""


class Thaw(Message, frozen=True):
    """Resume one runner, and every process that is not a runner. ``NOBODY`` resumes all runners."""

    pid: int


class ThawChildren(Message, frozen=True):
    """Resume every process that is not a runner."""


class Reap(Message, frozen=True):
    """Kill a runner and everything it left behind. Answered by ``RunnerEnded``."""

    pid: int


class Done(Message, frozen=True): ...


class RunnerEnded(Message, frozen=True):
    """``status`` as from ``waitpid``; ``killed``: further processes that had to be killed; ``text``: its standard error."""

    status: int
    killed: int
    text: str = ""


# judge → runner, runner → judge


class LoadKernel(Message, frozen=True):
    """Everything a runner may know: the artefact, the operands, the arenas. No input seed, expected value or phase."""

    contract: str
    """``plan``, ``host``, ``module``, ``baseline`` or ``null``."""
    device: str
    slots: tuple[tuple[Slot, ...], ...]
    inputs: ArenaHandle
    outputs: ArenaHandle
    threads: int
    scalars: tuple[Any, ...] = ()
    """For modules: arguments of ``Model`` by position and by name, the template of the call (``argument_codec``), the names of
    the classes of objects among its arguments, the part of the reference that defines these, and the layout of its outputs."""
    stateful: bool = False
    """The reference changes its own state: a module's buffers are reset to the lent ones before every call."""
    changes_parameters: bool = False
    """That state includes parameters: a module's are reset too."""
    source: str = ""
    """Module source (``module``), reference source with its settings and attachments (``baseline``)."""
    filename: str = "kernel.py"
    settings: Mapping[str, float | int] = {}
    attachments: Mapping[str, str] = {}
    tunables: Mapping[str, int] = {}
    baseline: str = ""
    init_seed: int = 0
    varied_constants: tuple[tuple[float, int], ...] = ()
    """Numbers, and counts of elements, of the constant parameters and buffers that vary in modules and baselines; infinite ones
    stand for copies and norms (``constant_parameters``)."""
    alike_constants: bool = False
    """Those of the same number and count of elements get the same values."""
    own_weights: bool = False
    """A module keeps the parameters and buffers that its constructor makes, where lent ones would replace them."""
    copies_outputs: bool = False
    """A module's outputs are copied to lent memory: the judge cannot read them where they are."""
    gate: ArenaHandle | None = None
    """On a GPU: two words of device memory, by which the judge starts a call and sees its end."""
    plan: bytes = b""
    """A resolved launch plan, as ``engine.toolchain.resolution`` encodes it."""
    starts_threads: bool = False
    """Whether the artefact starts threads: on a CPU its process is then not pinned to one core."""
    cold: bool = True
    stopwatch: bytes = b""
    """Machine code of the stopwatch's hold kernel."""
    warm_bytes: int = 0
    """Heap that a module's process on a CPU faults in."""
    kept: int = 0
    """Above 0: the runner of a trusted process keeps this beside what it has kept before, under this number."""


class Switch(Message, frozen=True):
    """Go on with what was loaded under this number."""

    kept: int


class Renew(Message, frozen=True):
    """Drop what was loaded and replace the device context: nothing of the last kernel is left for the next one.

    Sent only to a runner on a GPU in which no host code of a kernel has run.
    """


class CheckWorkspace(Message, frozen=True):
    """Say whether the kernel has written past its workspace. Sent last, or before a ``LoadKernel``: it tells no phase."""


class RunnerReady(Message, frozen=True):
    """Sent once the device context exists, and after each ``LoadKernel``, ``Switch``, ``CheckWorkspace`` and ``Renew``."""

    seconds: float
    unmatched: tuple[str, ...] = ()
    """Lent parameters and buffers that a module has no tensor for: a claim."""
    different: tuple[str, ...] = ()
    """Those of which a module with ``own_weights`` has other values: a claim."""


class RunKernel(Message, frozen=True):
    """Run the kernel on a slot. The same message for a check, a warm-up and a sample."""

    slot: int
    hold_us: float = 0.0
    """Microseconds to hold the device while the host enqueues the call; 0 in some samples."""
    gate: int = 0
    """Above 0: the call waits at the runner's gate, which the judge opens; the runner writes the number back after it."""
    calls: int = 1
    """Above 1: a burst. So many calls back to back, on this slot, the next one and so on in rotation, timed together."""
    holding: bool = False
    """A module's outputs of an earlier call are held during this one, as its caller may: those of the order before the first
    one that says so."""


class Armed(Message, frozen=True):
    """A gated call is enqueued. ``outputs``: the addresses of a module's outputs."""

    outputs: tuple[int, ...] = ()


class Segment(Message, frozen=True):
    """Device memory in which a module allocates: the judge maps it and reads outputs there. Its descriptor travels along."""

    address: int
    handle: ArenaHandle


class SegmentFreed(Message, frozen=True):
    """The memory at this address was freed."""

    address: int


class ClaimedTimes(Message, frozen=True):
    """Times by the runner's own clock: claims."""

    device_us: float
    wall_us: float
    idle_us: float
    """Time that the device stayed busy after the kernel's last event."""
    enqueue_us: float = 0.0
    """Time until the call returned on the host."""
    held: bool = False
    """Whether the device was held until the call was enqueued."""
    outputs: tuple[int, ...] = ()
    """Addresses of a module's outputs in the runner's memory, where the judge reads them: of a burst those of its last calls,
    one call after the other, as many as there are slots. Empty: they are in lent memory."""


WANTS_GPU = "needs a GPU, and is judged on the CPU"
"""How the text of a fault whose cause is the device begins in its last line."""


class Fault(Message, frozen=True):
    """The kernel could not be loaded or raised; ``kind`` is a FailureKind value."""

    kind: str
    text: str


HostRequest = Spawn | Freeze | Stop | Thaw | ThawChildren | Reap
HostReply = Spawned | Done | AllStopped | StillRunning | RunnerEnded
RunnerRequest = LoadKernel | Switch | RunKernel | CheckWorkspace | Renew
RunnerReply = RunnerReady | Armed | Segment | SegmentFreed | ClaimedTimes | Fault
