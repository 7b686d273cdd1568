"""A bench without compiler or device, for tests: times come from a hash, failures from marks in the code.

Passes the contract suite of ``ports.Bench`` (``tests/contracts``). Its results are immediate and deterministic.

    // FAKE: build_failed | mismatch | crashed | timed_out | rejected | unstable      the kernel fails with this status
    // FAKE: time_us = 250                                                          this time instead of one from the hash
    // FAKE: suspicious                                                             measured, then quarantined
    // FAKE: uncorroborated                                                         measured, but not corroborated
    // FAKE: unsafe                                                                 the sanitizers report a finding
    // FAKE: exhausted                                                              measured, but crashes in every race
    // FAKE: sustained = 1.1                                                        slower by this factor back to back
    // FAKE: machine_code = 7                                                       the same machine code as others with 7
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.domain import suite
from engine.domain import work as w
from engine.domain.model import (
    Device,
    Failure,
    FailureKind,
    Interval,
    Measurement,
    Operand,
    PrecisionClass,
    Resources,
    Role,
    Signature,
    SpeedOfLight,
    Verification,
    WorkloadRatio,
)
from engine.domain.preparation import ClassErrors, CorrectnessCheck, Peaks, Preparation, TrivialModel, WorkloadPreparation
from engine.domain.profile import Profile
from engine.domain.regimes import ClockAndPower, Regime, Sustained
from engine.domain.state import Kernel
from engine.session.ports import Say, StoreBlob
from engine.toolchain.dispatch import parse_dispatch

_MARK = re.compile(r"(?://|#)\s*FAKE:\s*(\w+)(?:\s*=\s*([0-9.]+))?")
_BASELINE_US = 1000.0
_FLOOR_US = 50.0
_SLOWEST_US = 2000.0
_FASTEST_US = 60.0
_SHARE = 0.01
_FOUND_BY_BUILD = frozenset({FailureKind.BUILD_FAILED})

FAKE_CPU = Device("cpu", 0, "pretended processor", "x86_64", 2, 1 << 25, 1 << 33, "fake 1")
FAKE_GPU = Device("cuda", 0, "pretended accelerator", "sm_90a", 132, 50 << 20, 80 << 30, "fake 1")

_SIGNATURE = Signature(
    operands=(Operand("x", Role.INPUT, (128, 1024), "float32"), Operand("out", Role.OUTPUT, (128, 1024), "float32")),
    constants={"BATCH_SIZE": 128, "DIM": 1024},
    operations=4.0 * 128 * 1024,
)


@dataclass(frozen=True, slots=True)
class _Marks:
    failure: FailureKind | None
    time_us: float | None
    suspicious: bool = False
    uncorroborated: bool = False
    unsafe: bool = False
    exhausted: bool = False
    machine_code: str = ""
    sustained: float = 1.0


def _marks(code: str) -> _Marks:
    failure: FailureKind | None = None
    time_us: float | None = None
    machine_code, sustained = "", 1.0
    names = {name for name, _ in _MARK.findall(code)}
    for name, value in _MARK.findall(code):
        if name == "time_us":
            time_us = float(value)
        elif name == "sustained":
            sustained = float(value)
        elif name == "machine_code":
            machine_code = value
        elif name in FailureKind.__members__.values():
            failure = FailureKind(name)
    return _Marks(
        failure, time_us, "suspicious" in names, "uncorroborated" in names, "unsafe" in names, "exhausted" in names,
        machine_code, sustained,
    )  # fmt: skip


class FakeBench:
    """``pause``: duration of every stage in seconds, to let the stages of several kernels overlap."""

    def __init__(
        self, store: StoreBlob, device: Device = FAKE_CPU, *, pause: float = 0.0, verifiable: bool = True,
        workloads: Sequence[str] = (), counters: bool = False,
    ) -> None:  # fmt: skip
        """``workloads``: those of a suite; a kernel's times on them differ. ``counters``: whether they can be read."""
        self._counters = counters
        self._workloads = tuple(workloads) or ("",)
        self._store = store
        self._device = device
        self._pause = pause
        self._verifiable = verifiable

    async def prepare(self, say: Say) -> w.Prepared | w.Impossible:
        say("pretending to measure the baselines")
        await asyncio.sleep(self._pause)
        check = CorrectnessCheck(
            "class:fp32 (10x)", PrecisionClass.FP32, 1e-5, 1e-4, 10.0, {"fp32": ClassErrors(1e-6, 1e-5)},
            (TrivialModel("zeros", not self._verifiable, 1.0),), ("fake bench: nothing is computed",),
        )  # fmt: skip
        preparation = Preparation(
            signature=_SIGNATURE,
            gate=check,
            baselines={"eager": suite.measurement({one: _measurement("precise", _BASELINE_US) for one in self._workloads})},
            same=Interval(1.0, 0.995, 1.005),
            floor_us=_FLOOR_US,
            bound="bytes",
            peaks=Peaks(1e10, {"fp32": 1e11}),
            bytes_moved=2 * 4 * 128 * 1024,
            sandbox="limits",
            header=self._store(b"#define DIM 1024\n"),
            by_workload=tuple(
                WorkloadPreparation(one, {"eager": _around(_BASELINE_US, _SHARE)}, _FLOOR_US, "bytes", _around(1.0, 0.005))
                for one in self._workloads
                if one
            ),
        )
        return w.Prepared(self._device, preparation)

    async def build(self, kernel: Kernel, code: str, say: Say) -> w.Built | w.Failed | w.Impossible:
        say(f"pretending to build {kernel.name}")
        await asyncio.sleep(self._pause)
        if failed := self._planted(code, at_build=True):
            return failed
        artefact = _digest(code, kernel.tunables).hex()
        used, log = (Resources("launch", 32, 0, 0),), self._store(b"no warnings\n")
        return w.Built(artefact, 0.1, used, log, machine_code=_marks(code).machine_code)

    async def verify(self, kernel: Kernel, code: str, say: Say) -> w.Verified | w.Failed | w.Impossible:
        say("pretending to compare outputs")
        await asyncio.sleep(self._pause)
        if failed := self._planted(code, at_build=False):
            return failed
        one = Verification("class:fp32 (10x)", 5, 1e-7, 1e-5, 1e-6, 1e-6, 1e-4, PrecisionClass.FP32, "3/3")
        verification = suite.verification(dict.fromkeys(self._workloads, one))
        return w.Verified(verification, self._of_kernel("screen", kernel, code), 0.2)

    async def measure(self, kernel: Kernel, code: str, say: Say) -> w.Measured | w.Suspected | w.Failed | w.Impossible:
        say("pretending to measure")
        await asyncio.sleep(self._pause)
        if _marks(code).suspicious:
            return w.Suspected(("planted: suspicious",), None, self._of_kernel("precise", kernel, code), 0.5)
        return w.Measured(self._of_kernel("precise", kernel, code), 0.5)

    async def sustain(self, kernel: Kernel, code: str, say: Say) -> w.BackToBack | w.Failed | w.Impossible:
        """The planted share more time than a single call; the baseline takes no more."""
        say(f"pretending to call {kernel.name} back to back")
        await asyncio.sleep(self._pause)
        if failed := self._planted(code, at_build=False):
            return failed
        found = self._of_kernel("precise", kernel, code)
        share = _marks(code).sustained
        times, ratios = _scaled(found.time_us, share), {name: _scaled(one, 1 / share) for name, one in found.speedup.items()}
        clock = ClockAndPower(1410.0, 690.0) if self._device.kind == "cuda" else ClockAndPower()
        return w.BackToBack(Sustained(times, ratios, 1000, 3, clock, clock, conditions=("pretended",)), 0.4)

    async def race(
        self, kernel: Kernel, code: str, other: Kernel, other_code: str, effort: int, regime: Regime, say: Say
    ) -> w.Raced | w.Failed | w.Impossible:
        """The ratio of the two times; each step of effort halves the interval."""
        say(f"pretending to race {kernel.name} against {other.name}")
        await asyncio.sleep(self._pause)
        for one, text in ((kernel, code), (other, other_code)):
            if failed := self._planted(text, at_build=False):
                return replace(failed, kernel=one.id)
            if _marks(text).exhausted:
                reason = "planted: exhausted"
                failure = Failure(FailureKind.CRASHED, reason, self._store(f"{reason}\n".encode()))
                return w.Failed(failure, 0.1, one.id)
        share, pairs = _SHARE / 2**effort, 3 << effort
        slower = _marks(other_code).sustained / _marks(code).sustained if regime is Regime.SUSTAINED else 1.0
        ratios = [
            WorkloadRatio(one, _around(slower * _time_us(other, other_code, one) / _time_us(kernel, code, one), share))
            for one in self._workloads
        ]
        each = tuple(ratios) if len(ratios) > 1 else ()
        mean = suite.geometric_mean([one.ratio for one in ratios])
        return w.Raced(mean, pairs, 6 * pairs, seconds=0.3, by_workload=each, regime=regime)

    async def sanitize(self, kernel: Kernel, code: str, say: Say) -> w.Sanitized | w.Impossible:
        say("pretending to run the sanitizers")
        await asyncio.sleep(self._pause)
        findings = ("planted: unsafe",) if _marks(code).unsafe else ()
        return w.Sanitized(("pretended",), findings, seconds=0.1)

    async def read_counters(self, kernel: Kernel, code: str, say: Say) -> w.Profiled | w.Impossible:
        say(f"pretending to profile {kernel.name}")
        await asyncio.sleep(self._pause)
        if not self._counters:
            return w.Profiled(Profile(0, note="this bench has no counters"))
        cycles = 3000.0 * _time_us(kernel, code)
        metrics = {"cpu_us": _time_us(kernel, code), "cycles": cycles, "instructions": 2 * cycles, "ipc": 2.0}
        return w.Profiled(Profile(0, "pretended", self._device.name, 1, metrics))

    async def close(self) -> None:
        """Does nothing."""

    def _of_kernel(self, depth: str, kernel: Kernel, code: str) -> Measurement:
        doubts = ("not corroborated: planted",) if _marks(code).uncorroborated else ()
        return suite.measurement(
            {
                one: replace(_measurement(depth, _time_us(kernel, code, one)), corroborated=not doubts, doubts=doubts)
                for one in self._workloads
            }
        )

    def _planted(self, code: str, *, at_build: bool) -> w.Failed | None:
        kind = _marks(code).failure
        if kind is None or at_build is not (kind in _FOUND_BY_BUILD):
            return None
        reason = f"planted: {kind.value.replace('_', ' ')}"
        return w.Failed(Failure(kind, reason, self._store(f"{reason}\n".encode())), 0.1)


def _digest(code: str, tunables: Mapping[str, int]) -> bytes:
    return hashlib.sha256(f"{code}\0{sorted(tunables.items())}".encode()).digest()


def _time_us(kernel: Kernel, code: str, workload: str = "") -> float:
    """The planted time, else one from the hash: log-uniform between the fastest and the slowest. Up to twice as long or half as
    long on a suite's workload, where a dispatch takes the time of its member."""
    if choice := next((one for one in kernel.choices if one.workload == workload), None):
        members = {one.name: one.code for one in parse_dispatch(code, kernel.dialect).members}
        return _time_us(replace(kernel, tunables=choice.tunables, choices=()), members[choice.member], workload)
    stated = _marks(code).time_us
    if workload:
        place = int.from_bytes(_digest(f"{code}{workload}", kernel.tunables)[:8], "big") / 2.0**64
        return float(_time_us(kernel, code) * 2.0 ** (2 * place - 1))
    if stated is not None:
        return stated
    place = int.from_bytes(_digest(code, kernel.tunables)[:8], "big") / 2.0**64
    return float(_FASTEST_US * (_SLOWEST_US / _FASTEST_US) ** place)


def _scaled(one: Interval, factor: float) -> Interval:
    return Interval(one.value * factor, one.low * factor, one.high * factor)


def _around(value: float, share: float) -> Interval:
    return Interval(value, value * (1 - share), value * (1 + share))


def _measurement(depth: str, time_us: float) -> Measurement:
    speedup = _BASELINE_US / time_us
    precise = depth == "precise"
    return Measurement(
        depth,
        Interval(time_us, time_us * (1 - _SHARE), time_us * (1 + _SHARE)),
        samples=200 if precise else 20,
        processes=5 if precise else 1,
        speedup={"eager": Interval(speedup, speedup * (1 - _SHARE), speedup * (1 + _SHARE))},
        light=SpeedOfLight("bytes", _FLOOR_US, min(1.0, _FLOOR_US / time_us)),
        corroborated=True,
        conditions=("pretended",),
    )
