"""Whole searches with ideas and code over HTTP, from a server that speaks the real protocol and fails at random."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import sessions
from support.agent import FAULTS, Troubled, reply, wants_ideas
from support.fake_models import LAUNCH
from support.model_servers import GeminiServer, ModelServer, OpenAIServer
from support.model_turns import Asked, Hangs, OutOfCredit, Turn
from support.more_model_servers import ResponsesServer
from support.sessions import TREE, opened, ports

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import queries
from engine.domain.model import CATEGORIES, CallRole, FailureKind, IdeaText, Usage
from engine.domain.settings import Limits, ModelSettings, Pauses
from engine.domain.state import CallStatus, ModelCall, SessionState, Stage
from engine.domain.work import WorkKey
from engine.ideas.factory import open_ideas
from engine.ideas.models.providers import PROVIDERS
from engine.ideas.models.retry_policy import RetryPolicy
from engine.ideas.proposer import Proposer
from engine.ideas.recall import Recall, recorded_replies
from engine.journal import store
from engine.journal.blobs import Blobs
from engine.journal.journal import read
from engine.session.fake_bench import FakeBench
from engine.session.live import LiveSession
from engine.session.outcome import AwaitingEngineer, EngineStopped, Outcome, SessionEnded, Until

QUICK = RetryPolicy(attempts=4, first_wait=0.001, longest_wait=0.01, silence=5, seconds=20)
KINDS: dict[str, Callable[..., ModelServer]] = {"openai": OpenAIServer, "gemini": GeminiServer}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-openai-0123456789abcdef")
    monkeypatch.setenv("GEMINI_API_KEY", "AIzaTestGemini0123456789abcdef")


def settings(kind: str = "openai", **others: Any) -> e.SessionOpened:
    given = {"source": f"{kind}:test-model", "limits": Limits(rounds=5, plateau=None, light=None), **others}
    return opened(**given)


def ideas(what: e.SessionOpened, server: ModelServer, recall: Recall | None = None) -> Proposer:
    def opener(name: str, models: ModelSettings) -> Any:
        provider = name.partition(":")[0]
        api = "responses" if isinstance(server, ResponsesServer) else ""
        return server.open(name, key=PROVIDERS[provider].keys[0], api=api, policy=QUICK)

    return open_ideas(what.settings, playbook=TREE, open_model=opener, tariff_of=lambda _: _tariff, recall=recall, policy=QUICK)


def _tariff(usage: Usage) -> float:
    return usage.input * 1e-6 + usage.output * 8e-6


def searched(
    folder: Path, what: e.SessionOpened, server: ModelServer, until: Until = Until.IDLE
) -> tuple[SessionState, Outcome]:
    """Run a new session to its end; reopen it whenever it stopped because the model did not answer."""

    async def search() -> Outcome:
        async with LiveSession.create(folder, what, ports(folder, ideas(what, server))) as live:
            return await _persistently(live, Until.IDLE)

    outcome = sessions.run(search)
    return store.state_of(folder), outcome


async def _persistently(live: LiveSession, until: Until) -> Outcome:
    for _ in range(20):
        outcome = await live.run(until)
        if not isinstance(outcome, EngineStopped):
            return outcome
        await live.retry()
    raise AssertionError(f"it never ends: {outcome}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_five_rounds_over_http_count_every_token(tmp_path: Path, kind: str) -> None:
    with KINDS[kind](reply) as server:
        state, outcome = searched(tmp_path / "s", settings(kind), server)
        assert outcome == SessionEnded("5 of 5 rounds done")
        assert queries.total_usage(state) == server.counted
        assert len(state.calls) == len(server.requests)
    assert {c.model for c in state.calls.values()} == {f"{kind}:test-model"}
    assert {k.author.name for k in state.kernels.values() if k.round > 0} == {f"{kind}:test-model"}
    assert all(call.status is CallStatus.ANSWERED for call in state.calls.values())
    repaired = [k for k in state.kernels.values() if k.attempt > 0]
    assert repaired, "a model repairs what fails"
    blobs = Blobs(tmp_path / "s")
    assert all(blobs.text(call.prompt) and blobs.text(call.reply) for call in state.calls.values())
    assert "sk-test" not in "".join(p.read_text("utf-8", "replace") for p in (tmp_path / "s").rglob("*") if p.is_file())


@pytest.mark.slow
@pytest.mark.parametrize("counters", [True, False], ids=["readable", "unreadable"])
def test_the_parents_counters_stand_in_the_prompts_where_they_can_be_read(tmp_path: Path, *, counters: bool) -> None:
    folder = tmp_path / "s"
    rounds = settings(limits=Limits(rounds=2, plateau=None, light=None))
    bench = FakeBench(Blobs(folder).put, counters=counters)
    with OpenAIServer(reply) as server:

        async def search() -> None:
            async with LiveSession.create(folder, rounds, ports(folder, ideas(rounds, server), bench)) as live:
                await _persistently(live, Until.CLOSED)

        sessions.run(search)
    state = store.state_of(folder)
    prompts = [Blobs(folder).text(call.prompt) for call in state.calls.values() if call.role is CallRole.IDEAS]
    profiled = [event.kernel for event in _events(folder) if isinstance(event, e.KernelProfiled)]
    assert profiled[0] == "k1"
    if counters:
        assert set(profiled) == {kernel for number in (1, 2) for kernel in state.rounds[number].parents}
        assert all("hardware counters" in prompt for prompt in prompts)
    else:
        assert profiled == ["k1"], "the reason is recorded once, and no further parent is tried"
        assert not any("counters" in prompt for prompt in prompts)


def _events(folder: Path) -> list[e.Event]:
    return [entry.event for entry in read(folder).entries]


@pytest.mark.slow
def test_it_survives_every_fault(tmp_path: Path) -> None:
    seen: set[str] = set()
    for seed in range(8):
        kind = ("openai", "gemini")[seed % 2]
        folder = tmp_path / str(seed)
        script = Troubled(seed)
        with KINDS[kind](script) as server:
            state, outcome = searched(folder, settings(kind), server)
            assert outcome == SessionEnded("5 of 5 rounds done"), seed
            found, estimated = queries.total_usage(state), any(call.estimated for call in state.calls.values())
            assert (found.input, found.output) >= (server.counted.input, server.counted.output), seed
            assert found.output >= server.counted.output, seed
            assert estimated or found == server.counted, seed
        assert all(k.stage.settled for k in state.kernels.values())
        seen |= script.kinds
    assert len(seen) == len(FAULTS), "a fault that never occurred proves nothing"


@pytest.mark.slow
def test_a_killed_search_pays_for_no_reply_twice(tmp_path: Path) -> None:
    original = tmp_path / "original"
    what = settings(limits=Limits(rounds=2, plateau=None, light=None))
    with OpenAIServer(reply) as server:
        searched(original, what, server)
    entries = read(original).entries
    places = [n for n, entry in enumerate(entries, 1) if isinstance(entry.event, e.CallStarted | e.CallAnswered | e.CallFailed)]
    assert len(places) > 12
    for place in places[::3]:
        copy = _cut(original, tmp_path / f"cut{place}", place)
        answered = {
            Blobs(copy).text(call.prompt) for call in store.state_of(copy).calls.values() if call.status is CallStatus.ANSWERED
        }
        with OpenAIServer(reply) as server:
            state = _resumed(copy, what, server)
            asked = {_words(request) for request in server.requests}
        assert not asked & answered, f"cut after {place} events: paid for twice"
        assert state.closed == "2 of 2 rounds done"
        died = [call for call in state.calls.values() if call.status is CallStatus.FAILED]
        assert all("process ended" in call.reason for call in died)


def _words(asked: Asked) -> str:
    return f"{asked.system}\n\n{asked.user}\n"


def _cut(original: Path, copy: Path, events: int) -> Path:
    shutil.copytree(original, copy)
    lines = (original / "journal.jsonl").read_bytes().splitlines(keepends=True)[:events]
    (copy / "journal.jsonl").write_bytes(b"".join(lines))
    return copy


def _resumed(folder: Path, what: e.SessionOpened, server: ModelServer) -> SessionState:
    async def go_on() -> None:
        async with LiveSession.resume(folder, ports(folder, ideas(what, server))) as live:
            await _persistently(live, Until.IDLE)

    sessions.run(go_on)
    return store.state_of(folder)


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{"tokens": 60_000}, {"usd": 0.6}])
def test_a_hard_cap_ends_the_session_before_it_is_exceeded(tmp_path: Path, limits: dict[str, float]) -> None:
    what = settings(limits=Limits(rounds=50, plateau=None, light=None, **limits))  # type: ignore[arg-type]
    with OpenAIServer(Troubled(3)) as server:
        state, outcome = searched(tmp_path / "s", what, server)
        assert isinstance(outcome, SessionEnded)
        assert state.closed == state.capped
        counted = [call for call in state.calls.values() if not call.estimated]
        assert sum(call.usage.total for call in counted) <= server.counted.total <= queries.total_usage(state).total
    dollars, unpriced = queries.total_usd(state)
    assert not unpriced
    assert queries.total_usage(state).total <= limits.get("tokens", 10**9)
    assert dollars <= limits.get("usd", 10**9)
    assert queries.total_usage(state).total > 0


@pytest.mark.slow
def test_a_pause_condition_pauses_until_the_engineer_resumes(tmp_path: Path) -> None:
    what = settings(limits=Limits(rounds=2, plateau=None, light=None), pauses=Pauses(tokens=1, round=2))

    async def act() -> list[str | None]:
        paused = []
        with OpenAIServer(reply) as server:
            async with LiveSession.create(tmp_path / "s", what, ports(tmp_path / "s", ideas(what, server))) as live:
                while isinstance(outcome := await live.run(Until.IDLE), AwaitingEngineer):
                    paused.append(outcome.paused)
                    await live.submit(c.ResumeSearch())
        return paused

    first, second = sessions.run(act)
    assert "above 1" in first
    assert second == "before round 2"


@pytest.mark.slow
def test_a_session_continues_after_a_cancelled_call(tmp_path: Path) -> None:
    what = settings(limits=Limits(rounds=1, plateau=None, light=None))

    def slow(asked: Asked) -> Turn:
        return Hangs()

    async def act() -> None:
        with OpenAIServer(slow) as server:
            async with LiveSession.create(tmp_path / "s", what, ports(tmp_path / "s", ideas(what, server))) as live:
                running = asyncio.ensure_future(live.run())
                while not server.requests:
                    await asyncio.sleep(0.01)
                running.cancel()
                await asyncio.wait({running})

    sessions.run(act)
    with OpenAIServer(reply) as server:
        assert _resumed(tmp_path / "s", what, server).closed == "1 of 1 rounds done"


@pytest.mark.slow
def test_exhausted_credit_stops_the_search_with_one_line_and_loses_nothing(tmp_path: Path) -> None:
    what = settings()

    async def act() -> Outcome:
        with OpenAIServer([OutOfCredit()]) as server:
            async with LiveSession.create(tmp_path / "s", what, ports(tmp_path / "s", ideas(what, server))) as live:
                return await live.run(Until.IDLE)

    outcome = sessions.run(act)
    assert isinstance(outcome, EngineStopped)
    assert "quota" in outcome.reasons[WorkKey.parse("propose:1")]
    with OpenAIServer(reply) as server:
        assert _resumed(tmp_path / "s", what, server).closed == "5 of 5 rounds done"


def delayed(seed: int) -> Callable[[Asked], Turn]:
    """``reply`` after a random delay, with kernels that are slower than the naive port.

    With a new incumbent, the depth of later measurements would depend on the order in which replies arrive.
    """
    dice = random.Random(seed)

    def answer(asked: Asked) -> Turn:
        time.sleep(dice.uniform(0.0, 0.03))
        return reply(asked, _slow_kernel)

    return answer


def _slow_kernel(dice: random.Random) -> str:
    return f"// FAKE: time_us = {dice.randint(950, 1500)}\n// {dice.random()}\n{LAUNCH}"


def sources(state: SessionState) -> set[tuple[str, str]]:
    return {(state.ideas[k.idea].text.title, k.source) for k in state.kernels.values()}


class TestWhatIf:
    """A recorded session repeated with different decisions."""

    what = settings(limits=Limits(rounds=2, plateau=None, light=None))

    def _recalled(
        self, folder: Path, recorded: Path, server: ModelServer, act: Sequence[c.Command] = ()
    ) -> tuple[SessionState, Outcome]:
        state = store.state_of(recorded)
        recall = recorded_replies(state, Blobs(recorded).text)

        async def again() -> Outcome:
            async with LiveSession.create(folder, self.what, ports(folder, ideas(self.what, server, recall))) as live:
                for command in act:
                    await live.submit(command)
                return await live.run(Until.IDLE)

        outcome = sessions.run(again)
        return store.state_of(folder), outcome

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(3))
    def test_the_same_decisions_are_answered_from_the_record(self, tmp_path: Path, seed: int) -> None:
        """In any order of replies, although kernel ids depend on it."""
        with OpenAIServer(delayed(seed)) as server:
            before, _ = searched(tmp_path / "first", self.what, server)
        with OpenAIServer(reply) as server:
            after, outcome = self._recalled(tmp_path / "again", tmp_path / "first", server)
            assert server.requests == []
        assert isinstance(outcome, SessionEnded)
        assert queries.total_usage(after) == Usage()
        assert sources(after) == sources(before)
        assert all(call.recalled for call in after.calls.values())

    @pytest.mark.slow
    def test_another_decision_pauses_before_new_spending(self, tmp_path: Path) -> None:
        with OpenAIServer(reply) as server:
            searched(tmp_path / "first", self.what, server)
        with OpenAIServer(reply) as server:
            _, outcome = self._recalled(tmp_path / "again", tmp_path / "first", server, [c.Instruct("No tiles.")])
            assert isinstance(outcome, AwaitingEngineer)
            assert outcome.paused is not None
            assert "costs tokens" in outcome.paused
            assert server.requests == []


class TestACallIsCancelled:
    """One call is cancelled while it runs; the search continues without it."""

    what = settings(limits=Limits(rounds=1, plateau=None, light=None), branch=1, ideas=2)

    def _stopped(self, folder: Path, role: CallRole, until: Until = Until.IDLE) -> tuple[SessionState, Outcome, int]:
        """A session whose first call of this role never ends, with the number of calls."""
        hung = threading.Event()

        def slow(asked: Asked) -> Turn:
            wanted = CallRole.IDEAS if wants_ideas(asked) else CallRole.REPAIR if "# Failure" in asked.user else CallRole.CODE
            if wanted is role and not hung.is_set():
                hung.set()
                return Hangs()
            return reply(asked, None if role is CallRole.CODE else _failing)

        async def act() -> tuple[Outcome, int]:
            with OpenAIServer(slow) as server:
                async with LiveSession.create(folder, self.what, ports(folder, ideas(self.what, server))) as live:
                    running = asyncio.ensure_future(live.run(until))
                    while not hung.is_set():
                        await asyncio.sleep(0.01)
                    call = next(
                        call for call in live.state.calls.values() if call.role is role and call.status is CallStatus.OPEN
                    )
                    await live.submit(c.CancelCall(call.id))
                    outcome = await running
                    return outcome, len(server.requests)

        outcome, asked = sessions.run(act)
        return store.state_of(folder), outcome, asked

    def _cancelled(self, state: SessionState) -> ModelCall:
        (call,) = (call for call in state.calls.values() if call.reason == "cancelled by hand")
        assert (call.status, call.usage, call.estimated) == (CallStatus.FAILED, call.highest, True)
        return call

    def test_a_round_continues_when_an_idea_gets_no_code(self, tmp_path: Path) -> None:
        state, outcome, asked = self._stopped(tmp_path / "s", CallRole.CODE)
        call = self._cancelled(state)
        idea = state.ideas[call.work.subject]
        assert outcome == SessionEnded("1 of 1 rounds done")
        assert (idea.implemented, idea.kernels) == (True, ())
        assert idea.note == f"implementation 1: {call.id} was cancelled by hand"
        assert [i.id for i in state.ideas.values() if i.round == 1 and i.kernels], "the other idea has code"
        assert asked == len(state.calls), "it was not asked again"

    def test_a_kernel_without_a_repair_keeps_its_failure(self, tmp_path: Path) -> None:
        state, outcome, asked = self._stopped(tmp_path / "s", CallRole.REPAIR)
        kernel = state.kernels[self._cancelled(state).work.subject]
        assert outcome == SessionEnded("1 of 1 rounds done")
        assert (kernel.stage, kernel.attempt) == (Stage.FAILED, 0)
        assert kernel.failure is not None
        assert kernel.failure.kind is FailureKind.BUILD_FAILED
        assert asked == len(state.calls)

    @pytest.mark.slow
    def test_a_round_waits_for_the_engineer_to_add_ideas_or_retry(self, tmp_path: Path) -> None:
        folder = tmp_path / "s"
        state, outcome, asked = self._stopped(folder, CallRole.IDEAS)
        call = self._cancelled(state)
        assert outcome == EngineStopped({WorkKey.parse("propose:1"): f"{call.id} was cancelled by hand"})
        assert asked == 1

        copy = tmp_path / "again"
        shutil.copytree(folder, copy)
        with OpenAIServer(reply) as server:
            after = _resumed(copy, self.what, server)
            assert any(wants_ideas(request) for request in server.requests)
        assert after.closed == "1 of 1 rounds done"
        assert {i.author.name for i in after.ideas.values() if i.round == 1} == {"openai:test-model"}

    def test_an_idea_of_the_engineer_is_implemented_after_the_proposal_is_cancelled(self, tmp_path: Path) -> None:
        folder = tmp_path / "s"
        own = IdeaText("Split rows over the cores", CATEGORIES[0], "one core is busy")

        async def act() -> Outcome:
            with OpenAIServer(lambda asked: Hangs() if wants_ideas(asked) else reply(asked)) as server:
                async with LiveSession.create(folder, self.what, ports(folder, ideas(self.what, server))) as live:
                    running = asyncio.ensure_future(live.run(Until.IDLE))
                    while not server.requests:
                        await asyncio.sleep(0.01)
                    await live.submit(c.CancelCall("c1"))
                    assert isinstance(await running, EngineStopped)
                    await live.submit(c.WriteIdea(own, "k1", select=True))
                    return await live.run(Until.IDLE)

        assert sessions.run(act) == SessionEnded("1 of 1 rounds done")
        state = store.state_of(folder)
        assert [i.text.title for i in state.ideas.values() if i.round == 1] == [own.title]
        assert [k.author.name for k in state.kernels.values() if k.round == 1] == ["openai:test-model"]
        assert sum(call.role is CallRole.IDEAS for call in state.calls.values()) == 1

    @pytest.mark.slow
    @pytest.mark.parametrize("role", [CallRole.CODE, CallRole.REPAIR, CallRole.IDEAS])
    def test_a_kill_right_after_a_cancellation_does_not_repeat_the_call(self, tmp_path: Path, role: CallRole) -> None:
        original = tmp_path / "original"
        state, _, _ = self._stopped(original, role)
        call = self._cancelled(state)
        entries = read(original).entries
        place = next(n for n, entry in enumerate(entries, 1) if isinstance(entry.event, e.CallFailed) and entry.event.cancelled)
        copy = _cut(original, tmp_path / "cut", place)
        prompt = Blobs(copy).text(call.prompt)

        async def once() -> Outcome:
            async with LiveSession.resume(copy, ports(copy, ideas(self.what, server))) as live:
                return await live.run(Until.IDLE)

        with OpenAIServer(lambda asked: reply(asked, _failing)) as server:
            outcome = sessions.run(once)
            assert prompt not in {_words(request) for request in server.requests}
        assert isinstance(outcome, EngineStopped if role is CallRole.IDEAS else SessionEnded)


def _failing(dice: random.Random) -> str:
    """Code that does not build."""
    return (
        f'// FAKE: build_failed\n// {dice.random()}\nextern "C" void launch(const float* x, float* out, void* workspace) {{}}\n'
    )
