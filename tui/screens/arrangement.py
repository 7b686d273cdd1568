"""The arrangement of the session screen: the columns of the tree and its share of the screen, by key and by mouse."""

from __future__ import annotations

import time
from collections.abc import Callable

from textual import on, work

from tui.bridge import Bridge
from tui.layout_file import LayoutFile, ScreenLayout
from tui.screens.columns_form import ColumnsForm
from tui.screens.kernel_actions import KernelActionScreen
from tui.viewmodel.tree_columns import ColumnChoice
from tui.widgets.kernel_tree import KernelTree
from tui.widgets.splitter import Splitter

_STEP = 0.05


class ArrangedScreen(KernelActionScreen):
    """A screen with a tree (in ``#left``) and a pane (``#pane``) in ``#body``, and a splitter between them."""

    def __init__(self, bridge: Bridge, clock: Callable[[], float] = time.time, layouts: LayoutFile | None = None) -> None:
        """``layouts``: the arrangement; without it, changes last as long as the screen."""
        super().__init__(bridge, clock)
        self._layouts = layouts
        self._layout_now = layouts.layout if layouts is not None else ScreenLayout()

    def begin(self) -> None:
        self.query_one(KernelTree).columns = self._layout_now.columns

    def on_resize(self) -> None:
        self.call_after_refresh(self._size_panes)

    @property
    def _is_below(self) -> bool:
        """Whether the pane is below the tree."""
        return self.has_class("-narrow")

    def _size_panes(self) -> None:
        """Give the tree its share; the style sheet's where none was chosen."""
        share = self._layout_now.share(below=self._is_below)
        _, whole = self._extent()
        cells = None if share is None else round(share * whole)
        for pane, part in (("#left", cells), ("#pane", None if cells is None else whole - cells)):
            styles = self.query_one(pane).styles
            for dimension in ("width", "height"):
                if part is not None and (dimension == "height") is self._is_below:
                    setattr(styles, dimension, f"{max(1, part)}fr")
                else:
                    styles.clear_rule(dimension)

    def _extent(self) -> tuple[int, int]:
        """Where the panes begin, and the cells that they share."""
        body = self.query_one("#body").region
        start, whole = (body.y, body.height) if self._is_below else (body.x, body.width)
        return start, max(1, whole - 1)

    def _split(self, share: float | None, *, keep: bool = True) -> None:
        self._layout_now = self._layout_now.split(share, below=self._is_below)
        self._size_panes()
        if keep:
            self._keep()

    def _keep(self) -> None:
        if self._layouts is None:
            return
        try:
            self._layouts.keep(self._layout_now)
        except OSError as error:
            words = f"{self._layouts.path} cannot be written: {error.strerror}"
            self.notify(words, severity="warning", markup=False)

    def action_split(self, step: int) -> None:
        """Give the tree more room, or less."""
        start, whole = self._extent()
        share = self._layout_now.share(below=self._is_below)
        if share is None:
            tree = self.query_one("#left").region
            share = ((tree.bottom if self._is_below else tree.right) - start) / whole
        self._split(share + step * max(_STEP, 1 / whole))

    @on(Splitter.Dragged)
    def _splitter_dragged(self, event: Splitter.Dragged) -> None:
        start, whole = self._extent()
        end = event.place.y if self._is_below else event.place.x
        self._split((end - start) / whole, keep=event.released)

    @on(Splitter.Reset)
    def _splitter_reset(self) -> None:
        self._split(None)

    @work
    async def action_columns(self) -> None:
        """Choose the columns of the tree."""
        tree = self.query_one(KernelTree)
        form = ColumnsForm(tree.columns, lambda: tree.shown_columns, self._show_columns, tree.sort_by)
        await self.app.push_screen_wait(form)
        self._keep_columns()

    def _show_columns(self, chosen: ColumnChoice) -> None:
        self.query_one(KernelTree).columns = chosen

    @on(KernelTree.ColumnsResized)
    def _keep_columns(self) -> None:
        self._layout_now = ScreenLayout(self.query_one(KernelTree).columns, self._layout_now.beside, self._layout_now.below)
        self._keep()
