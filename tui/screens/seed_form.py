"""The form for a seed kernel: a file, a kernel of the bank or another session, or pasted code; and its parent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Horizontal, Vertical
from textual.content import Content
from textual.widgets import Button, Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from engine.domain.errors import EspalierError
from engine.journal import bank
from engine.report.text.lines import one_line
from tui.bridge import Bridge, Seed, read_seed
from tui.removals import while_shown
from tui.screens.dialogs import Dialog, show_beside
from tui.typed_paths import typed_path
from tui.viewmodel import fmt


@dataclass(frozen=True, slots=True)
class SeedInput:
    """A kernel (``None``: still to be written), its parent and title."""

    seed: Seed | None
    parent: str | None
    title: str


class SeedForm(Dialog[SeedInput | None]):
    """Answers with a kernel that was read and checked, or ``None``."""

    CSS_PATH = "forms.tcss"
    forgets_errors = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel"),
        Binding("ctrl+s", "done", "Seed"),
        Binding("ctrl+n", "paste", "Write or paste", priority=True),
    ]

    def __init__(self, bridge: Bridge, parent: str) -> None:
        super().__init__()
        self._bridge = bridge
        self._below = parent
        self._banked: list[bank.BankEntry] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="form") as box:
            box.border_title = "Seed a kernel"
            box.border_subtitle = "Ctrl-S: seed · Ctrl-N: write a kernel · Esc: cancel"
            with Grid():
                yield Label("Kernel")
                yield Input("", id="kernel", compact=True, placeholder="a file (.cu, .cpp, .py), or SESSION:k7")
                yield Label("Parent")
                yield Input(self._below, id="parent", compact=True, placeholder="k3; empty: a new root")
                yield Label("Title")
                yield Input("", id="title", compact=True, placeholder="what it does, shown in the tree")
                yield Static("", id="message", markup=False)
            listed = OptionList(id="bank")
            listed.border_title = "Bank: verified kernels for this problem from all sessions"
            yield listed
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("Write or paste …", id="paste", compact=True)
                yield Button("Seed", id="done", variant="primary", compact=True)

    def on_mount(self) -> None:
        self.query_one("#kernel").focus()
        self._read_bank()

    @work(exclusive=True, group="bank")
    async def _read_bank(self) -> None:
        opened = self._bridge.state.opened
        name = opened.problem.name if opened else ""
        found = await while_shown(self, asyncio.to_thread(bank.banked_kernels))
        of_others = [one for one in found if one.problem == name and one.session != self._bridge.folder]
        self._banked = [one for one in of_others if self._bridge.runs(one.dialect)]
        listed = self.query_one("#bank", OptionList)
        if unfit := len(of_others) - len(self._banked):
            listed.border_subtitle = f"{unfit} for other devices not listed"
        listed.add_options(Option(self._line(one), id=f"b{n}") for n, one in enumerate(self._banked))
        if self._banked:
            listed.highlighted = 0
        else:
            none = "no verified kernel of this problem for this device"
            words = f"empty: {none if unfit else 'no other session has a verified kernel for this problem'}"
            listed.add_option(Option(Content(words), disabled=True))

    def _line(self, one: bank.BankEntry) -> Content:
        speed = fmt.speedup(one.speedup).text
        origin = f"{one.session.name}:{one.kernel}"
        words = f"{one_line(one.idea)} · {one_line(one.device)}"
        return Content.assemble((f"{speed:<9}", "bold"), f"{origin}  ", (words, "$text-muted"))

    @on(OptionList.OptionSelected, "#bank")
    def _banked_chosen(self, event: OptionList.OptionSelected) -> None:
        one = self._banked[event.option_index]
        self.query_one("#kernel", Input).value = f"{one.session}:{one.kernel}"
        self.query_one("#title", Input).value = one_line(one.idea)
        self.query_one("#done").focus()

    @on(Button.Pressed, "#done")
    @on(Input.Submitted)
    def action_done(self) -> None:
        """Answer with the named kernel."""
        name = typed_path(self.query_one("#kernel", Input).value)
        if not name:
            self._show_error("kernel", "Enter a file or SESSION:KERNEL, choose a kernel of the bank, or write one.")
            return
        try:
            opened = self._bridge.state_now.opened
            seed = read_seed(name, {}, opened.problem if opened else None)
            self._bridge.check_dialect(seed)
            self._answer(seed)
        except EspalierError as error:
            self._show_error("kernel", str(error))

    @on(Button.Pressed, "#paste")
    def action_paste(self) -> None:
        """Continue in the code form."""
        self._answer(None)

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        """Answer with ``None``."""
        self.dismiss(None)

    def _answer(self, seed: Seed | None) -> None:
        parent = self.query_one("#parent", Input).value.strip()
        if parent and parent not in self._bridge.state_now.kernels:
            self._show_error("parent", f"Unknown kernel {parent}.")
            return
        self.dismiss(SeedInput(seed, parent or None, self.query_one("#title", Input).value.strip()))

    def _show_error(self, field: str, words: str) -> None:
        show_beside(self, field, words)
