"""The highest possible cost of a call, and the check against the hard caps. Pure; the caller passes the prices.

Caps are enforced before a call: the amount spent plus the ceilings of open calls and of the new call must fit. The recorded
total never exceeds a cap as long as every call stays below its ceiling. What a call has cost and nobody has counted is charged
with all that it could have cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.domain import queries
from engine.domain.errors import BudgetExhausted
from engine.domain.model import Usage
from engine.domain.state import CallStatus, ModelCall, SessionState
from engine.ideas.models.model import ModelError, Reply, Spent

Tariff = Callable[[Usage], float]
"""Dollars for a usage."""

TariffOf = Callable[[str], Tariff | None]
"""The tariff of a model by its name; ``None`` if its price is unknown."""

FRAMING = 1_000
"""Tokens that a protocol may add to a prompt: roles, separators, the wrapping of a schema."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The highest possible cost of one call."""

    usage: Usage
    usd: float | None
    """``None`` if the price is unknown."""

    @property
    def tokens(self) -> int:
        return self.usage.total


FREE = Ceiling(Usage(), 0.0)
"""The ceiling of calls that cost nothing: pasted replies and recorded replies."""


def ceiling(texts: tuple[str, ...], max_output: int, tariff: Tariff | None) -> Ceiling:
    """The highest possible cost of a call with these texts.

    Byte-level tokenisers, and those that fall back to bytes, use at least one byte a token, so bytes bound the tokens of a
    prompt. Prose has three to four bytes a token, but dense code comes close to one: no smaller bound is safe.
    """
    size = sum(len(text.encode("utf-8", "replace")) for text in texts) + FRAMING
    usage = Usage(size, 0, max_output)
    return Ceiling(usage, tariff(usage) if tariff is not None else None)


_CREDIBLE = 10
"""Usage beyond so many ceilings is no count: a server may ignore a limit, but not by that much."""


def settled(ceiling: Ceiling, reply: Reply) -> tuple[Usage, bool]:
    """(what a reply is charged, whether that is an estimate)."""
    if reply.counted and _is_credible(reply.usage, ceiling):
        return reply.usage, False
    return ceiling.usage, True


def _is_credible(usage: Usage, ceiling: Ceiling) -> bool:
    return usage.total <= _CREDIBLE * max(1, ceiling.tokens)


def charge(ceiling: Ceiling, error: ModelError) -> tuple[Usage, bool]:
    """(what a failed attempt is charged, whether that is an estimate).

    Where the cost is unknown, it is all that the attempt could have cost; the prompt counts as reported.
    """
    match error.spent:
        case Spent.NOTHING:
            return Usage(), False
        case Spent.COUNTED if _is_credible(error.usage, ceiling):
            return error.usage, False
        case _:
            reported = error.usage if _is_credible(error.usage, ceiling) else Usage()
            return Usage(reported.input or ceiling.usage.input, reported.cached, ceiling.usage.output), True


class BudgetHeld(BudgetExhausted):
    """The budget is held by open calls; it may suffice once one of them ends."""


def check(state: SessionState, model: str, wanted: Ceiling, tariff_of: TariffOf, reserved: Mapping[str, float]) -> None:
    """Check that the session's caps allow a call that costs at most ``wanted``.

    ``reserved`` maps the open calls of this process to their ceilings in dollars. Other open calls count as if all their
    tokens were of the more expensive kind.

    Raises:
        BudgetHeld: the caps may allow it once the open calls of this process end.
        BudgetExhausted: the caps do not allow it; also under a cap in dollars for a model whose price is unknown.
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
    spent, unpriced = _spent_usd(state, tariff_of)
    if unpriced:
        raise BudgetExhausted(f"the price of {unpriced} earlier calls is unknown: the cap of ${cap:g} cannot be enforced")
    elsewhere = sum(_highest_cost(call, tariff_of, cap) for call in open_calls if call.id not in reserved)
    here = sum(reserved.get(call.id, 0.0) for call in open_calls)
    if spent + elsewhere + here + wanted > cap:
        error = BudgetHeld if spent + elsewhere + wanted <= cap else BudgetExhausted
        raise error(_usd(model, spent, elsewhere + here, wanted, cap))


def _spent_usd(state: SessionState, tariff_of: TariffOf) -> tuple[float, int]:
    """(dollars, calls of unknown price). A call that was cancelled by hand may have no price yet."""
    spent, unpriced = queries.total_usd(state)
    for call in state.calls.values():
        if call.usd is None and call.cancelled and call.usage.total and (tariff := tariff_of(call.model)) is not None:
            spent, unpriced = spent + tariff(call.usage), unpriced - 1
    return spent, unpriced


def _highest_cost(call: ModelCall, tariff_of: TariffOf, cap: float) -> float:
    """The highest possible cost of another process's open call."""
    if not call.ceiling:
        return 0.0
    tariff = tariff_of(call.model)
    if tariff is None:
        raise BudgetExhausted(_unpriced(call.model, cap))
    if call.max_output:
        return tariff(call.highest)
    return max(tariff(Usage(input=call.ceiling)), tariff(Usage(output=call.ceiling)))


def _unpriced(model: str, cap: float) -> str:
    return f"the price of {model} is unknown, so the cap of ${cap:g} cannot be enforced: limit tokens, or use another model"


def _tokens(model: str, spent: int, held: int, wanted: int, cap: int) -> str:
    open_calls = f", up to {held:,} held by open calls" if held else ""
    return f"{spent:,} of {cap:,} tokens spent{open_calls}: the next call to {model} could cost {wanted:,}"


def _usd(model: str, spent: float, held: float, wanted: float, cap: float) -> str:
    open_calls = f", up to ${held:.4g} held by open calls" if held else ""
    return f"${spent:.4g} of ${cap:g} spent{open_calls}: the next call to {model} could cost ${wanted:.4g}"
