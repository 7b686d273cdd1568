"""The runner's stopwatch: how long work on a device takes, and how long the device is busy after it. No torch.

Its times are claims of the runner's process: the judge compares them with its own clock.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.domain.errors import DeviceError
from engine.trial.runner.gpu_launch import LaunchFault, Module, fault
from engine.trial.shared.cuda import driver as cuda
from engine.trial.shared.cuda import hold_kernel
from engine.trial.shared.cuda.packing import TENSOR_MAP_BYTES, pack_config, pack_parameters

_now = time.perf_counter_ns
_PERSISTING_L2 = 6
"""``CU_LIMIT_PERSISTING_L2_CACHE_SIZE``."""
_HOLD_BLOCK = 512
"""Threads per block of the hold kernel: a multiple fills a multiprocessor of every architecture."""
_HOLD_GRACE_S = 0.05
_WORD = 8
_MAPPED = 2
"""``CU_MEMHOSTALLOC_DEVICEMAP``."""
_NOT_READY = 600
"""``CUDA_ERROR_NOT_READY``."""

Work = Callable[[], object]
"""Enqueues one call on the stopwatch's stream; of its result only a :class:`LaunchFault` is used."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed call, in microseconds."""

    event_us: float
    """Between the two events on the stream: device time, if the host ran ahead of the device."""
    enqueue_us: float
    """Time until the call returned on the host."""
    wall_us: float
    """Host clock from before the call until the whole device was idle; includes the rest of a preceding flush or hold."""
    idle_us: float
    """Time that the device still worked after the second event: near zero unless another stream has work."""
    held: bool
    """Whether the whole device was held until the call was enqueued: ``event_us`` is then device time only, else it contains
    most of the host time (a flush of 30 µs hides no more than that)."""


@dataclass(frozen=True, slots=True)
class GateWait:
    """The runner's side of a gated call: the word that opens it, the word that reports its end, the number to wait for."""

    opened: int
    done: int
    number: int
    armed: Callable[[], None]
    """Called once everything is enqueued."""

    def wait(self, stream: int) -> None:
        """What is enqueued on ``stream`` from now on starts when the judge opens the gate."""
        native = cuda.native()
        _do((native.cuStreamWaitValue32_v2, ctypes.c_void_p(stream), ctypes.c_uint64(self.opened), self.number, 0), "waiting")

    def report(self, stream: int) -> None:
        """Report the end of what was enqueued on ``stream``."""
        native = cuda.native()
        _do((native.cuStreamWriteValue32_v2, ctypes.c_void_p(stream), ctypes.c_uint64(self.done), self.number, 0), "reporting")
        self.armed()


class Stopwatch:
    """Times calls on one stream of the current context, with cold caches by default.

    With a hold, a waiting kernel occupies the whole device while the host enqueues first event, call and second event: launch
    cost is not part of the event time.
    """

    def __init__(self, context: cuda.Context, stream: int = 0, tools: bytes = hold_kernel.PTX) -> None:
        """Allocates a buffer of twice the L2 cache. ``tools`` is the hold kernel, from ``hold_kernel.link`` or as PTX. Raises
        :class:`DeviceError` if the buffer does not fit."""
        driver = cuda.bindings()
        native = cuda.native()
        self._size = 2 * context.attribute("L2_CACHE_SIZE")
        self._buffer = int(cuda.check(driver.cuMemAlloc(self._size), "allocating the flush buffer", asked=self._size))
        self._events = tuple(cuda.check(driver.cuEventCreate(0), "making an event") for _ in range(2))
        self._stream = stream
        handle = ctypes.c_void_p(stream)
        first, last = (ctypes.c_void_p(int(event)) for event in self._events)
        self._start: tuple[Any, ...] = (native.cuEventRecord, first, handle)
        self._stop: tuple[Any, ...] = (native.cuEventRecord, last, handle)
        self._query: tuple[Any, ...] = (native.cuEventQuery, last)
        self._flush: tuple[Any, ...] = (
            native.cuMemsetD32Async, ctypes.c_uint64(self._buffer), ctypes.c_uint32(0),
            ctypes.c_size_t(self._size // 4), handle,
        )  # fmt: skip
        self._synchronise: Callable[[], int] = native.cuCtxSynchronize
        self._elapsed = ctypes.c_float()
        self._read: tuple[Any, ...] = (native.cuEventElapsedTime, ctypes.byref(self._elapsed), first, last)
        self._hold = _Hold(context, stream, tools)
        self.resets_persisting = self._unpersist() == 0
        """Whether the driver allows resetting the persisting part of the L2 cache."""

    def sample(
        self, work: Work, *, cold: bool = True, hold_us: float = 0.0, gate: GateWait | None = None
    ) -> Sample | LaunchFault:
        """Times one call.

        ``cold`` flushes the L2 cache just before it. ``hold_us`` holds the device that long before the first event: it should
        exceed ``Sample.enqueue_us``. With a ``gate`` the call waits on the device until the judge opens it, and reports its end
        there; the judge flushes. Of the result of ``work`` only a :class:`LaunchFault` is used. Raises :class:`DeviceError`
        if the stopwatch itself fails; a fault of the call is a value.
        """
        if self.resets_persisting:
            self._unpersist()  # waits for the device: work enqueued before would not hold it
        if gate is not None:
            gate.wait(self._stream)
        elif cold:
            _do(self._flush, "flushing the caches")
        held = hold_us > 0 and self._hold.begin(hold_us)
        _do(self._start, "recording an event")
        before = _now()
        returned = work()
        enqueued = _now()
        if isinstance(returned, LaunchFault):
            return returned
        code = self._stop[0](*self._stop[1:])
        if gate is not None:
            gate.report(self._stream)
        code = code or self._reached()
        ended = _now()
        code = code or self._synchronise()
        idle = _now()
        if code:
            return fault(code, "running the kernel")
        _do(self._read, "reading the time between two events")
        return Sample(
            event_us=self._elapsed.value * 1e3,
            enqueue_us=(enqueued - before) / 1e3,
            wall_us=(idle - before) / 1e3,
            idle_us=(idle - ended) / 1e3,
            held=held,
        )

    def _reached(self) -> int:
        """Waits for the second event by polling: a blocking wait could release the call's memory pools, unmeasured."""
        query, event = self._query
        while (code := int(query(event))) == _NOT_READY:
            pass
        return code

    def close(self) -> None:
        """Frees the flush buffer and the events. Never raises."""
        driver = cuda.bindings()
        driver.cuMemFree(self._buffer)
        for event in self._events:
            driver.cuEventDestroy(event)
        self._hold.close()

    def _unpersist(self) -> int:
        native = cuda.native()
        code = int(native.cuCtxResetPersistingL2Cache())
        return code or int(native.cuCtxSetLimit(_PERSISTING_L2, ctypes.c_size_t(0)))


class _Hold:
    """Occupies every multiprocessor, and detects when all are occupied."""

    def __init__(self, context: cuda.Context, stream: int, image: bytes) -> None:
        driver = cuda.bindings()
        self._module = Module.load(image)
        if isinstance(self._module, LaunchFault):
            raise DeviceError(f"the stopwatch's own kernel does not load: {self._module.text}")
        function = self._module.function("espalier_hold")
        if isinstance(function, LaunchFault):
            raise DeviceError("the stopwatch's own kernel does not load: the driver does not find it")
        per_unit = context.attribute("MAX_THREADS_PER_MULTIPROCESSOR") // _HOLD_BLOCK
        blocks = context.attribute("MULTIPROCESSOR_COUNT") * per_unit
        self._arrived = int(cuda.check(driver.cuMemAlloc(_WORD), "allocating a counter"))
        cuda.check(driver.cuMemsetD8(self._arrived, 0, _WORD), "clearing a counter")
        self._flag = int(cuda.check(driver.cuMemHostAlloc(_WORD, _MAPPED), "allocating a flag"))
        seen = int(cuda.check(driver.cuMemHostGetDevicePointer(self._flag, 0), "mapping a flag"))
        self._word = ctypes.c_uint64.from_address(self._flag)
        self._word.value = 0
        self._ticket = 0
        self._packed = pack_config((blocks, 1, 1), (_HOLD_BLOCK, 1, 1), 0, stream)
        self._parameters = pack_parameters((0, self._arrived, seen, blocks, 0))
        first = self._parameters.storage.address
        self._nanoseconds = ctypes.c_uint64.from_address(first)
        self._stamp = ctypes.c_uint64.from_address(first + 4 * TENSOR_MAP_BYTES)
        launch, config = cuda.native().cuLaunchKernelEx, ctypes.byref(self._packed.config)
        self._launch = (launch, config, ctypes.c_void_p(function.handle), self._parameters.table, None)

    def begin(self, microseconds: float) -> bool:
        """Occupies the device for that long. Returns once it is fully occupied; false if other work on it prevented that."""
        self._ticket += 1
        self._nanoseconds.value = int(microseconds * 1e3)
        self._stamp.value = self._ticket
        _do(self._launch, "holding the device")
        deadline = time.perf_counter() + microseconds / 1e6 + _HOLD_GRACE_S
        while self._word.value != self._ticket:
            if time.perf_counter() > deadline:
                return False
        return True

    def close(self) -> None:
        driver = cuda.bindings()
        driver.cuMemFree(self._arrived)
        driver.cuMemFreeHost(self._flag)
        if isinstance(self._module, Module):
            self._module.unload()


def _do(call: tuple[Any, ...], action: str) -> None:
    """One foreign call of the stopwatch itself. Raises :class:`DeviceError`."""
    if code := call[0](*call[1:]):
        raise DeviceError(f"{action} failed: {cuda.explain(code)}")
