"""How a screen leaves: once, and taking no other screen with it. What every dialog is made of."""

from __future__ import annotations

from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen, Screen, ScreenResultType


class LeavesOnce(Screen[ScreenResultType]):
    """A screen whose first ``dismiss`` counts, and waits until the screen is drawn and nothing lies above it.

    Textual's own pops whatever is on top, and a key or a worker can ask for it when that is another screen: help and palette
    open over a dialog that works, and a key that bounces is heard by a screen that has left already.
    """

    _leaving = False
    _result: ScreenResultType | None = None

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        if self._leaving:
            return AwaitComplete()
        self._leaving, self._result = True, result
        return super().dismiss(result) if self.is_mounted and self.is_active else AwaitComplete()

    def on_screen_resume(self) -> None:
        if self._leaving and self.is_active:
            super().dismiss(self._result)


class Dialog(ModalScreen[ScreenResultType], LeavesOnce[ScreenResultType]):
    """A screen over another, which answers whoever asked."""
