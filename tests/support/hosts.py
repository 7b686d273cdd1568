"""A minimal app around the widgets of a session: themes, the showcase and a list of posted messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from support import showcase
from textual.app import App, ComposeResult
from textual.message import Message
from textual.widget import Widget

from engine.domain.state import SessionState
from tui import theme

STATE, LOG = showcase.session()
Make = Callable[[], Widget]


class Host(App[None]):
    """Shows the widgets one below the other, each with the state; ``posted`` holds their messages in order."""

    CSS = "KernelTree, DetailTabs, IdeaList, LogView, NoteList, Charts { height: 1fr; }"

    def __init__(
        self, *made: Make, prepare: Callable[[Host], None] | None = None, state: SessionState = STATE, dark: bool = True
    ) -> None:
        super().__init__()
        self.animation_level = "none"
        self._made: Sequence[Make] = made
        self._prepare = prepare
        self._state = state
        self.posted: list[Message] = []
        for one in theme.THEMES:
            self.register_theme(one)
        self.theme = theme.DARK if dark else theme.LIGHT

    def compose(self) -> ComposeResult:
        for make in self._made:
            yield make()

    def on_mount(self) -> None:
        for widget in self.screen.children:
            if "state" in type(widget)._reactives:
                widget.state = self._state  # type: ignore[attr-defined]  # every widget that shows a session has it
        if self._prepare is not None:
            self._prepare(self)

    def keep(self, message: Message) -> None:
        """Remember a message; for ``message_hook``, which sees it at every node that it bubbles through."""
        if all(message is not known for known in self.posted):
            self.posted.append(message)

    def of(self, kind: type[Message]) -> list[Message]:
        """The messages of one kind, in order."""
        return [message for message in self.posted if type(message) is kind]
