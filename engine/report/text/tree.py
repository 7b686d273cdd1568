"""A session's kernel tree as lines, and the evidence below it: device, check, baseline, SOL, sandbox, incumbent. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.domain import corroboration, queries
from engine.domain.model import FailureKind
from engine.domain.preparation import Preparation
from engine.domain.state import Kernel, SessionState, Stage
from engine.report.text import races
from engine.report.text.lines import (
    Line,
    Span,
    Tone,
    counted,
    digits,
    duration,
    duration_interval,
    fitted,
    line,
    one_line,
    percent,
    policy_words,
    scaled,
    shortened,
    speedup_tone,
    times,
    tunables,
)
from engine.report.text.suite import spread_words

_TITLE = 52
_TUNABLES = 32
"""Characters of a kernel's tunables in a terminal."""
_REASON = 88
_DOUBTED = 5
"""Doubted kernels that are listed with their doubts."""
_INCUMBENT = "★"
_KERNEL, _LEAST_KERNEL = 1, 36
_SPARE = (7, 2, 8, 6, 4)
"""Columns that a narrow terminal lacks, in this order: precision class, tunables, remarks, SOL, time."""


def tree(state: SessionState, kernels: Sequence[Kernel] | None = None, width: int = 0) -> list[Line]:
    """One line per kernel, parents above children. Roots and seeds are on the left; a star marks the incumbent.

    With ``kernels`` only those, in that order. In a terminal of ``width`` columns, what does not fit is left out.
    """
    best = queries.incumbent(state)
    chosen = walk(state) if kernels is None else ((kernel, "") for kernel in kernels)
    rows = [_row(state, kernel, branch, best, _TUNABLES if width else None) for kernel, branch in chosen]
    if not rows:
        return [line(Span("no kernel yet", Tone.FAINT))]
    heads = ("", "kernel", "", "outcome", "time", f"× {queries.ranking_baseline(state)}", "SOL", "class", "")
    all_rows = [[Span(head, Tone.FAINT) for head in heads], *rows]
    return fitted(all_rows, width, wide=_KERNEL, least=_LEAST_KERNEL, spare=_SPARE)


def walk(state: SessionState) -> Iterator[tuple[Kernel, str]]:
    """Every kernel with the branch drawn before it, depth first."""
    roots = [k for k in state.kernels.values() if k.parent is None or k.parent not in state.kernels]
    todo: list[tuple[Kernel, str, str]] = [(root, "", "") for root in reversed(roots)]
    while todo:
        kernel, branch, below = todo.pop()
        yield kernel, branch
        children = [state.kernels[c] for c in kernel.children if c in state.kernels]
        for place, child in reversed(list(enumerate(children))):
            last = place == len(children) - 1
            todo.append((child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  ")))


def _row(state: SessionState, kernel: Kernel, branch: str, best: Kernel | None, most: int | None) -> list[Span]:
    leads = best is not None and kernel.id == best.id
    chosen = tunables(kernel.tunables)
    title = shortened(one_line(queries.title(state, kernel)), _TITLE)
    tone = Tone.STRONG if leads else Tone.FAINT if queries.is_pruned(state, kernel.id) else Tone.PLAIN
    row = [
        Span(_INCUMBENT if leads else "", Tone.GOOD),
        Span(f"{branch}{kernel.id} {title}", tone),
        Span(shortened(chosen, most or len(chosen)), Tone.FAINT),
    ]
    if kernel.stage is Stage.FAILED and kernel.failure is not None:
        why = shortened(one_line(kernel.failure.reason), _REASON)
        return [*row, Span(f"{outcome(kernel)}: {why}", Tone.BAD)]
    if kernel.stage is Stage.QUARANTINED:
        why = shortened(one_line("; ".join(kernel.evidence)), _REASON)
        return [*row, Span(f"{outcome(kernel)}: {why}", Tone.WARN)]
    if kernel.measurement is None or kernel.stage is Stage.CANCELLED:
        return [*row, Span(outcome(kernel), Tone.FAINT if kernel.stage.settled else Tone.WARN)]
    return [*row, *_figures(state, kernel), Span(_remarks(state, kernel), Tone.FAINT)]


def outcome(kernel: Kernel) -> str:
    """How a kernel ended, or its next step: ``measured``, ``not corroborated``, ``build failed``, ``to verify`` …"""
    words = corroboration.status(kernel).replace("_", " ")
    return words if kernel.stage.settled else f"to {words}"


def failure_words(kind: FailureKind) -> str:
    """``build failed``, ``timed out``."""
    return kind.value.replace("_", " ")


def _figures(state: SessionState, kernel: Kernel) -> list[Span]:
    measured = kernel.measurement
    assert measured is not None
    ratio = measured.speedup.get(queries.ranking_baseline(state))
    sol = percent(measured.light.fraction) if measured.light else ""
    precision = kernel.verification.precision_class.value if kernel.verification else ""
    doubted = corroboration.is_doubted(kernel)
    depth = "screened" if measured.depth == "screen" and not doubted else outcome(kernel)
    speedup = Span(times(ratio), Tone.WARN if doubted else speedup_tone(ratio)) if ratio else Span("")
    head = (Span(depth, Tone.WARN if doubted else Tone.PLAIN), Span(duration_interval(measured.time_us)), speedup)
    return [*head, Span(sol), Span(precision)]


def _remarks(state: SessionState, kernel: Kernel) -> str:
    measured = kernel.measurement
    assert measured is not None
    remarks = [
        spread_words(measured, queries.ranking_baseline(state)),
        counted(measured.processes, "process pair") if measured.depth == "precise" else "one process pair",
        "seed" if kernel.seed else "",
        "pinned" if kernel.id in state.pinned else "",
        "pruned" if queries.is_pruned(state, kernel.id) else "",
        "not compared" if _is_from_before(state, kernel) else "",
        "accepted by the engineer" if kernel.accepted else "",
        "; ".join(corroboration.of_measurement(measured)),
        races.remark(state, kernel),
        "module contract" if kernel.contract == "module" else "",
    ]
    return ", ".join(filter(None, remarks))


def heading(state: SessionState) -> Line:
    """Problem, workload, device, strategy and proposer."""
    if state.opened is None:
        return line("empty session")
    settings = state.opened.settings
    judged = queries.problem_and_workload(state)[1]
    words = f" · {judged} on {state.opened.device} · {settings.strategy}, proposer {settings.source}"
    return line(Span(state.opened.problem.name, Tone.STRONG), words)


def evidence(state: SessionState) -> list[tuple[str, Span]]:
    """The evidence for the tree's figures, by name: device, correctness check, baseline, SOL, sandbox, incumbent, race."""
    found = state.preparation
    rows: list[tuple[str, Span]] = []
    if found is not None and state.device is not None:
        rows += [
            ("device", Span(f"{state.device.label}: {state.device.name}, {state.device.arch}, {state.device.software}")),
            ("check", correctness_words(found)),
            ("baseline", Span(_baseline_words(state, found))),
            ("SOL", Span(_sol_words(found))),
            ("sandbox", sandbox_words(found.sandbox)),
            *(("note", Span(note, Tone.WARN)) for note in (*found.gate.notes, *found.notes)),
        ]
    if any(_is_from_before(state, kernel) for kernel in state.kernels.values()):
        rows.append(("note", Span("not compared: kernels measured on another device or with earlier baselines", Tone.WARN)))
    if state.unknown:
        rows.append(("note", Span(_unknown_words(state), Tone.WARN)))
    return [*rows, ("incumbent", _incumbent_words(state)), *_doubted(state), *races.lead_evidence(state)]


def _unknown_words(state: SessionState) -> str:
    kinds = shortened(", ".join(one_line(kind) for kind in state.unknown), _REASON)
    return f"{counted(sum(state.unknown.values()), 'event')} of a newer Espalier ignored ({kinds}): figures may be incomplete"


def _is_from_before(state: SessionState, kernel: Kernel) -> bool:
    """Whether its time is from another device, or from before the baselines were measured again."""
    return kernel.measurement is not None and kernel.epoch != state.epoch


def _doubted(state: SessionState) -> Iterator[tuple[str, Span]]:
    """The doubted kernels, the latest first: a few with their doubts, then the others by name."""
    kernels = corroboration.doubted(state)[::-1]
    for kernel in kernels[:_DOUBTED]:
        yield "doubted", Span(_doubt_words(kernel), Tone.WARN)
    if more := ", ".join(kernel.id for kernel in kernels[_DOUBTED:]):
        yield "doubted", Span(f"and {shortened(more, _REASON)}", Tone.WARN)


def _doubt_words(kernel: Kernel) -> str:
    """``k3 not corroborated: every process pair was disturbed by CPU contention``; the outcome is named once."""
    word = outcome(kernel)
    reasons = one_line("; ".join(doubt.replace(f"{word}: ", "") for doubt in corroboration.of_kernel(kernel)))
    return f"{kernel.id} {shortened(reasons if reasons.startswith(word) else f'{word}: {reasons}', _REASON)}"


def correctness_words(found: Preparation) -> Span:
    """The correctness check: its policy, its limits, and how many trivial models it rejects."""
    check = found.gate
    rejected = sum(1 for trivial in check.nulls if not trivial.passed)
    limits = (
        f"error ≤ {check.rel_fro_limit:.1e} of the output's spread, each element ≤ {check.max_scaled_limit:.1e} of its scale"
    )
    trivial_models = f"{rejected} of {len(check.nulls)} trivial models rejected"
    words = f"{policy_words(check.policy)}, {check.allowed.value} class allowed: {limits}; {trivial_models}"
    return Span(words) if check.verifiable else Span(f"NOT VERIFIABLE: {words}", Tone.BAD)


def sandbox_words(sandbox: str) -> Span:
    """How foreign code was isolated."""
    if sandbox == "bubblewrap":
        return Span("bubblewrap: no network, read-only file system, private process space")
    return Span("resource limits only: bubblewrap does not work here; run `espalier doctor` for the reason", Tone.WARN)


def _baseline_words(state: SessionState, found: Preparation) -> str:
    name = queries.ranking_baseline(state)
    parts = []
    for key, measured in found.baselines.items():
        cached = next((f" ({words})" for words in measured.conditions if words.startswith("cached, ")), "")
        parts.append(f"{key} {duration_interval(measured.time_us)}{cached}")
    ranking = found.baselines.get(name)
    conditions = f"; {', '.join(ranking.conditions)}" if ranking and ranking.conditions else ""
    return f"{'; '.join(parts) or name}; {name} against itself {times(found.same)}{conditions}"


def _sol_words(found: Preparation) -> str:
    rates = [f"copy {digits(found.peaks.copy_bytes_per_s / 1e9)} GB/s"]
    rates += [f"{unit} {scaled(rate)}FLOP/s" for unit, rate in found.peaks.operations_per_s.items()]
    return f"{duration(found.floor_us)}, bound by {found.bound} (measured here: {', '.join(rates)})"


def _incumbent_words(state: SessionState) -> Span:
    best = queries.incumbent(state)
    ratio = queries.speedup(state, best) if best else None
    if best is None or best.measurement is None or ratio is None:
        none = "no kernel whose time is corroborated" if corroboration.doubted(state) else "no verified kernel"
        return Span(none, Tone.WARN)
    base = queries.ranking_baseline(state)
    title = one_line(queries.title(state, best))
    if queries.is_precise(best):
        basis = f"95% interval over {counted(best.measurement.processes, 'process pair')}"
    else:
        basis = "screened in one process pair only"
    tone = Tone.GOOD if ratio.low > 1.0 else Tone.WARN
    words = "" if ratio.low > 1.0 else f"; slower than {base}" if ratio.high < 1.0 else f"; not shown to be faster than {base}"
    contract = f"{best.contract.value} contract"
    if not corroboration.is_corroborated(best):
        words, tone = f"{words}; not corroborated, accepted by the engineer: {one_line(best.accepted)}", Tone.WARN
    return Span(f"{best.id} {title}: {times(ratio)} over {base}, {basis}, {contract}{words}", tone)
