"""The runner's stopwatch: how long work on a device takes, and whether any of it hid from the clock.

Knows events, cache flushing and what to wait for. What it says is a claim of the runner's process: the judge holds it
against a clock of its own. Knows neither statistics nor limits; keeps every sample as it was. No torch.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.domain.errors import DeviceError
from engine.trial.gpu import driver as cuda
from engine.trial.gpu.launch import LaunchFault, Module, fault
from engine.trial.gpu.packing import pack_config, pack_parameters

_now = time.perf_counter_ns
_PERSISTING_L2 = 6
"""``CU_LIMIT_PERSISTING_L2_CACHE_SIZE``."""
_HOT_HOLD_US = 20.0
"""Without a flush the host needs about this long to enqueue events and a few launches (3.5 µs each on an H200)."""

_PTX = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry espalier_null() { ret; }
.visible .entry espalier_hold(.param .u64 nanoseconds)
{
  .reg .u64 %end, %now;
  .reg .pred %early;
  mov.u64 %now, %globaltimer;
  ld.param.u64 %end, [nanoseconds];
  add.u64 %end, %end, %now;
again:
  mov.u64 %now, %globaltimer;
  setp.lt.u64 %early, %now, %end;
  @%early bra again;
  ret;
}
\0"""
"""Two kernels the stopwatch needs for itself: one that does nothing, one that holds a stream for a while."""

Work = Callable[[], object]
"""Enqueues one call of what is measured on the stopwatch's stream; of what it returns only a :class:`LaunchFault`
matters."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed call, in microseconds."""

    event_us: float
    """Between the two events on the stream: device time, as long as the host ran ahead of the device."""
    enqueue_us: float
    """How long the call took to return on the host."""
    wall_us: float
    """Host clock from before the call until the whole device was idle; after a flush or a hold it contains what was
    left of that."""
    idle_us: float
    """How long the device still worked after the second event: near zero unless work went past the clock on another
    stream."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """What the stopwatch itself costs, median event time in microseconds."""

    pair_us: float
    """Two events with nothing between them."""
    kernel_us: float
    """Two events around one empty kernel: no kernel can be shown to be faster."""


class Stopwatch:
    """Times calls on one stream of the current context, from cold caches unless asked otherwise.

    The host enqueues flush, first event, call and second event without waiting in between: while the device is busy
    flushing the host gets ahead, so launch cost does not show in the event time of a call that is enqueued within the
    flush.
    """

    def __init__(self, context: cuda.Context, stream: int = 0) -> None:
        """Takes a buffer of twice the L2 cache on the device. Raises :class:`DeviceError` when that does not fit."""
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
        self._await: tuple[Any, ...] = (native.cuEventSynchronize, last)
        self._flush: tuple[Any, ...] = (
            native.cuMemsetD32Async, ctypes.c_uint64(self._buffer), ctypes.c_uint32(0),
            ctypes.c_size_t(self._size // 4), handle,
        )  # fmt: skip
        self._synchronise: Callable[[], int] = native.cuCtxSynchronize
        self._elapsed = ctypes.c_float()
        self._read: tuple[Any, ...] = (native.cuEventElapsedTime, ctypes.byref(self._elapsed), first, last)
        self._tools: _Tools | None = None
        self.resets_persisting = self._unpersist() == 0
        """Whether the driver lets us empty the part of the L2 cache that a kernel can set aside for itself."""

    def sample(self, work: Work, *, cold: bool = True, hold_us: float | None = None) -> Sample | LaunchFault:
        """Times one call.

        ``cold`` flushes the L2 cache just before it. ``hold_us`` keeps the stream busy that much longer before the
        first event, for a call that takes the host longer to enqueue (``Sample.enqueue_us`` says) than the flush takes;
        by default nothing after a flush, and 20 µs without one. Only a :class:`LaunchFault` that ``work`` returns is
        looked at. Raises :class:`DeviceError` when the stopwatch itself cannot work; a fault of the call is a value.
        """
        if self.resets_persisting:
            self._unpersist()
        if cold:
            _do(self._flush, "flushing the caches")
        hold = hold_us if hold_us is not None else 0.0 if cold else _HOT_HOLD_US
        if hold > 0:
            self._tools_for_stream().hold(hold)
        _do(self._start, "recording an event")
        before = _now()
        returned = work()
        enqueued = _now()
        if isinstance(returned, LaunchFault):
            return returned
        code = self._stop[0](*self._stop[1:]) or self._await[0](*self._await[1:])
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
        )

    def flush(self) -> LaunchFault | None:
        """Enqueues a write of twice the L2 cache, which drives everything else out of it."""
        code = self._flush[0](*self._flush[1:])
        return fault(code, "flushing the caches") if code else None

    def null_overhead(self, repeats: int = 25) -> Overhead:
        """Measures the stopwatch itself under the conditions of a cold sample. Raises :class:`DeviceError`."""
        tools = self._tools_for_stream()
        return Overhead(self._median(_nothing, repeats), self._median(tools.nothing, repeats))

    def close(self) -> None:
        """Frees the flush buffer and the events. Never raises."""
        driver = cuda.bindings()
        driver.cuMemFree(self._buffer)
        for event in self._events:
            driver.cuEventDestroy(event)
        if self._tools is not None:
            self._tools.module.unload()

    def _median(self, work: Work, repeats: int) -> float:
        times: list[float] = []
        for _ in range(repeats):
            found = self.sample(work)
            if isinstance(found, LaunchFault):
                raise DeviceError(f"the stopwatch cannot time an empty kernel: {found.text}")
            times.append(found.event_us)
        return statistics.median(times)

    def _unpersist(self) -> int:
        native = cuda.native()
        code = int(native.cuCtxResetPersistingL2Cache())
        return code or int(native.cuCtxSetLimit(_PERSISTING_L2, ctypes.c_size_t(0)))

    def _tools_for_stream(self) -> _Tools:
        if self._tools is None:
            self._tools = _Tools.load(self._stream)
        return self._tools


class _Tools:
    """The stopwatch's own two kernels, ready to launch."""

    def __init__(self, module: Module, null: int, hold: int, stream: int) -> None:
        self.module = module
        self._packed = pack_config((1, 1, 1), (1, 1, 1), 0, stream)
        self._parameters = pack_parameters((0,))
        self._nanoseconds = ctypes.c_uint64.from_address(self._parameters.storage.address)
        launch, config = cuda.native().cuLaunchKernelEx, ctypes.byref(self._packed.config)
        self._null = (launch, config, ctypes.c_void_p(null), None, None)
        self._hold = (launch, config, ctypes.c_void_p(hold), self._parameters.table, None)

    @classmethod
    def load(cls, stream: int) -> _Tools:
        module = Module.load(_PTX)
        if isinstance(module, LaunchFault):
            raise DeviceError(f"the stopwatch's own kernels do not load: {module.text}")
        null, hold = module.function("espalier_null"), module.function("espalier_hold")
        if isinstance(null, LaunchFault) or isinstance(hold, LaunchFault):
            raise DeviceError("the stopwatch's own kernels do not load: the driver does not find them")
        return cls(module, null.handle, hold.handle, stream)

    def nothing(self) -> LaunchFault | None:
        code = self._null[0](*self._null[1:])
        return fault(code, "launching an empty kernel") if code else None

    def hold(self, microseconds: float) -> None:
        self._nanoseconds.value = int(microseconds * 1e3)
        _do(self._hold, "holding the stream")


def _nothing() -> LaunchFault | None:
    return None


def _do(call: tuple[Any, ...], action: str) -> None:
    """One foreign call of the stopwatch's own. Raises :class:`DeviceError`."""
    if code := call[0](*call[1:]):
        raise DeviceError(f"{action} failed: {cuda.explain(code)}")
