"""The verdict on one kernel: the object that ``eval --json`` prints, and its text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.domain import stats
from engine.domain import work as w
from engine.domain.model import Contract, Device, Dialect, Interval, Measurement, SpeedOfLight, Verification
from engine.domain.preparation import Preparation
from engine.report.text.lines import (
    Line,
    Span,
    Tone,
    counted,
    duration,
    duration_interval,
    fields,
    line,
    one_line,
    percent,
    speedup_tone,
    times,
)
from engine.report.text.progress import verification_words
from engine.report.text.tree import correctness_words, sandbox_words

MEASURED = "measured"
BASELINES = ("eager", "eager_tf32", "compile")
"""Always keys of ``speedup``; ``null`` if not measured."""


@dataclass(frozen=True, slots=True)
class VerdictDevice:
    """The device that the kernel ran on."""

    name: str
    arch: str


@dataclass(frozen=True, slots=True)
class VerificationFigures:
    """The kernel's errors and its precision class."""

    policy: str
    trials: int
    rel_fro: float
    max_abs: float
    precision_class: str


@dataclass(frozen=True, slots=True)
class TimeFigures:
    """Microseconds: the median with its 95 % interval."""

    median: float
    low: float
    high: float
    samples: int


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Seconds per stage; ``None`` for a stage that was not reached."""

    build: float | None = None
    verify: float | None = None
    measure: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The object that ``eval --json`` prints. Scripts rely on it."""

    problem: str
    kernel: str
    dialect: str
    contract: str
    device: VerdictDevice
    workload: str
    status: str
    """``measured``, or how the kernel failed."""
    reason: str | None
    verification: VerificationFigures | None
    time_us: TimeFigures | None
    speedup: Mapping[str, Interval | None]
    speed_of_light: SpeedOfLight | None
    sandbox: str
    seconds: StageSeconds

    @property
    def measured(self) -> bool:
        return self.status == MEASURED


@dataclass(frozen=True, slots=True)
class VerdictSubject:
    """The kernel under test, and where it runs."""

    problem: str
    kernel: str
    dialect: Dialect
    contract: Contract
    device: Device
    workload: str
    sandbox: str


def verdict(
    subject: VerdictSubject,
    verification: Verification | None,
    final: w.Verified | w.Measured | w.Failed,
    seconds: StageSeconds,
) -> Verdict:
    """The verdict on a kernel whose last stage ended with ``final``."""
    failure = final.failure if isinstance(final, w.Failed) else None
    measured = final.measurement if isinstance(final, w.Measured) else None
    return Verdict(
        problem=subject.problem,
        kernel=subject.kernel,
        dialect=subject.dialect.value,
        contract=subject.contract.value,
        device=VerdictDevice(subject.device.name, subject.device.arch),
        workload=subject.workload,
        status=failure.kind.value if failure else MEASURED,
        reason=one_line(failure.reason) if failure else None,
        verification=_verification_figures(verification) if verification else None,
        time_us=_time_figures(measured) if measured else None,
        speedup=_speedups(measured),
        speed_of_light=measured.light if measured else None,
        sandbox=subject.sandbox,
        seconds=seconds,
    )


def _verification_figures(found: Verification) -> VerificationFigures:
    return VerificationFigures(found.policy, found.trials, found.rel_fro, found.max_abs, found.precision_class.value)


def _time_figures(measured: Measurement) -> TimeFigures:
    return TimeFigures(measured.time_us.value, measured.time_us.low, measured.time_us.high, measured.samples)


def _speedups(measured: Measurement | None) -> dict[str, Interval | None]:
    found: dict[str, Interval | None] = dict.fromkeys(BASELINES)
    return {**found, **(measured.speedup if measured else {})}


def lines(
    found: Verdict, verification: Verification | None, measured: Measurement | None, preparation: Preparation
) -> list[Line]:
    """The verdict as text, with its evidence."""
    tone = Tone.GOOD if found.measured else Tone.BAD
    head = line(
        Span(found.kernel, Tone.STRONG), f" on {found.problem}, {found.workload}, {found.device.name} ({found.device.arch}): ",
        Span(found.status.replace("_", " "), tone),
    )  # fmt: skip
    rows: list[tuple[str, Span | str]] = []
    if found.reason is not None:
        rows.append(("reason", Span(found.reason, Tone.BAD)))
    if verification is not None:
        rows.append(("verified", verification_words(verification)))
    if measured is not None:
        rows += measurement_rows(measured)
    rows += [
        ("check", correctness_words(preparation)),
        ("contract", contract_words(found.contract)),
        ("sandbox", sandbox_words(found.sandbox)),
        *(("note", Span(note, Tone.WARN)) for note in (*preparation.gate.notes, *preparation.notes)),
        ("took", _stage_words(found.seconds)),
    ]
    return [head, *(line("  ", *spans) for spans in fields(rows))]


def measurement_rows(measured: Measurement) -> list[tuple[str, Span | str]]:
    """Time, speedups, speed of light and conditions of a measurement, by name."""
    rows: list[tuple[str, Span | str]] = [("time", f"{duration_interval(measured.time_us)}, {sampling_words(measured)}")]
    for name, ratio in measured.speedup.items():
        rows.append(("speedup", Span(f"{times(ratio)} over {name}: {difference(ratio)}", speedup_tone(ratio))))
    if measured.light is not None:
        floor = f"SOL {duration(measured.light.floor_us)}, bound by {measured.light.bound}"
        rows.append(("SOL", f"{percent(measured.light.fraction)} of the speed of light ({floor})"))
    tone = Tone.PLAIN if measured.corroborated else Tone.BAD
    rows.append(("timing", Span(", ".join((*measured.conditions, corroboration_words(measured))), tone)))
    return rows


def sampling_words(measured: Measurement) -> str:
    """``60 samples in 5 process pairs``."""
    return f"{counted(measured.samples, 'sample')} in {counted(measured.processes, 'process pair')}"


def corroboration_words(measured: Measurement) -> str:
    """Whether the judge's own clock confirms the time."""
    return "corroborated by the judge's clock" if measured.corroborated else "NOT corroborated by the judge's clock"


def difference(ratio: Interval) -> str:
    """``faster``, ``slower`` or ``no measurable difference``."""
    word = stats.significant(ratio)
    return "no measurable difference" if word == "undecided" else word


def contract_words(contract: str) -> str:
    """The contract and what it guarantees."""
    return {
        "plan": "plan: device code only, launched by trusted code",
        "host": "host: native code that runs in the sandboxed runner",
        "module": "module: Python code that runs in the sandboxed runner; the weakest guarantee",
    }[contract]


def _stage_words(seconds: StageSeconds) -> str:
    stages = (("build", seconds.build), ("verify", seconds.verify), ("measure", seconds.measure))
    return ", ".join(f"{name} {value:.2f} s" for name, value in stages if value is not None)


@dataclass(frozen=True, slots=True)
class HeadToHead:
    """A race of two kernels: the speedup of the first over the second."""

    kernel: str
    speedup: Interval
    difference: str
    processes: int


def head_to_head(other: str, measured: Measurement) -> HeadToHead:
    """The result of a race of two kernels."""
    ratio = measured.speedup["other"]
    return HeadToHead(other, ratio, difference(ratio), measured.processes)


def head_to_head_lines(found: Verdict, compared: HeadToHead) -> list[Line]:
    """The comparison as text."""
    words = f"{times(compared.speedup)} over {compared.kernel}, {counted(compared.processes, 'process pair')}: "
    return [line(Span(found.kernel, Tone.STRONG), f" {words}", Span(compared.difference, speedup_tone(compared.speedup)))]


def variant_rows(found: Sequence[tuple[str, Verdict]]) -> list[list[Span]]:
    """One row per variant: tunables, status, time and speedups."""
    rows: list[list[Span]] = []
    for name, one in found:
        ratios = [f"{times(ratio)} over {key}" for key, ratio in one.speedup.items() if ratio is not None]
        span = Interval(one.time_us.median, one.time_us.low, one.time_us.high) if one.time_us else None
        tone = Tone.PLAIN if one.measured else Tone.BAD
        rows.append(
            [
                Span(name, Tone.STRONG), Span(one.status.replace("_", " "), tone),
                Span(duration_interval(span) if span else ""), Span(", ".join(ratios) or one.reason or ""),
            ]
        )  # fmt: skip
    return rows
