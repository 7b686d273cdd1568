"""The form for a session's models: who proposes and writes, where they are asked, with which options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Horizontal, Vertical
from textual.widgets import Button, Input, Label, Static

from engine.domain.errors import EspalierError
from engine.domain.model_text import models_text, parse_models
from engine.domain.settings import ModelSettings
from tui.screens.dialogs import Dialog, show_beside


class ModelField(NamedTuple):
    """One setting: its name in ``models_text``, label, hint."""

    name: str
    label: str
    words: str


FIELDS = (
    ModelField("source", "Proposers", "playbook, or openai:MODEL=2,vllm:OTHER=1 with shares"),
    ModelField("writer", "Writer", "the author of the idea"),
    ModelField("servers", "Servers", "the providers' own · vllm=http://gpu1:8000/v1,key=NAME"),
    ModelField("effort", "Effort", "the model's own · high code=max"),
    ModelField("temperature", "Temperature", "the model's own · 0.7 code=0.2"),
    ModelField("max_output", "Max. output", "tokens of a reply · 32000 ideas=16000"),
    ModelField("timeout", "Timeout", "of one attempt, 20m · code=1h"),
    ModelField("patience", "Patience", "with rate limits and outages, such as 1h"),
    ModelField("concurrency", "Concurrency", "calls to one provider at a time"),
    ModelField("profiling", "Profiling", "yes: the parents' hardware counters go into prompts"),
)


class ModelsForm(Dialog[ModelSettings | None]):
    """Answers with its content, or ``None``; an empty field means the provider's own choice."""

    CSS_PATH = "forms.tcss"
    forgets_errors = True
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel"), Binding("ctrl+s", "done", "Done")]

    def __init__(self, given: ModelSettings, check: Callable[[ModelSettings], None]) -> None:
        """``check`` raises EspalierError for settings that name something unknown."""
        super().__init__()
        self._given = given
        self._check = check

    def compose(self) -> ComposeResult:
        texts = models_text(self._given)
        with Vertical(classes="form") as box:
            box.border_title = "Models"
            box.border_subtitle = "Ctrl-S: save · Esc: cancel"
            yield Label("For later calls. ROLE=VALUE is for one role: ideas, code or repair.", classes="hint")
            with Grid():
                for name, label, words in FIELDS:
                    yield Label(label)
                    yield Input(texts[name], id=name, placeholder=words, compact=True)
                yield Static("", id="message", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("Save", id="done", variant="primary", compact=True)

    @on(Button.Pressed, "#done")
    @on(Input.Submitted)
    def action_done(self) -> None:
        """Answer with the content of the form, unless it makes no sense."""
        texts = {name: self.query_one(f"#{name}", Input).value for name, *_ in FIELDS}
        try:
            found = parse_models(texts, self._given)
            self._check(found)
        except (ValueError, EspalierError) as error:
            show_beside(self, self._wrong_field(texts), f"{error}.")
            return
        self.dismiss(found)

    def _wrong_field(self, texts: Mapping[str, str]) -> str:
        """The first field that is wrong by itself; empty if the fields are wrong together."""
        for name, text in texts.items():
            try:
                self._check(parse_models({**models_text(self._given), name: text}, self._given))
            except (ValueError, EspalierError):
                return name
        return ""

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        """Answer with ``None``."""
        self.dismiss(None)
