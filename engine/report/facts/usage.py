"""What models cost a session, as the providers counted it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from engine.domain import queries
from engine.domain.model import Usage
from engine.domain.state import ModelCall, SessionState


@dataclass(frozen=True, slots=True)
class CallTotals:
    """What some calls cost together. Recalled replies count as calls and cost nothing."""

    calls: int
    recalled: int
    usage: Usage
    usd: float
    unpriced: int
    """Calls with tokens whose price is not known: ``usd`` is without them."""


def totals(calls: Iterable[ModelCall]) -> CallTotals:
    """The calls together."""
    every = tuple(calls)
    paid = [call for call in every if not call.recalled]
    priced = sum(call.usd for call in paid if call.usd is not None)
    unpriced = sum(1 for call in paid if call.usd is None and call.usage.total)
    return CallTotals(len(every), len(every) - len(paid), sum((call.usage for call in paid), Usage()), priced, unpriced)


_Key = TypeVar("_Key", bound=Hashable)


def grouped(calls: Iterable[ModelCall], key: Callable[[ModelCall], _Key]) -> dict[_Key, CallTotals]:
    """The calls by their key, in the order in which the keys first occur."""
    groups: dict[_Key, list[ModelCall]] = {}
    for call in calls:
        groups.setdefault(key(call), []).append(call)
    return {name: totals(members) for name, members in groups.items()}


def by_round(state: SessionState) -> dict[str, CallTotals]:
    """By the round that a call served: ``round 2``, or ``elsewhere``."""
    found = grouped(state.calls.values(), lambda call: queries.round_of_call(state, call))
    order = sorted(found, key=lambda number: (number is None, number or 0))
    return {f"round {number}" if number is not None else "elsewhere": found[number] for number in order}
