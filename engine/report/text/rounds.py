"""What a round is called. Pure."""

from __future__ import annotations

from engine.domain import queries
from engine.domain.state import SessionState
from engine.report.text.lines import counted


def counted_rounds(number: int, strategy: str) -> str:
    """``3 rounds``; ``3 decisions`` of the adaptive strategy, which opens a round for each and counts its limit of rounds in
    kernels."""
    return counted(number, "decision" if strategy == "adaptive" else "round")


def of_round(state: SessionState, number: int) -> str:
    """``of round 3``, or ``after round 8``: what is added after the last round belongs to the next, which may never open."""
    last = queries.last_round(state)
    return f"of round {number}" if number <= max(last, 0) else f"after round {last}" if last >= 0 else "before round 0"


def round_name(state: SessionState, number: int) -> str:
    """``round 3`` or ``after round 8``."""
    return of_round(state, number).removeprefix("of ")
