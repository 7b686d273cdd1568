"""``ask:SECONDS``: how long the engineer is waited for before the policy decides. Told the time; never sleeps."""

from __future__ import annotations

from engine.domain import queries
from engine.domain.state import SessionState
from engine.session.ports import Clock


class Patience:
    """Counts from the moment when the present ideas began to await a decision, anew whenever the engineer does anything."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock()
        self._awaiting: tuple[str, ...] = ()

    def touch(self) -> None:
        """The engineer is there."""
        self._since = self._clock()

    def deadline(self, state: SessionState) -> float | None:
        """When the policy decides in the engineer's place; ``None`` when it does not, or has nothing to decide."""
        awaiting = tuple(idea.id for idea in queries.pending_ideas(state)) if state.closed is None else ()
        if awaiting != self._awaiting:
            self._awaiting = awaiting
            self._since = self._clock()
        name, _, seconds = state.mode.partition(":")
        if name != "ask" or not seconds or not awaiting:
            return None
        return self._since + float(seconds)
