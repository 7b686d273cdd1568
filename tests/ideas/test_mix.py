"""Several proposers in one session: shares, writers, repairs, failures."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders as b
from support.fake_models import Tape

from engine.domain import events as e
from engine.domain.errors import BudgetExhausted, JournalError, ProposerError
from engine.domain.model import CATEGORIES, Author, Dialect, IdeaText
from engine.domain.settings import ModelSettings
from engine.domain.state import Idea, Kernel, SessionState
from engine.domain.work import Proposal
from engine.ideas.mix import Mix, Share, apportion, parse_mix
from engine.ideas.proposer import Calls, CodeRequest, IdeaRequest, Implementation, Proposer, RepairRequest

A, B, PLAYBOOK = "openai:a", "gemini:b", "playbook"


@dataclass
class RecordingProposer:
    """A proposer that records its requests."""

    name: str
    error: BaseException | None = None
    empty: bool = False
    closed: bool = False
    asked: list[object] = field(default_factory=list)

    @property
    def author(self) -> Author:
        return Author(self.name)

    async def propose(self, request: IdeaRequest, calls: Calls) -> tuple[Proposal, ...]:
        self.asked.append(request)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        texts = (IdeaText(f"{self.name} {n}", CATEGORIES[0], "") for n in range(0 if self.empty else request.count))
        return tuple(Proposal(text, None, self.author) for text in texts)

    async def implement(self, request: CodeRequest, calls: Calls) -> Implementation:
        self.asked.append(request)
        return Implementation((), self.name)

    async def repair(self, request: RepairRequest, calls: Calls) -> str | None:
        self.asked.append(request)
        return self.name

    async def close(self) -> None:
        self.closed = True


class Opened:
    """Opens proposers by name and records the names."""

    def __init__(self, proposers: dict[str, RecordingProposer]) -> None:
        self.proposers = proposers
        self.names: list[str] = []

    def __call__(self, name: str, models: ModelSettings) -> Proposer:
        self.names.append(name)
        return self.proposers.setdefault(name, RecordingProposer(name))


def mix(spec: str, writer: str = "", **proposers: RecordingProposer) -> tuple[Mix, Opened]:
    opened = Opened(proposers)
    return Mix(ModelSettings(spec, writer), opened), opened


def request(count: int = 3, number: int = 1, state: SessionState | None = None) -> IdeaRequest:
    return IdeaRequest(state or b.fold(*b.first_round()), number, ("k1",), count, Dialect.CPP)


def proposed(proposer: Mix, asked: IdeaRequest) -> list[str]:
    named = replace(asked, state=replace(asked.state, models=proposer.models))
    return [p.author.name for p in asyncio.run(proposer.propose(named, Tape().calls()))]


@pytest.mark.parametrize(
    ("spec", "shares"),
    [
        ("playbook", (Share("playbook"),)),
        ("paste", (Share("paste"),)),
        ("openai:gpt-5", (Share("openai:gpt-5"),)),
        ("openai:A=2,gemini:B=1,playbook=1", (Share("openai:A", 2), Share("gemini:B"), Share("playbook"))),
        (" openai:meta/llama-3:70b = 3 , paste ", (Share("openai:meta/llama-3:70b", 3), Share("paste"))),
        ("command:agent --temp=1 --list=a,b", (Share("command:agent --temp=1 --list=a,b"),)),
        ("command:agent a,b=2,playbook", (Share("command:agent a,b", 2), Share("playbook"))),
    ],
)
def test_mixes_are_parsed(spec: str, shares: tuple[Share, ...]) -> None:
    assert parse_mix(spec) == shares


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "unknown proposer ''"),
        ("gpt-5", "use playbook, paste, agent, openai:MODEL"),
        ("openai:", "no model name"),
        ("claude:x", "unknown model"),
        ("openai:a,openai:a=2", "duplicate proposer openai:a"),
        ("openai:a=0,playbook", "invalid share 0 for openai:a"),
        ("openai:a=1001,playbook", "use 1 to 1000"),
        ("openai:a=99999999999999999999999999,playbook", "use 1 to 1000"),
        (",".join(f"openai:m{n}" for n in range(17)), "too many"),
        ("openai:a,", "unknown proposer after a comma in 'openai:a,'"),
        ("openai:a,gpt-5=2", "after a comma"),
    ],
)
def test_invalid_mixes_are_rejected(spec: str, message: str) -> None:
    with pytest.raises(ProposerError, match=message) as error:
        parse_mix(spec)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("weights", "count", "rounds"),
    [
        ((1,), 3, [(3,), (3,)]),
        ((2, 1), 3, [(2, 1), (2, 1)]),
        ((2, 1), 1, [(1, 0), (0, 1), (1, 0), (1, 0), (0, 1), (1, 0)]),
        ((1, 1), 3, [(2, 1), (1, 2), (2, 1)]),
        ((2, 1, 1), 4, [(2, 1, 1), (2, 1, 1)]),
        ((1, 1, 1), 2, [(1, 1, 0), (1, 0, 1), (0, 1, 1)]),
        ((5, 1), 0, [(0, 0)]),
    ],
)
def test_places_are_assigned_round_by_round(weights: tuple[int, ...], count: int, rounds: list[tuple[int, ...]]) -> None:
    shares = [Share(f"openai:{n}", weight) for n, weight in enumerate(weights)]
    assert [apportion(shares, count, n) for n in range(1, len(rounds) + 1)] == rounds


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(1, 6), st.integers(1, 30))
def test_all_places_are_assigned_and_shares_hold_over_many_rounds(weights: list[int], count: int, rounds: int) -> None:
    shares = [Share(f"openai:{n}", weight) for n, weight in enumerate(weights)]
    dealt = [apportion(shares, count, n) for n in range(1, rounds + 1)]
    assert all(sum(row) == count and min(row) >= 0 for row in dealt)
    for n, weight in enumerate(weights):
        due = weight / sum(weights) * count * rounds
        assert abs(sum(row[n] for row in dealt) - due) < len(weights)


def test_each_proposer_is_asked_for_its_share_and_opened_on_first_use() -> None:
    proposer, opened = mix(f"{A}=2,{B}=1")
    assert opened.names == []
    assert proposed(proposer, request(3)) == [A, A, B]
    assert proposed(proposer, request(1, 2)) == [B]
    assert proposer.author == Author(A)
    asyncio.run(proposer.close())
    assert [opened.proposers[name].closed for name in (A, B)] == [True, True]


def test_all_named_proposers_can_be_opened_early() -> None:
    proposer, opened = mix(f"{A}=2,{PLAYBOOK}", B)
    proposer.open_all()
    assert opened.names == [A, PLAYBOOK, B]


def test_the_naive_port_comes_from_the_playbook() -> None:
    proposer, opened = mix(A)
    assert proposed(proposer, request(1, 0)) == [PLAYBOOK]
    assert opened.names == [PLAYBOOK]


def test_a_failing_proposer_leaves_the_round_to_the_others() -> None:
    proposer, _ = mix(f"{A}=2,{B}=1", **{A: RecordingProposer(A, ProposerError("no key"))})
    assert proposed(proposer, request(3)) == [B]
    proposer, _ = mix(f"{A}=2,{B}=1", **{A: RecordingProposer(A, BudgetExhausted("spent"))})
    assert proposed(proposer, request(3)) == [B]


@pytest.mark.parametrize("error", [ProposerError("no key"), BudgetExhausted("spent")])
def test_if_all_proposers_fail_the_first_error_is_raised(error: Exception) -> None:
    proposer, _ = mix(f"{A}=2,{B}=1", **{A: RecordingProposer(A, error), B: RecordingProposer(B, empty=True)})
    with pytest.raises(type(error), match=str(error)):
        proposed(proposer, request(3))


def test_bugs_are_never_swallowed() -> None:
    proposer, _ = mix(f"{A}=2,{B}=1", **{A: RecordingProposer(A, JournalError("disk full"))})
    with pytest.raises(JournalError):
        proposed(proposer, request(3))


def idea(author: str, key: str = "", writer: str = "") -> Idea:
    return Idea("i2", 1, IdeaText("Tile", CATEGORIES[0], "", key=key), "k1", Author(author), 1, writer=writer)


@pytest.mark.parametrize(
    ("spec", "writer", "subject", "wrote"),
    [
        (A, "", idea(A), A),
        (A, B, idea(A), B),
        (A, B, idea(A, writer="paste"), "paste"),
        (f"{PLAYBOOK},{A}", "", idea(PLAYBOOK, "vector_exp"), PLAYBOOK),
        (PLAYBOOK, A, idea(PLAYBOOK, "vector_exp"), A),
        (A, B, idea(PLAYBOOK, "root"), PLAYBOOK),
        (A, B, idea(PLAYBOOK, "tune:k3:1"), PLAYBOOK),
        (f"{PLAYBOOK},{A},{B}", "", idea("engineer"), A),
        (f"{A},{B}", B, idea("engineer"), B),
        (PLAYBOOK, "", idea("engineer"), PLAYBOOK),
        (A, "", idea(B), B),
    ],
)
def test_who_writes_an_idea_s_code(spec: str, writer: str, subject: Idea, wrote: str) -> None:
    proposer, _ = mix(spec, writer)
    asked = CodeRequest(replace(b.fold(*b.first_round()), models=proposer.models), subject, Dialect.CPP, None)
    answer = asyncio.run(proposer.implement(asked, Tape().calls()))
    assert (answer.note, answer.author) == (wrote, Author(wrote))


def test_an_unknown_writer_is_reported() -> None:
    proposer, _ = mix(A)
    asked = CodeRequest(replace(b.fold(*b.first_round()), models=proposer.models), idea(A, writer="nobody"), Dialect.CPP, None)
    with pytest.raises(ProposerError, match="unknown proposer 'nobody'"):
        asyncio.run(proposer.implement(asked, Tape().calls()))


def test_a_kernel_is_repaired_by_its_author() -> None:
    proposer, _ = mix(A)
    state = b.fold(*b.first_round(), e.RoundOpened(1, ("k1",)))
    kernel: Kernel = replace(state.kernels["k1"], author=Author(B))
    repaired = asyncio.run(proposer.repair(RepairRequest(state, kernel, "x", "no", ""), Tape().calls("repair:k1:0")))
    assert repaired == B
