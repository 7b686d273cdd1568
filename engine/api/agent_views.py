"""What an agent reads of problems and sessions: plain data. Hold-outs are left out, as in the prompts of other authors."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import Any

from engine.api.session import Session
from engine.domain import corroboration, predictions, queries
from engine.domain import events as e
from engine.domain.model import Device, Interval, Problem
from engine.domain.state import Idea, Kernel, SessionState, Stage
from engine.ideas.prompts import context
from engine.report.text.lines import plain
from engine.report.text.tree import tree
from engine.report.text.verdict import Verdict

Data = dict[str, Any]


def problem_names(problem: Problem) -> Data:
    """A problem in a list: its workloads by name, and its suites."""
    return {
        "name": problem.name,
        "title": problem.title,
        "workloads": [one.name for one in problem.workloads],
        "suites": {name: list(members) for name, members in problem.suites.items()},
    }


def problem_data(problem: Problem) -> Data:
    """The reference with its workloads; never the hold-outs, or the bounds that they are drawn from."""
    return {
        "name": problem.name,
        "title": problem.title,
        "workloads": {one.name: dict(one.settings) for one in problem.workloads},
        "suites": {name: list(members) for name, members in problem.suites.items()},
        "reference": problem.reference,
    }


def session_data(session: Session, author: str) -> Data:
    """Where a session stands: tree, incumbent, ideas that wait."""
    state = session.state
    problem, workload = queries.problem_and_workload(state)
    best = queries.incumbent(state)
    return {
        "session": session.folder.name,
        "problem": problem,
        "workload": workload,
        "device": device_data(state.device) if state.device else {"label": queries.device_label(state)},
        "mode": str(state.mode),
        "state": state_words(state),
        "prepared": state.preparation is not None,
        "instructions": state.instructions,
        "incumbent": kernel_figures(state, best) if best else None,
        "tree": "\n".join(plain(spans) for spans in tree(state)),
        "running": sorted(map(str, state.running)),
        "stopped": dict(session.stopped),
        "awaiting_approval": [idea.id for idea in queries.pending_ideas(state)],
        "yours_to_write": [
            idea.id for idea in state.ideas.values()
            if queries.awaits_agent(state, idea) and (idea.author.name == author or idea.author.decides)
        ],
    }  # fmt: skip


def state_words(state: SessionState) -> str:
    """``open``, ``paused: WHY`` or ``closed: WHY``."""
    if state.closed is not None:
        return f"closed: {state.closed}"
    return f"paused: {state.paused}" if state.paused is not None else "open"


def device_data(device: Device) -> Data:
    return {"label": device.label, "name": device.name, "arch": device.arch}


def interval(found: Interval | None) -> Data | None:
    return {"value": found.value, "low": found.low, "high": found.high} if found is not None else None


def kernel_figures(state: SessionState, kernel: Kernel) -> Data:
    """Outcome and figures of a kernel."""
    timed = kernel.measurement
    baseline = queries.ranking_baseline(state)
    return {
        "kernel": kernel.id,
        "idea": kernel.idea,
        "parent": kernel.parent,
        "by": kernel.author.name,
        "outcome": corroboration.status(kernel) if kernel.stage.settled else kernel.stage.value,
        "settled": kernel.stage.settled,
        "time_us": interval(timed.time_us) if timed and kernel.stage is Stage.MEASURED else None,
        "speedup": interval(queries.speedup(state, kernel)) if kernel.stage is Stage.MEASURED else None,
        "baseline": baseline,
        "incumbent": state.incumbent == kernel.id,
    }


def kernel_data(session: Session, kernel: Kernel) -> Data:
    """A kernel with its code, and the evidence that prompts show."""
    state = session.state
    data = {**kernel_figures(state, kernel), "name": kernel.name, "tunables": dict(kernel.tunables)}
    data["evidence"] = list(context.evidence(state, kernel))
    if kernel.failure is not None:
        log = session.text(kernel.failure.log) if kernel.failure.log else ""
        data["failure"] = context.failure(kernel.failure.kind, kernel.failure.reason, log, kernel.failure.mismatches)
    data["code"] = session.text(kernel.source)
    return data


def without_drawn_shape(entry: e.Entry) -> e.Entry:
    """The entry without the settings of the hold-out shape that was drawn at random."""
    event = entry.event
    if isinstance(event, e.KernelVerified | e.KernelQuarantined) and event.verification is not None:
        return replace(entry, event=replace(event, verification=replace(event.verification, chance="")))
    return entry


def kernel_diff(session: Session, kernel: Kernel) -> str:
    """A unified diff against the parent; empty for a root."""
    parent = session.kernels.get(kernel.parent or "")
    if parent is None:
        return ""
    before, after = session.text(parent.source).splitlines(), session.text(kernel.source).splitlines()
    return "\n".join(difflib.unified_diff(before, after, parent.id, kernel.id, lineterm=""))


def idea_data(state: SessionState, idea: Idea) -> Data:
    """An idea, its decision and its kernels."""
    gain = predictions.best_gain(state, idea)
    return {
        "idea": idea.id,
        "title": idea.text.title,
        "category": idea.text.category,
        "rationale": idea.text.rationale,
        "predicted": idea.text.predicted,
        "by": idea.author.name,
        "parent": idea.parent,
        "status": idea.status.value,
        "reason": idea.reason,
        "edited": idea.edited,
        "implemented": idea.implemented,
        "awaits_agent": queries.awaits_agent(state, idea),
        "kernels": list(idea.kernels),
        "gain": interval(gain),
    }


def prediction_data(state: SessionState) -> list[Data]:
    """The prediction record of every author."""
    return [
        {"author": one.author, "scored": one.count, "error_factor": one.error, "bias": one.bias, "right_direction": one.hits}
        for one in predictions.records(state)
    ]  # fmt: skip


def verdict_data(verdict: Verdict) -> Data:
    """A verdict as ``eval --json`` prints it, without the hold-out shape that was drawn."""
    checked = verdict.verification
    return {
        "problem": verdict.problem,
        "kernel": verdict.kernel,
        "dialect": verdict.dialect,
        "contract": verdict.contract,
        "device": {"name": verdict.device.name, "arch": verdict.device.arch},
        "workload": verdict.workload,
        "status": verdict.status,
        "reason": context.without_holdouts(verdict.reason) if verdict.reason else None,
        "doubts": [context.without_holdouts(doubt) for doubt in verdict.doubts],
        "verification": None if checked is None else {
            "policy": checked.policy, "rel_fro": checked.rel_fro, "max_abs": checked.max_abs,
            "precision_class": checked.precision_class,
        },
        "time_us": None if verdict.time_us is None else {
            "median": verdict.time_us.median, "low": verdict.time_us.low, "high": verdict.time_us.high,
        },
        "speedup": {name: interval(found) for name, found in verdict.speedup.items()},
        "speed_of_light": None if verdict.speed_of_light is None else verdict.speed_of_light.fraction,
        "sandbox": verdict.sandbox,
    }  # fmt: skip
