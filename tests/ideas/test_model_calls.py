"""Model calls: nothing is paid for twice, whatever was recorded before a process ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders as b
from support.fake_models import FakeModel, Killed, Tape, refused, truncated

from engine.domain import events as e
from engine.domain import queries
from engine.domain.errors import BudgetExhausted, CallCancelled
from engine.domain.model import CallRole, Usage
from engine.domain.settings import CallOptions, Limits, ModelSettings
from engine.domain.state import CallStatus
from engine.ideas.model_calls import DIED, DROPPED, ByHand, CallRefused, ModelCalls, Question
from engine.ideas.models.model import ModelError, Prompt, Retry, Spent, Trouble
from engine.ideas.prompts.compose import prompt_text
from engine.ideas.recall import Recall, Recorded, digest, recorded_replies
from engine.ideas.replies import ReplyError

PROMPT = Prompt("You are.", "Say a number.", None, 50)


def number(reply: str) -> int:
    """Parses a number; any other reply is unusable."""
    try:
        return int(reply)
    except ValueError as error:
        raise ReplyError(f"{reply!r} is not a number") from error


def question(prompt: Prompt = PROMPT, reasks: int = 1, retry_failed: bool = False) -> Question[int]:
    return Question(CallRole.CODE, prompt, number, reasks, retry_failed)


def model_calls(**given: Any) -> ModelCalls:
    return ModelCalls(lambda _: lambda usage: usage.total / 1000, clock=lambda: 0.0, **given)


def ask(model: FakeModel | ByHand, tape: Tape, *questions: Question[int], at: ModelCalls | None = None) -> list[int]:
    async def asked() -> list[int]:
        conversation = (at or model_calls()).conversation(model, tape.calls("implement:i1"))
        return [await conversation.ask(one) for one in questions or (question(),)]

    return asyncio.run(asked())


def test_a_call_is_recorded_before_it_is_asked_and_its_reply_before_it_is_read() -> None:
    tape, progress = Tape(), list[str]()
    model = FakeModel(["7"])
    answer = asyncio.run(model_calls().conversation(model, tape.calls(progress=progress)).ask(question()))
    assert answer == 7
    assert tape.kinds() == ["call.started", "call.answered"]
    call = tape.state.calls["c1"]
    assert (call.model, call.role, call.status, call.finish) == ("openai:fake", CallRole.CODE, CallStatus.ANSWERED, "stop")
    assert (call.usage, call.usd, call.recalled) == (Usage(100, 10, 20), 0.12, False)
    assert tape.blobs.text(call.prompt) == prompt_text(PROMPT)
    assert tape.blobs.text(call.reply) == "7"
    assert call.ceiling >= 1000 + len("You are.Say a number.") + 50
    assert progress == ["..."]


def test_an_unusable_reply_is_requested_again_with_the_reason() -> None:
    tape, model = Tape(), FakeModel(["seven", "7"])
    assert ask(model, tape) == [7]
    assert tape.kinds() == ["call.started", "call.answered", "call.failed", "call.started", "call.answered"]
    assert "'seven' is not a number" in model.asked[1].user
    assert model.asked[1].user.startswith(PROMPT.user)
    assert tape.state.calls["c1"].reason == "'seven' is not a number"
    assert queries.total_usage(tape.state) == Usage(200, 20, 40), "an unusable reply is counted once"
    assert queries.total_usd(tape.state) == (pytest.approx(0.24), 0)


def test_repeated_questions_are_bounded() -> None:
    tape, model = Tape(), FakeModel(["seven", "eight", "9"])
    with pytest.raises(ReplyError, match="'eight' is not a number"):
        ask(model, tape)
    assert len(model.asked) == 2
    assert ask(FakeModel(["a", "b", "c", "4"]), Tape(), question(reasks=3)) == [4]


def test_a_truncated_reply_is_not_parsed_and_a_refusal_is_not_repeated() -> None:
    tape, model = Tape(), FakeModel([truncated("7"), "8"])
    assert ask(model, tape) == [8]
    assert "cut off at the limit of 50 tokens" in model.asked[1].user
    tape, model = Tape(), FakeModel([refused(), "8"])
    with pytest.raises(CallRefused, match="openai:fake refused to answer"):
        ask(model, tape)
    assert len(model.asked) == 1
    assert tape.state.calls["c1"].status is CallStatus.FAILED
    assert tape.state.calls["c1"].finish == "refused"


def test_a_failed_call_is_recorded_with_its_cost() -> None:
    tape = Tape()
    with pytest.raises(ModelError, match="no such model"):
        ask(FakeModel([ModelError(Trouble.MODEL, "no such model", Usage(5, 0, 0), spent=Spent.COUNTED)]), tape)
    call = tape.state.calls["c1"]
    assert (call.status, call.reason, call.usage, call.usd) == (CallStatus.FAILED, "no such model", Usage(5, 0, 0), 0.005)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (asyncio.CancelledError(), DROPPED),
        (RuntimeError("a\nfault"), f"{DROPPED}: a fault"),
        (KeyError(), f"{DROPPED}: KeyError"),
    ],
)
def test_an_abandoned_call_holds_no_budget_and_says_why(error: BaseException, reason: str) -> None:
    tape = Tape()
    with pytest.raises(type(error)):
        ask(FakeModel([error]), tape)
    assert (tape.state.calls["c1"].status, tape.state.calls["c1"].reason) == (CallStatus.FAILED, reason)


def test_a_cap_stops_before_the_call() -> None:
    tape = Tape(b.fold(b.opened(limits=Limits(tokens=1000))))
    model = FakeModel(["7"])
    with pytest.raises(BudgetExhausted):
        ask(model, tape)
    assert not model.asked
    assert not tape.events


def test_a_model_that_reports_no_usage_is_charged_what_the_call_could_have_cost() -> None:
    tape = Tape()
    model = FakeModel(["7"], name="command:agent", counted=False, usage=Usage())
    assert ask(model, tape) == [7]
    call = tape.state.calls["c1"]
    assert call.estimated
    assert call.usage == Usage(call.ceiling - 50, 0, 50)
    assert call.usd == call.ceiling / 1000
    capped = Tape(b.fold(b.opened(limits=Limits(tokens=call.ceiling))))
    assert ask(model, capped) == [7]
    with pytest.raises(BudgetExhausted):
        ask(model, capped, question(Prompt("", "x", None, 1)), question(Prompt("", "y", None, 1)))


def test_free_failures_are_waited_out_within_one_call_and_shown() -> None:
    tape = Tape()
    busy = ModelError(Trouble.QUOTA, "openai:fake: rate limit", retry=Retry(42.0))
    assert ask(FakeModel([busy, busy, "7"]), tape) == [7]
    assert tape.kinds() == ["call.started", "call.answered"]
    assert tape.waits == ["openai:fake: rate limit; retrying in 42 s, giving up in 1:00:00"] * 2


def test_an_attempt_that_may_have_cost_something_ends_its_call_and_the_next_reserves_anew() -> None:
    tape = Tape()
    cut = ModelError(Trouble.UNREACHABLE, "openai:fake: cut off", Usage(30, 0, 1), spent=Spent.UNKNOWN, retry=Retry())
    assert ask(FakeModel([cut, "7"]), tape) == [7]
    assert tape.kinds() == ["call.started", "call.failed", "call.started", "call.answered"]
    lost = tape.state.calls["c1"]
    assert (lost.usage, lost.estimated) == (Usage(30, 0, 50), True), "the prompt as reported, the reply at its limit"


def test_patience_ends_and_the_last_failure_says_what_was_tried() -> None:
    now = [0.0]
    busy = ModelError(Trouble.QUOTA, "openai:fake: rate limit", retry=Retry(1000.0))

    async def pass_time() -> None:
        now[0] += 1000.0

    model = FakeModel([busy], before=pass_time)
    with pytest.raises(ModelError, match=r"rate limit \(4 attempts\); retry after 1000 s"):
        ask(model, Tape(), at=ModelCalls(lambda _: None, clock=lambda: now[0]))


def test_a_key_in_a_reply_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-openai-0123456789abcdef")
    tape = Tape()
    with pytest.raises(ReplyError):
        ask(FakeModel(["your key is sk-test-openai-0123456789abcdef"]), tape, question(reasks=0))
    assert tape.blobs.text(tape.state.calls["c1"].reply) == "your key is [key]"
    assert "0123456789abcdef" not in str(tape.events)


def test_an_empty_reply_after_reasoning_is_called_that() -> None:
    with pytest.raises(ReplyError, match=r"only reasoned \(50 tokens, up to the limit of 50 tokens: --max-output raises it"):
        ask(FakeModel([truncated("")]), Tape(), question(reasks=0))
    with pytest.raises(ReplyError, match=r"only reasoned \(20 tokens\)"):
        ask(FakeModel(["  "]), Tape(), question(reasks=0))
    with pytest.raises(ReplyError, match="the reply is empty"):
        ask(FakeModel([""], usage=Usage(5, 0, 0)), Tape(), question(reasks=0))


def test_the_sessions_options_reach_the_model() -> None:
    models = ModelSettings(options={"all": CallOptions("low", 0.5), "code": CallOptions("high", max_output=70)})
    tape, model = Tape(b.fold(b.opened(), e.ModelsChanged(models))), FakeModel(["7"])
    ask(model, tape)
    assert (model.asked[0].options.effort, model.asked[0].options.temperature, model.asked[0].max_output) == ("high", 0.5, 70)
    assert tape.state.calls["c1"].max_output == 70


# repeated work


def test_answered_questions_are_not_asked_again() -> None:
    tape = Tape()
    ask(FakeModel(["7"]), tape)
    model = FakeModel(["8"])
    assert ask(model, tape, question(), question(Prompt("", "Another."))) == [7, 8]
    assert len(model.asked) == 1
    assert tape.kinds().count("call.started") == 2


def test_an_open_call_of_a_dead_process_is_failed_and_asked_again() -> None:
    tape = Tape(room=1)
    with pytest.raises(Killed):
        ask(FakeModel(["7"]), tape)
    tape.room = None
    assert ask(FakeModel(["8"]), tape) == [8]
    assert tape.state.calls["c1"].reason == DIED
    assert tape.state.calls["c1"].status is CallStatus.FAILED


def test_a_recorded_unparsed_reply_is_parsed() -> None:
    tape = Tape(room=2)
    with pytest.raises(Killed):
        ask(FakeModel(["seven"]), tape)
    tape.room = None
    model = FakeModel(["8"])
    assert ask(model, tape) == [8]
    assert len(model.asked) == 1
    assert "'seven' is not a number" in model.asked[0].user


def test_failed_questions_stay_failed_unless_they_are_retried() -> None:
    tape = Tape()
    with pytest.raises(ReplyError):
        ask(FakeModel(["seven", "eight"]), tape)
    model = FakeModel(["9"])
    recorded = list(tape.events)
    with pytest.raises(ReplyError, match="eight"):
        ask(model, tape)
    assert not model.asked
    assert tape.events == recorded, "what is on record is not recorded again"
    assert ask(model, tape, question(retry_failed=True)) == [9]
    assert len(model.asked) == 1


def test_a_refusal_is_dropped_and_an_unfinished_question_is_kept() -> None:
    tape = Tape()
    with pytest.raises(CallRefused):
        ask(FakeModel([refused()]), tape)
    with pytest.raises(CallRefused):
        ask(FakeModel(["9"]), tape)
    assert ask(FakeModel(["9"]), tape, question(retry_failed=True)) == [9]
    tape = Tape(room=3)
    with pytest.raises(Killed):
        ask(FakeModel(["seven"]), tape, question(retry_failed=True))
    tape.room = None
    model = FakeModel(["eight", "9"])
    with pytest.raises(ReplyError, match="eight"):
        ask(model, tape, question(retry_failed=True))
    assert len(model.asked) == 1, "the first unusable reply was paid for: one more is left"


def test_calls_of_other_models_or_other_work_are_not_reused() -> None:
    tape = Tape()
    ask(FakeModel(["7"], name="gemini:other"), tape)
    asyncio.run(model_calls().conversation(FakeModel(["6"]), tape.calls("implement:i2")).ask(question()))
    model = FakeModel(["8"])
    assert ask(model, tape) == [8]


REPLIES = st.lists(st.sampled_from(["1", "2", "x", "y", "truncated", "refused", "error"]), min_size=1, max_size=10)


@pytest.mark.slow
@given(REPLIES, st.lists(st.integers(1, 14), max_size=4), st.booleans())
def test_no_answered_prompt_is_asked_again_after_a_kill(replies: list[str], rooms: list[int], retry_failed: bool) -> None:
    """The process is killed after any recorded event, and the work starts again each time."""
    made: dict[str, Any] = {
        "truncated": truncated(), "refused": refused(),
        "error": ModelError(Trouble.UNREACHABLE, "gone", Usage(3, 0, 0), spent=Spent.COUNTED),
    }  # fmt: skip
    model = FakeModel([made.get(reply, reply) for reply in replies] + ["3"])
    questions = [question(Prompt("", f"Question {n}.", None, 10), retry_failed=retry_failed and n == 0) for n in range(3)]
    tape = Tape()
    for room in [*rooms, None]:
        tape.room = len(tape.events) + room if room is not None else None
        _until_killed(lambda: ask(model, tape, *questions))
    answered = [c for c in tape.state.calls.values() if c.reply and c.status is CallStatus.ANSWERED]
    assert len({c.prompt for c in answered}) == len(answered)
    answered = [e.call for e in tape.events if e.KIND == "call.answered"]
    assert len(answered) == len(set(answered))
    lost = sum(1 for c in tape.state.calls.values() if c.reason == DIED)
    asked_again = len(model.asked) - len({prompt_text(p) for p in model.asked})
    without_reply = sum(1 for c in tape.state.calls.values() if c.status is CallStatus.FAILED and not c.reply)
    assert lost <= len(rooms)
    if not retry_failed:
        assert asked_again <= without_reply


def _until_killed(action: Callable[[], object]) -> None:
    try:
        action()
    except (Killed, ReplyError, ModelError):
        return


# pasted replies


def paste(*replies: str) -> Callable[[Tape], None]:
    """Answers the open call with the next of these replies."""
    left = iter(replies)

    def answer(tape: Tape) -> None:
        call = next(c.id for c in tape.state.calls.values() if c.status is CallStatus.OPEN)
        tape.record([e.CallAnswered(call, tape.blobs.put(next(left).encode()), finish="pasted")])

    return answer


def test_a_person_sees_the_prompt_and_is_asked_until_a_reply_is_usable() -> None:
    tape, progress = Tape(), list[str]()
    tape.by_hand = paste("seven", "eight", "nine", "10")
    assert asyncio.run(model_calls().conversation(ByHand(), tape.calls(progress=progress)).ask(question())) == 10
    assert [c.status for c in tape.state.calls.values()] == [CallStatus.FAILED] * 3 + [CallStatus.ANSWERED]
    prompts = [tape.blobs.text(c.prompt) for c in tape.state.calls.values()]
    assert "'nine' is not a number" in prompts[3]
    assert "'eight' is not a number" not in prompts[3]
    assert progress[0].startswith("c1 awaits a pasted reply")
    assert tape.state.calls["c1"].prompt in progress[0]
    assert tape.waited == ["propose:1"] * 4
    assert all(c.ceiling == 0 for c in tape.state.calls.values())


def test_a_prompt_for_a_person_stays_open_across_processes() -> None:
    tape = Tape(room=1)
    tape.by_hand = paste("6")
    with pytest.raises(Killed):
        ask(ByHand(), tape)
    tape.room, tape.by_hand = None, paste("7")
    assert ask(ByHand(), tape) == [7]
    assert list(tape.state.calls) == ["c1"]


# recorded replies of another session


def recalled(**replies: str) -> Recall:
    return Recall({("openai:fake", digest(prompt_text(PROMPT), {})): Recorded(replies["reply"], Usage(100, 0, 9), "stop")})


def test_recorded_replies_of_another_session_cost_nothing() -> None:
    tape, model = Tape(b.fold(b.opened(limits=Limits(tokens=0)))), FakeModel(["8"])
    assert ask(model, tape, at=model_calls(recall=recalled(reply="7"))) == [7]
    assert not model.asked
    call = tape.state.calls["c1"]
    assert (call.recalled, call.usage, call.ceiling) == (True, Usage(100, 0, 9), 0)
    assert queries.total_usage(tape.state).total == 0
    assert tape.waited == []


def test_an_interrupted_recalled_call_is_completed() -> None:
    tape = Tape(room=1)
    with pytest.raises(Killed):
        ask(FakeModel(["8"]), tape, at=model_calls(recall=recalled(reply="7")))
    tape.room = None
    assert ask(FakeModel(["8"]), tape, at=model_calls(recall=recalled(reply="7"))) == [7]
    assert list(tape.state.calls) == ["c1"]


def test_the_engineer_is_asked_before_new_spending_begins_and_only_then() -> None:
    tape, model, here = Tape(), FakeModel(["8"]), model_calls(recall=recalled(reply="7"))
    tape.by_hand = lambda tape: tape.record([e.SessionContinued(tape.state.pauses)])
    new = question(Prompt("", "Something new."))
    assert ask(model, tape, question(), new, at=here) == [7, 8]
    assert tape.kinds().count("session.paused") == 1
    paused = next(event for event in tape.events if isinstance(event, e.SessionPaused))
    assert "openai:fake" in paused.reason
    ask(model, tape, new, new, new, at=here)
    again = model_calls(recall=recalled(reply="7"))
    ask(FakeModel(["9"]), tape, *[new] * 5, at=again)
    assert tape.kinds().count("session.paused") == 1, "what was allowed once stays allowed, also in another process"


def test_pasted_replies_need_no_confirmation_to_spend() -> None:
    tape = Tape()
    tape.by_hand = paste("7")
    assert ask(ByHand(), tape, at=model_calls(recall=Recall())) == [7]
    assert tape.kinds() == ["call.started", "call.answered"]


def test_usable_replies_of_a_session_are_found_by_model_and_prompt() -> None:
    tape = Tape()
    ask(FakeModel(["seven", "7"]), tape)
    found = recorded_replies(tape.state, tape.blobs.text)
    assert len(found) == 1
    assert found.find("openai:fake", prompt_text(PROMPT), tape.state) is None, "the reply to the first prompt could not be used"
    assert digest("\ud800", {}) == digest("?", {})


# cancelled calls


def cancelled(tape: Tape, call: str) -> e.Event:
    """What the rules make of a cancellation: the call is charged in full, without a price."""
    return e.CallFailed(call, "cancelled by hand", tape.state.calls[call].highest, cancelled=True, estimated=True)


def stops(tape: Tape, call: str = "c1") -> Callable[[], Any]:
    """Cancels a running call; the model never answers."""

    async def act() -> None:
        tape.record([cancelled(tape, call)])
        await asyncio.Event().wait()

    return act


def test_a_cancelled_call_stops_and_is_not_repeated() -> None:
    tape = Tape()
    model = FakeModel(["7"], before=stops(tape))
    here = model_calls()
    with pytest.raises(CallCancelled, match="c1 was cancelled by hand"):
        ask(model, tape, at=here)
    found = tape.state.calls["c1"]
    assert (found.status, found.reason, found.usage) == (CallStatus.FAILED, "cancelled by hand", found.highest)
    assert tape.kinds() == ["call.started", "call.failed", "call.failed"], "the second one has its price"
    assert here.reserved == {}, "it holds no budget"
    for retry_failed in (False, True):
        with pytest.raises(CallCancelled, match="c1 was"):
            ask(FakeModel(["8"]), tape, question(retry_failed=retry_failed))
    assert tape.kinds().count("call.started") == 1, "nothing was asked when the work was done again"


def test_a_cancelled_call_is_repeated_after_its_work_failed() -> None:
    tape = Tape()
    with pytest.raises(CallCancelled):
        ask(FakeModel(["7"], before=stops(tape)), tape)
    tape.record([e.WorkFailed("implement:i1", "c1 was cancelled by hand", called_off=True)])
    assert ask(FakeModel(["8"]), tape, question(retry_failed=True)) == [8]


def test_earlier_replies_survive_the_cancellation_of_a_later_call() -> None:
    tape = Tape()
    assert ask(FakeModel(["7"]), tape) == [7]
    second = question(Prompt("", "Another."))
    with pytest.raises(CallCancelled, match="c2 was"):
        ask(FakeModel(["8"], before=stops(tape, "c2")), tape, question(), second)
    assert ask(FakeModel(["8"]), tape) == [7]


def test_a_reply_that_arrives_during_a_cancellation_is_paid_for_but_not_parsed() -> None:
    tape = Tape()

    async def act() -> None:
        tape.record([cancelled(tape, "c1")])

    with pytest.raises(CallCancelled):
        ask(FakeModel(["7"], before=act), tape)
    found = tape.state.calls["c1"]
    assert (found.status, found.reason, found.reply) == (CallStatus.FAILED, "cancelled by hand", "")
    assert (found.usage, found.usd, found.estimated) == (found.highest, found.ceiling / 1000, True)


def test_a_time_out_of_the_model_is_not_a_cancellation() -> None:
    tape = Tape()
    with pytest.raises(TimeoutError):
        ask(FakeModel([TimeoutError()]), tape)
    assert tape.state.calls["c1"].reason == f"{DROPPED}: TimeoutError"


def test_a_prompt_for_a_person_can_be_cancelled() -> None:
    tape = Tape()
    tape.by_hand = lambda tape: tape.record([e.CallFailed("c1", "cancelled by hand", cancelled=True)])
    with pytest.raises(CallCancelled, match="c1 was cancelled by hand"):
        ask(ByHand(), tape)
    tape.by_hand = None
    with pytest.raises(CallCancelled):
        ask(ByHand(), tape)
    assert list(tape.state.calls) == ["c1"]
