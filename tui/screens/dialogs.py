"""Dialogs: confirm, one line of text, one of several choices; and a screen that is dismissed once. Knows no session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Grid, Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.button import ButtonVariant
from textual.widgets.option_list import Option

from tui.viewmodel import cells


class DismissOnceScreen(Screen[ScreenResultType]):
    """A screen that is dismissed once: the first ``dismiss`` counts, and waits until the screen is on top.

    Textual's ``dismiss`` pops the topmost screen. Help or the palette may cover a dialog whose worker ends, and a bouncing key
    may reach a screen that was already dismissed.
    """

    gives_way: ClassVar[bool] = False
    """Whether it closes for a session that opens: it is about the screen below."""
    _leaving = False
    _result: ScreenResultType | None = None

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        if self._leaving:
            return AwaitComplete()
        self._leaving, self._result = True, result
        return super().dismiss(result) if self.is_mounted and self.is_active else AwaitComplete()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys act once the screen's widgets are there: a key may arrive before they are."""
        return self.is_mounted

    def on_screen_resume(self) -> None:
        if self._leaving and self.is_active:
            super().dismiss(self._result)


QUITTING: list[BindingType] = [
    Binding("ctrl+z", "app.suspend", "Suspend", show=False, id="app.suspend"),
    Binding("ctrl+q", "app.quit", "Quit", show=False, id="app.quit"),
    Binding("ctrl+c", "app.help_quit", "Quit", show=False),
]
"""Keys of the app that a modal screen would hide."""


class Dialog(ModalScreen[ScreenResultType], DismissOnceScreen[ScreenResultType]):
    """A modal screen that answers with a result. It hides the app's keys, except those of its own."""

    VERTICAL_BREAKPOINTS = [(0, "-low"), (20, "-high")]  # noqa: RUF012  # an instance variable of Screen
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f12", "app.screenshot", "Screenshot", show=False, id="app.screenshot"),
        Binding("f2", "app.theme", "Theme", show=False, id="app.theme"),
        *QUITTING,
    ]
    forgets_errors: ClassVar[bool] = False
    """Whether what is wrong is forgotten as soon as a field changes."""
    _warned = ""
    """The typed text that was said to be lost."""

    def typed(self) -> str:
        """What was typed here and is kept nowhere else."""
        return ""

    @on(Input.Changed)
    def _forget_error(self) -> None:
        if self.forgets_errors:
            self.query_one("#message", Static).update("")

    def may_discard(self, submits: str) -> bool:
        """Whether Escape may close the form: at once without typed text, else the second time, while it is unchanged.

        ``submits``: what keeps the text, for the warning.
        """
        typed = self.typed()
        if not self.is_mounted or typed in ("", self._warned):
            return True
        self._warned = typed
        self.query_one("#message", Static).update(f"Unsaved changes: Esc again discards them, {submits}.")
        return False


@dataclass(frozen=True, slots=True)
class FieldError:
    """What is wrong with a field of a form, which gets the focus."""

    field: str
    words: str


def show_beside(form: Screen[ScreenResultType], field: str, words: str) -> None:
    """Show what is wrong below its field, which gets the focus; below the last field where none is named or it is no line."""
    message = form.query_one("#message", Static)
    message.update(words)
    grid, place = message.parent, form.query_one(f"#{field}") if field else None
    if isinstance(grid, Grid):
        others = [one for one in grid.children if one is not message]
        grid.move_child(message, after=place if place in others else others[-1])
    if place is not None:
        place.focus()


MOTIONS: list[BindingType] = [
    Binding(key, f"app.motion('{moves}')", moves, show=False)
    for key, moves in (("j", "down"), ("k", "up"), ("g", "home"), ("G", "end"), ("ctrl+d", "pagedown"), ("ctrl+u", "pageup"))
]
"""Keys of dialogs with a list or a page but no field: a modal screen hides the app's."""

_ESCAPE: list[BindingType] = [Binding("escape", "cancel", "Cancel", show=True)]


class Confirm(Dialog[bool]):
    """A yes-or-no question; the safe answer has the focus."""

    AUTO_FOCUS = "#no"
    CSS_PATH = "prompts.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*_ESCAPE, Binding("y", "yes", "Yes"), Binding("n", "cancel", "No")]

    def __init__(self, title: str, words: str, yes: str, no: str = "Cancel", *, destroys: bool = True) -> None:
        """``destroys``: whether yes ends or deletes something, and is drawn as such."""
        super().__init__()
        self._destroys = destroys
        self._title = cells.one_line(title)
        self._words = cells.clean_lines(cells.bounded(words))
        self._yes = yes
        self._no = no

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = Content(self._title)
            yield Static(self._words, markup=False)
            with Horizontal(classes="buttons"):
                yield Button(Content(self._no), id="no", compact=True)
                variant: ButtonVariant = "error" if self._destroys else "primary"
                yield Button(Content(f"{self._yes} (y)"), id="yes", variant=variant, compact=True)

    @on(Button.Pressed, "#yes")
    def action_yes(self) -> None:
        self.dismiss(True)

    @on(Button.Pressed, "#no")
    def action_cancel(self) -> None:
        self.dismiss(False)


class AskLine(Dialog[str | None]):
    """One line of text, or ``None``. An empty line is an answer only with ``empty``.

    ``check`` returns what is wrong with a line; empty if nothing is. A wrong line stays in the field, with the reason below it.
    """

    CSS_PATH = "prompts.tcss"
    BINDINGS: ClassVar[list[BindingType]] = _ESCAPE

    def __init__(
        self,
        title: str,
        words: str,
        *,
        initial: str = "",
        placeholder: str = "",
        empty: bool = False,
        check: Callable[[str], str] = lambda text: "",
    ) -> None:
        super().__init__()
        self._check = check
        self._title = cells.one_line(title)
        self._words = cells.clean_lines(cells.bounded(words))
        self._initial = initial
        self._placeholder = placeholder
        self._empty = empty

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = Content(self._title)
            box.border_subtitle = Content("Enter: OK · Esc: cancel")
            yield Static(self._words, markup=False)
            yield Input(self._initial, placeholder=self._placeholder, compact=True)
            message = Static("", id="message", markup=False)
            message.display = False
            yield message

    @on(Input.Submitted)
    def _done(self, event: Input.Submitted) -> None:
        text = event.value.strip()
        if not text and not self._empty:
            return
        wrong = self._check(text) if text else ""
        if wrong:
            self._show(wrong)
        else:
            self.dismiss(text)

    def typed(self) -> str:
        value = self.query_one(Input).value if self.is_mounted else ""
        return value if value != self._initial else ""

    @on(Input.Changed)
    def _changed(self) -> None:
        self._show("")

    def _show(self, wrong: str) -> None:
        message = self.query_one("#message", Static)
        message.update(wrong)
        message.display = bool(wrong)

    def action_cancel(self) -> None:
        self.dismiss(None)


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice; ``id`` is the answer."""

    id: str
    label: str
    words: str = ""


_BORDER, _AROUND_THE_LIST = 2, 6
"""Rows around the list of a dialog: its border; on a higher screen also padding, and rows of the screen below."""
_MOST_LINES = 16
_LIST_EDGES = 10
"""Cells beside a choice: border, padding, scroll bar."""
_NARROWEST, _WIDEST = 56, 100
"""Cells of a dialog with choices."""


class Choose(Dialog[str | None]):
    """One of several choices, the current one highlighted; or ``None``."""

    CSS_PATH = "prompts.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*_ESCAPE, Binding("q", "cancel", "Cancel", show=False), *MOTIONS]

    def __init__(self, title: str, choices: Sequence[Choice], present: str = "", *, cuts: bool = False) -> None:
        """``cuts``: a choice has one line, and words without room there are cut; otherwise they stand below their labels."""
        super().__init__()
        self._cuts = cuts
        self._title = cells.one_line(title)
        self._choices = tuple(Choice(one.id, cells.clean_lines(one.label), cells.one_line(one.words)) for one in choices)
        self._present = present

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = Content(self._title)
            label = max(cells.width(choice.label) for choice in self._choices) + 2
            needed = label + max(cells.width(choice.words) for choice in self._choices) + _LIST_EDGES
            most = min(_WIDEST, self.app.size.width * 96 // 100)
            box.styles.width = min(most, max(_NARROWEST, needed, cells.width(self._title) + _LIST_EDGES))
            box.border_subtitle = Content("Enter: choose · Esc: cancel")
            box.set_class(self._cuts, "-cut")
            beside = self._cuts or needed <= most
            lines = [self._line(one, label) if beside else self._stacked(one) for one in self._choices]
            yield OptionList(*(Option(line, id=f"c{n}") for n, line in enumerate(lines)))

    def _line(self, choice: Choice, width: int) -> Content:
        return Content.assemble((cells.pad(choice.label, width), "bold"), (choice.words, "$text-muted"))

    def _stacked(self, choice: Choice) -> Content:
        """The words below the label, in every choice where one has no room beside it."""
        words = f"\n  {choice.words}" if choice.words else ""
        return Content.assemble((choice.label.rstrip(), "bold"), (words, "$text-muted"))

    def on_mount(self) -> None:
        places = [n for n, choice in enumerate(self._choices) if choice.id == self._present]
        self.query_one(OptionList).highlighted = places[0] if places else 0

    def on_resize(self) -> None:
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        """The list scrolls, and uses the height that there is."""
        room = self.app.size.height - (_BORDER if self.has_class("-low") else _AROUND_THE_LIST)
        self.query_one(OptionList).styles.max_height = max(1, min(_MOST_LINES, room))

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._choices[event.option_index].id)

    def action_cancel(self) -> None:
        self.dismiss(None)
