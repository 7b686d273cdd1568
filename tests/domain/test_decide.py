"""Every command, accepted and rejected."""

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
from engine.domain.settings import Limits, Pauses
from engine.domain.state import CallStatus, SessionState, Stage


def then(state: SessionState, *events: e.Event) -> SessionState:
    return advance(state, b.entries(events, start=state.seq + 1))


def after(state: SessionState, command: c.Command) -> SessionState:
    return then(state, *rules.decide(state, command))


@pytest.fixture
def state() -> SessionState:
    """Round 1 is open in ask mode: i2 is pending, i3 selected, i4 rejected, i5 parked; k1 and k2 are measured, k3 builds."""
    return b.fold(
        *b.first_round(mode="ask"),
        e.RoundOpened(1, ("k1",)),
        b.proposed("i2", "i3", "i4", "i5", round_number=1, parent="k1", branch=3),
        e.IdeaSelected("i3"),
        e.IdeaRejected("i4", "no"),
        e.IdeaParked("i5"),
        *b.measured_kernel("k2", 2.0, idea="i3", parent="k1", round_number=1),
        b.drafted("k3", idea="i3", parent="k2", round_number=1),
    )


@pytest.fixture
def closed(state: SessionState) -> SessionState:
    return after(state, c.EndSession("enough"))


TEXT = b.idea_text(9)
SEED = c.SeedKernel("mine.cpp", m.Dialect.CPP, m.Contract.HOST, b.digest("mine"), {"BLOCK": 8})


def test_commands_are_rejected_before_a_session_is_opened() -> None:
    with pytest.raises(CommandRejected, match="is not open yet"):
        rules.decide(SessionState(), c.Instruct("hello"))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (c.WriteIdea(replace(TEXT, title="  ")), "an idea needs a title"),
        (c.WriteIdea(replace(TEXT, category="magic")), "unknown category 'magic': use one of memory access,"),
        (c.WriteIdea(replace(TEXT, predicted=0.0)), "predicted speedup 0"),
        (c.WriteIdea(replace(TEXT, predicted=float("nan"))), "predicted speedup nan"),
        (c.WriteIdea(replace(TEXT, predicted=float("inf"))), "predicted speedup inf"),
        (c.WriteIdea(TEXT, parent="k9"), "unknown kernel 'k9'"),
        (c.WriteIdea(TEXT, branch=65), "65 implementations of one idea: use 1 to 64"),
        (c.WriteIdea(TEXT, branch=-1), "-1 implementations"),
        (c.EditIdea("i9"), "unknown idea 'i9'"),
        (c.EditIdea("i3", title="x"), "i3 has already been approved"),
        (c.EditIdea("i4", title="x"), "i4 has already been rejected"),
        (c.EditIdea("i4", writer="paste"), "i4 has already been rejected"),
        (c.EditIdea("i2", title=""), "an idea needs a title"),
        (c.EditIdea("i2", category="magic"), "unknown category"),
        (c.EditIdea("i2", parent="k9"), "unknown kernel 'k9'"),
        (c.EditIdea("i2", branch=0), "0 implementations"),
        (c.SelectIdeas(("i2", "i9")), "unknown idea 'i9'"),
        (c.SelectIdeas(("i3",)), "i3 has already been approved"),
        (c.RejectIdea("i4", "again"), "i4 has already been rejected"),
        (c.RejectIdea("i3", "too late"), "i3 has already been approved"),
        (c.ParkIdea("i9"), "unknown idea 'i9'"),
        (c.ParkIdea("i3"), "i3 has already been approved"),
        (replace(SEED, parent="k9"), "unknown kernel 'k9'"),
        (replace(SEED, idea="i9"), "unknown idea 'i9'"),
        (replace(SEED, idea="i4"), "i4 was rejected"),
        (replace(SEED, idea="i2", parent="k9"), "unknown kernel 'k9'"),
        (c.PinKernel("k9"), "unknown kernel 'k9'"),
        (c.UnpinKernel("k9"), "unknown kernel 'k9'"),
        (c.PruneBranch("k9"), "unknown kernel 'k9'"),
        (c.ReopenBranch("k1"), "k1 itself is not pruned"),
        (c.CancelKernel("k1"), "k1 has already settled: it is measured"),
        (c.Remeasure("k3"), "k3 is still in stage build"),
        (c.AddNote("k1", " \n"), "a note needs text"),
        *((c.AddNote(target, "x"), "for a note") for target in ("k9", "i9", "r9", "r", "r²", "rr", "r-1", "session")),
        *(
            (c.SetMode(mode), "unknown mode")
            for mode in ("", "auto", "ask:", "ask:0", "ask:-1", "ask:1.5", "ask:²", "autopilot:3")
        ),
    ],
    ids=str,
)
def test_rejected_commands_get_one_line(state: SessionState, command: c.Command, words: str) -> None:
    with pytest.raises(CommandRejected) as caught:
        rules.decide(state, command)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_idea_of_the_engineer_joins_the_open_round_with_the_incumbent_as_parent(state: SessionState) -> None:
    (proposed,) = rules.decide(state, c.WriteIdea(TEXT))
    assert proposed == e.IdeasProposed(1, (e.ProposedIdea("i6", TEXT, "k2", m.Author("engineer"), 3),), False)
    assert rules.decide(state, c.WriteIdea(TEXT, parent="k1", branch=5, select=True)) == (
        e.IdeasProposed(1, (e.ProposedIdea("i6", TEXT, "k1", m.Author("engineer"), 5),), False),
        e.IdeaSelected("i6"),
    )


def test_an_idea_between_rounds_belongs_to_the_next_one() -> None:
    (proposed,) = rules.decide(b.fold(*b.first_round()), c.WriteIdea(TEXT))
    assert isinstance(proposed, e.IdeasProposed)
    assert (proposed.round, proposed.ideas[0].parent) == (1, "k1")
    (proposed,) = rules.decide(b.fold(b.opened()), c.WriteIdea(TEXT))
    assert isinstance(proposed, e.IdeasProposed)
    assert (proposed.round, proposed.ideas[0].parent) == (0, None)


def test_an_undecided_idea_can_be_edited_field_by_field(state: SessionState) -> None:
    command = c.EditIdea("i5", "New title", "New reason", "instructions", "k2", 7)
    text = replace(state.ideas["i5"].text, title="New title", rationale="New reason", category="instructions")
    assert rules.decide(state, command) == (e.IdeaEdited("i5", text, "k2", 7),)
    edited = after(state, command).ideas["i5"]
    assert (edited.text, edited.parent, edited.branch, edited.edited) == (text, "k2", 7, True)


def test_an_edit_that_changes_nothing_is_none(state: SessionState) -> None:
    """A form that was only looked at made the idea an edited one."""
    old = state.ideas["i2"]
    assert rules.decide(state, c.EditIdea("i2")) == ()
    assert rules.decide(state, c.EditIdea("i2", old.text.title, old.text.rationale, old.text.category, "k1", old.branch)) == ()


def test_approving_takes_all_pending_ideas_or_the_named_ones(state: SessionState) -> None:
    assert rules.decide(state, c.SelectIdeas()) == (e.IdeaSelected("i2"),)
    assert rules.decide(state, c.SelectIdeas(("i5", "i2", "i5"))) == (e.IdeaSelected("i5"), e.IdeaSelected("i2"))
    with pytest.raises(CommandRejected, match="no idea awaits approval"):
        rules.decide(after(state, c.SelectIdeas()), c.SelectIdeas())


def test_rejected_and_parked_ideas_keep_the_reason(state: SessionState) -> None:
    assert rules.decide(state, c.RejectIdea("i2", "spills")) == (e.IdeaRejected("i2", "spills"),)
    assert rules.decide(state, c.RejectIdea("i5", "spills")) == (e.IdeaRejected("i5", "spills"),)
    assert rules.decide(state, c.ParkIdea("i2")) == (e.IdeaParked("i2"),)
    assert after(state, c.RejectIdea("i2", "spills")).ideas["i2"].reason == "spills"


def test_a_seed_creates_its_own_idea(state: SessionState) -> None:
    grown = after(state, replace(SEED, parent="k1", title="Hand-tuned"))
    idea, kernel = grown.ideas["i6"], grown.kernels["k4"]
    assert (idea.text.title, idea.parent, idea.implemented, idea.kernels, idea.author.name) == (
        "Hand-tuned", "k1", True, ("k4",), "engineer",
    )  # fmt: skip
    assert (kernel.parent, kernel.round, kernel.seed, kernel.stage, kernel.tunables) == (
        "k1",
        1,
        True,
        Stage.BUILD,
        {"BLOCK": 8},
    )
    assert grown.kernels["k1"].children == ("k2", "k4")


def test_two_seeds_are_two_ideas(state: SessionState) -> None:
    grown = after(after(state, SEED), SEED)
    assert (grown.ideas["i6"].text.title, grown.ideas["i7"].kernels) == ("Seed: mine.cpp", ("k5",))


def test_a_seed_can_come_before_everything_else() -> None:
    grown = after(b.fold(b.opened()), SEED)
    assert grown.kernels["k1"].round == 0
    assert [str(work.key) for work in rules.next_work(grown)] == ["prepare"]


@pytest.mark.parametrize(("idea", "kinds"), [
    ("i2", ["idea.selected", "kernel.drafted", "idea.implemented"]),
    ("i3", ["kernel.drafted", "idea.implemented"]),
    ("i5", ["idea.selected", "kernel.drafted", "idea.implemented"]),
    ("i1", ["kernel.drafted"]),
])  # fmt: skip
def test_a_seed_can_implement_an_idea(state: SessionState, idea: str, kinds: list[str]) -> None:
    events = rules.decide(state, replace(SEED, idea=idea))
    assert [event.KIND for event in events] == kinds
    grown = then(state, *events)
    assert grown.ideas[idea].implemented
    assert grown.ideas[idea].kernels[-1] == "k4"
    assert grown.kernels["k4"].parent == state.ideas[idea].parent
    assert after(state, replace(SEED, idea=idea, parent="k2")).kernels["k4"].parent == "k2"


def test_pinning_is_idempotent_both_ways(state: SessionState) -> None:
    pinned = after(state, c.PinKernel("k1"))
    assert pinned.pinned == ("k1",)
    assert rules.decide(pinned, c.PinKernel("k1")) == ()
    assert after(pinned, c.UnpinKernel("k1")).pinned == ()
    assert rules.decide(state, c.UnpinKernel("k1")) == ()


def test_pruning_closes_a_branch_and_cancels_its_waiting_kernels(state: SessionState) -> None:
    events = rules.decide(state, c.PruneBranch("k2", "dead end"))
    assert events == (e.BranchPruned("k2", "dead end"), e.KernelCancelled("k3", "branch k2 pruned"))
    pruned = then(state, *events)
    assert [k for k in state.kernels if queries.is_pruned(pruned, k)] == ["k2", "k3"]
    assert [k.id for k in queries.frontier(pruned)] == ["k1"]
    assert rules.decide(pruned, c.PruneBranch("k2")) == ()
    with pytest.raises(CommandRejected, match="reopen the pruned ancestor"):
        rules.decide(pruned, c.ReopenBranch("k3"))
    assert [k.id for k in queries.frontier(after(pruned, c.ReopenBranch("k2")))] == ["k2", "k1"]


def test_a_cancelled_kernel_keeps_the_reason(state: SessionState) -> None:
    assert rules.decide(state, c.CancelKernel("k3")) == (e.KernelCancelled("k3", "cancelled by hand"),)
    assert rules.decide(state, c.CancelKernel("k3", "too long")) == (e.KernelCancelled("k3", "too long"),)


def test_remeasuring_resets_a_kernel(state: SessionState, closed: SessionState) -> None:
    assert rules.decide(state, c.Remeasure("k2")) == (e.KernelReopened("k2", "remeasured on request"),)
    kernel = after(state, c.Remeasure("k2")).kernels["k2"]
    assert (kernel.stage, kernel.verification, kernel.measurement, kernel.again) == (Stage.BUILD, None, None, 1)
    assert rules.decide(closed, c.Remeasure("k3"))[0] == e.SessionReopened()


@pytest.mark.parametrize("target", ["", "k1", "i4", "r0", "r1"])
def test_kernels_ideas_rounds_and_sessions_take_notes(state: SessionState, target: str) -> None:
    noted = after(state, c.AddNote(target, "look at this"))
    assert [(n.target, n.text) for n in noted.notes] == [(target, "look at this")]


@pytest.mark.parametrize("mode", ["ask", "ask:1", "ask:3600", "autopilot"])
def test_every_mode_can_be_set(state: SessionState, mode: str) -> None:
    assert str(after(state, c.SetMode(mode)).mode) == mode


def test_instructions_and_limits_are_recorded(state: SessionState) -> None:
    assert after(state, c.Instruct("fewer registers")).instructions == "fewer registers"
    assert rules.decide(state, c.SetLimits(Limits(rounds=9))) == (e.LimitsChanged(Limits(rounds=9)),)


@pytest.mark.parametrize("figure", [float("nan"), float("inf"), 1e13])
def test_non_finite_limits_are_rejected(state: SessionState, figure: float) -> None:
    for command in (c.SetLimits(Limits(usd=figure)), c.SetLimits(Limits(light=figure)), c.SetPauses(Pauses(usd=figure))):
        with pytest.raises(CommandRejected, match="invalid limit"):
            rules.decide(state, command)


def test_an_invalid_limit_is_named(state: SessionState) -> None:
    with pytest.raises(CommandRejected, match=r"of plateau, 10001: give a number up to 10,000, or none"):
        rules.decide(state, c.SetLimits(Limits(rounds=5, plateau=10_001)))
    with pytest.raises(CommandRejected, match=r"of tokens, 10000000000000: give a number up to 1,000,000,000,000, or none"):
        rules.decide(state, c.SetLimits(Limits(tokens=10**13)))
    with pytest.raises(CommandRejected, match="invalid limit of dollars, inf"):
        rules.decide(state, c.SetPauses(Pauses(usd=float("inf"))))


def test_a_pause_before_a_round_that_has_begun_is_rejected() -> None:
    state = b.fold(*b.first_round(pauses=Pauses(round=1)), e.RoundOpened(1, ("k1",)))
    with pytest.raises(CommandRejected, match=r"^round 0 has already begun: the next one is round 2$"):
        rules.decide(state, c.SetPauses(Pauses(round=0)))
    assert rules.decide(state, c.SetPauses(Pauses(round=2)))
    assert rules.decide(state, c.SetPauses(Pauses(round=1, usd=3.0))), "an earlier pause may stay among the conditions"


def test_limits_that_no_float_holds_are_rejected(state: SessionState) -> None:
    huge = 10**400
    for command in (c.SetLimits(Limits(rounds=huge)), c.SetLimits(Limits(tokens=huge)), c.SetPauses(Pauses(round=huge))):
        with pytest.raises(CommandRejected, match="invalid limit"):
            rules.decide(state, command)


def test_a_kernel_that_is_not_corroborated_is_remeasured_not_accepted(state: SessionState) -> None:
    """The refusal said that it is measured, which does not tell why it does not lead or what to do."""
    doubtful = replace(b.measurement(2.0), corroborated=False)
    known = then(state, *rules.decide(state, c.Remeasure("k2")), b.built("k2"), b.verified("k2", 2.0))
    known = then(known, e.KernelMeasured("k2", doubtful, 1.5))
    for command in (c.AcceptKernel("k2", "I know"), c.DiscardKernel("k2")):
        with pytest.raises(CommandRejected, match="k2 is not quarantined: its time is not corroborated, so remeasure it"):
            rules.decide(known, command)


@pytest.mark.parametrize("target", ["r٣", "r" + "9" * 5000, "r01", "r"])
def test_a_note_is_on_a_round_by_its_name(state: SessionState, target: str) -> None:
    with pytest.raises(CommandRejected, match="unknown target"):
        rules.decide(state, c.AddNote(target, "odd"))


def test_ending_a_session_cancels_waiting_kernels(state: SessionState, closed: SessionState) -> None:
    assert rules.decide(state, c.EndSession("")) == (
        e.KernelCancelled("k3", "session closed"),
        e.SessionClosed("ended by hand"),
    )
    assert closed.closed == "enough"
    with pytest.raises(CommandRejected, match=r"already ended \(enough\)"):
        rules.decide(closed, c.EndSession("again"))


@pytest.mark.parametrize("command", [
    c.WriteIdea(TEXT), c.SelectIdeas(), c.SelectIdeas(("i5",)), SEED, replace(SEED, idea="i2"), c.Remeasure("k1"),
], ids=str)  # fmt: skip
def test_new_work_reopens_a_closed_session(closed: SessionState, command: c.Command) -> None:
    assert rules.decide(closed, command)[0] == e.SessionReopened()
    assert after(closed, command).closed is None


@pytest.mark.parametrize("command", [
    c.AddNote("", "x"), c.PinKernel("k1"), c.RejectIdea("i2", ""), c.ParkIdea("i2"), c.Instruct("x"), c.SetMode("ask"),
    c.PruneBranch("k2"), c.EditIdea("i2", "x"),
], ids=str)  # fmt: skip
def test_notes_do_not_reopen_a_closed_session(closed: SessionState, command: c.Command) -> None:
    assert after(closed, command).closed == "enough"


def test_new_limits_reopen_a_session_unless_it_would_close_again() -> None:
    finished = b.walk(limits=Limits(rounds=1)).state
    assert finished.closed == "1 of 1 rounds done"
    assert after(finished, c.SetLimits(Limits(rounds=1))).closed is not None
    again = after(finished, c.SetLimits(Limits(rounds=2)))
    assert again.closed is None
    assert rules.automatic(again) == (e.RoundOpened(2, tuple(k.id for k in queries.frontier(again)[:2])),)


CALLS = (
    e.CallStarted("c1", "propose:1", m.CallRole.IDEAS, "openai:gpt-test", b.digest("prompt"), 9000),
    e.CallAnswered("c1", b.digest("reply"), m.Usage(50, 0, 5)),
    e.CallStarted("c2", "implement:i3", m.CallRole.CODE, "openai:gpt-test", b.digest("prompt"), 9000),
    e.CallFailed("c2", "no connection"),
    e.CallStarted("c3", "implement:i3", m.CallRole.CODE, "openai:gpt-test", b.digest("prompt"), 9000),
)


def test_an_open_call_is_cancelled_and_only_the_call() -> None:
    state = b.fold(*b.first_round(), *CALLS)
    assert rules.decide(state, c.CancelCall("c3")) == (
        e.CallFailed("c3", "cancelled by hand", m.Usage(output=9000), cancelled=True, estimated=True),
    )
    found = after(state, c.CancelCall("c3", "it thinks too long")).calls["c3"]
    assert (found.status, found.reason, found.cancelled) == (CallStatus.FAILED, "cancelled by hand: it thinks too long", True)


@pytest.mark.parametrize(
    ("call", "words"),
    [("c9", "unknown call 'c9'"), ("c1", "c1 has already been answered"), ("c2", r"c2 has already failed \(no connection\)")],
)
def test_a_call_that_is_not_open_cannot_be_cancelled(call: str, words: str) -> None:
    with pytest.raises(CommandRejected, match=words):
        rules.decide(b.fold(*b.first_round(), *CALLS), c.CancelCall(call))


def test_an_approved_idea_whose_writer_failed_gets_another_writer() -> None:
    events = (
        *b.first_round(mode="ask"), e.RoundOpened(1, ("k1",)), b.proposed("i2", "i3", round_number=1, parent="k1"),
        e.IdeaSelected("i2"), e.WorkStarted("implement:i2"),
    )  # fmt: skip
    approved = b.fold(*events)
    with pytest.raises(CommandRejected, match="i2 is being written: cancel its model call first"):
        rules.decide(approved, c.EditIdea("i2", writer="paste"))
    failed = b.fold(*events, e.WorkFailed("implement:i2", "no key", called_off=True))
    assert w.Implement("i2") not in rules.next_work(failed)
    with pytest.raises(CommandRejected, match="already been approved"):
        rules.decide(failed, c.EditIdea("i2", writer="paste", title="Another"))
    changed = after(failed, c.EditIdea("i2", writer="paste"))
    assert w.Implement("i2") in rules.next_work(changed)
    assert (dict(changed.broken), dict(changed.called_off)) == ({}, {})
    assert changed.ideas["i2"].writer == "paste"
