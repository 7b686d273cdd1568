"""The verdict on one kernel: the object that ``eval --json`` prints, and its text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.domain import corroboration, suite
from engine.domain import work as w
from engine.domain.corroboration import MEASURED, NOT_CORROBORATED, QUARANTINED
from engine.domain.mismatch import Mismatch
from engine.domain.mismatch_words import failed_workload_rows, mismatch_rows
from engine.domain.model import (
    Contract,
    Device,
    Dialect,
    FailedWorkload,
    Interval,
    Measurement,
    SpeedOfLight,
    Verification,
    WorkloadChoice,
)
from engine.domain.preparation import Preparation
from engine.domain.regimes import Regime
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
from engine.report.text.regimes import RegimeFigures, difference_words, regime_figures, regime_rows
from engine.report.text.suite import mean_words, suite_lines
from engine.report.text.tree import correctness_words, sandbox_words

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
    """The tolerance, e.g. ``class:fp32 (10x)``."""
    trials: int
    """Checked calls, each on new inputs."""
    rel_fro: float
    """Largest centred error over an output: ‖o − r‖ ÷ ‖r − mean(r)‖."""
    max_abs: float
    """Largest absolute error of an element."""
    precision_class: str
    chance_holdout: str
    """The settings of the hold-out shape that was drawn at random; empty without one."""
    caveats: tuple[str, ...]
    """What the trial could not check, or found and does not hold against the kernel."""


@dataclass(frozen=True, slots=True)
class TimeFigures:
    """Microseconds: the median with its 95% interval."""

    median: float
    low: float
    high: float
    samples: int


@dataclass(frozen=True, slots=True)
class ClaimedFigures:
    """What a quarantined kernel claims. No result: the figures of a verdict itself are ``null``."""

    time_us: TimeFigures
    speedup: Mapping[str, Interval | None]
    speed_of_light: SpeedOfLight | None


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Seconds per stage; ``None`` for a stage that was not reached."""

    build: float | None = None
    verify: float | None = None
    measure: float | None = None
    sustained: float | None = None
    wait: float = 0.0
    """Seconds that the evaluation waited for other processes to release the device; in no stage."""


@dataclass(frozen=True, slots=True)
class WorkloadFigures:
    """The figures on one workload of a suite; ``null`` for a stage that was not reached."""

    workload: str
    rel_fro: float | None
    precision_class: str | None
    time_us: Interval | None
    speedup: Mapping[str, Interval]
    speed_of_light: SpeedOfLight | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The object that ``eval --json`` prints. Scripts rely on it."""

    problem: str
    kernel: str
    """The file's name."""
    dialect: str
    contract: str
    device: VerdictDevice
    workload: str
    status: str
    """``measured``, ``not_corroborated``, ``quarantined``, or how the kernel failed."""
    reason: str | None
    """Why the status is not ``measured``: one line."""
    mismatches: tuple[Mismatch, ...]
    """The outputs that were wrong, most wrong first: where, how, on which inputs."""
    failed_on: FailedWorkload | None
    """Of a suite: the workload that it failed on, those that it passed, and those that were not tried."""
    corroborated: bool
    """Whether the judge's clock confirms the times that decide; ``false`` where there are none."""
    quarantined: bool
    """Whether its time or behaviour is not plausible."""
    conditions: tuple[str, ...]
    """How it was measured: caches, clocks, samples disturbed …"""
    doubts: tuple[str, ...]
    """Every doubt about the time or the code, one line each. Empty for a measured kernel."""
    verification: VerificationFigures | None
    time_us: TimeFigures | None
    speedup: Mapping[str, Interval | None]
    """By baseline; ``null`` for one that was not measured."""
    speed_of_light: SpeedOfLight | None
    claimed: ClaimedFigures | None
    """The figures of a quarantined kernel."""
    sandbox: str
    """``bubblewrap`` or ``limits``."""
    seconds: StageSeconds
    included: tuple[str, ...] = ()
    """What the build read of the user's header trees: path, number of files and their digest, a line each."""
    limit: str = ""
    """What limits the kernel: memory, arithmetic, or its own instructions; empty where it is not measured."""
    suite: str | None = None
    """The suite that it was judged on. All figures above are then geometric means, and errors the largest."""
    workloads: tuple[WorkloadFigures, ...] = ()
    """Of a suite: the figures on each workload, in its order."""
    worst: str | None = None
    """Of a suite: the workload with the least speedup over the first baseline."""
    choices: tuple[WorkloadChoice, ...] = ()
    """Of a dispatch on a suite: which of its kernels runs on each workload, with the values of its tunables."""
    regimes: RegimeFigures | None = None
    """Single and sustained calls, and which decides. ``time_us`` and ``speedup`` above are those of single calls."""

    @property
    def measured(self) -> bool:
        """Whether it is measured and corroborated."""
        return self.status == MEASURED

    @property
    def doubted(self) -> bool:
        """Whether it is quarantined, or measured and not corroborated."""
        return self.status in (NOT_CORROBORATED, QUARANTINED)


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
    suite: str = ""
    """The suite's name, if it was judged on one."""
    baseline: str = "eager"
    """The ranking baseline."""
    regime: Regime = Regime.SINGLE
    """The regime that decides."""


def verdict(
    subject: VerdictSubject,
    verification: Verification | None,
    final: w.Measured | w.Suspected | w.Failed,
    seconds: StageSeconds,
) -> Verdict:
    """The verdict on a kernel whose last stage ended with ``final``."""
    failure = final.failure if isinstance(final, w.Failed) else None
    timed = final.measurement if not isinstance(final, w.Failed) else None
    quarantined = isinstance(final, w.Suspected)
    doubts = corroboration.combined(final.evidence if isinstance(final, w.Suspected) else (), timed, subject.regime)
    measured = timed if not quarantined else None
    return Verdict(
        problem=subject.problem,
        kernel=subject.kernel,
        dialect=subject.dialect.value,
        contract=subject.contract.value,
        device=VerdictDevice(subject.device.name, subject.device.arch),
        workload=suite.label(subject.suite, subject.workload),
        status=failure.kind.value if failure else QUARANTINED if quarantined else NOT_CORROBORATED if doubts else MEASURED,
        reason=one_line(failure.reason) if failure else one_line("; ".join(doubts)) or None,
        mismatches=failure.mismatches if failure else (),
        failed_on=failure.failed_on if failure else None,
        corroborated=timed is not None and corroboration.is_confirmed(timed, subject.regime),
        quarantined=quarantined,
        conditions=timed.conditions if timed else (),
        doubts=doubts,
        verification=_verification_figures(verification) if verification else None,
        time_us=_time_figures(measured) if measured else None,
        speedup=_speedups(measured),
        speed_of_light=measured.light if measured else None,
        claimed=ClaimedFigures(_time_figures(timed), _speedups(timed), timed.light) if timed and quarantined else None,
        sandbox=subject.sandbox,
        seconds=seconds,
        suite=subject.suite or None,
        workloads=_workload_figures(verification, measured),
        worst=slowest.workload if measured is not None and (slowest := suite.worst(measured, subject.baseline)) else None,
        regimes=regime_figures(measured, subject.baseline, subject.regime) if measured is not None else None,
    )


def _workload_figures(checked: Verification | None, measured: Measurement | None) -> tuple[WorkloadFigures, ...]:
    errors = {one.workload: one for one in checked.by_workload} if checked is not None else {}
    timed = {one.workload: one for one in measured.by_workload} if measured is not None else {}
    return tuple(
        WorkloadFigures(
            name,
            errors[name].rel_fro if name in errors else None,
            errors[name].precision_class.value if name in errors else None,
            timed[name].time_us if name in timed else None,
            timed[name].speedup if name in timed else {},
            timed[name].light if name in timed else None,
        )
        for name in errors or timed
    )


def _verification_figures(found: Verification) -> VerificationFigures:
    return VerificationFigures(
        found.policy, found.trials, found.rel_fro, found.max_abs, found.precision_class.value, found.chance, found.caveats
    )


def _time_figures(measured: Measurement) -> TimeFigures:
    return TimeFigures(measured.time_us.value, measured.time_us.low, measured.time_us.high, measured.samples)


def _speedups(measured: Measurement | None) -> dict[str, Interval | None]:
    found: dict[str, Interval | None] = dict.fromkeys(BASELINES)
    return {**found, **(measured.speedup if measured else {})}


def lines(found: Verdict, verification: Verification | None, timed: Measurement | None, preparation: Preparation) -> list[Line]:
    """The verdict as text, with its evidence. ``timed``: the measurement, or the claim of a quarantined kernel."""
    tone = Tone.GOOD if found.measured else Tone.WARN if found.doubted else Tone.BAD
    head = line(
        Span(found.kernel, Tone.STRONG), f" on {found.problem}, {found.workload}, {found.device.name} ({found.device.arch}): ",
        Span(found.status.replace("_", " "), tone),
    )  # fmt: skip
    rows: list[tuple[str, Span | str]] = []
    if found.doubted:
        rows += doubt_rows(found.doubts)
    elif found.reason is not None:
        rows.append(("reason", Span(found.reason, Tone.BAD)))
    rows += [*failed_workload_rows(found.failed_on), *mismatch_rows(found.mismatches)]
    if verification is not None:
        rows += [("verified", verification_words(verification)), *format_rows(verification), *caveat_rows(verification)]
    if timed is not None:
        rows += measurement_rows(timed, found.status, found.regimes)
        rows += [("limit", found.limit)] if found.limit else []
    rows += [
        ("check", correctness_words(preparation)),
        ("contract", contract_words(found.contract)),
        ("sandbox", sandbox_words(found.sandbox)),
        *(("included", one) for one in found.included),
        *(("note", Span(note, Tone.WARN)) for note in (*preparation.gate.notes, *preparation.notes)),
        ("took", _stage_words(found.seconds)),
    ]
    baseline = next(iter(timed.speedup), "eager") if timed is not None else "eager"
    each = suite_lines(timed, verification, baseline, found.choices)
    return [head, *(line("  ", *spans) for spans in fields(rows)), *([line(), *each] if each else [])]


def doubt_rows(doubts: Sequence[str]) -> list[tuple[str, Span | str]]:
    """One row per doubt."""
    return [("doubt", Span(one_line(doubt), Tone.WARN)) for doubt in doubts]


def caveat_rows(found: Verification) -> list[tuple[str, Span | str]]:
    """One row per caveat."""
    return [("caveat", Span(one_line(caveat), Tone.WARN)) for caveat in found.caveats]


def format_rows(found: Verification) -> list[tuple[str, Span | str]]:
    """What the problem's own format says, and whose limit is stricter."""
    verdict = found.format_verdict
    if verdict is None:
        return []
    limits = {"espalier": "Espalier's limit is stricter", "format": f"{verdict.format}'s limit is stricter"}
    words = (verdict.tolerance, verdict.detail, limits.get(verdict.stricter, ""))
    text = f"{verdict.format}: {'passed' if verdict.passed else 'failed'} ({'; '.join(filter(None, words))})"
    return [("format", Span(one_line(text), Tone.PLAIN if verdict.passed else Tone.WARN))]


NO_RESULT = {NOT_CORROBORATED: "not corroborated", QUARANTINED: "a claim, not a result"}


def measurement_rows(
    measured: Measurement, status: str = MEASURED, regimes: RegimeFigures | None = None
) -> list[tuple[str, Span | str]]:
    """Time, speedups, speed of light, conditions and regimes of a measurement, by name; ``status``: that of its verdict.

    ``regimes`` says which regime decides.
    """
    caveat = NO_RESULT.get(status, "")
    time = ", ".join(filter(None, (duration_interval(measured.time_us), sampling_words(measured), caveat)))
    rows: list[tuple[str, Span | str]] = [("time", Span(time, Tone.WARN) if caveat else time)]
    for name, ratio in measured.speedup.items():
        tone = Tone.WARN if caveat else speedup_tone(ratio)
        mean = mean_words(measured, name)
        words = f"{times(ratio)} over {name}: {caveat or difference_words(ratio)}{f' ({mean})' if mean else ''}"
        rows.append(("speedup", Span(words, tone)))
    if measured.light is not None:
        floor = f"SOL {duration(measured.light.floor_us)}, bound by {measured.light.bound}"
        rows.append(("SOL", f"{percent(measured.light.fraction)} of the speed of light ({floor})"))
    tone = Tone.PLAIN if measured.corroborated else Tone.BAD
    rows.append(("timing", Span(", ".join((*measured.conditions, corroboration_words(measured))), tone)))
    return [*rows, *regime_rows(measured, next(iter(measured.speedup), "eager"), regimes)]


def sampling_words(measured: Measurement) -> str:
    """``60 samples in 5 process pairs``."""
    return f"{counted(measured.samples, 'sample')} in {counted(measured.processes, 'process pair')}"


def corroboration_words(measured: Measurement) -> str:
    """Whether the time is corroborated; the doubts say why not, and need not be about the judge's clock."""
    return "corroborated by the judge's clock" if measured.corroborated else "not corroborated"


def contract_words(contract: str) -> str:
    """The contract and what it guarantees."""
    return {
        "plan": "plan: device code only, launched by trusted code",
        "host": "host: native code that runs in the sandboxed runner",
        "module": "module: Python code that runs in the sandboxed runner; the weakest guarantee",
    }[contract]


def _stage_words(seconds: StageSeconds) -> str:
    stages = (
        ("build", seconds.build), ("verify", seconds.verify), ("measure", seconds.measure), ("sustained", seconds.sustained),
    )  # fmt: skip
    return ", ".join(f"{name} {value:.2f} s" for name, value in stages if value is not None)


def variant_rows(found: Sequence[tuple[str, Verdict]]) -> list[list[Span]]:
    """One row per variant: tunables, status, time and speedups."""
    rows: list[list[Span]] = []
    for name, one in found:
        ratios = [f"{times(ratio)} over {key}" for key, ratio in one.speedup.items() if ratio is not None]
        ratios += [one.reason] if one.doubted and one.reason else []
        span = Interval(one.time_us.median, one.time_us.low, one.time_us.high) if one.time_us else None
        tone = Tone.PLAIN if one.measured else Tone.WARN if one.doubted else Tone.BAD
        rows.append(
            [
                Span(name, Tone.STRONG), Span(one.status.replace("_", " "), tone),
                Span(duration_interval(span) if span else ""), Span(", ".join(ratios) or one.reason or ""),
            ]
        )  # fmt: skip
    return rows
