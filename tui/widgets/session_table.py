"""The table of sessions on the home screen: the columns that fit its width, fitted again whenever that changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

if TYPE_CHECKING:
    from engine.journal import store

_COLUMNS = ("session", "incumbent", "trend", "kernels", "rounds", "device", "state", "last")
_BY_IMPORTANCE = ("session", "incumbent", "state", "last", "trend", "kernels", "rounds", "device")
"""Columns by importance: shown while they fit, the first always."""


class _State(NamedTuple):
    """How a session stands."""

    words: str
    colour: str
    """Of the theme; empty: none."""
    meaning: str


_RUNNING = _State("● running", "success", "searched in this terminal; Enter returns to it")
_RUNNING_AWAITING = _State("● {} to approve", "warning", "searched in this terminal, and so many ideas await your approval")
_AWAITING = _State("◆ {} to approve", "warning", "so many ideas await your approval")
_OPEN = _State("○ open", "", "not ended: Enter resumes it here, unless another process searches it")
_ENDED = _State("ended", "", "reached a limit, or was ended by hand; more rounds reopen it")
_EXAMPLE = _State("▷ example", "primary", "a recording that ships with Espalier: replay it, or fork it to go on from there")
_UNREADABLE = _State("✗ unreadable", "error", "its journal is damaged or from a later version; the preview says where")


class SessionTable(DataTable[Text]):
    """Sessions, one line each. Widths are chosen for the table's own content width, known only after its layout."""

    DEFAULT_CSS = """
    SessionTable { overflow-x: hidden; scrollbar-size-vertical: 1; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("home", "scroll_top", "First session", show=False, id="sessions.first"),
        Binding("end", "scroll_bottom", "Last session", show=False, id="sessions.last"),
    ]

    def __init__(self, clock: Callable[[], float], searched: Callable[[], Path | None], *, id: str) -> None:
        """``searched``: the folder of the session that this process searches."""
        super().__init__(id=id, cursor_type="row", zebra_stripes=False)
        self._clock = clock
        self._searched = searched
        self._sessions: dict[str, store.SessionSummary] = {}
        self._filled_room = 0
        """The width that the columns were chosen for."""

    @property
    def sessions(self) -> Sequence[store.SessionSummary]:
        return tuple(self._sessions.values())

    @property
    def highlighted(self) -> store.SessionSummary | None:
        """The session under the cursor."""
        if not self.is_valid_coordinate(self.cursor_coordinate):
            return None
        return self._sessions.get(str(self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value))

    def show(self, summaries: Sequence[store.SessionSummary]) -> None:
        """Show these sessions; the cursor stays on its session."""
        before = self.highlighted
        self._sessions = {str(one.folder): one for one in summaries}
        self._fill(before)

    def highlight(self, folder: Path) -> bool:
        """Put the cursor on this session; whether it is listed."""
        listed = str(folder) in self._sessions
        if listed:
            self.move_cursor(row=list(self._sessions).index(str(folder)))
        return listed

    def on_resize(self) -> None:
        if self._room != self._filled_room:
            self._fill(self.highlighted)

    @property
    def _room(self) -> int:
        return self.scrollable_content_region.width

    def _fill(self, before: store.SessionSummary | None) -> None:
        self._filled_room = room = self._room
        self.clear(columns=True)
        rows = {key: self._cells(one, intervals=True) for key, one in self._sessions.items()}
        columns = _fitting_columns(list(rows.values()), room)
        if "incumbent" not in columns:
            rows = {key: self._cells(one, intervals=False) for key, one in self._sessions.items()}
            _clip_names(list(rows.values()), room)
            columns = _fitting_columns(list(rows.values()), room)
        for name in columns:  # measured here: the table measures cells only after a frame with the columns of the heads
            self.add_column(Text(name, style="dim"), key=name, width=_width(name, list(rows.values())))
        for key, cells in rows.items():
            self.add_row(*(cells[name] for name in columns), key=key)
        if before is not None and str(before.folder) in self._sessions:
            self.move_cursor(row=list(self._sessions).index(str(before.folder)))

    def _cells(self, one: store.SessionSummary, *, intervals: bool) -> dict[str, Text]:
        from tui.viewmodel import fmt  # the empty table is drawn before the engine is imported

        none = "none corroborated" if intervals else "?"
        best = Text(none if one.doubted else "—", "dim")
        if one.best is not None:
            name = "success" if one.best.low > 1.0 and one.corroborated else "warning"
            ends = f" {fmt.interval_ends(one.best)}{'' if one.corroborated else ' not corroborated'}" if intervals else ""
            best = Text.assemble((fmt.speedup(one.best, doubted=not one.corroborated).text, self._colour(name)), (ends, "dim"))
        return {
            "session": Text(one.name, "bold"),
            "incumbent": best,
            "trend": Text(fmt.sparkline(one.best_so_far), self._colour("primary")),
            "rounds": Text(str(one.rounds), justify="right"),
            "kernels": Text(f"{one.verified}/{one.kernels}", justify="right"),
            "device": Text(one.device, "dim"),
            "state": self._state(one),
            "last": Text(time_since(self._clock() - one.last_activity), "dim"),
        }

    def _colour(self, name: str) -> str:
        return theme_colour(self.app.theme_variables, name)

    def _state(self, one: store.SessionSummary) -> Text:
        if one.status == "unreadable":
            return self._drawn(_UNREADABLE)
        if self._searched() == one.folder and one.status != "closed":
            return self._drawn(_RUNNING_AWAITING, one.awaiting) if one.awaiting else self._drawn(_RUNNING)
        if one.shipped:
            return self._drawn(_EXAMPLE)
        if one.status == "closed":
            return Text(_ENDED.words, "dim")
        return self._drawn(_AWAITING, one.awaiting) if one.awaiting else self._drawn(_OPEN)

    def _drawn(self, state: _State, count: int = 0) -> Text:
        return Text(state.words.format(count), self._colour(state.colour) if state.colour else "")


def theme_colour(variables: Mapping[str, str], name: str) -> str:
    """A colour of the theme as the terminal can draw it on a table."""
    colour = variables.get(f"text-{name}", "")
    return colour if colour.startswith("#") else variables.get(name, "default")


def legend(colour: Callable[[str], str]) -> tuple[tuple[Text, str], ...]:
    """(symbol, its meaning) of the table. ``colour``: name in the theme → colour."""
    states = (_RUNNING, _RUNNING_AWAITING, _AWAITING, _OPEN, _ENDED, _EXAMPLE, _UNREADABLE)
    return (
        *((Text(one.words.format(2), colour(one.colour) if one.colour else ""), one.meaning) for one in states),
        (Text("▲ 1.42×", colour("success")), "the incumbent's speedup over its baseline, with its 95% interval"),
        (Text("none corroborated"), "kernels are correct, but the time of none is a result; ? where there is no room"),
        (Text("▁▃▃▆█", colour("primary")), "trend: the incumbent's speedup, round by round"),
        (Text("13/22"), "kernels: verified, of all"),
    )


def _clip_names(rows: list[dict[str, Text]], room: int) -> None:
    """Cut names to half the room if the longest does not fit: the result matters more than the end of a name."""
    if any(row["session"].cell_len + 2 > room for row in rows):
        for row in rows:
            row["session"].truncate(max(4, room // 2), overflow="ellipsis")


def _width(name: str, rows: Sequence[Mapping[str, Text]]) -> int:
    return max(len(name), *(row[name].cell_len for row in rows), 0)


def _fitting_columns(rows: list[dict[str, Text]], room: int) -> list[str]:
    shown: set[str] = set()
    for name in _BY_IMPORTANCE:
        room -= _width(name, rows) + 2 if rows else 0
        if room < 0 and shown:
            break
        shown.add(name)
    return [name for name in _COLUMNS if name in shown]


def time_since(seconds: float) -> str:
    """Time since then: ``3 min ago``."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{int(seconds / size)} {unit} ago"
    return "now"
