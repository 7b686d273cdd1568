"""The dialog while a session starts or is opened: its steps with their elapsed time; Esc cancels."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from engine.domain.errors import EspalierError
from tui.bridge import Bridge, Say
from tui.removals import is_going
from tui.screens.dialogs import Dialog
from tui.viewmodel.steps import StepLog, step_lines

_INDENT = 3
"""The cells that the lines of steps are indented by elsewhere."""
FIRST_STEP = "checking settings and compiler"
"""What the engine does before it reports its first step."""
OpenBridge = Callable[[Say], Awaitable[Bridge]]


class OpenSessionDialog(Dialog[Bridge | EspalierError | None]):
    """Answers with the bridge, the error, or ``None`` when cancelled."""

    CSS_PATH = "prompts.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, title: str, opening: OpenBridge) -> None:
        super().__init__()
        self._title = title
        self._opening = opening
        self._steps = StepLog()

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = Content(self._title)
            box.border_subtitle = Content("Esc: cancel")
            yield Static("", id="steps", markup=False)

    def on_mount(self) -> None:
        self._say(FIRST_STEP)
        self.set_interval(0.5, self._show_steps)
        self._open()

    @work(exclusive=True, group="opening")
    async def _open(self) -> None:
        try:
            self.dismiss(await self._opening(self._say))
        except EspalierError as error:
            self.dismiss(error)

    def _say(self, text: str) -> None:
        self._steps.add(text, time.monotonic())
        self._show_steps()

    def _show_steps(self) -> None:
        if is_going(self):
            return
        shown = self.query_one("#steps", Static)
        lines = step_lines(self._steps.steps, time.monotonic(), shown.size.width + _INDENT)
        shown.update("\n".join(line.text.strip() for line in lines))

    def on_resize(self) -> None:
        """The steps use the width that there is."""
        self.call_after_refresh(self._show_steps)

    def action_cancel(self) -> None:
        """Answer with ``None``."""
        self.workers.cancel_group(self, "opening")
        self.dismiss(None)
