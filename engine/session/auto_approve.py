"""The timer of ``ask:SECONDS``: when the policy approves ideas in the engineer's place. It never sleeps itself."""

from __future__ import annotations

from engine.domain import queries
from engine.domain.state import SessionState
from engine.session.ports import Clock


class AutoApproveTimer:
    """Counts from the time when the pending ideas came up, and again from whatever the engineer does."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock()
        self._pending: tuple[str, ...] = ()

    def restart(self) -> None:
        """Restart the count: the engineer did something."""
        self._since = self._clock()

    def deadline(self, state: SessionState) -> float | None:
        """When the policy decides; ``None`` in another mode, or where no idea is pending."""
        pending = tuple(idea.id for idea in queries.pending_ideas(state)) if state.closed is None else ()
        if pending != self._pending:
            self._pending = pending
            self._since = self._clock()
        if state.mode.seconds is None or not pending:
            return None
        return self._since + state.mode.seconds
