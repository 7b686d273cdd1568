"""The dialog while a session is opened: progress, and a way to cancel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Label, LoadingIndicator, Static

from engine.domain.errors import EspalierError
from tui.bridge import Bridge, Say
from tui.screens.dialogs import Dialog

OpenBridge = Callable[[Say], Awaitable[Bridge]]


class OpenSessionDialog(Dialog[Bridge | EspalierError | None]):
    """Answers with the bridge, the error, or ``None`` when cancelled."""

    CSS_PATH = "prompts.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, title: str, opening: OpenBridge) -> None:
        super().__init__()
        self._title = title
        self._opening = opening

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = Content(self._title)
            yield Static("reading the journal …", id="message", markup=False)
            yield LoadingIndicator()
            yield Label("Esc: not now", classes="hint")

    def on_mount(self) -> None:
        self._open()

    @work(exclusive=True, group="open")
    async def _open(self) -> None:
        try:
            self.dismiss(await self._opening(self._say))
        except EspalierError as error:
            self.dismiss(error)

    def _say(self, words: str) -> None:
        self.query_one("#message", Static).update(f"{words} …")

    def action_cancel(self) -> None:
        """Answer with ``None``."""
        self.workers.cancel_group(self, "open")
        self.dismiss(None)
