"""A model as a proposer and writer: which ideas are kept, how many kernels an idea gets, what a repair may change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support import builders as b
from support.fake_models import LAUNCH, FakeModel, Tape, code_reply, ideas_reply, refused

from engine.domain import events as e
from engine.domain import rules
from engine.domain import work as w
from engine.domain.errors import BudgetExhausted
from engine.domain.model import CATEGORIES, Author, Contract, Dialect, FailureKind, IdeaText
from engine.domain.settings import Limits, ModelSettings, Settings
from engine.domain.state import Idea, SessionState
from engine.ideas.authoring import SPARE, ModelProposer
from engine.ideas.factory import open_ideas
from engine.ideas.model_calls import ByHand, ModelCalls
from engine.ideas.models.model import ModelError, Trouble
from engine.ideas.playbook import Playbook
from engine.ideas.proposer import CodeRequest, IdeaRequest, Implementation, RepairRequest
from engine.ideas.replies import ReplyError

TUNED = "// @tune BLOCK = 4, 8, 16\n// @tune UNROLL = 1, 2\n// @require BLOCK * UNROLL <= DIM\n" + LAUNCH
AUTHOR = Author("openai:fake")


def state(*events: e.Event, **settings: Any) -> SessionState:
    return b.fold(*b.first_round(**settings), e.RoundOpened(1, ("k1",)), *events)


def source(model: FakeModel | ByHand) -> ModelProposer:
    return ModelProposer(model, ModelCalls(lambda _: None))


def propose(
    model: FakeModel | ByHand, tape: Tape, count: int = 3, session: SessionState | None = None
) -> tuple[w.Proposal, ...]:
    request = IdeaRequest(session or state(), 1, ("k1",), count, Dialect.CPP, {"k1": "int root;"})
    return asyncio.run(source(model).propose(request, tape.calls()))


def titles(proposals: Sequence[w.Proposal]) -> list[str]:
    return [p.text.title for p in proposals]


def implement(model: FakeModel | ByHand, tape: Tape, branch: int, session: SessionState | None = None) -> Implementation:
    idea = Idea("i2", 1, IdeaText("Tile rows", CATEGORIES[0], "Because."), "k1", AUTHOR, branch)
    request = CodeRequest(session or state(), idea, Dialect.CPP, "int root;")
    return asyncio.run(source(model).implement(request, tape.calls("implement:i2")))


def kernel(mark: object, tuned: bool = False) -> str:
    return code_reply(f"// {mark}\n" + (TUNED if tuned else LAUNCH))


# ideas


def test_ideas_are_spread_over_the_categories_and_have_a_parent() -> None:
    model, tape = FakeModel([ideas_reply("Tile rows", "Prefetch lines", "Use halves", "Unroll loops", "Split rows")]), Tape()
    found = propose(model, tape)
    assert titles(p for p in found if not p.surplus) == ["Tile rows", "Prefetch lines", "Use halves"]
    assert titles(p for p in found if p.surplus) == ["Unroll loops", "Split rows"]
    assert len({p.text.category for p in found if not p.surplus}) == 3
    assert {(p.parent, p.author) for p in found} == {("k1", AUTHOR)}
    assert f"Propose {3 + SPARE} ideas" in model.asked[0].user
    assert model.asked[0].schema is not None


def test_within_a_category_the_highest_prediction_comes_first() -> None:
    reply = ideas_reply("Tile rows", "Pad lines", category="memory access")
    reply = reply.replace('"predicted_speedup": 1.5', '"predicted_speedup": 3.0', 2).replace("3.0", "1.1", 1)
    assert titles(propose(FakeModel([reply]), Tape(), 1))[0] == "Pad lines"


def test_repeated_ideas_are_detected_and_recorded_as_dropped() -> None:
    session = state(b.proposed("i2", round_number=1, parent="k1"), e.IdeaRejected("i2", "no"))
    known = session.ideas["i2"].text.title
    model = FakeModel([ideas_reply(known, "Tile the rows", "Tile rows", "Prefetch lines")])
    found = propose(model, Tape(), 3, session)
    assert titles(found) == ["Tile the rows", "Prefetch lines", known, "Tile rows"]
    events = rules.record(session, w.Propose(1, ("k1",), 3), w.Proposals(found))
    assert isinstance(events[0], e.IdeasProposed)
    assert [i.text.title for i in events[0].ideas] == ["Tile the rows", "Prefetch lines"]
    assert events[0].dropped == (known, "Tile rows")


def test_repeated_ideas_are_requested_again_and_then_given_up() -> None:
    session = state(b.proposed("i2", round_number=1, parent="k1"))
    known = ideas_reply(session.ideas["i2"].text.title)
    tape, model = Tape(), FakeModel([known, ideas_reply("Tile rows")])
    assert titles(propose(model, tape, 1, session)) == ["Tile rows"]
    assert "every idea repeats an earlier one" in model.asked[1].user
    with pytest.raises(ReplyError, match="every idea repeats"):
        propose(FakeModel([known]), Tape(), 1, session)


def test_unreadable_ideas_fail_the_work_and_are_requested_again_on_retry() -> None:
    tape = Tape()
    with pytest.raises(ReplyError):
        propose(FakeModel(["no"]), tape)
    assert len(tape.state.calls) == 3
    assert titles(propose(FakeModel([ideas_reply("Tile rows")]), tape, 1)) == ["Tile rows"]
    assert len(tape.state.calls) == 4


def test_no_prompt_for_zero_ideas_and_missing_logs_are_skipped() -> None:
    model = FakeModel([ideas_reply("Tile rows")])
    assert propose(model, Tape(), 0) == ()
    assert model.asked == []
    assert propose(model, Tape(), 1), "the parent's build log is a blob that is not here"


def test_prompts_contain_the_compiler_output_of_the_parents() -> None:
    tape, model = Tape(), FakeModel([ideas_reply("Tile rows")])
    log = tape.blobs.put(b"k1.cpp:3: loop vectorized using 64 byte vectors")
    session = state()
    known = replace(session.kernels["k1"], build_log=log)
    propose(model, tape, 1, replace(session, kernels={"k1": known}))
    assert "loop vectorized using 64 byte vectors" in model.asked[0].user


# code


@pytest.mark.parametrize(
    ("branch", "tuned", "asked", "names"),
    [
        (1, False, 1, ["i2-1.cpp"]),
        (1, True, 1, ["i2-1.cpp"]),
        (3, False, 3, ["i2-1.cpp", "i2-2.cpp", "i2-3.cpp"]),
        (3, True, 2, ["i2-1.cpp", "i2-2.cpp", "i2-1.cpp"]),
        (4, True, 2, ["i2-1.cpp", "i2-2.cpp", "i2-1.cpp", "i2-2.cpp"]),
        (2, True, 1, ["i2-1.cpp", "i2-1.cpp"]),
    ],
)
def test_half_of_the_implementations_are_written_and_the_rest_are_variants(
    branch: int, tuned: bool, asked: int, names: list[str]
) -> None:
    model = FakeModel([kernel(n, tuned) for n in range(9)])
    answer = implement(model, Tape(), branch)
    assert len(model.asked) == asked
    assert [d.name for d in answer.drafts] == names
    assert {(d.dialect, d.contract) for d in answer.drafts} == {(Dialect.CPP, Contract.HOST)}
    assert (answer.note, answer.author) == ("", AUTHOR)
    assert len({(d.source, tuple(d.tunables.items())) for d in answer.drafts}) == branch
    if tuned:
        assert answer.drafts[0].tunables == {"BLOCK": 4, "UNROLL": 1}


def test_every_implementation_must_differ_from_earlier_ones() -> None:
    model = FakeModel([kernel("first"), kernel("first"), kernel("second"), kernel("third")])
    answer = implement(model, Tape(), 3)
    assert [d.source.splitlines()[0] for d in answer.drafts] == ["// first", "// second", "// third"]
    assert "This is implementation" not in model.asked[0].user
    assert "implementation 2 of 3" in model.asked[1].user
    assert "the code is identical to an earlier implementation" in model.asked[2].user
    assert "// second" in model.asked[3].user


def test_failed_implementations_are_noted_and_the_others_continue() -> None:
    model = FakeModel(["nothing", "nothing", refused(), kernel("third")])
    answer = implement(model, Tape(), 3)
    assert [d.name for d in answer.drafts] == ["i2-1.cpp"]
    assert answer.note == (
        "implementation 1: the reply has no code: give the complete file in one ```cpp fence; "
        "implementation 2: openai:fake refused to answer"
    )
    assert implement(FakeModel(["no"]), Tape(), 1).drafts == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("// @tune DIM = 1, 2\n" + LAUNCH, "the tunable DIM has the name of a problem.h constant"),
        ("// @tune B = 1, 2\n// @require B > 2\n" + LAUNCH, "no combination of tunables meets"),
        ("// @require UNKNOWN > 2\n" + LAUNCH, "UNKNOWN"),
        ("int root;\n" + LAUNCH, ""),
    ],
)
def test_invalid_tunables_are_rejected_with_the_reason(text: str, message: str) -> None:
    model = FakeModel([code_reply(text), kernel("good")])
    answer = implement(model, Tape(), 1)
    assert len(answer.drafts) == 1
    assert len(model.asked) == (2 if message else 1)
    assert message in model.asked[-1].user


def test_the_parents_code_is_not_an_implementation() -> None:
    model = FakeModel([code_reply(LAUNCH), kernel("good")])
    idea = Idea("i2", 1, IdeaText("Tile rows", CATEGORIES[0], "Because."), "k1", AUTHOR, 1)
    request = CodeRequest(state(), idea, Dialect.CPP, f"\n{LAUNCH}")
    answer = asyncio.run(source(model).implement(request, Tape().calls("implement:i2")))
    assert answer.drafts[0].source.startswith("// good")


def test_a_cap_ends_the_writing_and_keeps_earlier_implementations() -> None:
    session = state(limits=Limits(tokens=60_000))
    spent = FakeModel([kernel("first"), kernel("second")])
    spent.usage = replace(spent.usage, input=30_000)
    answer = implement(spent, Tape(session), 3, session)
    assert [d.name for d in answer.drafts] == ["i2-1.cpp"]
    assert "of 60,000 tokens spent" in answer.note
    poor = state(limits=Limits(tokens=10))
    with pytest.raises(BudgetExhausted):
        implement(FakeModel([kernel("first")]), Tape(poor), 3, poor)


def test_an_unreachable_model_loses_no_paid_reply() -> None:
    tape = Tape()
    gone = ModelError(Trouble.UNREACHABLE, "no connection")
    with pytest.raises(ModelError):
        implement(FakeModel([kernel("first"), gone]), tape, 3)
    model = FakeModel([kernel("second"), kernel("third")])
    answer = implement(model, tape, 3)
    assert [d.source.splitlines()[0] for d in answer.drafts] == ["// first", "// second", "// third"]
    assert len(model.asked) == 2


def test_a_person_writes_one_implementation_which_is_varied() -> None:
    tape = Tape()

    def answer(tape: Tape) -> None:
        call = next(c.id for c in tape.state.calls.values() if c.status == "open")
        tape.record([e.CallAnswered(call, tape.blobs.put(kernel("mine", True).encode()), finish="pasted")])

    tape.by_hand = answer
    found = implement(ByHand(), tape, 3)
    assert [d.name for d in found.drafts] == ["i2-1.cpp"] * 3
    assert len(tape.state.calls) == 1
    assert found.author == Author("paste")


def test_a_cuda_session_takes_plans() -> None:
    plan = (
        "// @tune BLOCK = 128, 256\n// @require BLOCK <= 32 * SMS\n// @launch k(x, out) grid(ROWS) block(BLOCK)\n"
        '#include "problem.h"\nextern "C" __global__ void k(const x_t* x, out_t* out) {}\n'
    )
    session = state()
    gpu = replace(session, device=replace(b.device(), kind="cuda", arch="sm_90a", units=132))
    idea = Idea("i2", 1, IdeaText("Tile rows", CATEGORIES[0], ""), None, AUTHOR, 2)
    request = CodeRequest(gpu, idea, Dialect.CUDA, None)
    answer = asyncio.run(source(FakeModel([code_reply(plan, "cuda")])).implement(request, Tape().calls("implement:i2")))
    assert [(d.name, d.contract, d.tunables["BLOCK"]) for d in answer.drafts] == [
        ("i2-1.cu", Contract.PLAN, 128), ("i2-1.cu", Contract.PLAN, 256),
    ]  # fmt: skip


# repairs


def repair(model: FakeModel, broken: str = "// broken\n" + LAUNCH, **tunables: int) -> str | None:
    session = state(b.drafted("k2", idea="i1", parent="k1", round_number=1, tunables=tunables))
    kernel = replace(session.kernels["k2"], failure=b.failure(FailureKind.BUILD_FAILED))
    request = RepairRequest(session, kernel, broken, "k2.cpp:7:1: error: expected ';'", "k2.cpp:7:1: error: expected ';'")
    return asyncio.run(source(model).repair(request, Tape().calls("repair:k2:0")))


def test_a_repair_is_new_code() -> None:
    model = FakeModel([kernel("repaired")])
    assert (repair(model) or "").startswith("// repaired")
    assert "expected ';'" in model.asked[0].user
    assert "// broken" in model.asked[0].user


@pytest.mark.parametrize(
    ("reply", "tunables", "message"),
    [
        (code_reply("// broken\n" + LAUNCH), {}, "identical to the failed kernel"),
        (kernel("other", True), {}, "changes the tunables of the kernel: keep none"),
        (kernel("other"), {"BLOCK": 4, "UNROLL": 1}, "keep BLOCK, UNROLL"),
        ("sorry", {}, "has no code"),
    ],
)
def test_a_repair_changes_only_what_it_may(reply: str, tunables: dict[str, int], message: str) -> None:
    model = FakeModel([reply])
    assert repair(model, **tunables) is None
    assert len(model.asked) == 2
    assert message in model.asked[1].user


def test_a_tuned_kernel_is_repaired_with_its_tunables() -> None:
    assert repair(FakeModel([kernel("repaired", True)]), BLOCK=4, UNROLL=1) is not None


def test_a_repair_keeps_its_contract() -> None:
    plan = '// @launch k(x) grid(1) block(32)\nextern "C" __global__ void k(const float* x) {}\n'
    session = state(b.drafted("k2", idea="i1", parent="k1"))
    kernel = replace(session.kernels["k2"], dialect=Dialect.CUDA, contract=Contract.HOST)
    request = RepairRequest(session, kernel, "x", "no", "")
    model = FakeModel([code_reply(plan, "cuda"), code_reply(LAUNCH, "cuda")])
    assert asyncio.run(source(model).repair(request, Tape().calls("repair:k2:0"))) == LAUNCH
    assert "the code uses the plan contract: keep the host contract" in model.asked[1].user


# cancelled calls


def test_after_a_cancelled_call_an_idea_keeps_earlier_implementations() -> None:
    def stopped_at(call: str) -> tuple[Tape, FakeModel]:
        tape = Tape()
        model = FakeModel([kernel("first"), kernel("second"), kernel("third")])

        async def act() -> None:
            if call in tape.state.calls:
                tape.record([e.CallFailed(call, "cancelled by hand", cancelled=True)])
                await asyncio.Event().wait()

        model.before = act
        return tape, model

    tape, model = stopped_at("c1")
    answer = implement(model, tape, 3)
    assert (answer.drafts, answer.note) == ((), "implementation 1: c1 was cancelled by hand")
    tape, model = stopped_at("c2")
    answer = implement(model, tape, 3)
    assert [d.source.splitlines()[0] for d in answer.drafts] == ["// first"]
    assert answer.note == "implementation 2: c2 was cancelled by hand"
    assert len(model.asked) == 2, "the third is not asked for in its place"
    again = FakeModel([kernel("other")])
    assert implement(again, tape, 3) == answer
    assert not again.asked


def test_a_cancelled_repair_is_none() -> None:
    session = state(b.drafted("k2", idea="i1", parent="k1", round_number=1))
    broken = replace(session.kernels["k2"], failure=b.failure(FailureKind.BUILD_FAILED))
    tape, model = Tape(session), FakeModel([kernel("repaired")])

    async def act() -> None:
        tape.record([e.CallFailed("c1", "cancelled by hand", cancelled=True)])
        await asyncio.Event().wait()

    model.before = act
    request = RepairRequest(session, broken, "// broken\n" + LAUNCH, "line 7", "line 7")
    assert asyncio.run(source(model).repair(request, tape.calls("repair:k2:0"))) is None


def test_one_cancelled_proposer_leaves_the_answers_of_the_others() -> None:
    tape = Tape()
    stopped, answered = FakeModel(["never"], name="openai:slow"), FakeModel([ideas_reply("Tile rows")], name="openai:quick")

    async def act() -> None:
        tape.record([e.CallFailed("c1", "cancelled by hand", cancelled=True)])
        await asyncio.Event().wait()

    stopped.before = act
    known = {"openai:slow": stopped, "openai:quick": answered}
    mix = open_ideas(
        Settings(source="openai:slow,openai:quick"), playbook=Playbook(None, lambda _: None),
        open_model=lambda name, _: known[name], tariff_of=lambda _: None, recall=None,
    )  # fmt: skip
    models = ModelSettings("openai:slow,openai:quick")
    request = IdeaRequest(replace(state(), models=models), 1, ("k1",), 2, Dialect.CPP, {"k1": "int root;"})
    assert titles(asyncio.run(mix.propose(request, tape.calls()))) == ["Tile rows"]
