"""Model calls of a session: tokens and cost, as reported by the providers, and retries."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from engine.domain import queries
from engine.domain.model import Usage
from engine.domain.state import CallStatus, ModelCall, SessionState


@dataclass(frozen=True, slots=True)
class CallTotals:
    """The sum over some calls. Recalled replies count as calls and cost nothing."""

    calls: int
    recalled: int
    usage: Usage
    usd: float
    unpriced: int
    """Calls whose price is unknown; ``usd`` excludes them."""
    estimated: int = 0
    """Calls whose cost nobody counted; they count as all that they could have cost."""


def totals(calls: Iterable[ModelCall]) -> CallTotals:
    """The sum of the calls."""
    every = tuple(calls)
    paid = [call for call in every if not call.recalled]
    priced = sum(call.usd for call in paid if call.usd is not None)
    unpriced = sum(1 for call in paid if call.usd is None and call.usage.total)
    estimated = sum(1 for call in paid if call.estimated)
    usage = sum((call.usage for call in paid), Usage())
    return CallTotals(len(every), len(every) - len(paid), usage, priced, unpriced, estimated)


_Key = TypeVar("_Key", bound=Hashable)


def grouped(calls: Iterable[ModelCall], key: Callable[[ModelCall], _Key]) -> dict[_Key, CallTotals]:
    """The sums by key, in order of first occurrence."""
    groups: dict[_Key, list[ModelCall]] = {}
    for call in calls:
        groups.setdefault(key(call), []).append(call)
    return {name: totals(members) for name, members in groups.items()}


def by_round(state: SessionState) -> dict[str, CallTotals]:
    """The sums by the round a call served: ``round 2``, or ``other``."""
    found = grouped(state.calls.values(), lambda call: queries.round_of_call(state, call))
    order = sorted(found, key=lambda number: (number is None, number or 0))
    return {f"round {number}" if number is not None else "other": found[number] for number in order}


def refused_before(state: SessionState, call: ModelCall) -> ModelCall | None:
    """The call that asked the same just before, if its reply could not be used."""
    calls = list(state.calls.values())
    same = [one for one in calls[: calls.index(call)] if (one.work, one.role, one.model) == (call.work, call.role, call.model)]
    return same[-1] if same and same[-1].status is CallStatus.FAILED and same[-1].reply else None
