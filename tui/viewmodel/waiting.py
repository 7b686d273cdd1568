"""Who waits for whom: the mode of the session, and whose decision, reply or code it waits for. Pure."""

from __future__ import annotations

from engine.domain import queries
from engine.domain.state import SessionState
from tui.viewmodel import fmt, kernels
from tui.viewmodel.cells import Cell, Ink, cut, one_line
from tui.viewmodel.stages import calls_by_hand, ideas_for_you, open_calls

Forms = tuple[Cell, ...]
"""The same words from the longest to the shortest."""


def mode(state: SessionState, *, stopped: bool, left: float | None = None) -> Forms:
    """The mode with who waits for whom.

    ``stopped``: failed work waits for a retry. ``left``: seconds until the ideas are approved.
    """
    if state.closed is not None:
        return (Cell("■ ended", Ink.FAINT),)
    if state.broken or stopped:
        return (Cell("✗ stopped, waits for you", Ink.BAD), Cell("✗ stopped", Ink.BAD))
    if state.paused is not None:
        return (Cell(f"‖ paused: {cut(one_line(state.paused), 32)}", Ink.WARN), Cell("‖ paused", Ink.WARN))
    return _for_you(state, left) or _at_work(state)


def _for_you(state: SessionState, left: float | None) -> Forms:
    """What waits for the engineer."""
    ideas = len(ideas_for_you(state))
    prompts = len(calls_by_hand(state))
    timed = f", auto-approve in {fmt.elapsed(max(0.0, left))}" if left is not None and ideas else ""
    for number, glyph, thing in ((ideas, "◇", "idea"), (prompts, "✎", "prompt")):
        if number:
            counted = f"{glyph} {fmt.counted(number, thing)}"
            words = f"{counted} wait{'s' if number == 1 else ''} for you"
            shorter = (f"{words}{timed}", f"{counted}{timed}" if timed else words, f"{glyph} {number} for you")
            return tuple(Cell(form, Ink.WARN) for form in dict.fromkeys(shorter))
    return ()


def _at_work(state: SessionState) -> Forms:
    """The mode, and the model or agent whose reply or code the session waits for."""
    seconds = state.mode.seconds
    short = "▸▸ autopilot" if state.mode.is_autopilot else "◈ ask"
    words = f"{short}, auto-approve after {seconds} s" if seconds else short
    ink = Ink.GOOD if state.mode.is_autopilot else Ink.ACCENT
    asked = dict.fromkeys(kernels.author(call.model) for call in open_calls(state))
    agents = dict.fromkeys(
        kernels.author(idea.author.name) if idea.author.is_agent else "an agent"
        for idea in state.ideas.values()
        if queries.awaits_agent(state, idea)
    )
    held = len(kernels.quarantined(state))
    names = [*asked, *agents]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    whom = (
        f"waits for {names[0]}{more}" if names else "",
        f"{held} quarantined wait{'s' if held == 1 else ''} for you" if held else "",
    )
    forms = (" · ".join(filter(None, (words, *whom))), " · ".join(filter(None, (short, *whom))), whom[0] or short, short)
    return tuple(Cell(form, ink) for form in dict.fromkeys(forms))
