"""The session's header: problem, device, round, incumbent, limits used, mode. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.domain import corroboration, queries
from engine.domain.rules import adaptive
from engine.domain.state import SessionState
from tui.viewmodel import fmt, kernels
from tui.viewmodel.cells import Cell, Ground, Ink, Line, cut, line, one_line, width
from tui.viewmodel.tree_facts import tree_facts

_METER = 8


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """Facts that are not part of the state: the kind of source, failures, time, device load."""

    note: str = ""
    stopped: bool = False
    """Some work failed and waits for a retry."""
    deadline: float | None = None
    now: float = 0.0
    telemetry: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a line; pieces of a higher rank are dropped first."""

    cells: tuple[Cell, ...]
    rank: int


def lines(state: SessionState, status: SessionStatus, room: int) -> tuple[Line, Line]:
    """Two lines: the task with its mode, the incumbent with the limits used."""
    opened = state.opened
    if opened is None:
        return (line(Cell(" an empty session", Ink.FAINT)), line())
    settings = opened.settings
    device, judged = state.device, queries.problem_and_workload(state)[1]
    task = [
        Piece((Cell(one_line(opened.problem.name), Ink.TITLE), Cell(f" {judged}", Ink.FAINT)), 0),
        Piece((Cell(one_line(device.name) if device else opened.device),), 4),
        Piece(_round(state), 1),
        Piece((Cell(f"proposer {one_line(settings.source)}", Ink.FAINT),), 6),
        Piece((Cell(one_line(status.telemetry), Ink.ACCENT),), 5),
        Piece((Cell("no sandbox", Ink.WARN),) if unconfined(state) else (), 3),
    ]
    standing = [Piece(_incumbent(state, room), 0), *_budget(state)]
    return (_line(task, mode(state, status), room), _line(standing, (), room))


def _line(pieces: Sequence[Piece], right: tuple[Cell, ...], room: int) -> Line:
    """The pieces that fit, separated by dots, and ``right`` at the right edge."""
    left_over = room - 2 - sum(width(c.text) for c in right) - (2 if right else 0)
    kept: list[Piece] = []
    for piece in sorted((p for p in pieces if any(c.text for c in p.cells)), key=lambda p: p.rank):
        needed = sum(width(c.text) for c in piece.cells) + (3 if kept else 0)
        if needed <= left_over:
            kept.append(piece)
            left_over -= needed
    shown: list[Cell] = []
    for piece in (p for p in pieces if p in kept):
        shown += ([Cell(" · ", Ink.RULE)] if shown else []) + list(piece.cells)
    fill = " " * max(0, left_over) + ("  " if right else "")
    return line(" ", *shown, fill, *right)


def unconfined(state: SessionState) -> bool:
    """Whether kernels of this session run without a sandbox."""
    return state.preparation is not None and state.preparation.sandbox != "bubblewrap"


def _round(state: SessionState) -> tuple[Cell, ...]:
    number = queries.last_round(state)
    if number < 0:
        return (Cell("round –", Ink.FAINT),)
    most = state.limits.rounds
    if adaptive.is_adaptive(state):
        done = f", {queries.rounds_done(state)} of {fmt.counted(most, 'round')}" if most is not None else ""
        return (Cell(f"decision {number}"), Cell(done, Ink.FAINT))
    return (Cell(f"round {number}"), Cell(f" of {most}" if most is not None else "", Ink.FAINT))


def mode(state: SessionState, status: SessionStatus) -> tuple[Cell, ...]:
    """The mode, or that the session is stopped, paused or ended."""
    cells: list[Cell] = []
    if status.note:
        cells.append(Cell(f" {one_line(status.note)} ", Ink.ACCENT, Ground.CHIP))
    if state.closed is not None:
        return (*cells, Cell(" ■ ended ", Ink.FAINT, Ground.CHIP))
    if state.broken:
        return (*cells, Cell(" ✗ stopped ", Ink.BAD, Ground.CHIP))
    if status.stopped:
        return (*cells, Cell(" ✗ stopped ", Ink.BAD, Ground.CHIP))
    if state.paused is not None:
        return (*cells, Cell(f" ‖ paused: {cut(one_line(state.paused), 32)} ", Ink.WARN, Ground.CHIP))
    waiting = len(queries.pending_ideas(state))
    if waiting and not state.mode.is_autopilot:
        left = f", auto-approve in {fmt.elapsed(max(0.0, status.deadline - status.now))}" if status.deadline is not None else ""
        return (*cells, Cell(f" ◇ awaiting approval{left} ", Ink.WARN, Ground.CHIP))
    if state.mode.is_autopilot:
        return (*cells, Cell(" ▸▸ autopilot ", Ink.GOOD, Ground.CHIP))
    seconds = state.mode.seconds
    return (*cells, Cell(f" ◈ ask{f', auto-approve after {seconds} s' if seconds else ''} ", Ink.ACCENT, Ground.CHIP))


def _incumbent(state: SessionState, room: int) -> tuple[Cell, ...]:
    best = kernels.incumbent(state)
    ratio = queries.speedup(state, best) if best else None
    if best is None or best.measurement is None or ratio is None:
        if tree_facts(state).doubted:
            return (Cell("no kernel whose time is corroborated", Ink.WARN),)
        return (Cell("no verified kernel yet", Ink.FAINT),)
    sol = best.measurement.light
    title = cut(kernels.title(state, best), max(0, min(48, room - 60)))
    head = (Cell(f"{kernels.INCUMBENT} {best.id} ", Ink.BEST), Cell(f"{title} " if title else ""), fmt.speedup(ratio))
    accepted = not corroboration.is_corroborated(best)
    more = (
        Cell(" not corroborated, accepted" if accepted else "", Ink.WARN),
        Cell(f" {fmt.interval_ends(ratio)} {queries.ranking_baseline(state)}", Ink.FAINT),
        Cell(f" {fmt.duration(best.measurement.time_us.value)}"),
        Cell(f" {fmt.percent(sol.fraction)} of SOL" if sol and room >= 64 else "", Ink.FAINT),
    )
    return _beginning((*head, *more), len(head), room - 2)


def _beginning(cells: tuple[Cell, ...], least: int, room: int) -> tuple[Cell, ...]:
    """As many cells as fit, and never fewer than ``least``."""
    fitting = [many for many in range(least, len(cells) + 1) if sum(width(cell.text) for cell in cells[:many]) <= room]
    return cells[: max(fitting, default=least)]


def _budget(state: SessionState) -> list[Piece]:
    """The use of each limit, except rounds, which the first line shows."""
    limits = state.limits
    pieces = []
    if limits.kernels is not None:
        pieces.append(_used("kernels", len(state.kernels), limits.kernels, str(len(state.kernels)), str(limits.kernels), 2))
    else:
        pieces.append(Piece((Cell(fmt.counted(len(state.kernels), "kernel"), Ink.FAINT),), 3))
    if limits.seconds is not None:
        used = state.active_seconds
        pieces.append(_used("time", used, limits.seconds, fmt.elapsed(used), fmt.elapsed(limits.seconds), 2))
    else:
        pieces.append(Piece((Cell(f"active {fmt.elapsed(state.active_seconds)}", Ink.FAINT),), 4))
    pieces += _spent(state)
    if limits.plateau is not None and (stalled := _stalled(state)):
        words = f"{stalled} of {fmt.counted(limits.plateau, 'round')} without a new incumbent"
        pieces.append(Piece((Cell(words, Ink.WARN if stalled >= limits.plateau - 1 else Ink.FAINT),), 5))
    return pieces


def _spent(state: SessionState) -> list[Piece]:
    """Tokens and dollars, if models were called or a limit is set."""
    limits, used = state.limits, queries.total_usage(state).total
    dollars, unpriced = queries.total_usd(state)
    pieces = []
    if limits.tokens is not None:
        pieces.append(_used("tokens", used, limits.tokens, fmt.tokens(used), fmt.tokens(limits.tokens), 2))
    elif used:
        pieces.append(Piece((Cell(f"{fmt.tokens(used)} tokens", Ink.FAINT),), 3))
    more = "+?" if unpriced else ""
    if limits.usd is not None:
        pieces.append(_used("cost", dollars, limits.usd, f"{fmt.dollars(dollars)}{more}", fmt.dollars(limits.usd), 2))
    elif dollars:
        pieces.append(Piece((Cell(f"{fmt.dollars(dollars)}{more}", Ink.FAINT),), 3))
    return pieces


def _stalled(state: SessionState) -> int:
    """Rounds since the incumbent's."""
    return queries.stalled_rounds(state)


def _used(name: str, used: float, limit: float, words: str, limit_words: str, rank: int) -> Piece:
    share = used / limit if limit > 0 else 1.0
    ink = Ink.WARN if share >= 0.8 else Ink.ACCENT
    return Piece(
        (Cell(f"{name} ", Ink.LABEL), *fmt.meter(share, _METER, ink), Cell(f" {words}"), Cell(f"/{limit_words}", Ink.FAINT)),
        rank,
    )
