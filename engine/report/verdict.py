"""One kernel, one verdict: what ``eval --json`` prints and its form for people. Pure: results in, data and lines out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.domain import stats
from engine.domain import work as w
from engine.domain.model import Contract, Device, Dialect, Interval, Measurement, Verification
from engine.domain.preparation import Preparation
from engine.report.progress import verification_words
from engine.report.text import Line, Span, Tone, counted, duration, duration_interval, fields, line, one_line, percent, times
from engine.report.tree import gate_words, sandbox_words

MEASURED = "measured"
BASELINES = ("eager", "eager_tf32", "compile")
"""Always among the keys of ``speedup``, ``null`` where not measured."""


@dataclass(frozen=True, slots=True)
class On:
    """The device."""

    name: str
    arch: str


@dataclass(frozen=True, slots=True)
class Checked:
    """How right it was."""

    policy: str
    trials: int
    rel_fro: float
    max_abs: float
    precision_class: str


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds: the median with its 95 % interval."""

    median: float
    low: float
    high: float
    samples: int


@dataclass(frozen=True, slots=True)
class Light:
    """How near it is to what the device allows."""

    bound: str
    floor_us: float
    fraction: float


@dataclass(frozen=True, slots=True)
class Seconds:
    """What each stage took; ``None`` for one that was not reached."""

    build: float | None = None
    verify: float | None = None
    measure: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The object of ``eval --json``; a contract with scripts."""

    problem: str
    kernel: str
    dialect: str
    contract: str
    device: On
    workload: str
    status: str
    """``measured``, or how the kernel failed."""
    reason: str | None
    verification: Checked | None
    time_us: Times | None
    speedup: Mapping[str, Interval | None]
    speed_of_light: Light | None
    sandbox: str
    seconds: Seconds

    @property
    def measured(self) -> bool:
        return self.status == MEASURED


@dataclass(frozen=True, slots=True)
class Subject:
    """What is judged, and where."""

    problem: str
    kernel: str
    dialect: Dialect
    contract: Contract
    device: Device
    workload: str
    sandbox: str


def verdict(
    subject: Subject,
    verification: Verification | None,
    final: w.Verified | w.Measured | w.Failed,
    seconds: Seconds,
) -> Verdict:
    """The verdict on a kernel whose last stage ended as ``final``."""
    failure = final.failure if isinstance(final, w.Failed) else None
    measured = final.measurement if isinstance(final, w.Measured) else None
    return Verdict(
        problem=subject.problem,
        kernel=subject.kernel,
        dialect=subject.dialect.value,
        contract=subject.contract.value,
        device=On(subject.device.name, subject.device.arch),
        workload=subject.workload,
        status=failure.kind.value if failure else MEASURED,
        reason=one_line(failure.reason) if failure else None,
        verification=_checked(verification) if verification else None,
        time_us=_times(measured) if measured else None,
        speedup=_speedups(measured),
        speed_of_light=_light(measured),
        sandbox=subject.sandbox,
        seconds=seconds,
    )


def _checked(found: Verification) -> Checked:
    return Checked(found.policy, found.trials, found.rel_fro, found.max_abs, found.precision_class.value)


def _times(measured: Measurement) -> Times:
    return Times(measured.time_us.value, measured.time_us.low, measured.time_us.high, measured.samples)


def _speedups(measured: Measurement | None) -> dict[str, Interval | None]:
    found: dict[str, Interval | None] = dict.fromkeys(BASELINES)
    return {**found, **(measured.speedup if measured else {})}


def _light(measured: Measurement | None) -> Light | None:
    light = measured.light if measured else None
    return Light(light.bound, light.floor_us, light.fraction) if light else None


def lines(
    found: Verdict, verification: Verification | None, measured: Measurement | None, preparation: Preparation
) -> list[Line]:
    """The verdict for people, with all that a sceptic asks for."""
    tone = Tone.GOOD if found.measured else Tone.BAD
    head = line(
        Span(found.kernel, Tone.STRONG), f" on {found.problem}, {found.workload}, {found.device.name} ({found.device.arch}): ",
        Span(found.status.replace("_", " "), tone),
    )  # fmt: skip
    rows: list[tuple[str, Span | str]] = []
    if found.reason is not None:
        rows.append(("reason", Span(found.reason, Tone.BAD)))
    if verification is not None:
        rows.append(("right", verification_words(verification)))
    if measured is not None:
        rows += _figures(measured)
    rows += [
        ("gate", gate_words(preparation)),
        ("contract", _contract_words(found.contract)),
        ("sandbox", sandbox_words(found.sandbox)),
        *(("note", Span(note, Tone.WARN)) for note in (*preparation.gate.notes, *preparation.notes)),
        ("took", _took(found.seconds)),
    ]
    return [head, *(line("  ", *spans) for spans in fields(rows))]


def _figures(measured: Measurement) -> list[tuple[str, Span | str]]:
    basis = f"{counted(measured.samples, 'sample')} in {counted(measured.processes, 'process pair')}"
    rows: list[tuple[str, Span | str]] = [("time", f"{duration_interval(measured.time_us)}, {basis}")]
    for name, ratio in measured.speedup.items():
        rows.append(("speedup", Span(f"{times(ratio)} {name}: {difference(ratio)}", _tone(ratio))))
    if measured.light is not None:
        floor = f"no less than {duration(measured.light.floor_us)}, bound by {measured.light.bound}"
        rows.append(("light", f"{percent(measured.light.fraction)} of the speed of light ({floor})"))
    tone = Tone.PLAIN if measured.corroborated else Tone.BAD
    rows.append(("timing", Span(", ".join((*measured.conditions, _corroborated(measured))), tone)))
    return rows


def _corroborated(measured: Measurement) -> str:
    return "borne out by the judge's own clock" if measured.corroborated else "NOT borne out by the judge's own clock"


def _tone(ratio: Interval) -> Tone:
    return {"faster": Tone.GOOD, "slower": Tone.WARN}.get(stats.significant(ratio), Tone.PLAIN)


def difference(ratio: Interval) -> str:
    """``faster``, ``slower``, or that nothing can be told."""
    word = stats.significant(ratio)
    return "no measurable difference" if word == "undecided" else word


def _contract_words(contract: str) -> str:
    return {
        "plan": "plan: device code only, launched by trusted code",
        "host": "host: native code run in the sandboxed runner",
        "module": "module: Python code run in the sandboxed runner, the weakest guarantee",
    }[contract]


def _took(seconds: Seconds) -> str:
    stages = (("build", seconds.build), ("verify", seconds.verify), ("measure", seconds.measure))
    return ", ".join(f"{name} {value:.2f} s" for name, value in stages if value is not None)


@dataclass(frozen=True, slots=True)
class Against:
    """Two kernels in one interleaved run: the speedup of the first over the second."""

    kernel: str
    speedup: Interval
    difference: str
    processes: int


def against(other: str, measured: Measurement) -> Against:
    """What a run of two kernels against each other says."""
    ratio = measured.speedup["other"]
    return Against(other, ratio, difference(ratio), measured.processes)


def against_lines(found: Verdict, compared: Against) -> list[Line]:
    """The comparison for people."""
    words = f"{times(compared.speedup)} over {compared.kernel}, {counted(compared.processes, 'process pair')}: "
    return [line(Span(found.kernel, Tone.STRONG), f" {words}", Span(compared.difference, _tone(compared.speedup)))]


def variant_rows(found: Sequence[tuple[str, Verdict]]) -> list[list[Span]]:
    """One row a variant: its tunables, status, time and speedups."""
    rows: list[list[Span]] = []
    for name, one in found:
        ratios = [f"{times(ratio)} {key}" for key, ratio in one.speedup.items() if ratio is not None]
        span = Interval(one.time_us.median, one.time_us.low, one.time_us.high) if one.time_us else None
        tone = Tone.PLAIN if one.measured else Tone.BAD
        rows.append(
            [
                Span(name, Tone.STRONG), Span(one.status.replace("_", " "), tone),
                Span(duration_interval(span) if span else ""), Span(", ".join(ratios) or one.reason or ""),
            ]
        )  # fmt: skip
    return rows
