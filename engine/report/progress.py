"""What happened, as lines for a person who waits: one for each entry that matters, none for the rest. Pure."""

from __future__ import annotations

from engine.domain import events as e
from engine.domain import profile, queries
from engine.domain.model import Failure, Measurement, RaceOutcome, Verification
from engine.domain.state import SessionState, Stage
from engine.report import racing
from engine.report.text import (
    Line,
    Span,
    Tone,
    counted,
    duration_interval,
    line,
    one_line,
    percent,
    shortened,
    times,
    tunables,
)
from engine.report.tree import failure_words

_REASON = 200


def lines(before: SessionState, entry: e.Entry, after: SessionState) -> list[Line]:
    """What to say of ``entry``; ``before`` and ``after`` are the states around it."""
    said = [told] if (told := _tell(entry.event, after)) is not None else []
    best = queries.incumbent(after)
    earlier = queries.incumbent(before)
    if best is not None and (earlier is None or earlier.id != best.id):
        ratio = queries.speedup(after, best)
        base = queries.ranking_baseline(after)
        words = f" leads now: {times(ratio)} {base}" if ratio else " leads now"
        said.append(line(Span(best.id, Tone.STRONG), Span(words, Tone.GOOD)))
    return said


def _tell(event: e.Event, state: SessionState) -> Line | None:
    match event:
        case e.SessionOpened() | e.SessionResumed() | e.SessionPrepared() | e.SessionClosed() | e.SessionReopened():
            return _session(event)
        case e.RoundOpened() | e.RoundClosed() | e.IdeasProposed():
            return _round(event, state)
        case e.IdeasReordered(ideas):
            return line(f"ideas in this order: {', '.join(ideas)}")
        case e.MaterialAttached(idea, kernel):
            return line(f"{kernel} lies beside idea {idea}")
        case e.MaterialRemoved(idea, kernel):
            return line(f"{kernel} taken away from idea {idea}")
        case e.IdeaSelected() | e.IdeaRejected() | e.IdeaParked() | e.IdeaEdited() | e.IdeaImplemented():
            return _idea(event, state)
        case e.WorkFailed(work, reason):
            return None if reason == "interrupted" else line(Span(f"{work} could not be done: {one_line(reason)}", Tone.BAD))
        case e.NoteAdded(target, text):
            return line(f"note on {target or 'the session'}: {one_line(text)}")
        case e.ModeChanged(mode):
            return line(f"mode {mode}")
        case e.BranchPruned(kernel, reason):
            return line(f"{kernel} and all below it pruned{': ' + reason if reason else ''}")
        case e.SessionPaused() | e.SessionContinued() | e.PausesChanged() | e.LimitsChanged() | e.InstructionsChanged():
            return _steering(event)
        case e.CallStarted() | e.CallAnswered() | e.CallFailed() | e.BudgetReached():
            return _call(event, state)
        case e.KernelQuarantined() | e.KernelAccepted() | e.KernelSanitized() | e.KernelRaced() | e.RaceAsked():
            return _judged(event)
        case _:
            return _kernel(event, state)


def _counters(state: SessionState, kernel: str, found: profile.Profile) -> str:
    known = state.kernels.get(kernel)
    parent = state.kernels.get(known.parent or "") if known else None
    return profile.line(found, parent.profile if parent else None)


def _steering(
    event: e.SessionPaused | e.SessionContinued | e.PausesChanged | e.LimitsChanged | e.InstructionsChanged,
) -> Line:
    match event:
        case e.SessionPaused(reason):
            return line(Span("paused", Tone.WARN), f": {one_line(reason)}; no idea and no code is asked for")
        case e.SessionContinued():
            return line("goes on")
        case e.PausesChanged(pauses):
            soft = [
                f"above {pauses.tokens:,} tokens" if pauses.tokens is not None else "",
                f"above ${pauses.usd:g}" if pauses.usd is not None else "",
                f"before round {pauses.round}" if pauses.round is not None else "",
            ]
            return line(f"pauses {', '.join(filter(None, soft)) or 'nowhere by itself'}")
        case e.LimitsChanged():
            return line("limits changed")
        case e.InstructionsChanged(text):
            return line(f"standing instructions: {shortened(one_line(text), _REASON) or 'none'}")


def _call(event: e.CallStarted | e.CallAnswered | e.CallFailed | e.BudgetReached, state: SessionState) -> Line | None:
    match event:
        case e.CallStarted(call, work, role, model):
            if model != "paste":
                return None
            return line(Span(call, Tone.STRONG), Span(f" is to be answered by hand: {role.value} for {work}", Tone.WARN))
        case e.CallAnswered(call, usage=usage, usd=usd, seconds=seconds, recalled=recalled):
            if recalled:
                return line(Span(call, Tone.STRONG), " answered from a recorded reply, at no cost")
            asked = state.calls.get(call)
            cost = f", ${usd:.3f}" if usd is not None else ", price unknown" if usage.total else ""
            used = f": {usage.input:,} tokens in, {usage.cached:,} of them cached, {usage.output:,} out{cost}"
            words = f" answered by {asked.model if asked else 'a model'} in {seconds:.1f} s{used if usage.total else ''}"
            return line(Span(call, Tone.STRONG), words)
        case e.CallFailed(call, reason, cancelled=True):
            return line(Span(call, Tone.STRONG), f" {shortened(one_line(reason), _REASON)}")
        case e.CallFailed(call, reason):
            return line(Span(call, Tone.STRONG), Span(f" brought nothing: {shortened(one_line(reason), _REASON)}", Tone.WARN))
        case e.BudgetReached(work, reason):
            return line(Span(f"not asked: {one_line(reason)}", Tone.WARN), Span(f" ({work})", Tone.FAINT))


def _judged(event: e.KernelQuarantined | e.KernelAccepted | e.KernelSanitized | e.KernelRaced | e.RaceAsked) -> Line:
    name = Span(event.kernel, Tone.STRONG)
    match event:
        case e.KernelRaced() | e.RaceAsked():
            return _race(event)
        case e.KernelQuarantined(_, evidence):
            return line(name, Span(f" in quarantine: {shortened(one_line('; '.join(evidence)), _REASON)}", Tone.WARN))
        case e.KernelAccepted(_, note):
            return line(name, f" believed by hand: {one_line(note)}")
        case e.KernelSanitized(_, _, tools, findings, note):
            if not tools:
                return line(name, f" not sanitized: {one_line(note)}")
            if findings:
                return line(name, Span(f" {', '.join(tools)}: {shortened(one_line('; '.join(findings)), _REASON)}", Tone.BAD))
            return line(name, f" sanitized: {', '.join(tools)} found nothing")


def _race(event: e.KernelRaced | e.RaceAsked) -> Line:
    name = Span(event.kernel, Tone.STRONG)
    match event:
        case e.RaceAsked(_, against):
            return line(name, f" is to race {against}")
        case e.KernelRaced(_, against, outcome, ratio, pairs=pairs, note=note):
            words = f"{times(ratio)}, {counted(pairs, 'process pair')}, interleaved" if ratio is not None else one_line(note)
            stays = f"; {against} stays" if outcome is RaceOutcome.UNDECIDED else ""
            said = Span(f"{racing.GLYPHS[outcome]} {outcome.value}", racing.TONES[outcome])
            return line(name, f" raced {against}: ", said, f" ({words}){stays}")


def _session(
    event: e.SessionOpened | e.SessionResumed | e.SessionPrepared | e.SessionClosed | e.SessionReopened,
) -> Line | None:
    match event:
        case e.SessionOpened(problem, device, settings):
            words = f"session opened: {problem.name}, {settings.workload}, {device}, {settings.strategy}, {settings.source}"
            return line(words)
        case e.SessionResumed(unfinished, repaired):
            parts = [repaired, f"to be done again: {', '.join(unfinished)}" if unfinished else ""]
            words = "; ".join(filter(None, parts))
            return line(f"session resumed{': ' + words if words else ''}")
        case e.SessionPrepared(device, found):
            refused = sum(1 for null in found.gate.nulls if not null.passed)
            base = "; ".join(f"{name} {duration_interval(m.time_us)}" for name, m in found.baselines.items())
            gate = f"gate {found.gate.policy} refuses {refused} of {len(found.gate.nulls)} null models"
            return line(f"prepared on {device.name}: {gate}; {base}; sandbox {found.sandbox}")
        case e.SessionClosed(reason):
            return line(f"session ends: {reason}")
        case e.SessionReopened():
            return line("session reopened")


def _round(event: e.RoundOpened | e.RoundClosed | e.IdeasProposed, state: SessionState) -> Line | None:
    match event:
        case e.RoundOpened(0):
            return line(Span("round 0", Tone.STRONG), " opened: the first port")
        case e.RoundOpened(number, parents):
            return line(Span(f"round {number}", Tone.STRONG), f" opened, from {', '.join(parents) or 'nothing'}")
        case e.RoundClosed(number):
            kernels = queries.kernels_of(state, number)
            good = sum(1 for k in kernels if k.stage is Stage.MEASURED)
            return line(Span(f"round {number}", Tone.STRONG), f" closed: {counted(len(kernels), 'kernel')}, {good} measured")
        case e.IdeasProposed(number, ideas, from_source):
            if from_source and not ideas and number > 0:
                source = state.opened.settings.source if state.opened else "the source"
                words = f"nothing more is proposed: {source} has no further idea, and no tunable is left to try"
                return line(Span(words, Tone.WARN))
            return None


def _idea(
    event: e.IdeaSelected | e.IdeaRejected | e.IdeaParked | e.IdeaEdited | e.IdeaImplemented, state: SessionState
) -> Line | None:
    idea = state.ideas.get(event.idea)
    title = one_line(idea.text.title) if idea else ""
    match event:
        case e.IdeaSelected():
            return line(f"idea {event.idea} selected: {title}")
        case e.IdeaRejected(reason=reason):
            return line(f"idea {event.idea} rejected: {title}{' (' + reason + ')' if reason else ''}")
        case e.IdeaParked():
            return line(f"idea {event.idea} parked: {title}")
        case e.IdeaEdited():
            return line(f"idea {event.idea} edited: {title}")
        case e.IdeaImplemented(_, kernels, note):
            if kernels and not note:
                return None
            words = f"idea {event.idea}: {counted(len(kernels), 'kernel')}{'; ' + one_line(note) if note else ''}"
            return line(words if kernels else Span(words, Tone.WARN))


def _kernel(event: e.Event, state: SessionState) -> Line | None:
    match event:
        case e.KernelBuilt(kernel, _, seconds):
            known = state.kernels.get(kernel)
            what = " ".join(filter(None, (known.name, tunables(known.tunables)))) if known else ""
            return line(Span(kernel, Tone.STRONG), f" built in {seconds:.2f} s: {what}")
        case e.KernelVerified(kernel, verification, screen):
            return line(Span(kernel, Tone.STRONG), f" verified: {verification_words(verification)}; {_speed(screen, state)}")
        case e.KernelMeasured(kernel, measurement) if measurement.depth == "precise":
            return line(Span(kernel, Tone.STRONG), f" measured: {_speed(measurement, state)}")
        case e.KernelFailed(kernel, failure):
            return line(Span(kernel, Tone.STRONG), Span(f" {_failed(failure)}", Tone.BAD))
        case e.AttemptFailed(kernel, attempt, failure):
            return line(Span(kernel, Tone.STRONG), Span(f" attempt {attempt + 1} {_failed(failure)}; repairing", Tone.WARN))
        case e.KernelProfiled(kernel, found):
            return line(Span(kernel, Tone.STRONG), f" profiled: {one_line(_counters(state, kernel, found))}")
        case e.KernelCancelled(kernel, reason):
            return line(Span(kernel, Tone.STRONG), f" cancelled: {reason}")
        case e.KernelReopened(kernel, reason):
            return line(Span(kernel, Tone.STRONG), f" goes back to the build: {reason}")
        case e.KernelDrafted(kernel, name=name, seed=True):
            return line(Span(kernel, Tone.STRONG), f" seeded from {name}")
        case e.KernelPinned(kernel):
            return line(f"{kernel} pinned")
        case e.KernelUnpinned(kernel):
            return line(f"{kernel} unpinned")
        case e.BranchReopened(kernel):
            return line(f"{kernel} reopened")
        case _:
            return None


def verification_words(found: Verification) -> str:
    """How right a kernel was: its errors beside what is allowed, its class, the hold-out shapes."""
    return (
        f"error {found.rel_fro:.1e} of {found.rel_fro_limit:.1e} allowed, {found.precision_class.value}, "
        f"{counted(found.trials, 'trial')}, hold-outs {found.holdouts}"
    )


def _failed(failure: Failure) -> str:
    return f"{failure_words(failure.kind)}: {shortened(one_line(failure.reason), _REASON)}"


def _speed(measured: Measurement, state: SessionState) -> str:
    base = queries.ranking_baseline(state)
    ratio = measured.speedup.get(base)
    parts = [duration_interval(measured.time_us), f"{times(ratio)} {base}" if ratio else ""]
    if measured.light is not None:
        parts.append(f"{percent(measured.light.fraction)} of the speed of light")
    depth = "screened in one process" if measured.depth == "screen" else counted(measured.processes, "process pair")
    return ", ".join(filter(None, (*parts, depth)))
