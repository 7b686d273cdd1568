"""The forms for a session's limits and pauses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Horizontal, Vertical
from textual.events import DescendantFocus
from textual.widgets import Button, Input, Label, Static

from engine.domain.figure_text import exact
from engine.domain.model_text import duration_text, parse_duration
from engine.domain.settings import LARGEST_COUNT, LARGEST_SOL, Limits, Pauses
from tui.screens.dialogs import Dialog, show_beside

Numbers = TypeVar("Numbers", Limits, Pauses)


class Field(NamedTuple):
    """One number: attribute, label, what it means."""

    name: str
    label: str
    words: str
    whole: bool = False
    duration: bool = False
    most: float = math.inf

    @property
    def wanted(self) -> str:
        """What may be typed."""
        if self.duration:
            return "90s, 15m or 2h,"
        bound = f" up to {self.most:g}" if math.isfinite(self.most) else ""
        return f"a positive {'whole ' if self.whole else ''}number{bound}"

    def text(self, value: float | None) -> str:
        """The value as it is typed; empty for ``None``."""
        return "" if value is None else duration_text(value) if self.duration else exact(value)

    def read(self, text: str) -> float | None:
        """The number in a text; ``None`` for an empty one. Raises ValueError."""
        if not text:
            return None
        value = parse_duration(text) if self.duration else int(text) if self.whole else float(text)
        if not 0 < value <= self.most:
            raise ValueError(text)
        return value


class _NumbersForm(Dialog[Numbers | None], Generic[Numbers]):
    """Answers with its content, or ``None``; an empty field means no limit. A line says what the field with the focus means."""

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
                for field in self.FIELDS:
                    yield Label(field.label)
                    text = field.text(getattr(self._given, field.name))
                    yield Input(text, id=field.name, placeholder=f"none · {field.words}", compact=True)
                yield Static("", id="message", markup=False)
            yield Label("", id="meaning", classes="hint", markup=False)
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
        for field in self.FIELDS:
            text = self.query_one(f"#{field.name}", Input).value.strip()
            try:
                found[field.name] = field.read(text)
            except ValueError:
                show_beside(self, field.name, f"{field.label}: invalid value {text}; enter {field.wanted} or leave it empty.")
                return None
        return found

    @on(DescendantFocus)
    def _say_what_it_means(self, event: DescendantFocus) -> None:
        """A field with a value shows no placeholder."""
        words = [f"{field.label}: {field.words}" for field in self.FIELDS if field.name == event.widget.id]
        self.query_one("#meaning", Label).update("".join(words))

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        """Answer with ``None``."""
        self.dismiss(None)


class LimitsForm(_NumbersForm[Limits]):
    """When the session ends."""

    FORM_TITLE = "Limits"
    WORDS = "The session ends when one limit is reached. Empty: no limit."
    FIELDS = (
        Field("rounds", "Rounds", "rounds after the naive port", whole=True, most=LARGEST_COUNT),
        Field("seconds", "Time limit", "work in all runs together, such as 90s, 15m, 2h", duration=True),
        Field("kernels", "Kernels", "kernels in the tree", whole=True, most=LARGEST_COUNT),
        Field("plateau", "Plateau", "rounds in a row without a new incumbent", whole=True, most=LARGEST_COUNT),
        Field("light", "SOL", "share of the speed of light that is fast enough, such as 0.8", most=LARGEST_SOL),
        Field("tokens", "Tokens", "input and output of all models", whole=True),
        Field("usd", "Cost limit", "dollars for all models, such as 2.50"),
    )


class PausesForm(_NumbersForm[Pauses]):
    """Where the session pauses."""

    FORM_TITLE = "Pause at"
    WORDS = "The session pauses when one condition holds, until you resume it. Empty: no condition."
    FIELDS = (
        Field("tokens", "Tokens", "above this many tokens of all models", whole=True),
        Field("usd", "Cost", "above this many dollars for all models"),
        Field("round", "Round", "before this round", whole=True, most=LARGEST_COUNT),
    )
