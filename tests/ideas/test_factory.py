"""Whole sessions over the proposers of ``open_ideas``: rounds in words and code, kills, faults, caps, forks."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import sessions
from support.fake_models import LAUNCH, FakeModel, code_reply, ideas_reply, refused, truncated

from engine.domain import commands as c
from engine.domain import queries
from engine.domain.errors import ProposerError
from engine.domain.model import Author, Contract, Dialect, Draft, Usage
from engine.domain.settings import Limits, ModelServer, Settings
from engine.domain.state import CallStatus, SessionState, Stage
from engine.domain.work import WorkKey
from engine.ideas import factory
from engine.ideas.factory import check_prices, check_programs, check_servers, open_ideas
from engine.ideas.mix import Mix
from engine.ideas.models.model import ModelError, Prompt, Reply, Spent, Trouble
from engine.ideas.models.prices import own_list
from engine.ideas.playbook import Playbook
from engine.ideas.recall import Recall, recorded_replies
from engine.journal.blobs import Blobs
from engine.session.live import LiveSession
from engine.session.outcome import AwaitingEngineer, EngineStopped, SessionEnded, Until
from engine.session.perform import Ceilings

ROOT = Draft(sessions.source("root", "time_us = 900"), Dialect.CPP, Contract.HOST, "naive.cpp")
PLAYBOOK = Playbook(None, lambda dialect: ROOT if dialect is ROOT.dialect else None)


class Writer(FakeModel):
    """Answers like a model: new ideas or new code, with occasional failures."""

    def __init__(self, name: str = "openai:fake", faults: float = 0.0, seed: int = 0) -> None:
        super().__init__(name=name)
        self.faults = faults
        self.chance = random.Random(f"{name}{seed}")
        self.made = 0
        self.spent = Usage()

    async def ask(self, prompt: Prompt, on_text: Any) -> Reply:
        self.asked.append(prompt)
        on_text("thinking")
        await asyncio.sleep(0)
        if self.chance.random() < self.faults:
            reply = self.chance.choice([truncated(), refused(), Reply("no idea", Usage(9, 0, 9)), self._broken, self._half])
            found = reply() if callable(reply) else reply
        else:
            found = Reply(self._answer(prompt), Usage(len(prompt.user) // 4, 0, 50))
        self.spent += found.usage
        return found

    def _broken(self) -> Reply:
        self.spent += Usage(7, 0, 0)
        raise ModelError(Trouble.UNREACHABLE, "the connection broke off", Usage(7, 0, 0), spent=Spent.COUNTED)

    def _half(self) -> Reply:
        return Reply(f"```cpp\n{LAUNCH}", Usage(9, 0, 30))

    def _answer(self, prompt: Prompt) -> str:
        self.made += 1
        words = [f"{self.name} alpha{self.made} beta{self.made}{n} gamma{self.made}{n}" for n in range(5)]
        if prompt.schema is not None:
            return ideas_reply(*words)
        mark = self.chance.choice(["time_us = 250", "time_us = 500", "mismatch", "build_failed"])
        return code_reply(sessions.source(f"kernel {self.name} {self.made}", mark))


def ideas(*models: FakeModel, source: str = "", recall: Recall | None = None, **settings: Any) -> Mix:
    known = {model.name: model for model in models}
    wanted = Settings(source=source or ",".join(known), **settings)
    return open_ideas(
        wanted, playbook=PLAYBOOK, open_model=lambda name, _: known[name], tariff_of=lambda _: None, recall=recall
    )


def opened(source: str, **settings: Any) -> Any:
    limits = settings.pop("limits", Limits(rounds=3, plateau=None))
    return sessions.opened(source=source, ideas=2, branch=2, repairs=1, limits=limits, **settings)


def search(folder: Path, mix: Mix, source: str = "openai:fake", tries: int = 1, **settings: Any) -> SessionState:
    """Run on autopilot to the end, retrying up to ``tries`` times when the engine stops."""

    async def searched() -> SessionState:
        async with LiveSession.create(folder, opened(source, **settings), sessions.ports(folder, mix)) as live:
            for _ in range(tries):
                if isinstance(await live.run(), SessionEnded):
                    break
                await live.retry()
            await mix.close()
            return live.state

    state: SessionState = sessions.run(searched)
    return state


@pytest.mark.slow
def test_a_session_starts_from_the_naive_port_and_continues_with_ideas_in_words(tmp_path: Path) -> None:
    model = Writer()
    state = search(tmp_path, ideas(model))
    assert state.closed == "3 of 3 rounds done"
    assert state.kernels["k1"].source == Blobs(tmp_path).put(ROOT.source.encode())
    assert queries.round_of_call(state, state.calls["c1"]) == 1, "the naive port costs nothing"
    assert {i.author for i in state.ideas.values() if i.round} == {Author("openai:fake")}
    assert {k.author for k in state.kernels.values() if k.round} == {Author("openai:fake")}
    assert sum(1 for i in state.ideas.values() if not queries.is_surplus(i)) == 1 + 3 * 2
    assert any(k.attempt for k in state.kernels.values()), "some kernels were repaired"
    assert queries.total_usage(state) == model.spent
    assert model.closed


@pytest.mark.slow
def test_proposers_share_the_rounds_and_another_model_writes(tmp_path: Path) -> None:
    a, b, writer = Writer("openai:a"), Writer("gemini:b"), Writer("openai:w")
    mix = ideas(a, b, writer, source="openai:a=1,gemini:b=1", writer="openai:w")
    state = search(tmp_path, mix, "openai:a=1,gemini:b=1", writer="openai:w")
    authors = [i.author.name for i in state.ideas.values() if i.round and not queries.is_surplus(i)]
    assert authors.count("openai:a") == authors.count("gemini:b") == 3
    assert {k.author.name for k in state.kernels.values() if k.round} == {"openai:w"}
    roles = {(call.model, call.role.value) for call in state.calls.values()}
    assert roles >= {("openai:a", "ideas"), ("gemini:b", "ideas"), ("openai:w", "code"), ("openai:w", "repair")}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_faults_end_no_session_and_every_token_is_counted(tmp_path: Path, seed: int) -> None:
    model = Writer(faults=0.35, seed=seed)
    state = search(tmp_path, ideas(model), tries=60)
    assert state.closed is not None
    assert queries.last_round(state) >= 1
    assert queries.total_usage(state) == model.spent
    assert all(k.stage.settled for k in state.kernels.values())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_repeatedly_killed_session_asks_nothing_twice(tmp_path: Path, seed: int) -> None:
    """Each process lives only for a few questions; the session resumes each time."""
    model, chance = Writer(seed=seed), random.Random(seed)

    async def lives() -> SessionState:
        first = True
        for _ in range(80):
            ports = sessions.ports(tmp_path, ideas(model))
            live = LiveSession.create(tmp_path, opened("openai:fake"), ports) if first else LiveSession.resume(tmp_path, ports)
            first = False
            async with live:
                running = asyncio.ensure_future(live.run())
                alive = len(model.asked) + chance.randint(1, 3)
                while not running.done() and len(model.asked) < alive:
                    await asyncio.sleep(0)
                running.cancel()
                await asyncio.wait([running])
                if live.state.closed is not None:
                    return live.state
        raise AssertionError("the search never ends")

    state: SessionState = sessions.run(lives)
    answered = [call.prompt for call in state.calls.values() if call.status is CallStatus.ANSWERED]
    assert len(answered) == len(set(answered))
    assert state.closed == "3 of 3 rounds done"
    assert len(model.asked) == len(state.calls)


@pytest.mark.slow
def test_a_cap_ends_the_session_before_it_is_exceeded(tmp_path: Path) -> None:
    limits = Limits(rounds=5, tokens=60_000, plateau=None)
    state = search(tmp_path, ideas(Writer()), limits=limits)
    assert state.closed is not None
    assert "tokens spent" in state.closed
    assert 0 < queries.total_usage(state).total <= 60_000


def test_a_rejected_key_stops_the_engine_with_its_reason(tmp_path: Path) -> None:
    dead = FakeModel([ModelError(Trouble.KEY, "OPENAI_API_KEY is not taken")])

    async def searched() -> object:
        async with LiveSession.create(tmp_path, opened("openai:fake"), sessions.ports(tmp_path, ideas(dead))) as live:
            return await live.run()

    outcome = sessions.run(searched)
    assert isinstance(outcome, EngineStopped)
    assert outcome.reasons == {WorkKey.parse("propose:1"): "OPENAI_API_KEY is not taken"}


@pytest.mark.slow
def test_a_fork_answers_from_the_record_and_confirms_before_it_spends(tmp_path: Path) -> None:
    first = search(
        tmp_path / "first",
        ideas(Writer()),
        limits=Limits(rounds=2, plateau=None),
    )
    recall = recorded_replies(first, Blobs(tmp_path / "first").text)
    model = Writer(seed=1)
    mix = ideas(model, recall=recall)

    async def searched() -> tuple[object, SessionState, SessionState]:
        settings = opened("openai:fake", limits=Limits(rounds=3, plateau=None))
        ports = sessions.ports(tmp_path / "second", mix, ceilings=Ceilings(model=None))
        async with LiveSession.create(tmp_path / "second", replace(settings, mode="ask:100"), ports) as live:
            await live.submit(c.SetMode("autopilot"))
            running = asyncio.ensure_future(live.run())
            while live.state.paused is None:
                await asyncio.sleep(0)
            before = live.state
            assert not model.asked
            await live.submit(c.ResumeSearch())
            return await running, before, live.state

    outcome, before, after = sessions.run(searched)
    assert isinstance(outcome, SessionEnded)
    assert "no recorded reply" in (before.paused or "")
    assert queries.total_usage(before).total == 0
    then: Any = sessions.tree(first)["kernels"]
    now: Any = sessions.tree(after)["kernels"]
    assert {k: now[k] for k in then} == then, "the rounds that asked the same are the same"
    assert len(now) > len(then)
    assert queries.total_usage(after) == model.spent
    assert after.paused is None


def test_pasted_replies_make_a_session(tmp_path: Path) -> None:
    mix = ideas(source="paste")

    async def searched() -> SessionState:
        ports = sessions.ports(tmp_path, mix, ceilings=Ceilings(model=None))
        async with LiveSession.create(tmp_path, opened("paste", limits=Limits(rounds=1)), ports) as live:
            running = asyncio.ensure_future(live.run())
            while not running.done():
                await asyncio.sleep(0)
                for call in [call for call in live.state.calls.values() if call.status is CallStatus.OPEN]:
                    about = call.role.value
                    reply = (
                        ideas_reply("Tile rows", "Unroll twice")
                        if about == "ideas"
                        else code_reply(sessions.source(call.id, "time_us = 300"))
                    )
                    await live.submit(c.AnswerCall(call.id, live.store_blob(reply.encode())))
            return live.state

    state: SessionState = sessions.run(searched)
    assert state.closed == "1 of 1 rounds done"
    assert sum(k.stage is Stage.MEASURED for k in state.kernels.values()) == 3
    assert {call.model for call in state.calls.values()} == {"paste"}


def test_a_step_ends_at_a_prompt_for_a_person(tmp_path: Path) -> None:
    async def searched() -> object:
        ports = sessions.ports(tmp_path, ideas(source="paste"), ceilings=Ceilings(model=None))
        async with LiveSession.create(tmp_path, opened("paste"), ports) as live:
            return await live.run(Until.ROUND)

    outcome = sessions.run(searched)
    assert isinstance(outcome, AwaitingEngineer)
    assert outcome.calls == ("c1",)


@pytest.mark.parametrize("settings", [Settings(source="gpt"), Settings(source="playbook", writer="gpt")])
def test_an_unknown_proposer_is_reported_immediately(settings: Settings) -> None:
    with pytest.raises(ProposerError, match="unknown proposer 'gpt'"):
        open_ideas(settings, playbook=PLAYBOOK)


def test_tariffs_come_from_the_price_list() -> None:
    assert factory.listed_tariff("openai:no-such-model") is None
    assert factory.listed_tariff("command:agent") is None


@pytest.mark.slow
def test_no_sdk_and_no_torch_are_loaded_before_they_are_needed() -> None:
    code = (
        "import sys; from engine.ideas.factory import OpenModel, open_ideas; from engine.ideas.playbook import Playbook; "
        "from engine.domain.settings import Settings; "
        "open_ideas(Settings(source='openai:x,gemini:y'), playbook=Playbook(None)); "
        "print([m for m in ('torch', 'openai', 'google.genai', 'textual') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_price_list_that_cannot_be_read_is_reported_before_a_session_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    prices = own_list()
    prices.parent.mkdir(parents=True, exist_ok=True)
    prices.write_text("[openai")
    mix = open_ideas(Settings(source="openai:fake"), playbook=PLAYBOOK, open_model=lambda name, _: FakeModel(name=name))
    with pytest.raises(ProposerError, match=r"prices\.toml is malformed"):
        mix.open_all()
    open_ideas(Settings(source="playbook"), playbook=PLAYBOOK).open_all()


def test_a_cap_in_dollars_needs_known_prices_before_the_session_begins() -> None:
    settings = Settings(source="openai:unheard-of,playbook", limits=Limits(usd=5.0))
    with pytest.raises(ProposerError, match="--budget-usd cannot be enforced: the price of openai:unheard-of is unknown"):
        check_prices(settings)
    check_prices(Settings(source="openai:unheard-of"))
    check_prices(Settings(source="vllm:any,anthropic:claude-opus-5,playbook", limits=Limits(usd=5.0)))


def test_a_missing_program_and_a_silent_server_are_told_before_the_session_begins() -> None:
    with pytest.raises(ProposerError, match="the program '/nowhere/agent' is not installed"):
        check_programs(Settings(source="command:/nowhere/agent --print").models)
    check_programs(Settings(source="command:cat").models)
    silent = Settings(source="vllm:any", servers=(ModelServer("vllm", "http://127.0.0.1:9/v1"),))
    with pytest.raises(ProposerError, match=r"vllm:any: nothing answers at http://127.0.0.1:9/v1"):
        asyncio.run(check_servers(silent.models))
