"""Sends what happens to one session as notices, and keeps the terminal's title."""

from __future__ import annotations

from collections.abc import Mapping

from engine.domain.state import SessionState
from engine.domain.work import WorkKey
from tui.notices import Notices
from tui.viewmodel.notices import NoticeFacts, notice, notice_facts, title


class SessionWatch:
    """What the engineer was told of a session."""

    def __init__(self, name: str, notices: Notices, *, is_new: bool) -> None:
        """``is_new``: what it waits for at the first look is news."""
        self.name = name
        self._notices = notices
        self._seen: tuple[SessionState, Mapping[WorkKey, str]] | None = None
        self._before = NoticeFacts() if is_new else None

    def update(self, state: SessionState, stopped: Mapping[WorkKey, str]) -> bool:
        """The session as it stands now; whether there is news. ``stopped``: work that failed and waits for a retry."""
        if self._seen is not None and self._seen[0] is state and self._seen[1] is stopped:
            return False
        self._seen = state, stopped
        now = notice_facts(state, stopped)
        if self._before is not None:
            self._notices.send(self.name, notice(self._before, now))
        self._notices.set_title(title(self.name, now))
        is_news, self._before = now != self._before, now
        return is_news
