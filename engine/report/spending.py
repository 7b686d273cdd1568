"""What models cost a session, as the providers counted it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from engine.domain import queries
from engine.domain.model import Usage
from engine.domain.state import Call, SessionState


@dataclass(frozen=True, slots=True)
class Row:
    """What the calls of one group cost. Recalled replies are counted as calls and cost nothing."""

    by: str
    """``in all``, ``round``, ``role`` or ``model``."""
    name: str
    calls: int
    usage: Usage
    usd: float
    unpriced: int
    """Calls with tokens whose price is not known: ``usd`` is without them."""


def spending(state: SessionState) -> tuple[Row, ...]:
    """The whole session first, then by round, by role, by model."""
    calls = tuple(state.calls.values())
    groups: tuple[tuple[str, Callable[[Call], str]], ...] = (
        ("round", lambda call: str(queries.round_of_call(state, call))),
        ("role", lambda call: call.role.value),
        ("model", lambda call: call.model),
    )
    parts = (row for by, name in groups for row in _grouped(by, calls, name))
    return (_row("in all", "", calls), *parts)


def _grouped(by: str, calls: Iterable[Call], name: Callable[[Call], str]) -> Iterator[Row]:
    found: dict[str, list[Call]] = {}
    for call in calls:
        found.setdefault(name(call), []).append(call)
    for group in sorted(found, key=lambda text: (not text.isdecimal(), int(text) if text.isdecimal() else 0, text)):
        yield _row(by, group, found[group])


def _row(by: str, name: str, calls: Iterable[Call]) -> Row:
    made = tuple(calls)
    paid = [call for call in made if not call.recalled and call.usage.total]
    dollars = sum(call.usd for call in paid if call.usd is not None)
    usage = sum((call.usage for call in paid), Usage())
    return Row(by, name, len(made), usage, dollars, sum(1 for call in paid if call.usd is None))
