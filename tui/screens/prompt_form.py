"""The form for prompts answered by hand: copy the prompt, paste the reply."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Button, Input, Label, Static

from engine.domain.errors import JournalError
from engine.domain.state import ModelCall
from engine.report.facts.usage import refused_before
from tui.bridge import Bridge
from tui.footer_key import FooterKey
from tui.screens.dialogs import Dialog
from tui.viewmodel.cells import one_line
from tui.viewmodel.fmt import counted
from tui.viewmodel.stages import calls_by_hand, purpose
from tui.widgets.key_footer import KeyFooter
from tui.widgets.text_box import TextBox

_KEYS = (
    FooterKey("", "Answer", "ctrl+s"), FooterKey("", "Later", "escape"), FooterKey("", "Copy prompt", "ctrl+y"),
    FooterKey("", "Next prompt", "ctrl+n"),
)  # fmt: skip
_MOST_BYTES = 4 << 20


class PromptForm(Dialog[tuple[ModelCall, str] | None]):
    """Answers with a call and its reply, pasted or from a file; or ``None``: the prompt stays open.

    A reply that does not answer the prompt is told, and given if it is sent once more.
    """

    CSS_PATH = "forms.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "send", "Answer", priority=True),
        Binding("ctrl+y", "copy", "Copy prompt", priority=True),
        Binding("ctrl+n", "next", "Next prompt", priority=True),
        Binding("escape", "cancel", "Later", priority=True),
    ]

    def __init__(self, bridge: Bridge) -> None:
        super().__init__()
        self._bridge = bridge
        self._calls = calls_by_hand(bridge.state_now)
        self._at = 0
        self._refused = ""
        """The reply that was told to be unusable."""

    @property
    def call(self) -> ModelCall:
        """The call that is shown."""
        return self._calls[self._at]

    def compose(self) -> ComposeResult:
        with Vertical(classes="form") as box:
            box.border_title = "Answer a prompt"
            yield Static("", id="which", markup=False)
            prompt = TextBox("", id="prompt", read_only=True, soft_wrap=True)
            prompt.border_title = "Prompt (Ctrl-Y copies it)"
            yield prompt
            reply = TextBox("", id="reply", soft_wrap=True, tab_behavior="focus")
            reply.border_title = "Reply (paste it here)"
            yield reply
            with Horizontal(id="top"):
                yield Label("Or from file")
                yield Input("", id="file", compact=True, placeholder="path of a file with the reply")
            yield Static("", id="message", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Later", id="cancel", compact=True)
                yield Button("Copy prompt", id="copy", compact=True)
                yield Button("Answer", id="send", variant="primary", compact=True)
        yield KeyFooter(_KEYS if len(self._calls) > 1 else _KEYS[:-1])

    def on_mount(self) -> None:
        self._show()
        self.query_one("#reply").focus()

    def _show(self) -> None:
        call = self.call
        more = f" · prompt {self._at + 1} of {len(self._calls)}, Ctrl-N: next" if len(self._calls) > 1 else ""
        text, before = self._prompt(), refused_before(self._bridge.state_now, call)
        words = f"{call.id}: {purpose(self._bridge.state_now, call)} · {counted(len(text), 'character')}{more}"
        reason = f"\n{before.id} was refused: {one_line(before.reason)}" if before is not None else ""
        self.query_one("#which", Static).update(f"{words}{reason}\n{self._bridge.blob_path(call.prompt)}")
        self.query_one("#prompt", TextBox).load_text(text)

    def _prompt(self) -> str:
        try:
            return self._bridge.read_blob(self.call.prompt)
        except JournalError as error:
            return str(error)

    def action_next(self) -> None:
        """Show the next prompt."""
        self._at = (self._at + 1) % len(self._calls)
        self._show()

    @on(Button.Pressed, "#copy")
    def action_copy(self) -> None:
        """Copy the prompt."""
        self.app.copy_to_clipboard(self._prompt())
        self.query_one("#message", Static).update(Content("Copied the prompt."))

    @on(Button.Pressed, "#send")
    @on(Input.Submitted)
    def action_send(self) -> None:
        """Answer with the pasted text, or with the content of the file."""
        reply, field = self.query_one("#reply", TextBox).text, "reply"
        file = self.query_one("#file", Input).value.strip()
        if file and not reply.strip():
            field = "file"
            try:
                reply = _read_reply(Path(file).expanduser())
            except (OSError, ValueError, RuntimeError) as error:
                self._show_error("file", f"{file} cannot be read: {error}")
                return
        if not reply.strip():
            self._show_error("reply", "No reply: paste it, or enter a file.")
            return
        wrong = self._bridge.unusable_reply(self.call, reply)
        if wrong and reply != self._refused:
            self._refused = reply
            self._show_error(field, f"Not usable: {wrong}. Ctrl-S again gives it anyway.")
            return
        self.dismiss((self.call, reply))

    def _show_error(self, field: str, words: str) -> None:
        self.query_one("#message", Static).update(words)
        self.query_one(f"#{field}").focus()

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        """Answer with ``None``; the prompt stays open. A reply in the form needs a second Escape."""
        if self.may_discard("Ctrl-S answers with the reply"):
            self.dismiss(None)

    def typed(self) -> str:
        return self.query_one("#reply", TextBox).text.strip() if self.is_mounted else ""


def _read_reply(file: Path) -> str:
    with file.open("rb") as stream:
        data = stream.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES >> 20} MiB")
    return data.decode("utf-8", "replace")
