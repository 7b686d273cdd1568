"""The content of a session's report as plain values. ``render`` writes it as HTML and as Markdown.

Recorded texts may be hostile: the renderer escapes them. A page contains no path of this machine, and a session always
gives the same page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from engine.domain import columns, corroboration, predictions, queries
from engine.domain.events import Entry
from engine.domain.figure_text import exact
from engine.domain.folds import advance
from engine.domain.model import Blob, Dialect, Interval, Measurement
from engine.domain.predictions import PredictionRecord
from engine.domain.races import deciding_regime
from engine.domain.state import Idea, IdeaStatus, Kernel, SessionState, Stage
from engine.report.facts import usage
from engine.report.facts.charts import Climb, Roofline, climb, roofline
from engine.report.facts.usage import CallTotals
from engine.report.page.decisions import Decision, decisions
from engine.report.text import races, tree
from engine.report.text.lines import counted, duration, duration_interval, one_line, percent, policy_words, times, tunables
from engine.report.text.progress import verification_words
from engine.report.text.regimes import NOT_MEASURED, disagreement, sustained_words
from engine.report.text.rounds import counted_rounds
from engine.report.text.suite import choice_words
from engine.report.text.verdict import corroboration_words, sampling_words

Read = Callable[[Blob], str]


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One kernel of the tree."""

    strokes: str
    kernel: str
    title: str
    tunables: str
    outcome: str
    tone: str
    """``good``, ``bad``, ``warn`` or ``plain``."""
    time: str
    speedup: Interval | None
    precision: str
    remark: str
    """Why it failed, or a qualification of its figures."""
    incumbent: bool


@dataclass(frozen=True, slots=True)
class IdeaRow:
    """One idea of a round and its outcome."""

    idea: str
    title: str
    category: str
    author: str
    parent: str
    decision: str
    """What was decided on it, with the reason; empty for an approved idea that has kernels."""
    predicted: float | None
    gain: Interval | None
    """The gain of its fastest kernel over that kernel's parent."""
    kernel: str
    speedup: Interval | None
    tried: str


@dataclass(frozen=True, slots=True)
class RoundTable:
    """One round."""

    number: int
    parents: str
    ideas: tuple[IdeaRow, ...]
    dropped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LineageStep:
    """One kernel of the winning lineage, the naive port first."""

    kernel: str
    title: str
    author: str
    gain: Interval | None
    speedup: Interval | None


@dataclass(frozen=True, slots=True)
class Winner:
    """The incumbent, its code and how to use it."""

    kernel: str
    title: str
    speedup: Interval
    shown: bool
    """Whether the interval lies above 1.0."""
    precise: bool
    corroborated: bool
    """If not, the engineer accepted it."""
    precision: str
    contract: str
    sol: str
    dialect: Dialect
    file: str
    tunables: str
    code: str
    lineage: tuple[LineageStep, ...]
    commands: tuple[tuple[str, str], ...]
    """(command, what it does)"""


@dataclass(frozen=True, slots=True)
class Spending:
    """Calls, tokens and cost. The tables are empty if no model was called."""

    total: CallTotals
    by_model: Mapping[str, CallTotals]
    """By model and role."""
    by_round: Mapping[str, CallTotals]
    active_seconds: float
    """Time spent working, excluding waits for the engineer."""
    source: str


@dataclass(frozen=True, slots=True)
class Page:
    """The whole report."""

    session: str
    problem: str
    title: str
    baseline: str
    facts: tuple[tuple[str, str], ...]
    rows: tuple[TreeRow, ...]
    climb: Climb
    roofline: Roofline | None
    rounds: tuple[RoundTable, ...]
    predictions: tuple[PredictionRecord, ...]
    decisions: tuple[Decision, ...]
    spending: Spending
    conditions: tuple[tuple[str, str], ...]
    winner: Winner | None
    ended: str


def page(session: str, entries: tuple[Entry, ...], read: Read) -> Page:
    """The report of the session. ``read`` returns the winner's code, or raises JournalCorrupt."""
    state = advance(SessionState(), entries)
    best = queries.incumbent(state)
    opened = state.opened
    return Page(
        session=session,
        problem=queries.problem_and_workload(state)[0],
        title=(opened.problem.title or opened.problem.name) if opened else "",
        baseline=queries.ranking_baseline(state),
        facts=tuple(_facts(state)),
        rows=tuple(_row(state, kernel, strokes, best) for kernel, strokes in tree.walk(state)),
        climb=climb(state),
        roofline=roofline(state),
        rounds=tuple(_round(state, number) for number in sorted(state.rounds)),
        predictions=predictions.records(state),
        decisions=decisions(entries),
        spending=_spending(state),
        conditions=tuple(_conditions(state, best)),
        winner=_winner(state, session, best, read) if best is not None else None,
        ended=f"ended: {state.closed}" if state.closed is not None else "still open",
    )


def _facts(state: SessionState) -> Iterator[tuple[str, str]]:
    problem, workload = queries.problem_and_workload(state)
    found = state.opened.problem.workload(workload) if state.opened else None
    shape = ", ".join(f"{key} = {exact(value)}" for key, value in found.settings.items()) if found else ""
    yield ("problem", problem)
    members = columns.workloads(state)
    if len(members) > 1:
        yield ("workloads", f"{workload}: {', '.join(one.name for one in members)}; speedups are geometric means")
        best = queries.incumbent(state)
        for one in best.choices if best is not None else ():
            yield (f"{best.id} on {one.workload}" if best else "", choice_words(one))
    else:
        yield ("workload", f"{workload}: {shape}" if shape else workload)
    if state.device is not None:
        yield ("device", f"{state.device.name} ({state.device.arch})")
    if state.preparation is not None:
        check = state.preparation.gate
        yield ("precision", f"{check.allowed.value} class allowed, tolerance {policy_words(check.policy)}")
        for name, measured in state.preparation.baselines.items():
            yield (f"baseline {name}", duration_interval(measured.time_us))
        yield ("speed of light (SOL)", f"{duration(state.preparation.floor_us)}, bound by {state.preparation.bound}")
    rounds = sum(1 for r in state.rounds.values() if r.number > 0)
    strategy = state.opened.settings.strategy if state.opened is not None else ""
    yield ("search", f"{counted_rounds(rounds, strategy)}, {counted(len(state.kernels), 'kernel')}: {_outcomes(state)}")
    if state.opened is not None:
        yield ("strategy", f"{state.opened.settings.strategy}, proposer {state.opened.settings.source}")
        yield ("opened", f"{datetime.fromtimestamp(state.opened_at, UTC):%d %B %Y, %H:%M} UTC")


def _outcomes(state: SessionState) -> str:
    """``19 verified, 0 failed, 2 cancelled``: together all kernels, once the session has ended."""
    stages = Counter(kernel.stage for kernel in state.kernels.values())
    words = f"{len(queries.verified(state))} verified, {stages[Stage.FAILED]} failed"
    rare = ((Stage.CANCELLED, "cancelled"), (Stage.QUARANTINED, "in quarantine"))
    return ", ".join((words, *(f"{stages[stage]} {name}" for stage, name in rare if stages[stage])))


def _row(state: SessionState, kernel: Kernel, strokes: str, best: Kernel | None) -> TreeRow:
    measured = kernel.measurement if kernel.stage is Stage.MEASURED else None
    ratio = measured.speedup.get(queries.ranking_baseline(state)) if measured else None
    tone = {Stage.FAILED: "bad", Stage.QUARANTINED: "warn", Stage.MEASURED: "plain"}.get(kernel.stage, "warn")
    if corroboration.is_doubted(kernel):
        tone = "warn"
    elif ratio is not None and tone == "plain" and ratio.low > 1.0:
        tone = "good"
    doubted = corroboration.is_doubted(kernel)
    screened = measured is not None and measured.depth == "screen" and not doubted
    outcome = "screened" if screened else tree.outcome(kernel)
    return TreeRow(
        strokes, kernel.id, one_line(queries.title(state, kernel)), tunables(kernel.tunables), outcome, tone,
        duration_interval(measured.time_us) if measured else "", ratio,
        kernel.verification.precision_class.value if kernel.verification and measured else "", _remark(state, kernel),
        best is not None and best.id == kernel.id,
    )  # fmt: skip


def _remark(state: SessionState, kernel: Kernel) -> str:
    if kernel.stage is Stage.FAILED and kernel.failure is not None:
        return one_line(kernel.failure.reason)
    remarks = (
        kernel.reason if kernel.stage is Stage.CANCELLED else "",
        "; ".join(corroboration.of_kernel(kernel)),
        f"accepted: {kernel.accepted}" if kernel.accepted else "",
        races.remark(state, kernel),
        "seed" if kernel.seed else "",
        "pinned" if kernel.id in state.pinned else "",
        "pruned" if queries.is_pruned(state, kernel.id) else "",
        "on another device or with earlier baselines" if kernel.epoch != state.epoch else "",
        "module contract" if kernel.contract == "module" else "",
        f"{counted(kernel.attempt, 'repair')}" if kernel.attempt else "",
    )
    return one_line(", ".join(filter(None, remarks)))


def _round(state: SessionState, number: int) -> RoundTable:
    found = state.rounds[number]
    rows = tuple(_idea(state, idea) for idea in queries.ideas_of(state, number))
    return RoundTable(number, ", ".join(found.parents), rows, found.dropped)


def _idea(state: SessionState, idea: Idea) -> IdeaRow:
    best = predictions.best_kernel(state, idea)
    kernels = [state.kernels[k] for k in idea.kernels if k in state.kernels]
    good = sum(1 for k in kernels if k.stage is Stage.MEASURED and not corroboration.is_doubted(k))
    return IdeaRow(
        idea.id, one_line(idea.text.title), idea.text.category, idea.author.name, idea.parent or "", _decision(idea),
        idea.text.predicted, predictions.best_gain(state, idea), best.id if best else "",
        queries.speedup(state, best) if best and not corroboration.is_doubted(best) else None,
        f"{good} of {len(kernels)}" if kernels else "",
    )  # fmt: skip


def _decision(idea: Idea) -> str:
    words = {IdeaStatus.SELECTED: "", IdeaStatus.PROPOSED: "awaiting approval"}.get(idea.status, idea.status.value)
    if idea.status is IdeaStatus.SELECTED and idea.implemented and not idea.kernels:
        words = one_line(idea.note) or "gave no kernel"
    return f"{words}: {one_line(idea.reason)}" if idea.reason else words


def _spending(state: SessionState) -> Spending:
    calls = state.calls.values()
    by_model = usage.grouped(calls, lambda call: f"{call.model}, {call.role.value}")
    source = state.opened.settings.source if state.opened else ""
    return Spending(usage.totals(calls), by_model, usage.by_round(state), state.active_seconds, source)


def _conditions(state: SessionState, best: Kernel | None) -> Iterator[tuple[str, str]]:
    for name, words in tree.evidence(state):
        if name != "incumbent":
            yield (name, words.text)
    if best is not None and best.measurement is not None:
        measured = best.measurement
        doubts = corroboration.of_kernel(best)
        facts = (sampling_words(measured), ", ".join(measured.conditions), corroboration_words(measured), *doubts)
        yield (f"{best.id} timed", "; ".join(filter(None, facts)))
        yield (f"{best.id} back to back", "; ".join(filter(None, _back_to_back(state, best, measured))))
    if best is not None and best.verification is not None:
        yield (f"{best.id} verified", f"{policy_words(best.verification.policy)}: {verification_words(best.verification)}")
    if state.opened is not None:
        yield ("made with", ", ".join(f"{name} {version}" for name, version in state.opened.versions.items()))


def _back_to_back(state: SessionState, best: Kernel, measured: Measurement) -> tuple[str, ...]:
    """The sustained regime, with its conditions and where it disagrees with single calls; or that it was not measured."""
    base, found = queries.ranking_baseline(state), measured.sustained
    if found is None:
        return (NOT_MEASURED, best.unsustained)
    sentence = disagreement(measured, base, deciding_regime(state))
    return (sustained_words(found, base), ", ".join(found.conditions), *found.doubts, sentence)


def _winner(state: SessionState, session: str, best: Kernel, read: Read) -> Winner | None:
    ratio = queries.speedup(state, best)
    if ratio is None or best.measurement is None:
        return None
    sol = best.measurement.light
    module = f"{queries.problem_and_workload(state)[0]}_{best.id}"
    commands = (
        (f"espalier export {session} --kernel {best.id} -o {module}.py", "the kernel as an importable KernelBench module"),
        (f'python -c "import {module}"', "compile it; then use ModelNew in place of Model"),
        (f"espalier rerun {session} --kernels {best.id}", "verify and measure it on your machine"),
        (f"espalier ablate {session}", "measure each idea of its lineage against its parent"),
    )
    return Winner(
        best.id, one_line(queries.title(state, best)), ratio, ratio.low > 1.0, queries.is_precise(best),
        corroboration.is_corroborated(best),
        best.verification.precision_class.value if best.verification else "", best.contract.value,
        percent(sol.fraction) if sol else "", best.dialect, best.name, tunables(best.tunables), read(best.source),
        tuple(_steps(state, best)), commands,
    )  # fmt: skip


def _steps(state: SessionState, best: Kernel) -> Iterator[LineageStep]:
    for kernel in queries.lineage(state, best.id):
        yield LineageStep(
            kernel.id, one_line(queries.title(state, kernel)), queries.idea_author(state, kernel),
            predictions.gain(state, kernel), queries.speedup(state, kernel),
        )  # fmt: skip


def headline(winner: Winner, baseline: str) -> str:
    """The winner's speedup in one sentence, which claims no more than the interval supports."""
    width = f"{winner.precision}-class, " if winner.precision else ""
    basis = "95% interval over process pairs" if winner.precise else "screened in one process pair only"
    words = f"{times(winner.speedup)} over {baseline} ({width}{basis})"
    shown = "" if winner.shown else ": not shown to be faster"
    return f"{words}{shown}{'' if winner.corroborated else '; not corroborated, accepted by the engineer'}"
