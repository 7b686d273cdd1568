"""The rules of a search: the events of commands and results, and the work that is owed. Pure functions of ``SessionState``.

Live sessions, resumed sessions and tests share these functions; nothing else decides anything.

- ``decide(state, command)``: the events of a command, or ``CommandRejected``.
- ``automatic(state)``: transitions that need neither a command nor work: rounds open and close, the policy approves.
- ``next_work(state)``: work that can start now.
- ``wanted_work(state)``: work whose result still matters, including work held back by a pause or an exhausted budget.
- ``record(state, work, result)``: the events of a result.
- ``resume_events(state, repaired)``: the first events of a process that opens an existing session.
- ``is_given_up(kernel)``: whether those failed the kernel, as its work was cut off too often.
"""

from engine.domain.rules.decide import decide
from engine.domain.rules.lifecycle import automatic, is_given_up, resume_events
from engine.domain.rules.next_work import next_work, wanted_work
from engine.domain.rules.record import record

__all__ = ["automatic", "decide", "is_given_up", "next_work", "record", "resume_events", "wanted_work"]
