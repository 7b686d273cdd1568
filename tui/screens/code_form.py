"""A kernel's source, to be written, pasted, or edited in the engineer's own editor. Keeps what was written until it is sent."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Button, Footer, Input, Label, Static, TextArea

from engine.build.source import classify
from engine.domain.errors import SourceError
from tui.screens.dialog import Dialog


@dataclass(frozen=True, slots=True)
class Written:
    """A source text under a file name, whose suffix says what it is."""

    name: str
    text: str


class CodeForm(Dialog[Written | None]):
    """Answers with what was written, once it fits a contract; what does not is said in place and nothing is lost."""

    CSS_PATH = "forms.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "send", "Try it", priority=True),
        Binding("ctrl+e", "editor", "$EDITOR", priority=True),
        Binding("ctrl+n", "blank", "Empty frame", priority=True),
        Binding("escape", "cancel", "Cancel", priority=True),
    ]

    def __init__(self, title: str, name: str, text: str, blank: tuple[str, str]) -> None:
        """``blank``: (file name, text) of an empty kernel to start from instead."""
        super().__init__()
        self._title = title
        self._given = Written(name, text)
        self._blank = blank
        self._sure = False

    def compose(self) -> ComposeResult:
        with Vertical(classes="form") as box:
            box.border_title = Content(self._title)
            with Horizontal(id="top"):
                yield Label("File")
                yield Input(self._given.name, id="file", compact=True)
            area = TextArea.code_editor(self._given.text, id="source", tab_behavior="indent", theme="css")
            yield area
            yield Static("", id="said", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("Try it (Ctrl-S)", id="send", variant="primary", compact=True)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(TextArea).focus()

    @on(Button.Pressed, "#send")
    def action_send(self) -> None:
        """Answer with what is written, if it is a kernel."""
        written = self._written()
        try:
            classify(written.text, written.name)
        except SourceError as error:
            self.query_one("#said", Static).update(str(error))
            return
        self.dismiss(written)

    def action_blank(self) -> None:
        """Put the frame of an empty kernel in place of what is there; undo brings it back."""
        area = self.query_one(TextArea)
        self.query_one("#file", Input).value = self._blank[0]
        area.replace(self._blank[1], (0, 0), area.document.end)

    def action_editor(self) -> None:
        """Edit it in ``$VISUAL`` or ``$EDITOR``."""
        written = self._written()
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        try:
            with self.app.suspend():
                text = _edited(editor, written)
        except SuspendNotSupported:
            self.query_one("#said", Static).update("An editor cannot be opened in this terminal.")
            return
        except (OSError, ValueError) as error:
            self.query_one("#said", Static).update(f"{editor} could not be used: {error}")
            return
        area = self.query_one(TextArea)
        if text != written.text:
            area.replace(text, (0, 0), area.document.end)

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        """Call it off; what was written takes a second Escape."""
        if self.is_mounted and not self._sure and self._written().text != self._given.text:
            self._sure = True
            self.query_one("#said", Static).update("What you wrote is lost: Esc once more, or Ctrl-S to try it.")
            return
        self.dismiss(None)

    def _written(self) -> Written:
        return Written(self.query_one("#file", Input).value.strip(), self.query_one(TextArea).text)


def _edited(editor: str, written: Written) -> str:
    """The text after its author left the editor."""
    with tempfile.TemporaryDirectory(prefix="espalier-") as folder:
        file = Path(folder) / (Path(written.name).name or "kernel.cpp")
        file.write_text(written.text, encoding="utf-8")
        subprocess.run([*shlex.split(editor), str(file)], check=False)
        return file.read_text(encoding="utf-8", errors="replace")
