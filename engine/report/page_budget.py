"""What a session spent: calls, tokens and money by model and role, and by round. Pure; values, no mark-up."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from engine.domain import queries
from engine.domain.model import Usage
from engine.domain.state import Call, SessionState


@dataclass(frozen=True, slots=True)
class SpendingRow:
    """Calls of one kind; recalled ones cost nothing and are counted apart."""

    what: str
    calls: int
    recalled: int
    usage: Usage
    usd: str


@dataclass(frozen=True, slots=True)
class Spending:
    """Empty tables where no model was asked."""

    by_model: tuple[SpendingRow, ...]
    by_round: tuple[SpendingRow, ...]
    total: SpendingRow
    active_seconds: float
    """Time at work, the wait for the engineer left out."""
    source: str


def spending(state: SessionState) -> Spending:
    """All calls of the session, open and failed ones included."""
    by_model: dict[Hashable, list[Call]] = {}
    by_round: dict[Hashable, list[Call]] = {}
    for call in state.calls.values():
        by_model.setdefault(f"{call.model}, {call.role.value}", []).append(call)
        number = queries.round_of_call(state, call)
        by_round.setdefault(f"round {number}" if number is not None else "elsewhere", []).append(call)
    return Spending(
        tuple(_row(str(what), calls) for what, calls in by_model.items()),
        tuple(_row(str(what), calls) for what, calls in by_round.items()),
        _row("all", list(state.calls.values())),
        state.active_seconds,
        state.opened.settings.source if state.opened else "",
    )


def _row(what: str, calls: list[Call]) -> SpendingRow:
    paid = [c for c in calls if not c.recalled]
    usage = sum((c.usage for c in paid), Usage())
    return SpendingRow(what, len(calls), len(calls) - len(paid), usage, _money(paid))


def _money(paid: list[Call]) -> str:
    """Dollars; an unknown price is said, not guessed."""
    counted = [c for c in paid if c.usage.total]
    known = [c.usd for c in counted if c.usd is not None]
    unknown = len(counted) - len(known)
    if not counted:
        return "–"
    if not known:
        return "price unknown"
    return f"${sum(known):.4f}" + (f" and {unknown} of unknown price" if unknown else "")
