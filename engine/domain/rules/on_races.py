"""What a command about races causes: a pair asked for by name, the leaders, or more spent on what was undecided."""

from __future__ import annotations

from collections.abc import Sequence

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import queries, races
from engine.domain.errors import CommandRejected
from engine.domain.rules.naming import kernel_of, reopening
from engine.domain.state import Kernel, SessionState


def decide(state: SessionState, command: c.RaceCommand) -> tuple[e.Event, ...]:
    """Raises CommandRejected."""
    match command:
        case c.RaceKernel(kernel, against):
            pair = (kernel_of(state, kernel), kernel_of(state, against) if against is not None else _leader(state))
            return _asked(state, [_checked(state, *pair)])
        case c.RaceLeaders(count):
            if count < 1:
                raise CommandRejected("at least one kernel must race the incumbent")
            leader = _leader(state)
            found = races.leaders(state, count)
            if not found:
                raise CommandRejected(f"nothing but {leader.id} is measured precisely here: there is nothing to race it with")
            return _asked(state, [(kernel.id, leader.id) for kernel in found])
        case c.RaceUndecided():
            open_ones = races.undecided(state)
            if not open_ones:
                raise CommandRejected("no race with the incumbent is undecided")
            leader = _leader(state)
            return _asked(state, [(r.against if r.kernel == leader.id else r.kernel, leader.id) for r in open_ones])


def _leader(state: SessionState) -> Kernel:
    leader = queries.incumbent(state)
    if leader is None or not queries.may_lead(state, leader):
        raise CommandRejected("nothing leads yet: there is no kernel to race against")
    return leader


def _checked(state: SessionState, kernel: Kernel, against: Kernel) -> tuple[str, str]:
    """The pair, the incumbent second where it is one of the two."""
    if kernel.id == against.id:
        leads = queries.incumbent(state) is kernel
        raise CommandRejected(f"{kernel.id} {'leads: name the kernel that it is to race' if leads else 'cannot race itself'}")
    for one in (kernel, against):
        if not races.may_race(state, one):
            raise CommandRejected(f"{one.id} has no precise measurement on this device: measure it again before it races")
    return (against.id, kernel.id) if kernel is queries.incumbent(state) else (kernel.id, against.id)


def _asked(state: SessionState, pairs: Sequence[tuple[str, str]]) -> tuple[e.Event, ...]:
    known = [set(pair) for pair in state.asked]
    new = [e.RaceAsked(*pair) for pair in pairs if set(pair) not in known]
    return (*reopening(state), *new) if new else ()
