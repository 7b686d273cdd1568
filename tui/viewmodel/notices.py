"""What to tell an engineer who looks elsewhere: that the session awaits them, a new incumbent, the end. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.domain import queries
from engine.domain.state import SessionState
from engine.domain.work import WorkKey
from engine.report.text.work import work_words
from tui.viewmodel import fmt, kernels
from tui.viewmodel.cells import one_line
from tui.viewmodel.fmt import counted
from tui.viewmodel.ideas import awaiting_approval
from tui.viewmodel.stages import awaiting_answer, calls_by_hand


@dataclass(frozen=True, slots=True)
class NoticeFacts:
    """Where a session stands, as far as notices go."""

    waiting: str = ""
    """Why it awaits the engineer; empty while it goes on by itself."""
    incumbent: str = ""
    """The incumbent's id."""
    best: str = ""
    """The incumbent's speedup: ``46.9× eager``."""
    doing: str = ""
    """What it does while it awaits nobody: ``round 2``."""


def joined_words(options: Sequence[str]) -> str:
    """A session that another process runs was opened; ``options``: what was asked of opening it, in vain."""
    lost = f"; {' and '.join(options)} {'has' if len(options) == 1 else 'have'} no effect" if options else ""
    return f"Another process runs this session: you steer it from here{lost}"


def notice_facts(state: SessionState, stopped: Mapping[WorkKey, str]) -> NoticeFacts:
    """Where the session stands. ``stopped``: work that failed and waits for a retry."""
    best = kernels.incumbent(state)
    ratio = queries.speedup(state, best) if best is not None else None
    figure = f"{fmt.times(ratio)} {queries.ranking_baseline(state)}" if ratio is not None else ""
    return NoticeFacts(_waiting(state, stopped), best.id if best is not None else "", figure, _doing(state))


def _waiting(state: SessionState, stopped: Mapping[WorkKey, str]) -> str:
    """In the order of the session screen's banner."""
    ideas = () if state.mode.is_autopilot else queries.pending_ideas(state)
    held = kernels.quarantined(state)
    if state.closed is not None:
        return f"ended: {one_line(state.closed)}"
    if state.called_off:
        return one_line(next(iter(state.called_off.values())))
    if stopped:
        work, reason = next(iter(stopped.items()))
        return f"{work_words(work)} failed: {one_line(reason)}"
    if prompts := calls_by_hand(state):
        return awaiting_answer(len(prompts))
    if state.paused is not None:
        return f"paused: {one_line(state.paused)}"
    if ideas:
        return awaiting_approval(len(ideas))
    return f"{counted(len(held), 'kernel')} in quarantine" if held else ""


def _doing(state: SessionState) -> str:
    number = queries.last_round(state)
    return f"round {number}" if number >= 0 else "preparing"


def notice(before: NoticeFacts, now: NoticeFacts) -> str:
    """What happened between the two that is worth a notice; empty if nothing is."""
    if now.waiting and now.waiting != before.waiting:
        return now.waiting
    if before.incumbent and now.incumbent and now.incumbent != before.incumbent:
        return f"{kernels.INCUMBENT} new incumbent {now.incumbent}: {now.best}"
    return ""


def title(name: str, now: NoticeFacts) -> str:
    """The terminal's title: who waits for whom, and what is best."""
    parts = (name, now.waiting or now.doing, f"{kernels.INCUMBENT} {now.best}" if now.best else "")
    return " · ".join(filter(None, parts))
