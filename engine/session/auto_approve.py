"""The timer of mode ``ask:SECONDS``: computes when the policy approves the pending ideas. It never sleeps."""

from __future__ import annotations

from engine.domain import queries
from engine.domain.state import SessionState
from engine.session.ports import Clock


class AutoApproveTimer:
    """Counts from the time when the pending ideas were proposed; every action of the engineer restarts the count."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock()
        self._pending: tuple[str, ...] = ()

    def restart(self) -> None:
        """Restart the count after an action of the engineer."""
        self._since = self._clock()

    def deadline(self, state: SessionState) -> float | None:
        """When the policy approves the pending ideas; ``None`` in another mode, or if no idea is pending."""
        pending = tuple(idea.id for idea in queries.pending_ideas(state)) if state.closed is None else ()
        if pending != self._pending:
            self._pending = pending
            self._since = self._clock()
        if state.mode.seconds is None or not pending:
            return None
        return self._since + state.mode.seconds
