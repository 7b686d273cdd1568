"""What a call may cost at most, and whether the hard caps allow it. Pure; prices are given.

A cap is kept before the call, not after it: what was spent, what calls under way may still cost, and what the new one may cost,
all at their ceilings, must fit. So the recorded total never passes a cap as long as every call stays under its ceiling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.domain import queries
from engine.domain.errors import BudgetExhausted
from engine.domain.model import Usage
from engine.domain.state import Call, CallStatus, SessionState

Tariff = Callable[[Usage], float]
"""Dollars for a usage."""

TariffOf = Callable[[str], Tariff | None]
"""The tariff of a model by its name; ``None`` where its price is not known."""

FRAMING = 1_000
"""Tokens that a protocol may put around a prompt: roles, separators, a schema's own wrapping."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most that one call can cost."""

    tokens: int
    usd: float | None
    """``None`` where the price is not known."""


FREE = Ceiling(0, 0.0)
"""Of calls whose tokens nobody counts: replies by hand, commands, recorded replies."""


def ceiling(texts: tuple[str, ...], max_output: int, tariff: Tariff | None) -> Ceiling:
    """The most that asking these texts can cost.

    A token is at least one byte in every tokeniser that works on bytes or falls back to them, so bytes bound the tokens of a
    prompt. Usual text has three to four bytes a token; dense code comes near one, so no smaller bound would be safe.
    """
    given = sum(len(text.encode("utf-8", "replace")) for text in texts) + FRAMING
    return Ceiling(given + max_output, tariff(Usage(given, 0, max_output)) if tariff is not None else None)


class BudgetHeld(BudgetExhausted):
    """There would be room, were it not for what calls under way may still cost: when one of them ends, there may be."""


def check(state: SessionState, model: str, wanted: Ceiling, tariff_of: TariffOf, reserved: Mapping[str, float]) -> None:
    """Whether the session's caps allow a call that costs ``wanted`` at most.

    ``reserved`` are the ceilings in dollars of the calls under way in this process; others that are open count as if all their
    tokens were of the dearer kind.

    Raises:
        BudgetHeld: not while the calls under way here may still cost what they may.
        BudgetExhausted: not at all; also for a cap in dollars on a model whose price is not known, which cannot be kept.
    """
    limits = state.limits
    waiting = [call for call in state.calls.values() if call.status is CallStatus.OPEN]
    if limits.tokens is not None:
        spent, held = queries.spent(state).total, sum(call.ceiling for call in waiting)
        if spent + held + wanted.tokens > limits.tokens:
            here = sum(call.ceiling for call in waiting if call.id in reserved)
            error = BudgetHeld if spent + held - here + wanted.tokens <= limits.tokens else BudgetExhausted
            raise error(_tokens(model, spent, held, wanted.tokens, limits.tokens))
    if limits.usd is not None:
        _check_usd(state, waiting, model, wanted.usd, limits.usd, tariff_of, reserved)


def _check_usd(
    state: SessionState,
    waiting: Sequence[Call],
    model: str,
    wanted: float | None,
    cap: float,
    tariff_of: TariffOf,
    reserved: Mapping[str, float],
) -> None:
    if wanted is None:
        raise BudgetExhausted(_unpriced(model, cap))
    spent, unpriced = queries.spent_usd(state)
    if unpriced:
        raise BudgetExhausted(f"the price of {unpriced} earlier calls is not known, so ${cap:g} cannot be kept to")
    elsewhere = sum(_dearest(call, tariff_of, cap) for call in waiting if call.id not in reserved)
    here = sum(reserved.get(call.id, 0.0) for call in waiting)
    if spent + elsewhere + here + wanted > cap:
        error = BudgetHeld if spent + elsewhere + wanted <= cap else BudgetExhausted
        raise error(_usd(model, spent, elsewhere + here, wanted, cap))


def _dearest(call: Call, tariff_of: TariffOf, cap: float) -> float:
    """The most that an open call of another process can have cost."""
    if not call.ceiling:
        return 0.0
    tariff = tariff_of(call.model)
    if tariff is None:
        raise BudgetExhausted(_unpriced(call.model, cap))
    return max(tariff(Usage(input=call.ceiling)), tariff(Usage(output=call.ceiling)))


def _unpriced(model: str, cap: float) -> str:
    return f"the price of {model} is not known, so ${cap:g} cannot be kept to: limit tokens instead, or use another model"


def _tokens(model: str, spent: int, held: int, wanted: int, cap: int) -> str:
    under_way = f", calls under way up to {held:,}" if held else ""
    return f"{spent:,} of {cap:,} tokens spent{under_way}: the next call to {model} could cost {wanted:,}"


def _usd(model: str, spent: float, held: float, wanted: float, cap: float) -> str:
    under_way = f", calls under way up to ${held:.4g}" if held else ""
    return f"${spent:.4g} of ${cap:g} spent{under_way}: the next call to {model} could cost ${wanted:.4g}"
