"""The machine code of a kernel over the session screen: a listing with source lines, or the diff against the marked kernel."""

from __future__ import annotations

from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from engine.domain.errors import EspalierError
from engine.domain.state import Kernel
from tui.bridge import Bridge
from tui.kernel_tools import machine_code
from tui.screens.dialogs import MOTIONS, Dialog
from tui.viewmodel import machine_code as listings
from tui.viewmodel.cells import BLANK
from tui.viewmodel.pages import empty_page, paragraph
from tui.widgets.lines import LinesView


class MachineCodeScreen(Dialog[None]):
    """Builds the kernel once more with line tables; that takes some seconds."""

    CSS = """
    MachineCodeScreen {
        align: center middle;
        & > Vertical { width: 94%; height: 92%; border: round $border; background: $surface; border-title-style: bold; }
        & LinesView { height: 1fr; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "close", "Close"), *MOTIONS]

    def __init__(self, bridge: Bridge, kernel: Kernel, against: str = "") -> None:
        """``against``: the kernel to compare with; empty for a listing."""
        super().__init__()
        self._bridge = bridge
        self._kernel = kernel
        self._against = against

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            words = f" compared with {self._against}" if self._against else ""
            box.border_title = Content(f"machine code of {self._kernel.id}{words}")
            box.border_subtitle = Content("Esc closes")
            yield LinesView()

    def on_mount(self) -> None:
        page = self.query_one(LinesView)
        page.lines = empty_page("compiling with line tables …")
        page.focus()
        self._load()

    @work
    async def _load(self) -> None:
        page = self.query_one(LinesView)
        try:
            found = await machine_code(self._bridge.folder, self._kernel.id, self._against)
        except EspalierError as error:
            page.lines = (BLANK, *paragraph(str(error), page.size.width))
            return
        if self._against:
            page.lines = listings.difference(found)
        else:
            page.lines = listings.listing(found, self._bridge.code_of(self._kernel), self._kernel.dialect)

    def action_close(self) -> None:
        """Return to the session."""
        self.dismiss(None)
