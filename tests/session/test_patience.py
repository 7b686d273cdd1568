"""A night of provider trouble, in simulated time: outages are waited out, longer ones park the session, and nothing is lost."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support import sessions, virtual_time
from support.fake_models import code_reply, ideas_reply

from engine.domain import queries
from engine.domain.model import CATEGORIES, Usage
from engine.domain.settings import Limits
from engine.domain.state import SessionState
from engine.ideas.factory import open_ideas
from engine.ideas.models.model import ModelError, OnText, Prompt, Reply, Retry, Spent, Trouble
from engine.journal import journal
from engine.journal.blobs import Blobs
from engine.session import live
from engine.session.fake_bench import FakeBench
from engine.session.live import LiveSession
from engine.session.outcome import EngineStopped, Outcome, SessionEnded, Until
from engine.session.source import Progress

HOUR = 3600.0
SEEDS = [0, pytest.param(7, marks=pytest.mark.slow), pytest.param(11, marks=pytest.mark.slow)]


@pytest.fixture(autouse=True)
def _rare_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody leaves commands in the inbox: simulated hours need not look for them six times a second."""
    monkeypatch.setattr(live, "_INBOX_POLL", (60.0, 60.0))


@dataclass
class Provider:
    """A model whose server is out of reach at times; a reply takes minutes."""

    outages: list[tuple[float, float]]
    dice: random.Random
    name: str = "openai:fake"
    output_limit: int | None = None
    began: float = 0.0
    failed: int = 0
    made: int = 0
    billed: list[Usage] = field(default_factory=list)

    async def ask(self, prompt: Prompt, on_text: OnText) -> Reply:
        if self._down():
            self.failed += 1
            after = self.dice.choice([None, 20.0])
            raise ModelError(Trouble.UNREACHABLE, f"{self.name}: the provider is overloaded", retry=Retry(after))
        await asyncio.sleep(self.dice.uniform(60.0, 600.0))
        if self._down():  # the outage cut the stream
            self.failed += 1
            raise ModelError(Trouble.UNREACHABLE, f"{self.name}: cut off", spent=Spent.UNKNOWN, retry=Retry())
        self.made += 1
        if prompt.schema is not None:
            words = [f"{chr(97 + n)}{self.made} word{self.made}{n} thing{self.made}{n}" for n in range(4)]
            return Reply(ideas_reply(*words), Usage(100, 0, 50))
        return Reply(code_reply(sessions.source(f"kernel {self.made}", f"time_us = {900 - self.made}")), Usage(100, 0, 50))

    def _down(self) -> bool:
        now = virtual_time.now() - self.began
        return any(start <= now < end for start, end in self.outages)

    async def close(self) -> None:
        """Does nothing."""


def _night(dice: random.Random) -> list[tuple[float, float]]:
    """Outages of 1 to 90 minutes over eight hours. The longest is one of the first three, before any session is done."""
    outages, at = [], dice.uniform(0.0, HOUR / 2)
    lengths = [dice.uniform(1.0, 90.0) for _ in range(10)]
    lengths.insert(dice.randrange(3), 90.0)
    for minutes in lengths:
        outages.append((at, at + minutes * 60.0))
        at += minutes * 60.0 + dice.uniform(60.0, HOUR)
    return [outage for outage in outages if outage[0] < 8 * HOUR]


async def _run(
    folder: Path, provider: Provider, patience: float, seen: list[Progress], *, first: bool, branch: int = 2
) -> tuple[SessionState, Outcome]:
    limits = Limits(rounds=8, plateau=None, light=None, tokens=5_000_000)
    opened = sessions.opened(source="openai:fake", ideas=2, branch=branch, limits=limits, patience=patience)
    ideas = open_ideas(
        opened.settings,
        playbook=sessions.TREE,
        open_model=lambda *_: provider,
        tariff_of=lambda _: None,
        clock=virtual_time.now,
    )
    bench = FakeBench(Blobs(folder).put, pause=30.0)
    ports = sessions.ports(folder, ideas, bench, clock=virtual_time.now, sleep=asyncio.sleep)
    session = LiveSession.create(folder, opened, ports) if first else LiveSession.resume(folder, ports)
    async with session:

        async def watch() -> None:
            seen.extend([progress async for progress in session.progress()])

        watching = asyncio.create_task(watch())
        outcome = await session.run(Until.IDLE)
    await watching
    return session.state, outcome


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_eight_hours_with_outages_end_with_all_rounds_done(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    provider, seen = Provider(_night(dice), dice), []

    async def night() -> tuple[SessionState, Outcome, float]:
        provider.began = virtual_time.now()
        state, outcome = await _run(tmp_path, provider, 2 * HOUR, seen, first=True)
        return state, outcome, virtual_time.now() - provider.began

    state, outcome, seconds = virtual_time.run(night())
    assert isinstance(outcome, SessionEnded), outcome
    assert state.closed == "8 of 8 rounds done"
    assert seconds > 4 * HOUR
    assert provider.failed > 20
    assert all(round_.answered for round_ in state.rounds.values())
    countdown = [p.text for p in seen if "retrying in" in p.text]
    assert any(p.lasting for p in seen)
    assert any("giving up in 1:" in text for text in countdown)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_an_outage_longer_than_the_patience_parks_the_session_and_a_resume_goes_on(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    provider = Provider(_night(dice), dice)

    async def night() -> tuple[SessionState, int]:
        provider.began = virtual_time.now()
        parked, first = 0, True
        while True:
            state, outcome = await _run(tmp_path, provider, HOUR, [], first=first)
            first = False
            if not isinstance(outcome, EngineStopped):
                assert isinstance(outcome, SessionEnded), outcome
                return state, parked
            assert all("overloaded" in reason or "cut off" in reason for reason in outcome.reasons.values())
            assert not state.rounds[queries.last_round(state)].closed
            parked += 1

    state, parked = virtual_time.run(night())
    assert state.closed == "8 of 8 rounds done"
    assert parked >= 1, "ninety minutes are longer than an hour"
    assert {idea.text.category for idea in state.ideas.values()} <= set(CATEGORIES)


@pytest.mark.slow
def test_other_work_goes_on_during_a_wait(tmp_path: Path) -> None:
    """The model is out of reach after its first code: the kernel with that code is built, verified and measured meanwhile."""

    class Breaking(Provider):
        def _down(self) -> bool:
            return self.made >= 2 and virtual_time.now() - self.began < 5000.0

    provider = Breaking([], random.Random(5))

    async def night() -> SessionState:
        provider.began = virtual_time.now()
        state, _ = await _run(tmp_path, provider, 2 * HOUR, [], first=True, branch=1)
        return state

    state = virtual_time.run(night())
    kinds = ("kernel.built", "kernel.measured", "kernel.verified")
    entries = [entry for entry in journal.read(tmp_path).entries if entry.event.KIND in kinds]
    during = [entry for entry in entries if 100.0 < entry.at - state.opened_at < 5000.0]
    assert {entry.event.KIND for entry in during} == set(kinds)
    assert provider.failed > 10
