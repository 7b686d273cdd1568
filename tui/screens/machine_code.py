"""The machine code of a kernel over the session screen: a listing with source lines and samples of the program counter, or the
diff against the marked kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from engine.domain.errors import EspalierError
from engine.domain.model import Dialect
from engine.domain.state import Kernel
from tui.bridge import Bridge, Capability
from tui.kernel_tools import machine_code, profile_kernel
from tui.screens.dialogs import MOTIONS, Dialog
from tui.viewmodel import machine_code as listings
from tui.viewmodel.cells import BLANK, width
from tui.viewmodel.pages import paragraph
from tui.widgets.lines import LinesView

_CORNERS = 4
"""Columns of an edge that its words leave free."""


class MachineCodeScreen(Dialog[None]):
    """A sampled kernel has its listing in the session. Any other is built once more with line tables, for some seconds."""

    CSS = """
    MachineCodeScreen {
        align: center middle;
        background: $background 60%;
        & > Vertical {
            width: 98%; height: 96%; border: round $primary; background: $surface;
            border-title-style: bold; border-subtitle-color: $text-muted;
        }
        & LinesView { height: 1fr; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "Close"),
        Binding("h", "hottest", "Hottest first", show=False),
        Binding("H", "sample", "Sample", show=False),
        *MOTIONS,
    ]

    def __init__(self, bridge: Bridge, kernel: Kernel, against: str = "") -> None:
        """``against``: the kernel to compare with; empty for a listing."""
        super().__init__()
        self._bridge = bridge
        self._kernel = kernel
        self._against = against
        self._found: Mapping[str, Any] | None = None
        self._words = "compiling with line tables …"
        """What is shown as long as nothing was found."""
        self._hottest_first = False

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            words = f" compared with {self._against}" if self._against else ""
            box.border_title = Content(f"Machine code of {self._kernel.id}{words}")
            yield LinesView()

    def on_mount(self) -> None:
        self.query_one(LinesView).focus()
        self._load()

    def on_resize(self) -> None:
        """Bars and lines depend on the width."""
        self._show()

    @work(exclusive=True, group="machine-code")
    async def _load(self) -> None:
        try:
            self._found = self._recorded() or await machine_code(self._bridge.folder, self._kernel.id, self._against)
        except EspalierError as error:
            self._say(str(error))
        else:
            self._show()

    def _recorded(self) -> Mapping[str, Any] | None:
        """The sampled listing that the session holds."""
        profile = self._kernel.profile
        if self._against or profile is None or profile.hot is None or not profile.hot.listing:
            return None
        return listings.recorded(self._bridge.read_blob(profile.hot.listing), self._kernel.id)

    def _show(self) -> None:
        found, page = self._found, self.query_one(LinesView)
        keys = list(self._keys())
        while len(keys) > 1 and width(" · ".join(keys)) > self.query_one(Vertical).size.width - _CORNERS:
            keys.pop()
        self.query_one(Vertical).border_subtitle = Content(" · ".join(keys))
        if found is None:
            page.lines = (BLANK, *paragraph(self._words, page.size.width))
            return
        if self._against:
            page.lines = listings.difference(found)
            return
        draw = listings.hottest if self._hottest_first else listings.listing
        page.lines = draw(found, self._bridge.code_of(self._kernel), self._kernel.dialect, page.size.width)

    def _keys(self) -> Iterator[str]:
        """The most important first: those without room are left out."""
        if self._can_sort:
            sampled = self._found is not None and self._found["samples"]
            yield "h: listing" if self._hottest_first else f"h: {'hottest lines' if sampled else 'deepest loops'} first"
        if self._can_sample:
            yield "H: sample it"
        yield "Esc: close"

    @property
    def _can_sort(self) -> bool:
        return self._found is not None and not self._against and listings.has_heat(self._found)

    @property
    def _can_sample(self) -> bool:
        on_cpu = self._kernel.dialect is Dialect.CPP
        return on_cpu and self._found is not None and not self._against and self._bridge.can(Capability.SUBMIT)

    def action_hottest(self) -> None:
        """Show the hottest lines first, or the listing again."""
        if self._can_sort:
            self._hottest_first = not self._hottest_first
            self.query_one(LinesView).scroll_home(animate=False)
            self._show()

    @work(exclusive=True, group="machine-code")
    async def action_sample(self) -> None:
        """Profile the kernel, and list it with its samples."""
        if not self._can_sample:
            return
        self._found = None
        self._say("sampling the program counter; it waits while the device is in use …")
        try:
            await profile_kernel(self._bridge.folder, self._kernel.id)
            self._found = await machine_code(self._bridge.folder, self._kernel.id)
        except EspalierError as error:
            self._say(str(error))
        else:
            self._show()

    def _say(self, words: str) -> None:
        self._words, self._found = words, None
        self._show()

    def action_close(self) -> None:
        """Return to the session."""
        self.dismiss(None)
