"""The form for a kernel's code: typed, pasted, or edited in ``$EDITOR``."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Button, Input, Label, Static, TextArea

from engine.domain.errors import EspalierError
from tui.bridge import Seed, seed_from_text
from tui.editor import edit_text
from tui.footer_key import FooterKey
from tui.screens.dialogs import Dialog
from tui.viewmodel.cells import one_line
from tui.widgets.key_footer import KeyFooter

_KEYS = (
    FooterKey("", "Submit", "ctrl+s"), FooterKey("", "Cancel", "escape"), FooterKey("", "$EDITOR", "ctrl+e"),
    FooterKey("", "Empty kernel", "ctrl+n"),
)  # fmt: skip


class CodeForm(Dialog[Seed | None]):
    """Answers with the kernel once its code fits a contract. Errors are shown in the form; the text stays."""

    CSS_PATH = "forms.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "send", "Submit", priority=True),
        Binding("ctrl+e", "editor", "$EDITOR", priority=True),
        Binding("ctrl+n", "blank", "Empty kernel", priority=True),
        Binding("escape", "cancel", "Cancel", priority=True),
    ]

    def __init__(self, title: str, name: str, text: str, empty_kernel: tuple[str, str],
        *, edited: bool = False, check: Callable[[Seed], None] = lambda seed: None,
    ) -> None:  # fmt: skip
        """``empty_kernel``: (file name, text) of an empty kernel to start from. ``edited``: the text is kept nowhere else.

        ``check`` raises EspalierError for a kernel that the session cannot take.
        """
        super().__init__()
        self._title = title
        self._name = name
        self._text = text
        self._kept = "" if edited else text
        self._empty_kernel = empty_kernel
        self._replaced: tuple[str, str] | None = None
        """(file name, text) that the empty kernel replaced."""
        self._check = check

    def compose(self) -> ComposeResult:
        with Vertical(classes="form") as box:
            box.border_title = Content(one_line(self._title))
            with Horizontal(id="top"):
                yield Label("File")
                yield Input(self._name, id="file", compact=True)
            area = TextArea.code_editor(self._text, id="source", tab_behavior="indent", theme="css")
            yield area
            yield Static("", id="message", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("Submit", id="send", variant="primary", compact=True)
        yield KeyFooter(_KEYS)

    def on_mount(self) -> None:
        self.query_one(TextArea).focus()

    @on(Button.Pressed, "#send")
    def action_send(self) -> None:
        """Answer with the text if it is a kernel."""
        try:
            seed = seed_from_text(*self._written())
            self._check(seed)
        except EspalierError as error:
            self.query_one("#message", Static).update(str(error))
            return
        self.dismiss(seed)

    def action_blank(self) -> None:
        """Replace the text by an empty kernel; undo restores it."""
        text, name = self._written()
        if text == self._empty_kernel[1]:
            return
        self._replaced = (name, text)
        area = self.query_one(TextArea)
        area.replace(self._empty_kernel[1], (0, 0), area.document.end)

    @on(TextArea.Changed)
    def _name_follows(self) -> None:
        """The file name belongs to the text: both change together, also by undo and redo."""
        if self._replaced is None:
            return
        text, name = self._written()
        for before, after in ((self._replaced, self._empty_kernel), (self._empty_kernel, self._replaced)):
            if (name, text) == (before[0], after[1]):
                self.query_one("#file", Input).value = after[0]

    def action_editor(self) -> None:
        """Edit the text in ``$VISUAL`` or ``$EDITOR``."""
        before, name = self._written()
        try:
            text = edit_text(self.app, before, name)
        except EspalierError as error:
            self.query_one("#message", Static).update(str(error))
            return
        area = self.query_one(TextArea)
        if text != before:
            area.replace(text, (0, 0), area.document.end)

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        """Answer with ``None``; changed text needs a second Escape."""
        if self.may_discard("Ctrl-S submits them"):
            self.dismiss(None)

    def typed(self) -> str:
        text = self._written()[0] if self.is_mounted else self._kept
        return text if text != self._kept else ""

    def _written(self) -> tuple[str, str]:
        """(text, file name) in the form."""
        return self.query_one(TextArea).text, self.query_one("#file", Input).value.strip()
