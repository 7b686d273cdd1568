"""Hard caps are enforced before every call, including concurrent ones."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders as b
from support.fake_models import FakeModel, Tape

from engine.domain import events as e
from engine.domain import queries
from engine.domain.errors import BudgetExhausted
from engine.domain.model import CallRole, Usage
from engine.domain.settings import Limits
from engine.domain.state import SessionState
from engine.ideas import budget
from engine.ideas.budget import FRAMING, BudgetHeld, Ceiling
from engine.ideas.model_calls import ModelCalls, Question
from engine.ideas.models.http_model import counted
from engine.ideas.models.model import ModelError, Prompt, Reply, Spent, Trouble

PRICE = 1e-6, 4e-6


def tariff(usage: Usage) -> float:
    return usage.input * PRICE[0] + usage.output * PRICE[1]


def known(model: str) -> budget.Tariff | None:
    return None if model.endswith("unknown") else tariff


def session(*events: e.Event, **limits: float | int | None) -> SessionState:
    return b.fold(b.opened(limits=replace(Limits(), **limits)), *events)


def started(call: str, ceiling: int, model: str = "openai:x") -> e.Event:
    return e.CallStarted(call, f"implement:{call}", CallRole.CODE, model, b.digest(call), ceiling)


def answered(call: str, total: int, usd: float | None = 0.0) -> e.Event:
    return e.CallAnswered(call, b.digest("reply"), Usage(total, 0, 0), usd)


def test_a_ceiling_bounds_the_tokens_of_a_text() -> None:
    found = budget.ceiling(("a" * 100, "é"), 500, tariff)
    assert found.tokens == 100 + 2 + FRAMING + 500
    assert found.usd == pytest.approx((102 + FRAMING) * 1e-6 + 500 * 4e-6)
    assert budget.ceiling(("\ud800",), 1, None) == Ceiling(Usage(1 + FRAMING, 0, 1), None)


@pytest.mark.parametrize(
    ("events", "tokens", "wanted", "fits"),
    [
        ((), None, 10**9, True),
        ((), 100, 100, True),
        ((), 100, 101, False),
        ((started("c1", 60),), 100, 40, True),
        ((started("c1", 60),), 100, 41, False),
        ((started("c1", 60), answered("c1", 10)), 100, 90, True),
        ((started("c1", 60), answered("c1", 10)), 100, 91, False),
        ((started("c1", 60), e.CallFailed("c1", "no")), 100, 100, True),
    ],
)
def test_spent_reserved_and_requested_tokens_must_fit(
    events: tuple[e.Event, ...], tokens: int | None, wanted: int, fits: bool
) -> None:
    state = session(*events, tokens=tokens)
    if fits:
        budget.check(state, "openai:x", Ceiling(Usage(0, 0, wanted), None), known, {})
    else:
        with pytest.raises(BudgetExhausted, match=r"of 100 tokens spent.*openai:x could cost"):
            budget.check(state, "openai:x", Ceiling(Usage(0, 0, wanted), None), known, {})


def test_spent_reserved_and_requested_dollars_must_fit() -> None:
    state = session(started("c1", 100_000), started("c2", 9), answered("c2", 1, 0.25), usd=1.0)
    budget.check(state, "openai:x", Ceiling(Usage(0, 0, 1), 0.35), known, {})
    budget.check(state, "openai:x", Ceiling(Usage(0, 0, 1), 0.7), known, {"c1": 0.05})
    with pytest.raises(BudgetExhausted, match=r"\$0.25 of \$1 spent, up to \$0.4 held by open calls"):
        budget.check(state, "openai:x", Ceiling(Usage(0, 0, 1), 0.36), known, {})


@pytest.mark.parametrize(
    ("events", "wanted"),
    [
        ((), Ceiling(Usage(0, 0, 1), None)),
        ((started("c1", 5, "openai:unknown"),), Ceiling(Usage(0, 0, 1), 0.0)),
        ((started("c1", 5), answered("c1", 5, None)), Ceiling(Usage(0, 0, 1), 0.0)),
    ],
)
def test_a_cap_in_dollars_needs_every_price(events: tuple[e.Event, ...], wanted: Ceiling) -> None:
    with pytest.raises(BudgetExhausted, match="unknown"):
        budget.check(session(*events, usd=1.0), "openai:unknown", wanted, known, {})
    budget.check(session(*events), "openai:unknown", wanted, known, {})


def test_uncounted_calls_are_free() -> None:
    state = session(started("c1", 0, "command:agent"), tokens=0, usd=0.0)
    budget.check(state, "paste", budget.FREE, known, {})


def test_a_call_can_wait_for_budget_reserved_in_this_process() -> None:
    state = session(started("c1", 60), started("c2", 30), tokens=100, usd=1.0)
    with pytest.raises(BudgetHeld):
        budget.check(state, "openai:x", Ceiling(Usage(0, 0, 70), 0.0), known, {"c1": 0.0})
    with pytest.raises(BudgetExhausted) as error:
        budget.check(state, "openai:x", Ceiling(Usage(0, 0, 71), 0.0), known, {"c1": 0.0})
    assert not isinstance(error.value, BudgetHeld)
    with pytest.raises(BudgetHeld):
        budget.check(state, "openai:x", Ceiling(Usage(0, 0, 10), 0.5), known, {"c1": 0.9})


def test_calls_wait_for_reserved_budget_rather_than_end_a_session() -> None:
    ceiling = budget.ceiling(("", "x"), 50, None).tokens
    tape, shared = Tape(session(tokens=2 * ceiling)), ModelCalls(known)
    models = [FakeModel(["reply"], usage=Usage(10, 0, 10)) for _ in range(6)]

    async def everything() -> list[str]:
        question = Question(CallRole.CODE, Prompt("", "x", None, 50), str)
        conversations = [shared.conversation(model, tape.calls(f"implement:i{n}")) for n, model in enumerate(models)]
        return await asyncio.gather(*(conversation.ask(question) for conversation in conversations))

    assert asyncio.run(asyncio.wait_for(everything(), 10)) == ["reply"] * 6
    assert all(len(model.asked) == 1 for model in models)


CALLS = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(1, 3000), st.floats(0, 1), st.integers(0, 3), st.sampled_from("afk")),
    min_size=1,
    max_size=12,
)


@given(CALLS, st.integers(0, 30_000), st.floats(0, 0.05))
def test_concurrent_calls_never_exceed_a_cap(wanted: list[tuple[int, int, float, int, str]], tokens: int, usd: float) -> None:
    """Each call spends up to its ceiling; some fail, some are abandoned, some run concurrently."""
    tape = Tape(session(tokens=tokens, usd=usd))
    shared = ModelCalls(known)

    async def one(number: int, size: int, output: int, share: float, delay: int, fate: str) -> None:
        async def before() -> None:
            for _ in range(delay):
                await asyncio.sleep(0)

        given_tokens = size + FRAMING
        spent = Reply("reply", Usage(int(given_tokens * share), 0, int(output * share)))
        model = FakeModel([asyncio.CancelledError() if fate == "k" else spent], before=before)
        question = Question(CallRole.CODE, Prompt("", "x" * size, None, output), str)
        await shared.conversation(model, tape.calls(f"implement:i{number}")).ask(question)

    async def everything() -> None:
        await asyncio.gather(*(one(n, *call) for n, call in enumerate(wanted)), return_exceptions=True)

    asyncio.run(everything())
    assert queries.total_usage(tape.state).total <= tokens
    assert queries.total_usd(tape.state)[0] <= usd + 1e-12
    assert not shared.reserved


@pytest.mark.parametrize(
    ("figures", "usage"),
    [
        ((7, 3, 2), Usage(7, 3, 2)),
        ((7, None, None), Usage(7, 0, 0)),
        ((7, 9, 2), Usage(7, 7, 2)),
        ((-1, 0, 2), None),
        (("7", 0, 2), None),
        ((7, 0, True), None),
        ((7.5, 0, 2), None),
        ((float("nan"), 0, 2), None),
    ],
)
def test_only_counts_are_a_usage(figures: tuple[object, object, object], usage: Usage | None) -> None:
    assert counted(*figures) == usage


@pytest.mark.parametrize(
    ("told", "is_counted", "charged", "estimated"),
    [
        (Usage(100, 0, 50), True, Usage(100, 0, 50), False),
        (Usage(100, 0, 5_000), True, Usage(100, 0, 5_000), False),
        (Usage(10**18, 0, 1), True, Usage(1_010, 0, 1_000), True),
        (Usage(), False, Usage(1_010, 0, 1_000), True),
    ],
    ids=["counted", "beyond its limit", "absurd", "none"],
)
def test_a_reply_is_charged_what_the_server_counted_unless_that_cannot_be(
    told: Usage, is_counted: bool, charged: Usage, estimated: bool
) -> None:
    ceiling = budget.ceiling(("0123456789",), 1_000, None)
    assert budget.settled(ceiling, Reply("ok", told, counted=is_counted)) == (charged, estimated)


def test_absurd_counts_of_a_failed_call_are_not_charged() -> None:
    ceiling = budget.ceiling(("0123456789",), 1_000, None)
    lost = ModelError(Trouble.UNREACHABLE, "cut", Usage(10**18), spent=Spent.UNKNOWN)
    counted_wrongly = ModelError(Trouble.REPLY, "stopped", Usage(0, 0, 10**18), spent=Spent.COUNTED)
    assert budget.charge(ceiling, lost) == (ceiling.usage, True)
    assert budget.charge(ceiling, counted_wrongly) == (ceiling.usage, True)
