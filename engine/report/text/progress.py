"""Progress lines: one per journal entry worth reporting. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from engine.domain import corroboration, hot_code, profile, queries, suite
from engine.domain import events as e
from engine.domain.folds import advance
from engine.domain.model import Failure, Measurement, RaceOutcome, Verification
from engine.domain.rules import adaptive
from engine.domain.settings import ModelSettings
from engine.domain.state import CallStatus, Kernel, SessionState, Stage
from engine.domain.work_key import WorkKey
from engine.report.text import races
from engine.report.text.lines import (
    Line,
    Span,
    Tone,
    counted,
    duration_interval,
    line,
    one_line,
    percent,
    policy_words,
    shortened,
    times,
    tunables,
)
from engine.report.text.regimes import sustained_words
from engine.report.text.suite import mean_words, tuning_words
from engine.report.text.tree import failure_words, outcome
from engine.report.text.work import subject_words, works_words

_REASON = 200


def entry_lines(state: SessionState, entries: Iterable[e.Entry]) -> tuple[SessionState, list[tuple[e.Entry, Line]]]:
    """The state after these entries, and the lines of each entry."""
    found: list[tuple[e.Entry, Line]] = []
    for entry in entries:
        before, state = state, advance(state, (entry,))
        found += [(entry, spans) for spans in lines(before, entry, state)]
    return state, found


def lines(before: SessionState, entry: e.Entry, after: SessionState) -> list[Line]:
    """The lines of ``entry``, given the states before and after it."""
    spans = _event_line(entry.event, after)
    result = [_signed(entry, spans)] if spans is not None else []
    best = queries.incumbent(after)
    earlier = queries.incumbent(before)
    if best is not None and (earlier is None or earlier.id != best.id):
        ratio = queries.speedup(after, best)
        base = queries.ranking_baseline(after)
        words = f" is the incumbent: {times(ratio)} over {base}" if ratio else " is the incumbent"
        result.append(_about(best.id, Span(words, Tone.GOOD)))
    return result


def _signed(entry: e.Entry, spans: Line) -> Line:
    """The line with its author in front, unless that is the engineer or the engine: an agent, or another user."""
    if entry.by.is_engine or entry.by.is_engineer:
        return spans
    return line(Span(f"{one_line(entry.by.name)}: ", Tone.FAINT), *spans)


def _event_line(event: e.Event, state: SessionState) -> Line | None:
    return (
        _session_line(event, state) or _fleet_line(event) or _steering_line(event) or _call_line(event, state)
        or _idea_line(event, state) or _kernel_line(event, state) or _verdict_line(event)
    )  # fmt: skip


def _about(name: str, *words: Span | str) -> Line:
    return line(Span(name, Tone.STRONG), *words)


def _shortened(text: str) -> str:
    return shortened(one_line(text), _REASON)


def _works(keys: Iterable[str]) -> str:
    """The journal's work in words; names in it may be a stranger's."""
    return one_line(works_words(map(WorkKey.parse, keys)))


def failed_call(state: SessionState, work: str, reason: str) -> str | None:
    """The call whose failure is why this work failed; its own line says the reason already."""
    failed = (call for call in state.calls.values() if call.status is CallStatus.FAILED and not call.cancelled)
    same = [call.id for call in failed if str(call.work) == work and call.reason == reason]
    return same[-1] if same else None


def _session_line(event: e.Event, state: SessionState) -> Line | None:
    match event:
        case e.SessionOpened(problem, device, settings):
            judged = suite.label(settings.suite, settings.workload)
            words = f"session opened: {problem.name}, {judged}, {device}, {settings.strategy}, {settings.source}"
            return line(words)
        case e.SessionResumed(unfinished, repaired):
            again = f"interrupted, begins again: {_works(unfinished)}" if unfinished else ""
            return line("; ".join(filter(None, ("session resumed", repaired, again))))
        case e.SessionPrepared(device, found):
            rejected = sum(1 for trivial in found.gate.nulls if not trivial.passed)
            base = "; ".join(f"{name} {duration_interval(m.time_us)}" for name, m in found.baselines.items())
            rejects = f"rejects {rejected} of {len(found.gate.nulls)} trivial models"
            check = f"correctness check {policy_words(found.gate.policy)} {rejects}"
            return line(f"prepared on {device.name}: {check}; {base}; sandbox {found.sandbox}")
        case e.SessionClosed(reason):
            return line(f"session ended: {reason}")
        case e.SessionReopened():
            return line("session reopened")
        case e.WorkFailed(work, reason) if reason != "interrupted" and failed_call(state, work, reason) is None:
            return line(Span(f"{_works([work])} failed: {one_line(reason)}", Tone.BAD))
        case e.WorkRetried(works):
            return line(f"retrying: {_works(works)}" if works else "retrying the search")
        case e.NoteAdded(target, text):
            return line(f"note on {target or 'the session'}: {one_line(text)}")
        case e.UnknownEvent(kind):
            return line(Span(f"{_shortened(kind)}: an event of a newer Espalier, ignored", Tone.WARN))
    return None


def _fleet_line(event: e.Event) -> Line | None:
    match event:
        case e.WorkerJoined(name, device, _, notes):
            return _about(name, f" joined: {'; '.join(map(one_line, (device.name, *notes)))}")
        case e.BuilderJoined(name, host, notes):
            return _about(name, f" joined: builds on {'; '.join(map(one_line, (host, *notes)))}")
        case e.WorkerPrepared(name, baselines_us, same):
            times = "; ".join(f"{one_line(base)} {duration_interval(us)}" for base, us in baselines_us.items())
            return _about(name, f" prepared: {times or 'no baselines'}; A/A {same.low:.3f} to {same.high:.3f}")
        case e.WorkRequeued(work, lost):
            return line(Span(f"{_works([work])} goes to another worker: {one_line(lost)} was lost", Tone.WARN))
        case e.WorkerLost(name, reason):
            return _about(name, Span(f" lost: {one_line(reason)}", Tone.WARN))
    return None


def _quoted(command: str) -> str:
    """A command's name in words, ``WriteIdea`` as `` 'write idea'``; nothing of one that could not be read."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", one_line(command)).lower()
    return f" '{words}'" if words else ""


def _steering_line(event: e.Event) -> Line | None:
    match event:
        case e.CommandAnswered(command=command, accepted=False, reason=reason, process=process):
            asked = f" of process {process}" if process else ""
            return line(Span(f"command{_quoted(command)}{asked} refused: {_shortened(reason)}", Tone.WARN))
        case e.ModeChanged(mode):
            return line(f"mode {mode}")
        case e.SessionPaused(reason):
            return line(Span("paused", Tone.WARN), f": {one_line(reason)}; no new ideas or code until resumed")
        case e.SessionContinued():
            return line("resumed")
        case e.PausesChanged(pauses):
            soft = [
                f"above {pauses.tokens:,} tokens" if pauses.tokens is not None else "",
                f"above ${pauses.usd:g}" if pauses.usd is not None else "",
                f"before round {pauses.round}" if pauses.round is not None else "",
            ]
            return line(f"pauses {', '.join(filter(None, soft))}" if any(soft) else "no automatic pause")
        case e.LimitsChanged():
            return line("limits changed")
        case e.ModelsChanged(models):
            return line(f"models changed: {', '.join(model_words(models))}")
        case e.InstructionsChanged(text):
            return line(f"standing instructions: {_shortened(text) or 'none'}")
        case e.KernelPinned(kernel):
            return line(f"{kernel} pinned")
        case e.KernelUnpinned(kernel):
            return line(f"{kernel} unpinned")
        case e.BranchPruned(kernel, reason):
            return line(f"{kernel} and its descendants pruned{': ' + reason if reason else ''}")
        case e.BranchReopened(kernel):
            return line(f"{kernel} reopened")
        case e.DecisionUndone(_, what, kept=kept):
            return line(f"undone: {what}{f' (not: {kept})' if kept else ''}")
    return None


def model_words(models: ModelSettings) -> list[str]:
    """Proposers, writer, servers and options, a phrase each."""
    words = [f"proposer {models.source}", f"writer {models.writer or 'the author of the idea'}"]
    for server in models.servers:
        parts = (server.url or "its own server", f"key {server.key}" if server.key else "", server.api)
        words.append(f"{server.proposer} at {' '.join(filter(None, parts))}")
    for role, options in models.options.items():
        given = (
            f"effort {options.effort}" if options.effort else "",
            f"temperature {options.temperature:g}" if options.temperature is not None else "",
            f"at most {options.max_output:,} tokens" if options.max_output is not None else "",
            f"timeout {options.timeout:g} s" if options.timeout is not None else "",
        )
        words.append(f"{role}: {' '.join(filter(None, given)) or 'defaults'}")
    counters = [] if models.profiling else ["counters of parents not read"]
    return [*words, f"patience {models.patience:g} s", f"{models.concurrency} calls at a time", *counters]


def _call_line(event: e.Event, state: SessionState) -> Line | None:
    match event:
        case e.CallStarted(call, work, role, "paste"):
            return _about(call, Span(f" awaits your answer: {role.value} for {subject_words(WorkKey.parse(work))}", Tone.WARN))
        case e.CallAnswered(call, recalled=True):
            return _about(call, " answered from a recorded reply at no cost")
        case e.CallAnswered(call, usage=usage, usd=usd, seconds=seconds):
            known = state.calls.get(call)
            cost = f", ${usd:.3f}" if usd is not None else ", price unknown" if usage.total else ""
            used = f": {usage.input:,} tokens in ({usage.cached:,} cached), {usage.output:,} out{cost}"
            model = known.model if known else "a model"
            return _about(call, f" answered by {model} in {seconds:.1f} s{used if usage.total else ''}")
        case e.CallFailed(call, reason, cancelled=True):
            return _about(call, f" {_shortened(reason)}")
        case e.CallFailed(call, reason):
            return _about(call, Span(f" failed: {one_line(reason)}", Tone.WARN))
        case e.BudgetReached(work, reason):
            return line(Span(f"call skipped: {one_line(reason)}", Tone.WARN), Span(f" ({_works([work])})", Tone.FAINT))
    return None


def _idea_line(event: e.Event, state: SessionState) -> Line | None:
    match event:
        case e.RoundOpened(0):
            return _about("round 0", " opened: the naive port")
        case e.RoundOpened(number, parents, plan):
            why = f": {plan.reason}" if plan is not None else ""
            return _about(f"round {number}", f" opened, parents {', '.join(parents) or 'none'}{why}")
        case e.RoundClosed(number):
            kernels = queries.kernels_of(state, number)
            return _about(f"round {number}", f" closed: {counted(len(kernels), 'kernel')}, {_depth_words(kernels)}")
        case e.IdeasProposed(number, (), True) if number > 0:
            proposer = state.opened.settings.source if state.opened else "the proposer"
            tuned = "" if adaptive.is_adaptive(state) else ", and every tunable value was tried"
            return line(Span(f"no more ideas: {proposer} has none left{tuned}", Tone.WARN))
        case e.IdeasProposed(ideas=(idea,), from_source=False) if not idea.text.key.startswith("seed:"):
            return line(f"idea {idea.id} added: {_shortened(idea.text.title)}")
        case e.IdeasReordered(ideas):
            return line(f"ideas reordered: {', '.join(ideas)}")
        case e.IdeaSelected(idea, advice):
            return line(f"idea {idea} approved: {_title(state, idea)}{'; ' + advice if advice else ''}")
        case e.IdeaRejected(idea, reason):
            return line(f"idea {idea} rejected: {_title(state, idea)}{' (' + reason + ')' if reason else ''}")
        case e.IdeaParked(idea):
            return line(f"idea {idea} parked: {_title(state, idea)}")
        case e.IdeaEdited(idea):
            return line(f"idea {idea} edited: {_title(state, idea)}")
        case e.IdeaImplemented(idea, made, note) if note or not made:
            words = f"idea {idea}: {counted(len(made), 'kernel')}{'; ' + one_line(note) if note else ''}"
            return line(words if made else Span(words, Tone.WARN))
        case e.KernelAttached(idea, kernel):
            return line(f"{kernel} attached to idea {idea}")
        case e.KernelDetached(idea, kernel):
            return line(f"{kernel} detached from idea {idea}")
    return None


def _depth_words(kernels: Sequence[Kernel]) -> str:
    """How many were measured, screened and doubted: ``3 measured, 6 screened, 1 quarantined``."""
    sure = [k for k in kernels if k.stage is Stage.MEASURED and not corroboration.is_doubted(k)]
    screened = sum(1 for k in sure if not queries.is_precise(k))
    doubted = Counter(outcome(k) for k in kernels if corroboration.is_doubted(k))
    counts = {"measured": len(sure) - screened, "screened": screened, **doubted}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count or word == "measured")


def _title(state: SessionState, idea: str) -> str:
    known = state.ideas.get(idea)
    return one_line(known.text.title) if known else ""


def _kernel_line(event: e.Event, state: SessionState) -> Line | None:
    match event:
        case e.KernelDrafted(kernel, name=name, seed=True):
            return _about(kernel, f" seeded from {name}")
        case e.KernelBuilt(kernel, _, seconds):
            known = state.kernels.get(kernel)
            what = " ".join(filter(None, (known.name, tunables(known.tunables)))) if known else ""
            return _about(kernel, f" built in {seconds:.2f} s: {what}")
        case e.KernelMatched(kernel, same_as):
            return _about(kernel, f" takes over the verdict of {same_as}: same machine code")
        case e.KernelVerified(kernel, verification, screen):
            words = f" verified: {verification_words(verification)}; {_speed_words(screen, state)}"
            return _about(kernel, words, *_doubt_spans(screen))
        case e.KernelMeasured(kernel, measurement) if measurement.depth == "precise":
            return _about(kernel, f" measured: {_speed_words(measurement, state)}", *_doubt_spans(measurement))
        case e.KernelFailed(kernel, failure):
            return _about(kernel, Span(f" {_failure_reason(failure)}", Tone.BAD))
        case e.AttemptFailed(kernel, attempt, failure):
            return _about(kernel, Span(f" attempt {attempt + 1} {_failure_reason(failure)}; repairing", Tone.WARN))
        case e.KernelProfiled(kernel, found):
            known = state.kernels.get(kernel)
            parent = state.kernels.get(known.parent or "") if known else None
            words = one_line(profile.line(found, parent.profile if parent else None))
            if found.hot is not None and found.hot.samples:
                words = f"hot: {one_line(hot_code.summary(found.hot))}{f'; {words}' if found.tool else ''}"
            return _about(kernel, f" profiled: {words}" if found.was_read else f": {words}")
        case e.KernelCancelled(kernel, reason):
            return _about(kernel, f" cancelled: {reason}")
        case e.KernelReopened(kernel, reason):
            return _about(kernel, f" is built again: {reason}")
    return None


def _verdict_line(event: e.Event) -> Line | None:
    match event:
        case e.KernelQuarantined(kernel, evidence):
            return _about(kernel, Span(f" quarantined: {_shortened('; '.join(evidence))}", Tone.WARN))
        case e.KernelSustained(kernel, times=found, note=note):
            if found is None:
                return _about(kernel, f" not measured back to back: {one_line(note)}")
            doubts = (Span(f"; {one_line(doubt)}", Tone.WARN) for doubt in found.doubts)
            return _about(kernel, f" back to back: {sustained_words(found, next(iter(found.speedup), 'eager'))}", *doubts)
        case e.KernelAccepted(kernel, note):
            return _about(kernel, f" accepted by the engineer: {one_line(note)}")
        case e.TuningAsked(kernel):
            return _about(kernel, " will be tuned on each workload")
        case e.KernelTuned(kernel, _, found, trials, note):
            words = f" tuned on {counted(len(found), 'workload')} in {counted(trials, 'trial')}" if found else " not tuned"
            return _about(kernel, f"{words}: {tuning_words(found) or one_line(note)}")
        case e.KernelSanitized(kernel, _, (), _, note):
            return _about(kernel, f" not sanitized: {one_line(note)}")
        case e.KernelSanitized(kernel, _, tools, ()):
            return _about(kernel, f" {sanitizer_names(tools)} clean")
        case e.KernelSanitized(kernel, _, tools, findings):
            return _about(kernel, Span(f" {sanitizer_names(tools)}: {_shortened('; '.join(findings))}", Tone.BAD))
        case e.RaceAsked(kernel, against, advice):
            return _about(kernel, f" will race {against}{': ' if advice else ''}{advice}")
        case e.KernelRaced(kernel, against, outcome, ratio, pairs=pairs, note=note, doubts=doubts, back_to_back=back_to_back):
            how = "back to back" if back_to_back else "interleaved"
            words = f"{times(ratio)}, {counted(pairs, 'process pair')}, {how}" if ratio is not None else one_line(note)
            words = "; ".join((words, *map(one_line, doubts)))
            unchanged = "; the incumbent stays" if outcome is RaceOutcome.UNDECIDED else ""
            result = Span(f"{races.GLYPHS[outcome]} {outcome.value}", races.TONES[outcome])
            return _about(kernel, f" raced {against}: ", result, f" ({words}){unchanged}")
    return None


_SANITIZERS = {"address": "AddressSanitizer", "undefined": "UBSan"}


def sanitizer_names(tools: Iterable[str]) -> str:
    """``AddressSanitizer and UBSan``, ``memcheck, racecheck and initcheck``."""
    *first, last = [_SANITIZERS.get(tool, tool) for tool in tools]
    return f"{', '.join(first)} and {last}" if first else last


def verification_words(found: Verification) -> str:
    """A kernel's error and its limit, its precision class, and the hold-out shapes passed."""
    by_chance = f" (random: {found.chance})" if found.chance else ""
    return (
        f"error {found.rel_fro:.1e} (limit {found.rel_fro_limit:.1e}), {found.precision_class.value} class, "
        f"{counted(found.trials, 'trial')}, hold-out shapes {found.holdouts}{by_chance}"
    )


def _failure_reason(failure: Failure) -> str:
    return f"{failure_words(failure.kind)}: {_shortened(failure.reason)}"


def _doubt_spans(measured: Measurement) -> tuple[Span, ...]:
    """Why the time is not corroborated, as the end of a line; nothing if it is."""
    doubts = corroboration.of_measurement(measured)
    return (Span(f"; {_shortened('; '.join(doubts))}", Tone.WARN),) if doubts else ()


def _speed_words(measured: Measurement, state: SessionState) -> str:
    base = queries.ranking_baseline(state)
    ratio = measured.speedup.get(base)
    parts = [duration_interval(measured.time_us), f"{times(ratio)} over {base}" if ratio else "", mean_words(measured, base)]
    if measured.light is not None:
        parts.append(f"{percent(measured.light.fraction)} of SOL")
    depth = "screened in one process pair" if measured.depth == "screen" else counted(measured.processes, "process pair")
    return ", ".join(filter(None, (*parts, depth)))
