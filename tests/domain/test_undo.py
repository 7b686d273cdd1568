"""Undo takes back the latest decision, exactly, as long as nothing has been spent on it."""

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
from engine.domain.state import IdeaStatus, SessionState, Stage
from engine.journal import codec

COLLEAGUE = Author("user:anna")
_TICKS = iter(range(1, 10**9))


def then(state: SessionState, *events: e.Event, by: Author = ENGINE) -> SessionState:
    """The state after one batch of events."""
    at = state.at + next(_TICKS)
    entries = [e.Entry(state.seq + 1 + n, at, by, event) for n, event in enumerate(events)]
    return advance(state, [codec.decode(codec.encode(entry)) for entry in entries])


def after(state: SessionState, command: c.Command, by: Author = ENGINEER) -> SessionState:
    return then(state, *rules.decide(state, command, by), by=by)


def undone(state: SessionState) -> SessionState:
    return after(state, c.UndoDecision())


def facts(state: SessionState) -> dict[str, object]:
    """Everything that a decision can change."""
    names = (
        "ideas", "kernels", "pinned", "pruned", "prune_reasons", "notes", "mode", "limits", "capped", "pauses", "paused",
        "instructions", "models", "closed", "asked", "decisions",
    )  # fmt: skip
    return {name: getattr(state, name) for name in names}


@pytest.fixture
def state() -> SessionState:
    """Round 1 is open in ask mode: i2, i5 and i6 are pending, i4 is parked; k1 is measured, k3 builds, k4 is quarantined."""
    return b.fold(
        *b.first_round(mode="ask"),
        e.RoundOpened(1, ("k1",)),
        b.proposed("i2", "i3", "i4", "i5", "i6", round_number=1, parent="k1"),
        e.IdeaSelected("i3"),
        e.IdeaParked("i4"),
        *b.measured_kernel("k2", 2.0, idea="i3", parent="k1", round_number=1),
        b.drafted("k3", idea="i3", parent="k2", round_number=1),
        b.drafted("k4", idea="i3", parent="k2", round_number=1),
        e.KernelQuarantined("k4", ("too fast",), b.verification(), b.measurement(9.0), 1.0),
        e.IdeaImplemented("i3", ("k2", "k3", "k4")),
    )


DECISIONS: tuple[c.Command, ...] = (
    c.SelectIdeas(("i2",)), c.SelectIdeas(), c.SelectIdeas(("i4",)), c.RejectIdea("i2", "no"), c.ParkIdea("i2"),
    c.EditIdea("i2", title="Another title", branch=4), c.ReorderIdeas(("i6", "i2")), c.AttachKernel("i2", "k1"),
    c.PinKernel("k1"), c.PruneBranch("k1", "a dead end"), c.PruneBranch("k2"), c.CancelKernel("k3"),
    c.AcceptKernel("k4", "counted again"), c.DiscardKernel("k4", "a trick"), c.AddNote("k1", "bound by memory"),
    c.SetMode("autopilot"), c.SetLimits(Limits(rounds=9)), c.SetPauses(Pauses(usd=3.0)), c.PauseSearch("lunch"),
    c.Instruct("fewer registers"), c.SetModels(ModelSettings("playbook", "openai:gpt-test")), c.EndSession("enough"),
)  # fmt: skip


@pytest.mark.parametrize("command", DECISIONS, ids=lambda command: f"{type(command).__name__}")
def test_undo_restores_what_the_decision_changed(state: SessionState, command: c.Command) -> None:
    decided = after(state, command)
    assert facts(decided) != facts(state)
    assert facts(undone(decided)) == facts(state)
    assert facts(after(undone(decided), command))["ideas"] == facts(decided)["ideas"]


def test_undo_goes_back_decision_by_decision(state: SessionState) -> None:
    states = [state]
    for command in (c.SelectIdeas(("i2",)), c.RejectIdea("i5", "no"), c.PinKernel("k1"), c.EditIdea("i6", title="Other")):
        states.append(after(states[-1], command))
    back = states[-1]
    for expected in reversed(states[:-1]):
        back = undone(back)
        assert facts(back) == facts(expected)
    with pytest.raises(CommandRejected, match=r"^no decision to undo$"):
        undone(back)


def test_the_words_name_every_subject_of_a_decision(state: SessionState) -> None:
    def words(command: c.Command) -> str:
        return after(state, command).decisions[-1].words

    assert words(c.SelectIdeas()) == "approval of i2, i5, i6"
    assert words(c.PruneBranch("k2")) == "pruning of k2"
    assert words(c.EndSession("enough")) == "end of the session"
    assert words(c.AddNote("k1", "x")) == "note on k1"
    assert words(c.WriteIdea(b.idea_text(9), select=True)) == "approval of i7"


WORK = "implement:i2"
ASKED = e.CallStarted("c1", WORK, m.CallRole.CODE, "openai:gpt-test", b.digest("prompt"), 9000)


def approved(state: SessionState) -> SessionState:
    return then(after(state, c.SelectIdeas(("i2", "i5"))), e.WorkStarted(WORK))


SPENT: list[tuple[tuple[e.Event, ...], str]] = [
    ((ASKED,), r"openai:gpt-test has been asked to write i2 \(c1\)"),
    ((ASKED, e.CallFailed("c1", "no answer")), r"openai:gpt-test has been asked to write i2"),
    ((b.drafted("k5", idea="i2", parent="k1", round_number=1),), "i2 is written already: cancel or prune k5"),
    ((e.IdeaImplemented("i2", (), "no draft"),), "i2 is written already"),
]


@pytest.mark.parametrize(("events", "reason"), SPENT)
def test_what_was_spent_stays_and_the_rest_is_taken_back(state: SessionState, events: tuple[e.Event, ...], reason: str) -> None:
    begun = then(approved(state), *events)
    back = undone(begun)
    assert back.ideas["i2"] == begun.ideas["i2"]
    assert back.ideas["i5"] == state.ideas["i5"]
    alone = then(after(state, c.SelectIdeas(("i2",))), e.WorkStarted(WORK), *events)
    with pytest.raises(CommandRejected, match=f"^approval of i2 cannot be undone: {reason}"):
        undone(alone)


def test_work_that_has_asked_nobody_yet_is_dropped(state: SessionState) -> None:
    begun = approved(state)
    assert any(str(work) == WORK for work in begun.started)
    back = undone(begun)
    assert back.ideas["i2"].status is IdeaStatus.PROPOSED
    assert not back.started
    late = w.Drafts((w.StoredDraft("a.cpp", m.Dialect.CPP, m.Contract.HOST, b.digest("a"), b.MODEL),))
    assert rules.record(back, w.Implement("i2"), late) == ()
    assert WORK not in {str(work.key) for work in rules.wanted_work(back)}


def test_a_prompt_that_nobody_answered_is_cancelled_and_asked_again_after_the_next_approval(state: SessionState) -> None:
    prompt = replace(ASKED, model="paste", ceiling=0)
    begun = then(approved(state), prompt)
    events = rules.decide(begun, c.UndoDecision())
    assert [type(event) for event in events] == [e.CallFailed, e.DecisionUndone]
    back = then(begun, *events, by=ENGINEER)
    assert back.ideas["i2"] == state.ideas["i2"]
    assert not back.calls["c1"].cancelled
    assert not back.called_off
    answered = then(begun, e.CallAnswered("c1", b.digest("reply")))
    assert undone(answered).ideas["i2"].status is IdeaStatus.SELECTED


REFUSED: list[tuple[c.Command, str]] = [
    (c.WriteIdea(b.idea_text(9)), "^new idea i7 cannot be undone: reject or park the idea$"),
    (c.SeedKernel("mine.cpp", m.Dialect.CPP, m.Contract.HOST, b.digest("mine")), "^new kernel k5 cannot be undone: cancel the"),
    (c.Remeasure("k2"), "^remeasurement of k2 cannot be undone: cancel the kernel$"),
    (c.RaceKernel("k1"), "^race of k1 cannot be undone: it changes nothing unless the kernel wins it$"),
]


@pytest.mark.parametrize(("command", "reason"), REFUSED)
def test_what_cannot_be_undone_says_what_to_do_instead(state: SessionState, command: c.Command, reason: str) -> None:
    with pytest.raises(CommandRejected, match=reason):
        undone(after(state, command))


def test_under_autopilot_an_approval_would_come_back(state: SessionState) -> None:
    approved = after(state, c.SelectIdeas(("i2",)))
    with pytest.raises(CommandRejected, match="autopilot would approve it again"):
        undone(then(approved, e.ModeChanged("autopilot")))


def test_a_setting_that_the_engine_changed_since_stays(state: SessionState) -> None:
    paused = after(state, c.PauseSearch("lunch"))
    with pytest.raises(CommandRejected, match=r"^pause cannot be undone: paused changed since$"):
        undone(then(paused, e.SessionContinued(Pauses())))


def test_an_accepted_kernel_that_leads_stays(state: SessionState) -> None:
    accepted = after(state, c.AcceptKernel("k4", "counted again"))
    with pytest.raises(CommandRejected, match="k4 is in use"):
        undone(then(accepted, e.IncumbentChanged("k4", "", m.Succession.FIRST)))


def test_what_the_engine_decides_is_not_undone(state: SessionState) -> None:
    with pytest.raises(CommandRejected, match=r"^no decision to undo$"):
        undone(then(state, e.IdeaSelected("i2")))


def test_another_user_undoes_only_decisions_of_their_own(state: SessionState) -> None:
    decided = after(state, c.PinKernel("k1"))
    with pytest.raises(CommandRejected, match=r"^the latest decision \(pin of k1\) is not yours: engineer made it$"):
        after(decided, c.UndoDecision(), COLLEAGUE)
    theirs = after(state, c.PinKernel("k1"), COLLEAGUE)
    assert after(theirs, c.UndoDecision(), COLLEAGUE).pinned == ()
    assert undone(theirs).pinned == ()


def test_an_ended_session_goes_on_after_undo(state: SessionState) -> None:
    ended = after(state, c.EndSession("by mistake"))
    assert ended.kernels["k3"].stage is Stage.CANCELLED
    back = undone(ended)
    assert back.closed is None
    assert back.kernels["k3"].stage is Stage.BUILD
    assert "build:k3:0" in {str(work.key) for work in rules.next_work(back)}


def test_an_undone_rejection_keeps_the_session_waiting_for_a_decision(state: SessionState) -> None:
    last = after(state, c.SelectIdeas(("i5", "i6")))
    for idea in ("i5", "i6"):
        last = then(last, e.IdeaImplemented(idea, ()))
    last = then(after(last, c.RejectIdea("i2", "no")), e.KernelCancelled("k3", "x"), e.RoundClosed(1), e.SessionClosed("done"))
    back = undone(last)
    assert [idea.id for idea in queries.pending_ideas(back)] == ["i2"]
    assert back.closed is None


def test_only_the_latest_decisions_are_kept(state: SessionState) -> None:
    for number in range(60):
        state = after(state, c.PinKernel("k1") if number % 2 == 0 else c.UnpinKernel("k1"))
    assert len(state.decisions) == 50


def test_a_whole_journal_folds_to_the_same_state_as_its_entries_one_by_one() -> None:
    """An idea made and decided on in one batch is not changed behind the decision's back."""
    made = [e.RoundOpened(1, ("k1",)), b.proposed("i2", round_number=1, parent="k1")]
    entries = [*b.entries([*b.first_round(mode="ask"), *made])]
    entries.append(e.Entry(entries[-1].seq + 1, 9.0, ENGINEER, e.IdeaParked("i2")))
    (undo,) = rules.decide(advance(SessionState(), entries), c.UndoDecision(), ENGINEER)
    entries.append(e.Entry(entries[-1].seq + 1, 10.0, ENGINEER, undo))
    whole, stepwise = advance(SessionState(), entries), SessionState()
    for entry in entries:
        stepwise = advance(stepwise, [entry])
    assert whole.ideas["i2"].status is IdeaStatus.PROPOSED
    assert facts(whole) == facts(stepwise)
