"""A session in sentences, for the plain mode: every state is a word, no sign stands alone. Pure."""

from __future__ import annotations

from engine.domain import corroboration, queries, stats
from engine.domain.model import Interval
from engine.domain.state import Idea, Kernel, SessionState
from engine.report.text.lines import ratio
from engine.report.text.tree import outcome
from tui.viewmodel import fmt, kernels
from tui.viewmodel.cells import one_line


def status_lines(state: SessionState) -> list[str]:
    """Where the session stands."""
    opened = state.opened
    if opened is None:
        return ["The session is empty."]
    problem, workload = queries.problem_and_workload(state)
    device = state.device.name if state.device is not None else opened.device
    number = queries.last_round(state)
    lines = [
        f"Problem {one_line(problem)}, workload {workload}, on {one_line(device)}.",
        f"Round {number}." if number >= 0 else "The session prepares: PyTorch is measured.",
        incumbent_line(state),
        f"{fmt.counted(len(state.kernels), 'kernel')}, {len(queries.verified(state))} verified. Mode {state.mode}.",
    ]
    if state.running:
        lines.append(f"Running: {', '.join(sorted(str(work) for work in state.running))}.")
    if state.paused is not None:
        lines.append(f"Paused: {one_line(state.paused)}.")
    if state.closed is not None:
        lines.append(f"Ended: {one_line(state.closed)}.")
    return lines


def incumbent_line(state: SessionState) -> str:
    """The incumbent with its speedup in words."""
    best = queries.incumbent(state)
    speedup = queries.speedup(state, best) if best is not None else None
    if best is None or speedup is None or best.measurement is None:
        return "No verified kernel yet."
    doubt = "" if corroboration.is_corroborated(best) else " Its time is not corroborated; it was accepted."
    time = fmt.duration(best.measurement.time_us.value)
    return f"Incumbent {best.id}, {kernels.title(state, best)}: {_speedup(state, speedup)}, {time}.{doubt}"


def _speedup(state: SessionState, speedup: Interval) -> str:
    value, low, high = fmt.ratio_figures(speedup)
    over = f"{queries.ranking_baseline(state)}, interval {low} to {high}"
    return f"{value} times {over}" if stats.is_measurable(speedup) else f"{fmt.NOT_MEASURABLE} over {over}"


def kernel_line(state: SessionState, kernel: Kernel) -> str:
    """One kernel: id, title, parent, outcome, speedup and remarks."""
    speedup = queries.speedup(state, kernel)
    best = queries.incumbent(state)
    parts = (
        f"{kernel.id}, {kernels.title(state, kernel)}",
        fmt.tunables(kernel.tunables) if kernel.tunables else "",
        f"parent {kernel.parent}" if kernel.parent else "no parent",
        outcome(kernel),
        _speedup(state, speedup) if speedup is not None else "",
        "incumbent" if best is not None and best.id == kernel.id else "",
        "pinned" if kernel.id in state.pinned else "",
        "pruned" if kernel.id in state.pruned else "",
    )
    return ", ".join(filter(None, parts)) + "."


def kernel_list(state: SessionState) -> list[str]:
    """All kernels, oldest first."""
    return [kernel_line(state, one) for one in state.kernels.values()] or ["No kernel yet."]


def idea_lines(state: SessionState, idea: Idea) -> list[str]:
    """What an engineer decides on."""
    text = idea.text
    predicted = f"Predicted: {ratio(text.predicted)} times its parent." if text.predicted else ""
    parent = f"Parent {idea.parent}." if idea.parent else "No parent."
    kernels_wanted = f"{fmt.counted(idea.branch, 'kernel')} of it."
    lines = [
        f"Idea {idea.id}: {one_line(text.title)}",
        f"By {idea.author.name}. Category {text.category}. {parent} {kernels_wanted} {predicted}".rstrip(),
        f"Rationale: {text.rationale.strip()}",
        f"Expected: {text.expected.strip()}" if text.expected.strip() else "",
        f"Risks: {text.risks.strip()}" if text.risks.strip() else "",
        f"Why now: {one_line(idea.advice)}" if idea.advice else "",
    ]
    return [one for one in lines if one]
