"""No cap is exceeded by one token, whatever a provider does: what it bills is compared with what the journal says."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field

import pytest
from support import builders as b
from support import virtual_time
from support.fake_models import Killed, Tape

from engine.domain import commands as c
from engine.domain import queries, rules
from engine.domain.errors import BudgetExhausted, CallCancelled
from engine.domain.model import CallRole, Usage
from engine.domain.settings import Limits
from engine.domain.state import CallStatus
from engine.ideas.budget import FRAMING
from engine.ideas.model_calls import ModelCalls, Question
from engine.ideas.models.model import Finish, ModelError, OnText, Prompt, Reply, Retry, Spent, Trouble
from engine.ideas.replies import ReplyError

PRICE = 1e-6, 8e-6
FATES = ("answers", "answers", "answers", "uncounted", "cut", "cut early", "told", "limited", "down", "refuses", "garbage",
         "truncated", "hangs", "permanent")  # fmt: skip


def tariff(usage: Usage) -> float:
    return usage.input * PRICE[0] + usage.output * PRICE[1]


@dataclass
class Provider:
    """A model that may fail in every known way, and bills what a real one would."""

    dice: random.Random
    name: str = "openai:fake"
    output_limit: int | None = None
    billed: list[Usage] = field(default_factory=list)
    on_call: list[str] = field(default_factory=list)

    async def ask(self, prompt: Prompt, on_text: OnText) -> Reply:
        fate = self.dice.choice(FATES)
        self.on_call.append(fate)
        size = len(prompt.system.encode()) + len(prompt.user.encode()) + FRAMING
        used = Usage(self.dice.randint(1, size), 0, self.dice.randint(0, prompt.max_output))
        if fate in ("limited", "down", "permanent"):
            retry = None if fate == "permanent" else Retry(self.dice.choice([None, 5.0, 40.0]))
            raise ModelError(Trouble.QUOTA if fate == "limited" else Trouble.UNREACHABLE, fate, retry=retry)
        self.billed.append(Usage(used.input, 0, self.dice.randint(0, used.output)))
        place = len(self.billed) - 1
        await asyncio.sleep(self.dice.choice([0.0, 0.0, 3.0]))
        self.billed[place] = used
        match fate:
            case "cut" | "hangs":
                raise ModelError(Trouble.UNREACHABLE, fate, spent=Spent.UNKNOWN, retry=Retry())
            case "cut early":
                told = Usage(used.input, 0, 1)
                raise ModelError(Trouble.UNREACHABLE, fate, told, spent=Spent.UNKNOWN, retry=Retry())
            case "told":
                raise ModelError(Trouble.REPLY, fate, used, spent=Spent.COUNTED, retry=Retry())
            case "uncounted":
                return Reply("7", Usage(), counted=False)
            case "truncated":
                return Reply("7", used, Finish.LENGTH)
            case "refuses":
                return Reply("no", used, Finish.REFUSED)
        return Reply("7" if fate == "answers" else "seven", used)

    async def close(self) -> None:
        """Does nothing."""


def number(reply: str) -> int:
    if reply != "7":
        raise ReplyError("not a number")
    return 7


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_over_random_failures_kills_and_cancellations(block: int) -> None:
    answered = 0
    for seed in range(block * 25, block * 25 + 25):
        answered += _schedule(seed)
    assert answered > 25, "most schedules let some calls through"


def _schedule(seed: int) -> int:
    """One session of five questions, killed at random places; returns how many were answered."""
    dice = random.Random(seed)
    limits = Limits(
        tokens=dice.choice([None, dice.randint(2_000, 60_000)]), usd=dice.choice([None, dice.uniform(0.002, 0.2)])
    )  # fmt: skip
    tape = Tape(b.fold(b.opened(limits=limits)))
    provider = Provider(dice)
    kills = [dice.randint(1, 12) for _ in range(dice.randint(0, 4))]
    found: list[object] = []
    for room in [*kills, None]:
        tape.room = None if room is None else len(tape.events) + room
        shared = ModelCalls(lambda _: tariff, clock=virtual_time.now)
        with contextlib.suppress(Killed):
            found = virtual_time.run(_session(dice, tape, shared, provider))
    _check(tape, provider, limits, f"seed {seed}")
    return sum(1 for one in found if one == 7)


async def _session(dice: random.Random, tape: Tape, shared: ModelCalls, provider: Provider) -> list[object]:
    async def one(n: int) -> int:
        question = Question(CallRole.CODE, Prompt("s", f"Question {n}. " * 20, None, 200 * (n + 1)), number, retry_failed=True)
        return await shared.conversation(provider, tape.calls(f"implement:i{n}")).ask(question)

    async def meddle() -> None:
        await asyncio.sleep(dice.choice([0.5, 2.0, 30.0]))
        for call in tape.state.calls.values():
            if call.status is CallStatus.OPEN and dice.random() < 0.3:
                tape.record(rules.decide(tape.state, c.CancelCall(call.id)))
                return

    meddler = asyncio.create_task(meddle())
    try:
        found = await asyncio.gather(*(one(n) for n in range(5)), return_exceptions=True)
    finally:
        meddler.cancel()
    if killed := next((e for e in found if isinstance(e, Killed)), None):
        raise killed
    for error in found:
        assert isinstance(error, int | ModelError | ReplyError | CallCancelled | BudgetExhausted), error
    return list(found)


def _check(tape: Tape, provider: Provider, limits: Limits, where: str) -> None:
    recorded = queries.total_usage(tape.state)
    billed = sum(provider.billed, Usage())
    usd = sum(tariff(usage) for usage in provider.billed)
    held = sum(call.ceiling for call in tape.state.calls.values() if call.status is CallStatus.OPEN)
    assert billed.total <= recorded.total + held, f"{where}: spent more than is recorded"
    if limits.tokens is not None:
        assert recorded.total + held <= limits.tokens, where
        assert billed.total <= limits.tokens, where
    if limits.usd is not None:
        assert queries.total_usd(tape.state)[0] <= limits.usd + 1e-12, where
        assert usd <= limits.usd + 1e-12, where
    estimated = [call for call in tape.state.calls.values() if call.estimated]
    assert all(call.usage.total for call in estimated)
