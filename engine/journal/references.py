"""Checks that an entry fits those before it: that it is of their session, and that the kernels and ideas that it names exist.

A line of another session, pasted with the right sequence number, names another session, or none in an older journal. Times are
not compared, as a clock may be set back.
"""

from __future__ import annotations

from engine.domain import events as e

_PERHAPS = " (it may be of another session)"


class References:
    """The session, the kernels and the ideas of a journal, as far as it was read."""

    def __init__(self) -> None:
        self._session: str | None = None
        self._kernels: set[str] = set()
        self._ideas: set[str] = set()
        self._is_complete = True

    def fault(self, entry: e.Entry) -> str:
        """Why the entry cannot follow those before it; empty if it can, and then its own kernels and ideas are known.

        After an event of a later version, which may have introduced what others name, no name is a fault.
        """
        if self._session is None:
            self._session = entry.session
        if entry.session != self._session:
            return "is of another session"
        match event := entry.event:
            case e.UnknownEvent():
                self._is_complete = False
            case e.IdeasProposed():
                return self._introduced(self._ideas, "idea", *(idea.id for idea in event.ideas))
            case e.KernelDrafted():
                return self._unknown(event.idea, event.parent) or self._introduced(self._kernels, "kernel", event.kernel)
            case _:
                named = (getattr(event, "kernel", None), getattr(event, "against", None))
                return self._unknown(getattr(event, "idea", None), *named)
        return ""

    def _introduced(self, known: set[str], what: str, *names: str) -> str:
        repeated = next((name for name in names if name in known), "")
        known.update(names)
        return f"introduces {what} {repeated!r}, which exists{_PERHAPS}" if repeated else ""

    def _unknown(self, idea: str | None, *kernels: str | None) -> str:
        if not self._is_complete:
            return ""
        if idea is not None and idea not in self._ideas:
            return f"names idea {idea[:80]!r}, which does not exist{_PERHAPS}"
        unknown = next((name for name in kernels if name is not None and name not in self._kernels), None)
        return "" if unknown is None else f"names kernel {unknown[:80]!r}, which does not exist{_PERHAPS}"
