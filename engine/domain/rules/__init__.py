"""The rulebook: who may ask what, what is owed next, what a result means. Pure functions over ``SessionState``.

Live, replay and resume share these; nothing else decides anything.

- ``decide(state, command)``: events a command causes, or ``CommandRejected``.
- ``automatic(state)``: transitions that need neither a person nor an effect: rounds open and close, the policy decides.
- ``next_work(state)``: effects still owed, derived from the state alone.
- ``wanted(state)``: effects whose result still matters, those that may not be begun now included.
- ``record(state, work, result)``: events that the result of an effect causes.
"""

from engine.domain.rules.deciding import decide
from engine.domain.rules.lifecycle import automatic, resumed
from engine.domain.rules.owing import next_work, wanted
from engine.domain.rules.recording import record

__all__ = ["automatic", "decide", "next_work", "record", "resumed", "wanted"]
