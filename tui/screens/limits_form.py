"""When a session stops by itself, to be changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static

from engine.domain.model import Limits

_FIELDS = (
    ("rounds", "Rounds", "after the first port"),
    ("seconds", "Seconds", "at work, over all runs"),
    ("kernels", "Kernels", "in the tree"),
    ("plateau", "Plateau", "rounds without a new best"),
    ("light", "Light", "fraction of the speed of light that is enough"),
    ("tokens", "Tokens", "of models"),
    ("usd", "Dollars", "of model use"),
)
_WHOLE = frozenset({"rounds", "kernels", "plateau", "tokens"})


class LimitsForm(ModalScreen[Limits | None]):
    """Answers with the limits that stand in it, or ``None``; an empty field is no limit."""

    CSS_PATH = "forms.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel"), Binding("ctrl+s", "done", "Done")]

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits

    def compose(self) -> ComposeResult:
        with Vertical(classes="form") as box:
            box.border_title = "Limits"
            yield Label("The session ends when one of these is reached; empty is no limit.", classes="hint")
            with Grid():
                for name, label, words in _FIELDS:
                    value = getattr(self._limits, name)
                    yield Label(label)
                    yield Input("" if value is None else f"{value:g}", id=name, placeholder=f"none · {words}", compact=True)
            yield Static("", id="said", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("Save", id="done", variant="primary", compact=True)

    @on(Button.Pressed, "#done")
    @on(Input.Submitted)
    def action_done(self) -> None:
        """Answer with what stands in the form."""
        found: dict[str, Any] = {}
        for name, label, _ in _FIELDS:
            text = self.query_one(f"#{name}", Input).value.strip()
            try:
                value = None if not text else int(text) if name in _WHOLE else float(text)
            except ValueError:
                value = 0
            if value is not None and not value > 0:
                self.query_one("#said", Static).update(f"{label}: {text} will not do; give a number above zero, or nothing.")
                return
            found[name] = value
        self.dismiss(replace(self._limits, **found))

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        """Call it off."""
        self.dismiss(None)
