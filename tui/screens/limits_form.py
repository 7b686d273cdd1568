"""The forms for a session's limits and pauses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Horizontal, Vertical
from textual.widgets import Button, Input, Label, Static

from engine.domain.settings import Limits, Pauses
from tui.screens.dialogs import Dialog, show_beside

Numbers = TypeVar("Numbers", Limits, Pauses)


class Field(NamedTuple):
    """One number: attribute, label, hint."""

    name: str
    label: str
    words: str
    whole: bool = False


class _NumbersForm(Dialog[Numbers | None], Generic[Numbers]):
    """Answers with its content, or ``None``; an empty field means no limit."""

    CSS_PATH = "forms.tcss"
    forgets_errors = True
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel"), Binding("ctrl+s", "done", "Done")]
    FORM_TITLE: ClassVar[str]
    WORDS: ClassVar[str]
    FIELDS: ClassVar[tuple[Field, ...]]

    def __init__(self, given: Numbers) -> None:
        super().__init__()
        self._given: Numbers = given

    def compose(self) -> ComposeResult:
        with Vertical(classes="form") as box:
            box.border_title = self.FORM_TITLE
            box.border_subtitle = "Ctrl-S: save · Esc: cancel"
            yield Label(self.WORDS, classes="hint")
            with Grid():
                for name, label, words, _ in self.FIELDS:
                    value = getattr(self._given, name)
                    yield Label(label)
                    yield Input("" if value is None else f"{value:g}", id=name, placeholder=f"none · {words}", compact=True)
                yield Static("", id="message", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("Save", id="done", variant="primary", compact=True)

    @on(Button.Pressed, "#done")
    @on(Input.Submitted)
    def action_done(self) -> None:
        """Answer with the content of the form."""
        found = self._read()
        if found is not None:
            self.dismiss(replace(self._given, **found))

    def _read(self) -> Mapping[str, Any] | None:
        """The numbers in the form; ``None`` after showing an error."""
        found: dict[str, Any] = {}
        for name, label, _, whole in self.FIELDS:
            text = self.query_one(f"#{name}", Input).value.strip()
            try:
                value = None if not text else int(text) if whole else float(text)
            except ValueError:
                value = 0
            if value is not None and not value > 0:
                show_beside(self, name, f"{label}: invalid value {text}; enter a positive number or leave it empty.")
                return None
            found[name] = value
        return found

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        """Answer with ``None``."""
        self.dismiss(None)


class LimitsForm(_NumbersForm[Limits]):
    """When the session ends."""

    FORM_TITLE = "Limits"
    WORDS = "The session ends when one limit is reached. Empty: no limit."
    FIELDS = (
        Field("rounds", "Rounds", "after the naive port", whole=True),
        Field("seconds", "Seconds", "of work, over all runs"),
        Field("kernels", "Kernels", "in the tree", whole=True),
        Field("plateau", "Plateau", "rounds without a new incumbent", whole=True),
        Field("light", "SOL", "target fraction of the speed of light, such as 0.8"),
        Field("tokens", "Tokens", "input and output of all models", whole=True),
        Field("usd", "Dollars", "for all models"),
    )


class PausesForm(_NumbersForm[Pauses]):
    """Where the session pauses."""

    FORM_TITLE = "Pause at"
    WORDS = "The session pauses when one condition holds, until you resume it. Empty: no condition."
    FIELDS = (
        Field("tokens", "Tokens", "above this many", whole=True),
        Field("usd", "Dollars", "above this amount"),
        Field("round", "Round", "before this round", whole=True),
    )
