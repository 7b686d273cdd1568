"""The form for an idea: title, category, rationale, parent, number of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Button, Input, Label, Select, Static

from engine.domain import queries
from engine.domain.model import CATEGORIES, IdeaText
from engine.domain.state import Idea, SessionState
from tui.screens.dialogs import Dialog, FieldError, show_beside
from tui.viewmodel.cells import clean_lines, one_line
from tui.widgets.text_box import TextBox

_MOST_BRANCHES = 64
_MOST_TITLE = 200
_EMPTY = IdeaText("", CATEGORIES[0], "")


@dataclass(frozen=True, slots=True)
class IdeaInput:
    """The content of the form."""

    text: IdeaText
    parent: str | None
    branch: int
    by_hand: bool = False
    """Whether the engineer writes the kernel, immediately after this form."""
    writer: str = ""
    """The writer of its code; empty: the session's writer."""


class IdeaForm(Dialog[IdeaInput | None]):
    """Answers with its content, or ``None``. Shows invalid input in the form; the session's rules decide."""

    CSS_PATH = "forms.tcss"
    forgets_errors = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel"),
        Binding("ctrl+s", "done", "Done", priority=True),
    ]

    def __init__(
        self,
        title: str,
        given: IdeaInput,
        state: SessionState,
        *,
        new: bool,
        materials: tuple[str, ...] = (),
        writers: Sequence[str] = (),
    ) -> None:
        """``materials``: attached kernels, only shown. ``writers``: those to choose from, of an idea that is edited."""
        super().__init__()
        self._materials = materials
        self._title = title
        self._given = given
        self._state = state
        self._new = new
        self._writers = writers
        self._first = ""
        """The content before anything was typed."""

    @classmethod
    def new(cls, state: SessionState, parent: str, text: IdeaText = _EMPTY, materials: tuple[str, ...] = ()) -> Self:
        """For the engineer's idea, on the given kernel or the incumbent."""
        best = queries.incumbent(state)
        aim = parent or (best.id if best else None)
        branch = state.opened.settings.branch if state.opened else 1
        return cls("New idea", IdeaInput(text, aim, branch), state, new=True, materials=materials)

    @classmethod
    def edit(cls, state: SessionState, idea: Idea, writers: Sequence[str]) -> Self:
        """For an idea that awaits approval."""
        given = IdeaInput(idea.text, idea.parent, idea.branch, writer=idea.writer)
        return cls(f"Edit {idea.id}", given, state, new=False, materials=idea.materials, writers=writers)

    def compose(self) -> ComposeResult:
        given = self._given
        with VerticalScroll(classes="form") as box:
            box.border_title = Content(one_line(self._title))
            box.border_subtitle = Content(f"Ctrl-S: {'propose' if self._new else 'save'} · Esc: cancel")
            box.can_focus = False
            with Grid():
                yield Label("Title")
                yield Input(one_line(given.text.title), id="title", compact=True, placeholder="the change, in a few words")
                yield Label("Category")
                categories = [(Content(one_line(name)), name) for name in dict.fromkeys((*CATEGORIES, given.text.category))]
                yield Select(categories, value=given.text.category, allow_blank=False, id="category", compact=True)
                yield Label("Parent")
                yield Input(given.parent or "", id="parent", compact=True, placeholder="k3; empty: a new root")
                yield Label("Kernels")
                yield Input(str(given.branch), id="branch", type="integer", compact=True)
                yield Label("Predicted")
                predicted = f"{given.text.predicted:g}×" if given.text.predicted is not None else ""
                yield Input(predicted, id="predicted", compact=True, placeholder="speedup over the parent, such as 1.4×")
                if not self._new:
                    yield Label("Writer")
                    known = dict.fromkeys((*filter(None, [given.writer]), *self._writers))
                    writers = [(Content("the session's"), ""), *((Content(one_line(name)), name) for name in known)]
                    yield Select(writers, value=given.writer, allow_blank=False, id="writer", compact=True)
                if self._materials:
                    yield Label("Attached")
                    yield Static(", ".join(self._materials), markup=False)
                yield Static("", id="message", markup=False)
            area = TextBox(clean_lines(given.text.rationale), id="rationale", soft_wrap=True, tab_behavior="focus")
            area.border_title = "Rationale: bottleneck, change, expected effect"
            yield area
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                if self._new:
                    yield Button("Write the kernel …", id="by_hand", compact=True)
                yield Button("Propose" if self._new else "Save", id="done", variant="primary", compact=True)

    def on_mount(self) -> None:
        self.query_one("#title").focus()
        self._first = self._content()

    @on(Button.Pressed, "#done")
    @on(Input.Submitted)
    def action_done(self) -> None:
        """Answer with the content of the form."""
        self._answer(by_hand=False)

    @on(Button.Pressed, "#by_hand")
    def _by_hand(self) -> None:
        self._answer(by_hand=True)

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        """Answer with ``None``; changed text needs a second Escape."""
        if self.may_discard(f"Ctrl-S {'proposes the idea' if self._new else 'saves them'}"):
            self.dismiss(None)

    def typed(self) -> str:
        content = self._content() if self.is_mounted else self._first
        return content if content != self._first else ""

    def _content(self) -> str:
        return "\n".join([*(one.value for one in self.query(Input)), self.query_one("#rationale", TextBox).text])

    def _answer(self, *, by_hand: bool) -> None:
        title, parent, branch = (self.query_one(f"#{name}", Input).value.strip() for name in ("title", "parent", "branch"))
        predicted = self.query_one("#predicted", Input).value.strip().rstrip("×x ")
        writer = "" if self._new else str(self.query_one("#writer", Select).value)
        error = self._error(title, parent, branch, predicted)
        if error is not None:
            show_beside(self, error.field, error.words)
            return
        text = IdeaText(
            title, str(self.query_one("#category", Select).value), self.query_one("#rationale", TextBox).text.strip(),
            float(predicted) if predicted else self._given.text.predicted, self._given.text.key,
        )  # fmt: skip
        self.dismiss(IdeaInput(text, parent or None, int(branch), by_hand, writer))

    def _error(self, title: str, parent: str, branch: str, predicted: str) -> FieldError | None:
        """The first error, from top to bottom."""
        if not title:
            return FieldError("title", "An idea needs a title.")
        if len(title) > _MOST_TITLE:
            words = f"Title: {len(title):,} characters, more than {_MOST_TITLE}; put the rest into the rationale."
            return FieldError("title", words)
        if parent and parent not in self._state.kernels:
            return FieldError("parent", f"Unknown kernel {parent}.")
        if not branch.isdecimal() or not 1 <= int(branch) <= _MOST_BRANCHES:
            return FieldError("branch", f"Kernels: enter a number from 1 to {_MOST_BRANCHES}.")
        if predicted and not _positive(predicted):
            return FieldError("predicted", f"Predicted: {predicted} is not a speedup; enter one such as 1.4×.")
        return None


def _positive(text: str) -> bool:
    try:
        return 0 < float(text) < 1e6
    except ValueError:
        return False
