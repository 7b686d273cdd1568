"""What models were asked and what it cost: totals beside their caps, then by round, by role and by model, then call by call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.domain import queries
from engine.domain.model import Usage
from engine.domain.state import Call, CallStatus, SessionState
from tui.viewmodel import fmt, kernels
from tui.viewmodel.cells import BLANK, Cell, Ink, Line, cut, flat, line, pad, wrapped
from tui.viewmodel.detail import nothing, section, table

_CALLS_SHOWN = 200
_NAME = 22
_STATUS: Mapping[CallStatus, tuple[str, str, Ink]] = {
    CallStatus.OPEN: ("◔", "open", Ink.BUILD),
    CallStatus.ANSWERED: ("●", "answered", Ink.MEASURED),
    CallStatus.FAILED: ("✗", "failed", Ink.FAILED),
}


@dataclass(frozen=True, slots=True)
class Sum:
    """Some calls together."""

    calls: int
    usage: Usage
    usd: float
    unpriced: int
    """Calls that spent tokens at a price that nobody knows."""

    @property
    def dollars(self) -> Cell:
        """In words; what is not known is said, never counted as nothing."""
        if self.unpriced and not self.usd:
            return Cell("price unknown", Ink.WARN)
        return Cell(f"{fmt.dollars(self.usd)}{' + ?' if self.unpriced else ''}", Ink.WARN if self.unpriced else Ink.PLAIN)


def summed(calls: Iterable[Call]) -> Sum:
    """Recalled replies count as calls and cost nothing."""
    every = tuple(calls)
    paid = [call for call in every if not call.recalled]
    unpriced = sum(1 for call in paid if call.usd is None and call.usage.total)
    return Sum(len(every), sum((c.usage for c in paid), Usage()), sum(c.usd or 0.0 for c in paid), unpriced)


def page(state: SessionState, room: int) -> tuple[Line, ...]:
    """The whole page at a width."""
    if not state.calls:
        lines = nothing("no model was asked: ideas and code from a playbook cost nothing")
        return (*lines, BLANK, *_conditions(state, room))
    calls = tuple(state.calls.values())
    lines = (BLANK, section("spent", room), *_totals(state, summed(calls), room), BLANK, *_conditions(state, room))
    groups: tuple[tuple[str, Callable[[Call], str]], ...] = (
        ("round", lambda call: _round(state, call)),
        ("role", lambda call: call.role.value),
        ("model", lambda call: kernels.author(call.model)),
    )
    for title, key in groups:
        lines += (BLANK, section(f"by {title}", room), *_grouped(title, calls, key, room))
    return (*lines, BLANK, section("calls, the latest first", room), *_calls(calls, room))


def _round(state: SessionState, call: Call) -> str:
    number = queries.round_of_call(state, call)
    return f"round {number}" if number is not None else "elsewhere"


def _totals(state: SessionState, total: Sum, room: int) -> list[Line]:
    used, limits = total.usage, state.limits
    share = f"  ({fmt.percent(used.cached / used.input)})" if used.cached and used.input else ""
    rows: list[tuple[str, Sequence[Cell]]] = [
        ("tokens in", (Cell(f"{used.input:,}", Ink.STRONG), Cell(f"  of which {used.cached:,} cached{share}", Ink.FAINT))),
        ("tokens out", (Cell(f"{used.output:,}", Ink.STRONG),)),
        ("tokens", (Cell(f"{used.total:,}", Ink.STRONG), *_of(used.total, limits.tokens, _count, room))),
        ("cost", (total.dollars, *_of(total.usd, limits.usd, fmt.dollars, room))),
    ]
    if total.unpriced:
        words = f"the price of {fmt.counted(total.unpriced, 'call')} is unknown: a cap in dollars does not see it"
        rows += [("", (Cell(part, Ink.WARN),)) for part in wrapped(words, room - 16)]
    recalled = sum(1 for call in state.calls.values() if call.recalled)
    if recalled:
        words = f"{fmt.counted(recalled, 'call')} answered from a recording, at no cost"
        rows.append(("recalled", (Cell(words, Ink.FAINT),)))
    return table(rows, room)


def _of(used: float, cap: float | None, words: Callable[[float], str], room: int) -> tuple[Cell, ...]:
    """A meter towards the cap, where there is one."""
    if cap is None:
        return (Cell("  no cap", Ink.FAINT),)
    share = used / cap if cap > 0 else 1.0
    ink = Ink.BAD if share >= 1 else Ink.WARN if share >= 0.8 else Ink.ACCENT
    return (Cell("  "), *fmt.meter(share, max(6, min(24, room - 48)), ink), Cell(f" {fmt.percent(share)} of {words(cap)}", ink))


def _count(amount: float) -> str:
    return f"{int(amount):,}"


def _conditions(state: SessionState, room: int) -> tuple[Line, ...]:
    """What ends the session, what makes it pause, and whether it does now."""
    pauses = state.pauses
    soft = [
        f"above {pauses.tokens:,} tokens" if pauses.tokens is not None else "",
        f"above {fmt.dollars(pauses.usd)}" if pauses.usd is not None else "",
        f"before round {pauses.round}" if pauses.round is not None else "",
    ]
    rows: list[tuple[str, Sequence[Cell]]] = [("pauses", (Cell(", ".join(filter(None, soft)) or "nowhere by itself"),))]
    if state.paused is not None:
        rows.append(("now", (Cell(f"‖ paused: {flat(state.paused)}", Ink.WARN), Cell("  P goes on", Ink.FAINT))))
    if state.capped is not None:
        rows.append(("cap", (Cell(f"■ {flat(state.capped)}", Ink.BAD),)))
    return (section("where it stops", room), *table(rows, room))


def _grouped(title: str, calls: Sequence[Call], key: Callable[[Call], str], room: int) -> list[Line]:
    groups: dict[str, list[Call]] = {}
    for call in calls:
        groups.setdefault(key(call), []).append(call)
    name = max(8, min(_NAME, room - 45))
    head = f"  {pad(title, name)}{'calls':>6}{'in':>8}{'cached':>8}{'out':>8}  cost"
    lines = [line(Cell(head, Ink.LABEL))]
    for group, members in groups.items():
        found = summed(members)
        cost = Cell("unknown", Ink.WARN) if found.unpriced and not found.usd else found.dollars
        used = found.usage
        figures = f"{found.calls:>6}{fmt.tokens(used.input):>8}{fmt.tokens(used.cached):>8}{fmt.tokens(used.output):>8}  "
        lines.append(line(Cell(f"  {pad(cut(flat(group), name), name)}"), Cell(figures), cost))
    return lines


def _calls(calls: Sequence[Call], room: int) -> list[Line]:
    lines = []
    model = max(8, min(18, room - 54))
    for call in reversed(calls[-_CALLS_SHOWN:]):
        glyph, word, ink = _STATUS[call.status]
        subject = call.work.split(":")[1] if ":" in call.work else call.work
        name = f"{call.id:<5}{call.role.value:<7}{subject:<5}{pad(kernels.author(call.model), model)} "
        used = f"{fmt.tokens(call.usage.input):>6} → {fmt.tokens(call.usage.output):<6}" if call.usage.total else " " * 15
        cost = fmt.dollars(call.usd) if call.usd is not None else "?" if call.usage.total else ""
        said = "recalled" if call.recalled else flat(call.reason) if call.status is CallStatus.FAILED else word
        taken = f"{call.seconds:.1f} s" if call.seconds else ""
        words = cut(said, max(0, room - model - 50))
        lines.append(
            line(Cell(f"  {glyph} ", ink), Cell(name), Cell(f"{used} {cost:<8}{taken:>7}  ", Ink.FAINT), Cell(words, ink))
        )
    if len(calls) > _CALLS_SHOWN:
        lines.append(line(Cell(f"  ⋯ {len(calls) - _CALLS_SHOWN} earlier calls", Ink.RULE)))
    return lines
