"""The question whether a session or problem from elsewhere may run here: what it would run, and three answers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Button, Static

from engine.domain.errors import printable
from engine.domain.trust import PathKind, TrustQuestion
from engine.report.text import trust
from engine.report.text.lines import Tone
from tui.screens.dialogs import Dialog

_STYLES: Mapping[Tone, str] = {Tone.STRONG: "bold", Tone.FAINT: "$text-muted", Tone.WARN: "$text-warning"}


class TrustAnswer(StrEnum):
    """What the engineer decides."""

    TRUST = "trust"
    REPLAY = "replay"
    CANCEL = "cancel"


class TrustDialog(Dialog[TrustAnswer]):
    """The safe answer has the focus. Replay is offered for sessions: it runs nothing."""

    AUTO_FOCUS = "#cancel"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-wide")]  # noqa: RUF012  # an instance variable of Screen
    CSS_PATH = "trust_dialog.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel"),
        Binding("t", "trust", "Trust"),
        Binding("r", "replay", "Replay"),
    ]

    def __init__(self, asked: TrustQuestion) -> None:
        super().__init__()
        self._asked = asked

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = Content(f"Trust this {self._asked.kind}?")
            with VerticalScroll(can_focus=True):
                for name, value in trust.rows(self._asked):
                    with Horizontal(classes="row"):
                        yield Static(name, classes="name", markup=False)
                        yield Static(Content.styled(printable(value.text), _STYLES.get(value.tone, "")), classes="value")
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                if self._asked.kind is PathKind.SESSION:
                    yield Button("Replay (r)", id="replay", compact=True)
                yield Button("Trust (t)", id="trust", variant="error", compact=True)

    @on(Button.Pressed, "#trust")
    def action_trust(self) -> None:
        """Allow what is shown."""
        self.dismiss(TrustAnswer.TRUST)

    @on(Button.Pressed, "#replay")
    def action_replay(self) -> None:
        """Replay the session, which runs nothing."""
        if self._asked.kind is PathKind.SESSION:
            self.dismiss(TrustAnswer.REPLAY)

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        """Run nothing."""
        self.dismiss(TrustAnswer.CANCEL)
