"""The rulebook: which events a command causes, which work is owed, what a result means. Pure functions over ``SessionState``.

Live sessions, resumed ones and tests share these functions; nothing else decides anything.

- ``decide(state, command)``: events a command causes, or ``CommandRejected``.
- ``automatic(state)``: transitions that need neither a command nor an effect: rounds open and close, the policy approves.
- ``next_work(state)``: work that can start now.
- ``wanted_work(state)``: work whose result still matters, including work that a pause or a spent budget holds back.
- ``record(state, work, result)``: events that a result causes.
- ``resume_events(state, repaired)``: events that a process begins with when it takes a session up.
"""

from engine.domain.rules.decide import decide
from engine.domain.rules.lifecycle import automatic, resume_events
from engine.domain.rules.next_work import next_work, wanted_work
from engine.domain.rules.record import record

__all__ = ["automatic", "decide", "next_work", "record", "resume_events", "wanted_work"]
