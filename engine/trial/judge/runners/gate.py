"""Gated calls on a GPU: the judge starts them, sees their end, and times them with events of its own. Imports torch.

The runner enqueues a call behind a gate, a word of device memory. Then the judge enqueues on its own stream: first event,
inputs, cache flush, opening of the gate, wait for the runner's report, second event, reading of the outputs. Everything is in
order on the device, and the time contains neither process's host. An empty call takes 0.29 ms (two switches between contexts)
and varies by 2 µs (H200). The inputs are released after the first event: nothing can be computed ahead. A report that comes too
early shows in the outputs, which the judge reads right after the second event. Copying 6 GiB of inputs varies by 30 µs: a third
event tells what the release took (``pair_times.with_counted_times``).

A call that waits for the device before its end cannot be enqueued whole. There the gate opens first, and the judge enqueues its
wait once the runner has enqueued the rest.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from msgspec.structs import replace as replace_fields

from engine.domain.errors import DeviceError
from engine.trial.judge.runners.runner_memory import addresses_of_call
from engine.trial.messages import ArenaHandle
from engine.trial.shared import arena
from engine.trial.shared.cuda import driver as cuda
from engine.trial.shared.cuda.device_memory import DeviceHandle, Means
from engine.trial.shared.layout import GATE_BYTES, GATE_DONE, GATE_OPENED

_ARMING_S = 0.005
"""Time limit for a runner to enqueue a call. The gate then opens anyway, and the host's part of the call counts too."""
_MOST_ARMING_S = 0.1
"""The limit for one whose calls take longer to enqueue. With 5 ms, a ResNet in eager mode (3 to 8 ms) was timed one way or the
other at random, and took 1.4 or 3.8 ms on an H200. An LSTM of six layers takes 35 to 51 ms there."""
_TRIES = 2
"""Calls after the first, in which compilers may run, in which a runner may take the longest limit."""
_ROOM = 4
"""Factor on the longest time that a call took to be enqueued."""
_HELD_S, _MOST_HELD_S, _HOLD = 0.0003, 0.005, 2.0
"""Seconds that the device is held while a release is enqueued: least, most, and as a multiple of what the last one took."""
_CYCLES_PER_S = 2e9
_ENDING_S = 2.0
"""Time limit for the report, once the runner has replied."""


class ArmingLimit:
    """How long the judge waits for one runner to enqueue a call: by the longest that an earlier call took, but the first.

    A call that waits for the device is never enqueued in time, and does not raise the limit. Nothing is gained by taking long:
    the inputs are released when the gate opens.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._longest_s = 0.0

    @property
    def seconds(self) -> float:
        """The limit of the next call."""
        if self._longest_s:
            return min(max(_ARMING_S, _ROOM * self._longest_s), _MOST_ARMING_S)
        return _MOST_ARMING_S if 1 <= self._calls <= _TRIES else _ARMING_S

    def ended(self, took_s: float, *, armed: bool) -> None:
        """A call was enqueued after so long, or not in time."""
        if armed and self._calls:
            self._longest_s = max(self._longest_s, took_s)
        self._calls += 1


class DeviceGate:
    """The gate of one runner."""

    def __init__(self, index: int) -> None:
        self._arena = arena.lend(f"cuda:{index}", GATE_BYTES, writable=True)
        self._arena.raw(0, GATE_BYTES).zero_()
        self._opened = self._arena.tensor(GATE_OPENED).data_ptr()
        self._done = self._arena.tensor(GATE_DONE).data_ptr()
        self._rescue = torch.cuda.Stream(index)  # type: ignore[no-untyped-call]
        self._first, self._released, self._last = _event(), _event(), _event()
        self._waiting = False
        """Whether the judge's stream waits for the report."""
        self.number = 0
        self._held_s = _HELD_S
        torch.cuda.synchronize()

    def handle(self) -> tuple[ArenaHandle, Sequence[int]]:
        """A handle for the runner, with its descriptors."""
        return self._arena.handle()

    def open(self, release: Callable[[], None]) -> None:
        """Enqueue the first event, ``release`` (inputs and flush), an event after it, and the opening.

        The device is held meanwhile. Otherwise it would wait for this host after every copy: beside a runner that had enqueued
        hundreds of kernels, releasing 7 MB took 95 to 186 µs on an H200.
        """
        native, stream = cuda.native(), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        torch.cuda._sleep(int(self._held_s * _CYCLES_PER_S))  # type: ignore[no-untyped-call]
        began = time.perf_counter()
        self._first.record()
        release()
        self._released.record()
        native.cuStreamWriteValue32_v2(stream, ctypes.c_uint64(self._opened), self.number, 0)
        self._held_s = min(max(_HELD_S, _HOLD * (time.perf_counter() - began)), _MOST_HELD_S)

    def follow(self, then: Callable[[], None]) -> None:
        """Enqueue the wait for the report, the second event and what follows; once in a call, when the runner has enqueued it.

        Not before: while the judge's stream waits, the device turns to it whenever the call waits for its host.
        """
        if self._waiting:
            return
        native, stream = cuda.native(), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._waiting = True
        native.cuStreamWaitValue32_v2(stream, ctypes.c_uint64(self._done), self.number, 0)
        self._last.record()
        then()

    def end(self) -> bool:
        """Wait for the second event; false if the runner has replied without a report. Call it once the reply is here."""
        deadline = time.monotonic() + _ENDING_S
        while not self._last.query():  # type: ignore[no-untyped-call]
            if time.monotonic() > deadline:
                self.abandon()
                return False
        self._waiting = False
        torch.cuda.synchronize()
        return True

    def abandon(self) -> None:
        """Release the judge's own stream, whatever the runner does; idempotent."""
        if not self._waiting:
            return
        self._waiting = False
        address = ctypes.c_uint64(self._done)
        cuda.native().cuStreamWriteValue32_v2(ctypes.c_void_p(self._rescue.cuda_stream), address, self.number, 0)
        torch.cuda.synchronize()

    def device_us(self) -> tuple[float, float]:
        """Times by the judge's events: of the whole call, and of the release in it."""
        whole, release = (float(self._first.elapsed_time(event)) * 1e3 for event in (self._last, self._released))
        return whole, release

    def close(self) -> None:
        """Free its memory, for which no stream may wait."""
        self.abandon()
        self._arena.close()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


@dataclass(slots=True)
class Segments:
    """The memory of one runner in which a module allocates, as mapped here."""

    _mapped: dict[int, tuple[int, arena.DeviceBorrowed]] = field(default_factory=dict)

    def map(self, address: int, handle: ArenaHandle, fds: list[int]) -> None:
        """Map a segment; closes the descriptors. Raises DeviceError, also for a handle that contradicts itself."""
        try:
            claimed = DeviceHandle.parse(handle.header)
            agrees = claimed.means is Means.DESCRIPTOR and claimed.size == handle.size
            if len(fds) != 1 or handle.kind != "cuda-fd" or not agrees:
                raise DeviceError("invalid device memory handle: the other side forged it")
        except DeviceError:
            arena.close_descriptors(fds)
            raise
        self.drop(address)
        self._mapped[address] = (handle.size, arena.DeviceBorrowed(replace_fields(handle, writable=True), fds.pop()))

    def drop(self, address: int) -> None:
        """Unmap a segment that was freed."""
        length_and_memory = self._mapped.pop(address, None)
        if length_and_memory is not None:
            length_and_memory[1].close()

    def close(self) -> None:
        """Unmap everything: a mapping keeps the runner's memory allocated after its end."""
        for address in list(self._mapped):
            self.drop(address)

    def at(self, address: int, size: int) -> torch.Tensor | None:
        """``size`` bytes at an address of the runner; ``None`` if they are not in one segment."""
        from engine.trial.shared.cuda.device_memory import as_tensor

        for start, (length, borrowed) in self._mapped.items():
            if start <= address and address + size <= start + length:
                return as_tensor(borrowed.base + address - start, (size,), "uint8", torch.cuda.current_device(), borrowed)
        return None


@dataclass(frozen=True, slots=True)
class DeviceOutputs:
    """A module's outputs in segments of its runner."""

    segments: Segments
    addresses: tuple[int, ...]

    def of_call(self, call: int, calls: int) -> DeviceOutputs:
        """The outputs of one of the last ``calls`` calls of a burst, whose outputs these are. Raises OSError."""
        return replace(self, addresses=addresses_of_call(self.addresses, call, calls))

    def copy_to(self, output: int, target: torch.Tensor) -> None:
        """Copy the output to ``target``, bytes of the same size. Raises OSError."""
        target.copy_(self._bytes(output, target.numel()))

    def elements(self, output: int, where: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """The elements at ``where``; ``words`` has the output's size and the elements' width. Raises OSError."""
        found = self._bytes(output, words.numel() * words.element_size())
        return torch.index_select(found.view(words.dtype), 0, where)

    def fill(self, output: int, count: int, byte: int) -> None:
        """Fill the output, of ``count`` bytes, in the order of the judge's stream. Raises OSError."""
        self._bytes(output, count).fill_(byte)

    def _bytes(self, output: int, size: int) -> torch.Tensor:
        found = self.segments.at(self.addresses[output], size)
        if found is None:
            raise OSError(0, "it is not in the memory that the module allocates in")
        return found
