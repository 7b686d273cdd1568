"""The settings of the screen: theme, bell, desktop notices, title. Knows no session."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Horizontal, Vertical
from textual.content import Content
from textual.widgets import Button, Checkbox, Label, Select, Static

from tui.preferences import Desktop, Preferences, ThemeChoice
from tui.screens.dialogs import Dialog

_THEMES = (
    ("automatic", ThemeChoice.AUTO),
    ("dark", ThemeChoice.DARK),
    ("light", ThemeChoice.LIGHT),
    ("high contrast", ThemeChoice.CONTRAST),
)
_DESKTOP = (
    ("automatic", Desktop.AUTO),
    ("OSC 9: iTerm2, kitty, WezTerm, Ghostty", Desktop.OSC9),
    ("OSC 777: foot, rxvt, GNOME Terminal", Desktop.OSC777),
    ("off", Desktop.OFF),
)
_WHEN = "Bell and notice: when the session awaits you, has a new incumbent or ends, unless the terminal has the focus."


class _TickBox(Checkbox):
    """A checkbox that is empty when it is off: Textual's differs by its colour alone."""

    @property
    def _button(self) -> Content:
        drawn = super()._button
        return drawn if self.value else Content(" " * len(drawn.plain)).stylize(self.get_visual_style("toggle--button"))


class SettingsForm(Dialog[Preferences | None]):
    """Answers with the settings, or ``None``."""

    CSS_PATH = "forms.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel"), Binding("ctrl+s", "done", "Save")]

    def __init__(self, given: Preferences, file: str) -> None:
        """``file``: where they are kept."""
        super().__init__()
        self._given = given
        self._file = file

    def compose(self) -> ComposeResult:
        with Vertical(classes="form") as box:
            box.border_title = "Settings of the screen"
            box.border_subtitle = "Ctrl-S: save · Esc: cancel"
            with Grid():
                yield Label("Theme")
                yield Select(_THEMES, value=self._given.theme, allow_blank=False, id="theme", compact=True)
                yield Label("Desktop notice")
                yield Select(_DESKTOP, value=self._given.desktop, allow_blank=False, id="desktop", compact=True)
                yield Label("Bell")
                yield _TickBox("ring", self._given.bell, id="bell", compact=True)
                yield Label("Terminal title")
                yield _TickBox("show the state", self._given.title, id="title", compact=True)
            yield Static(_WHEN, markup=False, classes="hint")
            yield Static(f"Kept in {self._file}.", markup=False, classes="hint")
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("Save", id="done", variant="primary", compact=True)

    @on(Button.Pressed, "#done")
    def action_done(self) -> None:
        """Answer with the content of the form."""
        theme, desktop = (self.query_one(f"#{name}", Select).value for name in ("theme", "desktop"))
        bell, title = (self.query_one(f"#{name}", Checkbox).value for name in ("bell", "title"))
        self.dismiss(Preferences(ThemeChoice(str(theme)), bell, Desktop(str(desktop)), title))

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        """Answer with ``None``."""
        self.dismiss(None)
