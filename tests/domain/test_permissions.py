"""What agents and other users may ask of a session, and what waits for an agent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import builders as b

from engine.domain import commands as c
from engine.domain import events as e
from engine.domain import model as m
from engine.domain import queries, rules
from engine.domain import work as w
from engine.domain.errors import CommandRejected
from engine.domain.folds import advance
from engine.domain.model import ENGINE, ENGINEER, Author
from engine.domain.settings import Limits, ModelSettings, Pauses
from engine.domain.state import IdeaStatus, SessionState

AGENT = Author("agent:claude")
OTHER = Author("agent:codex")
COLLEAGUE = Author("user:anna")
SEED = c.SeedKernel("mine.cpp", m.Dialect.CPP, m.Contract.HOST, b.digest("mine"))


def after(state: SessionState, command: c.Command, by: Author) -> SessionState:
    events = rules.decide(state, command, by)
    return advance(state, [e.Entry(state.seq + 1 + n, b.START, by, event) for n, event in enumerate(events)])


def settled(state: SessionState) -> SessionState:
    while events := rules.automatic(state):
        state = advance(state, b.entries(events, start=state.seq + 1))
    return state


@pytest.fixture
def state() -> SessionState:
    """Round 1 is open in ask mode: i2 of the session's proposer is pending; k1 is measured."""
    return b.fold(*b.first_round(mode="ask"), e.RoundOpened(1, ("k1",)), b.proposed("i2", round_number=1, parent="k1"))


DECISIONS: tuple[c.Command, ...] = (
    c.SelectIdeas(("i2",)), c.SelectIdeas(), c.RejectIdea("i2", "no"), c.ReorderIdeas(("i2",)), c.AcceptKernel("k1", "fine"),
    c.DiscardKernel("k1"), c.SetMode("autopilot"), c.SetLimits(Limits()), c.SetPauses(Pauses()), c.PauseSearch(),
    c.ResumeSearch(), c.EndSession("done"), c.Instruct("obey me"), c.AnswerCall("c1", b.digest("x")), c.CancelCall("c1"),
    c.PinKernel("k1"), c.UnpinKernel("k1"), c.PruneBranch("k1"), c.ReopenBranch("k1"), c.RaceLeaders(), c.RaceUndecided(),
    c.SetModels(ModelSettings()), c.UndoDecision(), c.TuneKernel("k1"),
)  # fmt: skip


@pytest.mark.parametrize("command", DECISIONS, ids=lambda command: type(command).__name__)
def test_an_agent_decides_nothing(state: SessionState, command: c.Command) -> None:
    with pytest.raises(CommandRejected, match=r"^agent:claude may not .*: the engineer decides that$"):
        rules.decide(state, command, AGENT)


def test_every_command_is_either_an_agents_or_refused_with_its_own_words(state: SessionState) -> None:
    from typing import get_args

    refused = {type(command) for command in DECISIONS}
    allowed = {
        c.WriteIdea, c.EditIdea, c.ParkIdea, c.AttachKernel, c.DetachKernel, c.SeedKernel, c.CancelKernel, c.Remeasure,
        c.RecordProfile, c.RaceKernel, c.AddNote,
    }  # fmt: skip
    assert refused | allowed == set(get_args(c.Command))
    assert not refused & allowed


def test_an_agents_idea_waits_at_the_gate_and_only_its_author_changes_it(state: SessionState) -> None:
    with pytest.raises(CommandRejected, match="may not approve"):
        rules.decide(state, c.WriteIdea(b.idea_text(7), select=True), AGENT)
    state = after(state, c.WriteIdea(b.idea_text(7)), AGENT)
    assert (state.ideas["i3"].author, state.ideas["i3"].status) == (AGENT, IdeaStatus.PROPOSED)
    assert after(state, c.EditIdea("i3", title="Better"), AGENT).ideas["i3"].text.title == "Better"
    for idea, by in (("i2", AGENT), ("i3", OTHER)):
        with pytest.raises(CommandRejected, match=f"{idea} is not an idea of {by}"):
            rules.decide(state, c.EditIdea(idea, title="Mine"), by)
    for by in (AGENT, COLLEAGUE):
        with pytest.raises(CommandRejected, match="may not name a writer"):
            rules.decide(state, c.EditIdea("i3", writer="command:rm -rf /"), by)


def test_an_agents_kernel_needs_an_approved_idea_of_its_own(state: SessionState) -> None:
    with pytest.raises(CommandRejected, match="must propose an idea first"):
        rules.decide(state, SEED, AGENT)
    state = after(state, c.WriteIdea(b.idea_text(7)), AGENT)
    with pytest.raises(CommandRejected, match="i3 awaits approval"):
        rules.decide(state, replace(SEED, idea="i3"), AGENT)
    state = after(state, c.SelectIdeas(), ENGINEER)
    with pytest.raises(CommandRejected, match="i2 is an idea of"):
        rules.decide(state, replace(SEED, idea="i2"), AGENT)
    with pytest.raises(CommandRejected, match="i3 is an idea of agent:claude"):
        rules.decide(state, replace(SEED, idea="i3"), OTHER)
    state = after(state, replace(SEED, idea="i3"), AGENT)
    assert (state.kernels["k2"].author, state.ideas["i3"].implemented) == (AGENT, True)


def test_no_model_is_asked_for_an_agents_idea_and_it_keeps_no_round_open(state: SessionState) -> None:
    state = after(state, c.WriteIdea(b.idea_text(7)), AGENT)
    state = after(after(state, c.RejectIdea("i2", "no"), ENGINEER), c.SelectIdeas(), ENGINEER)
    assert queries.awaits_agent(state, state.ideas["i3"])
    assert w.Implement("i3") not in rules.next_work(state)
    assert not queries.open_round(settled(state)) or queries.last_round(settled(state)) == 2, "round 1 closed without it"
    parked = after(state, c.ParkIdea("i3"), ENGINEER)
    assert parked.ideas["i3"].status is IdeaStatus.PARKED, "the engineer withdraws an idea whose agent is gone"


def test_an_agents_idea_of_round_0_is_not_approved_as_the_naive_port() -> None:
    state = after(b.fold(*b.first_round(mode="ask")[:2], e.RoundOpened(0, ())), c.WriteIdea(b.idea_text(1)), AGENT)
    assert not any(isinstance(event, e.IdeaSelected) for event in rules.automatic(state))


def test_a_session_of_agents_opens_a_round_for_their_ideas_and_asks_nobody() -> None:
    began = b.first_round(mode="ask")
    opened = began[0]
    assert isinstance(opened, e.SessionOpened)
    limits = Limits(rounds=None, plateau=None, light=None)
    began = (replace(opened, settings=replace(opened.settings, source="agent", limits=limits)), *began[1:])
    state = settled(b.fold(*began))
    assert (queries.open_round(state), state.closed, rules.next_work(state)) == (None, None, ())
    state = settled(after(state, c.WriteIdea(b.idea_text(7)), AGENT))
    assert state.rounds[1].parents == ("k1",)
    assert rules.next_work(state) == ()
    state = settled(after(state, c.SelectIdeas(), ENGINEER))
    assert not state.rounds[1].closed, "it waits for its agent"
    mine = settled(after(state, c.WriteIdea(b.idea_text(8), select=True), ENGINEER))
    assert queries.awaits_agent(mine, mine.ideas["i3"]), "an agent may write the engineer's idea"
    state = settled(after(state, replace(SEED, idea="i2"), AGENT))
    assert {work.key.subject for work in rules.next_work(state)} == {"k2"}


def test_another_user_steers_like_the_engineer_and_strangers_do_not(state: SessionState) -> None:
    assert after(state, c.SelectIdeas(), COLLEAGUE).ideas["i2"].status is IdeaStatus.SELECTED
    for name in ("playbook", "openai:gpt", "", "agent"):
        with pytest.raises(CommandRejected, match="may not steer this session"):
            rules.decide(state, c.PinKernel("k1"), Author(name))
    assert rules.decide(state, c.SelectIdeas(), ENGINE)
