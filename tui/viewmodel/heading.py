"""The session's header: session, round, proposer and who waits; incumbent and limits used. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.domain import corroboration, queries, races, stats
from engine.domain.model import Measurement
from engine.domain.regimes import Regime
from engine.domain.rules import adaptive
from engine.domain.state import SessionState
from engine.report.text import regimes
from tui.viewmodel import fmt, kernels, siblings, waiting
from tui.viewmodel.cells import Cell, Ground, Ink, Line, cut, cut_middle, cut_whole, line, one_line, width
from tui.viewmodel.tree_facts import tree_facts

_METER = 8
_DOT = Cell(" · ", Ink.RULE)
_LABELS = (16, 24, 36, 48, 64)
"""The room of the incumbent's title, from the shortest form."""


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """Facts that are not part of the state: names, the kind of source, failures, time, device load."""

    note: str = ""
    stopped: bool = False
    """Some work failed and waits for a retry."""
    deadline: float | None = None
    now: float = 0.0
    telemetry: str = ""
    name: str = ""
    """The session's name; empty: that of its problem."""
    round_left: str = ""
    """How long the open round still takes: ``≈ 2 min``."""


Cells = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a line: (rank, form) from its shortest to its longest form. Of all forms those of the lowest ranks get room
    first."""

    forms: tuple[tuple[int, Cells], ...]
    at_right: bool = False


def lines(state: SessionState, status: SessionStatus, room: int) -> tuple[Line, Line]:
    """Two lines: the session with who waits for whom, the incumbent with the limits used.

    The first always names session, workload, proposer and who waits, in short forms if need be.
    """
    opened = state.opened
    if opened is None:
        return (line(Cell(" an empty session", Ink.FAINT)), line())
    device = state.device
    session = [
        _title(state, status),
        _plain(one_line(device.name) if device else opened.device, 10, Ink.PLAIN),
        _round(state, status.round_left),
        _proposer(state),
        _plain(one_line(status.telemetry), 11, Ink.ACCENT),
        _plain("no sandbox" if unconfined(state) else "", 6, Ink.WARN),
        _mode(state, status),
    ]
    return (_line(session, room), _line([*_incumbent(state), *_budget(state)], room))


def _line(pieces: Sequence[Piece], room: int) -> Line:
    """The pieces that fit, separated by dots, each in the longest form that there is room for."""
    steps = sorted(
        ((rank, place, form) for place, piece in enumerate(pieces) for rank, form in piece.forms if _text(form)),
        key=lambda step: step[0],
    )
    chosen: dict[int, Cells] = {}
    left = room - 2
    for _, place, form in steps:
        needed = _width(form) - _width(chosen[place]) if place in chosen else _width(form) + _gap(pieces[place], chosen)
        if needed <= left:
            chosen[place] = form
            left -= needed
    shown: list[Cell] = []
    for place in sorted(chosen):
        if not pieces[place].at_right:
            shown += ([_DOT] if shown else []) + list(chosen[place])
    right = [cell for place, cells in chosen.items() if pieces[place].at_right for cell in cells]
    fill = room - 2 - _width(shown) - _width(right) if right else 0
    return line(" ", *shown, " " * max(0, fill), *right)


def _gap(piece: Piece, chosen: Mapping[int, Cells]) -> int:
    """The cells between the piece and those beside it."""
    return 0 if not chosen else 1 if piece.at_right else len(_DOT.text)


def _text(cells: Cells) -> str:
    return "".join(cell.text for cell in cells)


def _width(cells: Sequence[Cell]) -> int:
    return sum(width(cell.text) for cell in cells)


def _title(state: SessionState, status: SessionStatus) -> Piece:
    """The session's name, its problem where the name does not begin with it, and the workload. A short name keeps its end, in
    which a session differs from its fork."""
    problem, workload = (one_line(text) for text in queries.problem_and_workload(state))
    name = one_line(status.name) or problem
    whole = name if name.startswith(problem) else f"{name} ({problem})"
    forms = ((0, cut_middle(name, 10), cut(workload, 5)), (3, name, workload), (8, whole, workload))
    return Piece(tuple((rank, (Cell(text, Ink.TITLE), Cell(f" {judged}", Ink.FAINT))) for rank, text, judged in forms))


def _proposer(state: SessionState) -> Piece:
    named = one_line(state.models.source or (state.opened.settings.source if state.opened else ""))
    short = kernels.author(named)
    forms = ((2, cut(short, 6)), (6, short), (9, f"proposer {named}"))
    return Piece(tuple((rank, (Cell(words, Ink.FAINT),)) for rank, words in forms))


def _mode(state: SessionState, status: SessionStatus) -> Piece:
    """The kind of source, and the mode with who waits for whom."""
    note = (Cell(f" {one_line(status.note)} ", Ink.ACCENT, Ground.CHIP),) if status.note else ()
    left = status.deadline - status.now if status.deadline is not None else None
    words = waiting.mode(state, stopped=status.stopped, left=left)
    chips = [Cell(f" {form.text} ", form.ink, Ground.CHIP) for form in reversed(words)]
    return Piece(((1, (chips[0],)), (4, (*note, chips[0])), *((5, (*note, chip)) for chip in chips[1:])), at_right=True)


def unconfined(state: SessionState) -> bool:
    """Whether kernels of this session run without a sandbox."""
    return state.preparation is not None and state.preparation.sandbox != "bubblewrap"


def _round(state: SessionState, left: str) -> Piece:
    """The round, how long it still takes, and what is left of the session's limit: rounds, or for the adaptive strategy, which
    counts them in kernels, kernels. Nothing is left of an ended session."""
    number = queries.last_round(state)
    if number < 0:
        return _plain("round –", 5)
    time = f", {left} left" if left else ""
    if adaptive.is_adaptive(state):
        kernels_left = queries.kernels_left(state) if state.closed is None else None
        name, of, to_go = (
            f"decision {number}",
            "",
            f", {fmt.counted(kernels_left, 'kernel')} to go" if kernels_left is not None else "",
        )
    else:
        most = state.limits.rounds
        name, of, to_go = f"round {number}", f" of {most}" if most is not None else "", ""
    forms = [(rank, (Cell(name), Cell(words, Ink.FAINT))) for rank, words in ((5, of + to_go), (7, of + time + to_go))]
    return Piece(tuple(forms if left else forms[:1]))


def without_incumbent(state: SessionState) -> str:
    """Why there is no incumbent."""
    return "no kernel whose time is corroborated" if tree_facts(state).doubted else "no verified kernel yet"


def _incumbent(state: SessionState) -> list[Piece]:
    """The incumbent: id and speedup over the named baseline; time; share of the speed of light; what tells it apart."""
    best = kernels.incumbent(state)
    ratio = queries.speedup(state, best) if best else None
    if best is None or best.measurement is None or ratio is None:
        return [_plain(without_incumbent(state), 0, Ink.WARN if tree_facts(state).doubted else Ink.FAINT)]
    sol = best.measurement.light
    value, low, high = fmt.headline_figures(ratio)
    shown = kernels.speedup(best, ratio)
    sign = "" if shown.ink is Ink.FASTER else shown.text[:2]
    figure = Cell(f"{sign}{value}×" if stats.is_measurable(ratio) else shown.text, shown.ink)
    head = (Cell(f"{kernels.INCUMBENT} {best.id} ", Ink.BEST), figure)
    over = (*head, Cell(f" {'' if stats.is_measurable(ratio) else 'over '}{queries.ranking_baseline(state)}"))
    label = " ".join(filter(None, (fmt.tunables(siblings.labels(state, best)[best.id].first), kernels.title(state, best))))
    labels = [(4 if room == _LABELS[0] else 9, (Cell(cut_whole(label, room), Ink.FAINT),)) for room in _LABELS]
    return [
        Piece(((0, head), (1, over), (2, (*over, Cell(f" [{low}, {high}]", Ink.FAINT))))),
        _sustained(state, best.measurement),
        _plain("" if corroboration.is_corroborated(best) else "not corroborated, accepted", 1, Ink.WARN),
        _plain(fmt.duration(best.measurement.time_us.value), 1, Ink.PLAIN),
        _plain(fmt.sol(sol.fraction) if sol else "", 2, Ink.PLAIN),
        Piece(tuple(labels)),
    ]


def _sustained(state: SessionState, measured: Measurement) -> Piece:
    """The speedup back to back: among the first figures where it decides or contradicts that of single calls."""
    base = queries.ranking_baseline(state)
    found = measured.sustained.speedup.get(base) if measured.sustained is not None else None
    if found is None:
        return _plain("", 8)
    contradicts = bool(regimes.disagreement(measured, base, races.deciding_regime(state)))
    matters = contradicts or races.deciding_regime(state) is Regime.SUSTAINED
    value, low, high = fmt.headline_figures(found)
    shown = f"{value}×" if stats.is_measurable(found) else fmt.NOT_MEASURABLE
    figure = (Cell(f"sustained {shown}", Ink.WARN if contradicts else fmt.speedup_ink(found)),)
    return Piece(((1 if matters else 8, figure), (3 if matters else 9, (*figure, Cell(f" [{low}, {high}]", Ink.FAINT)))))


def _budget(state: SessionState) -> list[Piece]:
    """The use of each limit, except rounds, which the first line shows."""
    limits = state.limits
    pieces = []
    if limits.kernels is not None:
        pieces.append(_used("kernels", len(state.kernels), limits.kernels, str(len(state.kernels)), str(limits.kernels)))
    else:
        pieces.append(_plain(fmt.counted(len(state.kernels), "kernel"), 6))
    if limits.seconds is not None:
        used = state.active_seconds
        pieces.append(_used("time", used, limits.seconds, fmt.elapsed(used), fmt.elapsed(limits.seconds)))
    else:
        pieces.append(_plain(f"active {fmt.elapsed(state.active_seconds)}", 8))
    pieces += _spent(state)
    if limits.plateau is not None and (stalled := _stalled(state)):
        words = f"{stalled} of {fmt.counted(limits.plateau, 'round')} without a new incumbent"
        pieces.append(_plain(words, 8, Ink.WARN if stalled >= limits.plateau - 1 else Ink.FAINT))
    return pieces


def _spent(state: SessionState) -> list[Piece]:
    """Tokens and dollars, if models were called or a limit is set."""
    limits, used = state.limits, queries.total_usage(state).total
    dollars, unpriced = queries.total_usd(state)
    pieces = []
    if limits.tokens is not None:
        pieces.append(_used("tokens", used, limits.tokens, fmt.tokens(used), fmt.tokens(limits.tokens)))
    elif used:
        pieces.append(_plain(f"{fmt.tokens(used)} tokens", 5))
    more = "+?" if unpriced else ""
    if limits.usd is not None:
        pieces.append(_used("cost", dollars, limits.usd, f"{fmt.dollars(dollars)}{more}", fmt.dollars(limits.usd)))
    elif dollars:
        pieces.append(_plain(f"{fmt.dollars(dollars)}{more}", 5))
    return pieces


def _stalled(state: SessionState) -> int:
    """Rounds since the incumbent's."""
    return queries.rounds_after(state, kernels.incumbent(state))


def _plain(words: str, rank: int, ink: Ink = Ink.FAINT) -> Piece:
    """A piece with one form; an empty one takes no room."""
    return Piece(((rank, (Cell(words, ink),)),))


def _used(name: str, used: float, limit: float, words: str, limit_words: str) -> Piece:
    share = used / limit if limit > 0 else 1.0
    label, figure = Cell(f"{name} ", Ink.LABEL), (Cell(words), Cell(f"/{limit_words}", Ink.FAINT))
    meter = fmt.meter(share, _METER, Ink.WARN if share >= 0.8 else Ink.ACCENT)
    return Piece(((3, (label, *figure)), (7, (label, *meter, Cell(" "), *figure))))
