"""One kernel of a session as lines: its facts, its verdict, its races and notes. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.domain import columns, corroboration, hot_code, profile, queries
from engine.domain.mismatch_words import failed_workload_rows, mismatch_rows
from engine.domain.model import FailureKind
from engine.domain.state import Kernel, SessionState, Stage
from engine.report.text import races
from engine.report.text.lines import Line, Span, Tone, counted, fields, line, one_line, times, tunables
from engine.report.text.progress import verification_words
from engine.report.text.rounds import round_name
from engine.report.text.suite import race_rows, suite_lines, tuning_words
from engine.report.text.tree import correctness_words, outcome, sandbox_words
from engine.report.text.verdict import caveat_rows, contract_words, doubt_rows, measurement_rows

Row = tuple[str, Span | str]
_TONES = {Stage.FAILED: Tone.BAD, Stage.QUARANTINED: Tone.WARN, Stage.MEASURED: Tone.GOOD}


def kernel_lines(state: SessionState, kernel: Kernel) -> list[Line]:
    """The kernel for people."""
    best = queries.incumbent(state)
    leads = " ★ incumbent" if best is not None and best.id == kernel.id else ""
    head = line(
        Span(f"{kernel.id} {one_line(queries.title(state, kernel))}", Tone.STRONG), Span(leads, Tone.GOOD), ": ",
        Span(outcome(kernel), Tone.WARN if corroboration.is_doubted(kernel) else _TONES.get(kernel.stage, Tone.PLAIN)),
    )  # fmt: skip
    rows = [*_origin(state, kernel), *_verdict(state, kernel), *_history(state, kernel)]
    each = suite_lines(kernel.measurement, kernel.verification, queries.ranking_baseline(state), kernel.choices)
    facts = [line("  ", *spans) for spans in fields(row for row in rows if row[1])]
    return [head, *facts, *([line(), *each] if each else [])]


def _origin(state: SessionState, kernel: Kernel) -> Iterator[Row]:
    marks = [
        "seed" if kernel.seed else "", "pinned" if kernel.id in state.pinned else "",
        "pruned" if queries.is_pruned(state, kernel.id) else "",
    ]  # fmt: skip
    yield (
        "round",
        f"{round_name(state, kernel.round).removeprefix('round ')}{', ' if any(marks) else ''}{', '.join(filter(None, marks))}",
    )
    yield "idea", kernel.idea
    yield "parent", kernel.parent or ""
    yield "children", ", ".join(kernel.children)
    yield "by", f"{kernel.author}"
    attempts = f", attempt {kernel.attempt + 1}" if kernel.attempt else ""
    yield "code", f"{kernel.name}, {kernel.dialect.value}{attempts}"
    yield "tunables", tunables(kernel.tunables)
    yield "dispatch", f"of {', '.join(kernel.members)}" if kernel.members else ""


def _verdict(state: SessionState, kernel: Kernel) -> Iterator[Row]:
    if kernel.failure is not None:
        yield "reason", Span(one_line(kernel.failure.reason), Tone.BAD)
        yield from failed_workload_rows(kernel.failure.failed_on)
        yield from mismatch_rows(kernel.failure.mismatches)
        if kernel.failure.kind is FailureKind.MISMATCH and state.preparation is not None:
            yield "check", correctness_words(state.preparation)
    elif kernel.reason:
        yield "reason", one_line(kernel.reason)
    yield from doubt_rows(corroboration.of_kernel(kernel))
    yield "accepted", one_line(kernel.accepted)
    if kernel.verification is not None:
        yield "correct", verification_words(kernel.verification)
        yield from caveat_rows(kernel.verification)
    for one in columns.behind(state, kernel):
        words = f"{one.workload}: {times(one.own)}, {one.best.id} has {times(one.theirs)}"
        yield "behind on", Span(words, Tone.WARN)
    if kernel.measurement is not None:
        yield from measurement_rows(kernel.measurement, corroboration.status(kernel))
        if kernel.epoch != state.epoch:
            yield "note", Span("measured on another device or with earlier baselines: not compared", Tone.WARN)
    yield "contract", contract_words(kernel.contract.value)
    if state.preparation is not None and state.device is not None:
        yield "device", f"{state.device.label}: {state.device.name}, {state.device.arch}"
        yield "sandbox", sandbox_words(state.preparation.sandbox)


def _history(state: SessionState, kernel: Kernel) -> Iterator[Row]:
    for used in kernel.resources:
        words = f"{counted(used.registers, 'register')}, {used.shared_bytes} B shared, {used.spill_bytes} B spilled"
        yield "function", f"{used.function}: {words}"
    for race in state.races:
        if kernel.id in (race.kernel, race.against):
            yield "race", f"{races.outcome_words(race, kernel.id)}: {races.ratio_words(race, kernel.id)}"
            if race.kernel == kernel.id:
                yield from race_rows(race.by_workload)
    if (tuned := kernel.tuning) is not None:
        words = tuning_words(tuned.by_workload) or one_line(tuned.note)
        yield "tuned", f"{words} ({counted(tuned.trials, 'trial')})" if tuned.trials else words
    if kernel.sanitizing is not None:
        found = kernel.sanitizing
        clean = f"{', '.join(found.tools)} clean" if found.tools else one_line(found.note)
        yield "sanitizers", Span("; ".join(found.findings), Tone.BAD) if found.findings else clean
    if kernel.profile is not None:
        parent = state.kernels.get(kernel.parent or "")
        yield "counters", one_line(profile.line(kernel.profile, parent.profile if parent else None))
        if kernel.profile.hot is not None and (words := one_line(hot_code.summary(kernel.profile.hot))):
            yield "hot code", words
    for note in state.notes:
        if note.target == kernel.id:
            yield "note", f"{one_line(note.text)} ({note.by})"
