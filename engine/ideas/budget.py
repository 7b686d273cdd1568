"""The most that a call can cost, and whether the hard caps allow it. Pure; prices are given.

A cap is enforced before a call: spending so far, plus the ceilings of calls under way and of the new one, must fit. So the
recorded total never exceeds a cap as long as every call stays under its ceiling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.domain import queries
from engine.domain.errors import BudgetExhausted
from engine.domain.model import Usage
from engine.domain.state import CallStatus, ModelCall, SessionState

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
"""For calls whose tokens are not counted: replies by hand, commands, recorded replies."""


def ceiling(texts: tuple[str, ...], max_output: int, tariff: Tariff | None) -> Ceiling:
    """The most that a call with these texts can cost.

    Every token has at least one byte in tokenisers that work on bytes or fall back to them, so bytes bound the tokens of a
    prompt. Usual text has three to four bytes a token, but dense code comes near one: no smaller bound is safe.
    """
    size = sum(len(text.encode("utf-8", "replace")) for text in texts) + FRAMING
    return Ceiling(size + max_output, tariff(Usage(size, 0, max_output)) if tariff is not None else None)


class BudgetHeld(BudgetExhausted):
    """Only calls under way leave no room; when one of them ends, there may be room."""


def check(state: SessionState, model: str, wanted: Ceiling, tariff_of: TariffOf, reserved: Mapping[str, float]) -> None:
    """Whether the session's caps allow a call that costs ``wanted`` at most.

    ``reserved`` are the ceilings in dollars of the calls under way in this process; other open calls count as if all their
    tokens were of the more expensive kind.

    Raises:
        BudgetHeld: not before the calls under way here end.
        BudgetExhausted: not at all; also under a cap in dollars for a model whose price is unknown.
    """
    limits = state.limits
    open_calls = [call for call in state.calls.values() if call.status is CallStatus.OPEN]
    if limits.tokens is not None:
        spent, held = queries.total_usage(state).total, sum(call.ceiling for call in open_calls)
        if spent + held + wanted.tokens > limits.tokens:
            here = sum(call.ceiling for call in open_calls if call.id in reserved)
            error = BudgetHeld if spent + held - here + wanted.tokens <= limits.tokens else BudgetExhausted
            raise error(_tokens(model, spent, held, wanted.tokens, limits.tokens))
    if limits.usd is not None:
        _check_usd(state, open_calls, model, wanted.usd, limits.usd, tariff_of, reserved)


def _check_usd(
    state: SessionState,
    open_calls: Sequence[ModelCall],
    model: str,
    wanted: float | None,
    cap: float,
    tariff_of: TariffOf,
    reserved: Mapping[str, float],
) -> None:
    if wanted is None:
        raise BudgetExhausted(_unpriced(model, cap))
    spent, unpriced = queries.total_usd(state)
    if unpriced:
        raise BudgetExhausted(f"the price of {unpriced} earlier calls is not known, so ${cap:g} cannot be kept to")
    elsewhere = sum(_highest_cost(call, tariff_of, cap) for call in open_calls if call.id not in reserved)
    here = sum(reserved.get(call.id, 0.0) for call in open_calls)
    if spent + elsewhere + here + wanted > cap:
        error = BudgetHeld if spent + elsewhere + wanted <= cap else BudgetExhausted
        raise error(_usd(model, spent, elsewhere + here, wanted, cap))


def _highest_cost(call: ModelCall, tariff_of: TariffOf, cap: float) -> float:
    """The most that an open call of another process can cost."""
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
