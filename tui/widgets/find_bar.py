"""One line to filter the tree or to search a page while typing; it stays as a breadcrumb until Escape clears it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Label


class FindBar(Horizontal):
    """``open`` shows it for a subject; hidden without a text. The screen filters or searches, and reports with ``report``."""

    DEFAULT_CSS = """
    FindBar {
        height: 1;
        background: $boost;
        & > Input { width: 1fr; height: 1; border: none; padding: 0; background: $boost; }
        & > Label { padding: 0 1; color: $text-muted; }
        & > #report { max-width: 60%; text-wrap: nowrap; text-overflow: ellipsis; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "clear", "Clear", show=False)]

    @dataclass
    class Changed(Message):
        """The text changed."""

        text: str

    @dataclass
    class Closed(Message):
        """Enter or Escape: the focus goes back. The text stays after Enter and is empty after Escape."""

    def compose(self) -> ComposeResult:
        yield Label("", id="subject")
        yield Input(compact=True)
        yield Label("", id="report")

    def on_mount(self) -> None:
        self.display = False

    @property
    def text(self) -> str:
        """What is sought."""
        return self.query_one(Input).value

    def open(self, subject: str, text: str) -> None:
        """Show the bar with this text, selected, and focus it."""
        self.display = True
        self.query_one("#subject", Label).update(Content.styled(subject, "bold"))
        field = self.query_one(Input)
        with field.prevent(Input.Changed):
            field.value = text
        self.screen.set_focus(field)  # at once: the text may be typed in one go with the key that opens the bar

    @property
    def is_typing(self) -> bool:
        """Whether keys go into the text."""
        return self.display and self.query_one(Input).has_focus

    def report(self, words: str) -> None:
        """Say what was found."""
        self.query_one("#report", Label).update(Content(words))

    def action_clear(self) -> None:
        """Empty and hide the bar."""
        self.display = False
        field = self.query_one(Input)
        with field.prevent(Input.Changed):
            field.value = ""
        self.post_message(self.Changed(""))
        self.post_message(self.Closed())

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Changed(event.value))

    @on(Input.Submitted)
    def _done(self, event: Input.Submitted) -> None:
        event.stop()
        if not event.value.strip():
            self.action_clear()
        else:
            self.post_message(self.Closed())
