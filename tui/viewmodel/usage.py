"""Model calls and their cost: totals with their limits; by round, role and model; then every call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from engine.domain.state import CallStatus, ModelCall, SessionState
from engine.report.facts import usage
from engine.report.facts.usage import CallTotals
from tui.viewmodel import fmt, kernels
from tui.viewmodel.cells import BLANK, Cell, Ink, Line, cut, line, one_line, pad, wrap
from tui.viewmodel.pages import empty_page, section, table

_CALLS_SHOWN = 200
_NAME = 22
_LEAST_OUTCOME = 10
"""Columns below which a call's outcome is its symbol alone."""
_STATUS: Mapping[CallStatus, tuple[str, str, Ink]] = {
    CallStatus.OPEN: ("◔", "open", Ink.BUILD),
    CallStatus.ANSWERED: ("●", "answered", Ink.MEASURED),
    CallStatus.FAILED: ("✗", "failed", Ink.FAILED),
}


def page(state: SessionState, room: int) -> tuple[Line, ...]:
    """The whole page at a width."""
    if not state.calls:
        lines = empty_page("no model calls: ideas and code come from the playbook", room)
        return (*lines, BLANK, *_conditions(state, room))
    calls = tuple(state.calls.values())
    lines = (BLANK, section("total", room), *_totals(state, usage.totals(calls), room), BLANK, *_conditions(state, room))
    groups = {
        "round": usage.by_round(state),
        "role": usage.grouped(calls, lambda call: call.role.value),
        "model": usage.grouped(calls, lambda call: kernels.author(call.model)),
    }
    for title, rows in groups.items():
        lines += (BLANK, section(f"by {title}", room), *_grouped(title, rows, room))
    return (*lines, BLANK, section("calls, latest first", room), *_calls(calls, room))


def _dollars(total: CallTotals) -> Cell:
    """The cost; unknown prices are marked, not counted as zero."""
    if total.unpriced and not total.usd:
        return Cell("price unknown", Ink.WARN)
    return Cell(f"{fmt.dollars(total.usd)}{' + ?' if total.unpriced else ''}", Ink.WARN if total.unpriced else Ink.PLAIN)


def _totals(state: SessionState, total: CallTotals, room: int) -> list[Line]:
    used, limits = total.usage, state.limits
    share = f"  ({fmt.percent(used.cached / used.input)})" if used.cached and used.input else ""
    rows: list[tuple[str, Sequence[Cell]]] = [
        ("tokens in", (Cell(f"{used.input:,}", Ink.STRONG), Cell(f"  {used.cached:,} cached{share}", Ink.FAINT))),
        ("tokens out", (Cell(f"{used.output:,}", Ink.STRONG),)),
        ("tokens", (Cell(f"{used.total:,}", Ink.STRONG), *_cap_meter(used.total, limits.tokens, _count, room))),
        ("cost", (_dollars(total), *_cap_meter(total.usd, limits.usd, fmt.dollars, room))),
    ]
    if total.unpriced:
        words = f"price unknown for {fmt.counted(total.unpriced, 'call')}, not counted in the limit"
        rows += [("", (Cell(part, Ink.WARN),)) for part in wrap(words, room - 16)]
    if total.recalled:
        words = f"{fmt.counted(total.recalled, 'call')} answered from a recording, no cost"
        rows.append(("recalled", (Cell(words, Ink.FAINT),)))
    return table(rows, room)


def _cap_meter(used: float, cap: float | None, words: Callable[[float], str], room: int) -> tuple[Cell, ...]:
    """A meter towards the limit, if there is one."""
    if cap is None:
        return (Cell("  no limit", Ink.FAINT),)
    share = used / cap if cap > 0 else 1.0
    ink = Ink.BAD if share >= 1 else Ink.WARN if share >= 0.8 else Ink.ACCENT
    return (Cell("  "), *fmt.meter(share, max(6, min(24, room - 48)), ink), Cell(f" {fmt.percent(share)} of {words(cap)}", ink))


def _count(amount: float) -> str:
    return f"{int(amount):,}"


def _conditions(state: SessionState, room: int) -> tuple[Line, ...]:
    """The conditions that pause the session, whether it is paused, and a limit that was reached."""
    pauses = state.pauses
    soft = [
        f"above {pauses.tokens:,} tokens" if pauses.tokens is not None else "",
        f"above {fmt.dollars(pauses.usd)}" if pauses.usd is not None else "",
        f"before round {pauses.round}" if pauses.round is not None else "",
    ]
    rows: list[tuple[str, Sequence[Cell]]] = [("pause at", (Cell(", ".join(filter(None, soft)) or "no condition set"),))]
    if state.paused is not None:
        rows.append(("now", (Cell(f"‖ paused: {one_line(state.paused)}", Ink.WARN),)))
    if state.capped is not None:
        rows.append(("limit", (Cell(f"■ {one_line(state.capped)}", Ink.BAD),)))
    return (section("pause conditions", room), *table(rows, room))


def _grouped(title: str, rows: Mapping[str, CallTotals], room: int) -> list[Line]:
    name = max(8, min(_NAME, room - 45))
    narrow = room < name + 45
    columns = f"{'tokens':>8}" if narrow else f"{'in':>8}{'cached':>8}{'out':>8}"
    lines = [line(Cell(f"  {pad(title, name)}{'calls':>6}{columns}  cost", Ink.LABEL))]
    for group, found in rows.items():
        cost = Cell("unknown", Ink.WARN) if found.unpriced and not found.usd else _dollars(found)
        used = found.usage
        counts = (used.total,) if narrow else (used.input, used.cached, used.output)
        figures = f"{found.calls:>6}{''.join(f'{fmt.tokens(count):>8}' for count in counts)}  "
        lines.append(line(Cell(f"  {pad(cut(one_line(group), name), name)}"), Cell(figures), cost))
    return lines


def _calls(calls: Sequence[ModelCall], room: int) -> list[Line]:
    lines = []
    model = max(8, min(18, room - 64))
    for call in reversed(calls[-_CALLS_SHOWN:]):
        glyph, word, ink = _STATUS[call.status]
        subject = call.work.subject
        name = f"{call.id:<5}{call.role.value:<7}{subject:<5}{pad(kernels.author(call.model), model)} "
        used = f"{fmt.tokens(call.usage.input):>6} → {fmt.tokens(call.usage.output):<6}" if call.usage.total else " " * 15
        cost = fmt.dollars(call.usd) if call.usd is not None else "?" if call.usage.total else ""
        outcome = "recalled" if call.recalled else one_line(call.reason) if call.status is CallStatus.FAILED else word
        taken = f"{call.seconds:.1f} s" if call.seconds else ""
        left = room - len(name) - 4
        columns = [column for column, needed in ((used, 15), (f" {cost:<8}", 24), (f"{taken:>7}", 31)) if needed <= left]
        figures = "".join(columns)
        words = cut(outcome, left - len(figures) - 2) if left - len(figures) > _LEAST_OUTCOME else ""
        lines.append(line(Cell(f"  {glyph} ", ink), Cell(name), Cell(f"{figures}  ", Ink.FAINT), Cell(words, ink)))
    if len(calls) > _CALLS_SHOWN:
        lines.append(line(Cell(f"  ⋯ {len(calls) - _CALLS_SHOWN} earlier calls", Ink.RULE)))
    return lines
