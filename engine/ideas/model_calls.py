"""Makes all model calls: never pays for a reply twice, never exceeds a hard cap, and waits while a provider is out of reach.

Each work item has one conversation with one model and asks its questions in a fixed order. A question that an earlier process
asked for the same work is answered from the journal, whether its reply was usable or not; otherwise from the recorded replies
of another session; otherwise by the model, if the engineer allows new spending and the caps leave room.

An attempt that costs nothing (a rate limit, an overloaded server, no connection) is repeated within the same call, for as long
as the session is patient. An attempt that may have cost something ends its call, charged; the next one is another call, with
its own reservation.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from engine.domain.errors import CallCancelled
from engine.domain.model import CallRole, Usage
from engine.domain.state import CallStatus, ModelCall, SessionState
from engine.ideas import budget
from engine.ideas.budget import FREE, BudgetHeld, Ceiling, Tariff, TariffOf
from engine.ideas.countdown import countdown, repetition
from engine.ideas.models.keys import scrub
from engine.ideas.models.model import Finish, Model, ModelError, Prompt, Reply, Spent
from engine.ideas.models.retry_policy import DEFAULT_POLICY, Persistence, RetryPolicy, one_line
from engine.ideas.prompts.compose import again, prompt_text
from engine.ideas.proposer import Calls, Cost
from engine.ideas.recall import Recall, Recorded
from engine.ideas.replies import ReplyError

T = TypeVar("T")
R = TypeVar("R")

DIED = "the process ended before the reply came"
DROPPED = "the call was abandoned before the reply came"


class CallRefused(ReplyError):
    """The model refused to answer; asking again is pointless."""


@dataclass(frozen=True, slots=True)
class ByHand:
    """A person in a model's place: sees the prompt and pastes the reply."""

    name: str = "paste"


Respondent = Model | ByHand


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """A prompt with the parser of its reply."""

    role: CallRole
    prompt: Prompt
    read: Callable[[str], T]
    """Raises ReplyError; its message is part of the next prompt."""
    reasks: int = 1
    """How often a model is asked again after an unusable reply; a person is asked without limit."""
    retry_failed: bool = False
    """Whether a failed question is asked again when its work runs again. Set where the failure stops the session: there the
    work runs again only because someone retries it."""
    read_cut: Callable[[str], T] | None = None
    """Parses what is complete in a reply that was cut off at the token limit; raises ReplyError if nothing is."""


@dataclass(frozen=True, slots=True)
class _Received:
    """A new or recorded reply; ``unusable`` is the recorded reason for its rejection."""

    call: str
    text: str
    finish: str
    unusable: str = ""


class ModelCalls:
    """The shared state of a session's conversations: prices, recorded replies, permission to spend, reserved budget."""

    def __init__(
        self,
        tariff_of: TariffOf,
        recall: Recall | None = None,
        clock: Callable[[], float] = time.monotonic,
        policy: RetryPolicy = DEFAULT_POLICY,
    ) -> None:
        """``recall``: replies of another session. The engineer confirms the first question that they do not answer before it
        is sent."""
        self.policy = policy
        self.tariff_of = tariff_of
        self.recall = recall or Recall()
        self.clock = clock
        self.reserved: dict[str, float] = {}
        """Open call of this process → its ceiling in dollars."""
        self._call_ended = asyncio.Event()
        self._may_spend = recall is None

    def conversation(self, respondent: Respondent, calls: Calls) -> Conversation:
        """A conversation that continues from the calls that earlier runs of the same work made to the same model."""
        return Conversation(self, respondent, calls)

    async def confirm_spending(self, model: str, calls: Calls) -> None:
        """Return once new spending is allowed; the engineer confirms it once."""
        if not self._may_spend and not _has_spent(calls.state):
            reason = f"no recorded reply to the next prompt: resuming sends it to {model}, which costs tokens"
            calls.say(reason)
            await calls.confirm(reason)
        self._may_spend = True

    async def affordable_ceiling(self, model: Model, prompt: Prompt, calls: Calls) -> Ceiling:
        """The call's ceiling, once the caps allow it; waits while open calls hold the remaining budget.

        Raises BudgetExhausted. The caller must start the call before it yields to the event loop.
        """
        ceiling = self._ceiling(model, prompt)
        while True:
            try:
                budget.check(calls.state, model.name, ceiling, self.tariff_of, self.reserved)
            except BudgetHeld:
                self._call_ended.clear()
                await self._call_ended.wait()
            else:
                return ceiling

    @contextmanager
    def reserve(self, call: ModelCall, ceiling: Ceiling) -> Iterator[None]:
        """Reserve the call's ceiling while the call is open."""
        self.reserved[call.id] = ceiling.usd or 0.0
        try:
            yield
        finally:
            del self.reserved[call.id]
            self._call_ended.set()

    def _ceiling(self, respondent: Model, prompt: Prompt) -> Ceiling:
        texts = (prompt.system, prompt.user, *((repr(prompt.schema),) if prompt.schema is not None else ()))
        output = min(prompt.max_output, respondent.output_limit or prompt.max_output)
        return budget.ceiling(texts, output, self.tariff_of(respondent.name))


def _has_spent(state: SessionState) -> bool:
    """Whether the session has paid for a call, which means that spending was confirmed."""
    return any(not c.recalled and (c.ceiling or c.usage.total) for c in state.calls.values())


class Conversation:
    """The questions of one work item to one model, one after another."""

    def __init__(self, shared: ModelCalls, respondent: Respondent, calls: Calls) -> None:
        self._shared = shared
        self._respondent = respondent
        self._calls = calls
        self._past = deque(call for call in calls.earlier() if call.model == respondent.name)

    async def ask(self, question: Question[T]) -> T:
        """The reply as ``question.read`` parses it.

        Raises:
            ReplyError: no reply was usable; ``CallRefused`` if the model refused to answer.
            ModelError: no reply came.
            CallCancelled: someone cancelled the call, now or in an earlier run of this work.
            BudgetExhausted: the next call could exceed a hard cap and was not made.
        """
        if question.retry_failed:
            self._drop_failed_questions(question.reasks + 1)
        first = self._with_options(question)
        prompt, tries = first, 0
        while True:
            received = await self._next_reply(question.role, prompt)
            tries += 1
            try:
                return self._parse(question, received)
            except ReplyError as error:
                if not received.unusable:
                    self._calls.fail(received.call, str(error))
                by_hand = isinstance(self._respondent, ByHand)
                if isinstance(error, CallRefused) or (tries > question.reasks and not by_hand):
                    raise
                prompt = again(first, str(error))

    def _with_options(self, question: Question[T]) -> Prompt:
        """The question's prompt with the options that the session gives its role."""
        options = self._calls.state.models.options_for(question.role.value)
        return replace(question.prompt, options=options, max_output=options.max_output or question.prompt.max_output)

    def _parse(self, question: Question[T], received: _Received) -> T:
        if received.finish == Finish.REFUSED:
            raise CallRefused(received.unusable or f"{self._respondent.name} refused to answer")
        if received.unusable:
            raise ReplyError(received.unusable)
        cut = received.finish == Finish.LENGTH
        if not received.text.strip():
            raise ReplyError(self._empty(received, cut=cut))
        if cut and question.read_cut is not None:
            return question.read_cut(received.text)
        if cut:
            limit = self._limit_of(received)
            raise ReplyError(f"the reply was cut off at the limit of {limit}tokens: reason and write more briefly")
        return question.read(received.text)

    def _limit_of(self, received: _Received) -> str:
        limit = self._calls.state.calls[received.call].max_output
        return f"{limit:,} " if limit else ""

    def _empty(self, received: _Received, *, cut: bool) -> str:
        """Why a reply without text is unusable: reasoning counts as output, and may take all of it."""
        call = self._calls.state.calls[received.call]
        if not cut and (call.estimated or not call.usage.output):
            return "the reply is empty"
        spent = "" if call.estimated else f"{call.usage.output:,} "
        limit = f", up to the limit of {self._limit_of(received)}tokens: --max-output raises it, --effort lowers" if cut else ""
        return f"the reply is empty: the model only reasoned ({spent}tokens{limit}); reason less and answer"

    def _drop_failed_questions(self, tries: int) -> None:
        """Skip recorded questions that failed with ``ReplyError`` after ``tries`` unusable replies."""
        unusable: list[ModelCall] = []
        for call in tuple(self._past):
            if call.status is not CallStatus.FAILED or call.cancelled:
                return
            unusable += [call] if call.reply else []
            if call.finish == Finish.REFUSED or len(unusable) == tries:
                while self._past.popleft() is not call:
                    continue
                unusable = []

    async def _next_reply(self, role: CallRole, prompt: Prompt) -> _Received:
        """The next recorded reply of this work, else a recorded reply of another session, else a new one."""
        while self._past:
            call = self._calls.state.calls[self._past.popleft().id]
            match call.status:
                case CallStatus.ANSWERED:
                    return self._received(call)
                case CallStatus.FAILED if call.cancelled:
                    raise _cancelled(call)
                case CallStatus.FAILED if call.reply:
                    return self._received(call)
                case CallStatus.OPEN:
                    if received := await self._resume_open_call(call):
                        return received
        return await self._new_call(role, prompt)

    def _received(self, call: ModelCall) -> _Received:
        return _Received(call.id, self._calls.text(call.reply), call.finish, call.reason)

    async def _resume_open_call(self, call: ModelCall) -> _Received | None:
        """An open call of a process that has ended: a person or a recorded reply can still answer it, a model cannot."""
        if isinstance(self._respondent, ByHand):
            return await self._wait_by_hand(call)
        if not call.ceiling and (
            recorded := self._shared.recall.find(call.model, self._calls.text(call.prompt), self._calls.state)
        ):  # fmt: skip
            return self._answer_recorded(call, recorded)
        tariff = self._shared.tariff_of(call.model)
        self._calls.fail(call.id, DIED, _cost(tariff, call.highest, estimated=bool(call.highest.total)))
        return None

    async def _new_call(self, role: CallRole, prompt: Prompt) -> _Received:
        text, name = prompt_text(prompt), self._respondent.name
        if recorded := self._shared.recall.find(name, text, self._calls.state):
            return self._answer_recorded(self._calls.start(role, name, text, FREE.tokens), recorded)
        if isinstance(self._respondent, ByHand):
            return await self._wait_by_hand(self._calls.start(role, name, text, FREE.tokens))
        return await self._ask_model(self._respondent, role, prompt, text)

    def _answer_recorded(self, call: ModelCall, recorded: Recorded) -> _Received:
        self._calls.answer(call.id, recorded.reply, Cost(recorded.usage), recorded.finish, 0.0, recalled=True)
        return _Received(call.id, recorded.reply, recorded.finish)

    async def _wait_by_hand(self, call: ModelCall) -> _Received:
        self._calls.say(f"{call.id} awaits a pasted reply; its prompt is blob {call.prompt}")
        answered = await self._calls.wait_by_hand(call.id)
        if answered.cancelled:
            raise _cancelled(answered)
        return self._received(answered)

    async def _ask_model(self, model: Model, role: CallRole, prompt: Prompt, text: str) -> _Received:
        """A new reply. Raises the last attempt's ModelError once the session's patience or the attempts are exhausted."""
        shared, calls = self._shared, self._calls
        await shared.confirm_spending(model.name, calls)
        persistence = Persistence(calls.state.models.patience, shared.policy, shared.clock)
        while True:
            ceiling = await shared.affordable_ceiling(model, prompt, calls)
            call = calls.start(role, model.name, text, ceiling.tokens, ceiling.usage.output)
            with shared.reserve(call, ceiling):
                found = await self._one_call(model, prompt, call, ceiling, persistence)
            if isinstance(found, _Received):
                return found
            await calls.wait(*found)

    async def _one_call(
        self, model: Model, prompt: Prompt, call: ModelCall, ceiling: Ceiling, persistence: Persistence
    ) -> _Received | tuple[float, Callable[[float], str]]:
        """The reply; or, after an attempt that may have cost something, the wait until the next call."""
        calls, began = self._calls, self._shared.clock()
        tariff = self._shared.tariff_of(model.name)
        attempt = _Attempt()
        try:
            found = await self._unless_cancelled(call, self._free_attempts(model, prompt, persistence, attempt))
        except ModelError as error:
            calls.fail(call.id, scrub(str(error)), _cost(tariff, *budget.charge(ceiling, error)))
            raise
        except BaseException as error:
            now = calls.state.calls[call.id]
            lost = _cost(tariff, ceiling.usage, estimated=True) if attempt.under_way else Cost()
            if now.status is CallStatus.OPEN:
                calls.fail(call.id, _dropped(error), lost)
            elif now.cancelled and now.usage.total and now.usd is None:
                calls.fail(call.id, now.reason, _price(tariff, now))
            raise
        if isinstance(found, _Paid):
            calls.fail(call.id, scrub(str(found.error)), _cost(tariff, *budget.charge(ceiling, found.error)))
            return found.wait, repetition(call.id, persistence)
        cost = _cost(tariff, *budget.settled(ceiling, found))
        if (now := calls.state.calls[call.id]).cancelled:  # cancelled just before the reply, which is not recorded
            if now.usage.total and now.usd is None:
                calls.fail(call.id, now.reason, _price(tariff, now))
            raise _cancelled(now)
        reply = scrub(found.text)
        calls.answer(call.id, reply, cost, found.finish.value, self._shared.clock() - began)
        return _Received(call.id, reply, found.finish.value)

    async def _free_attempts(self, model: Model, prompt: Prompt, persistence: Persistence, attempt: _Attempt) -> Reply | _Paid:
        """Attempts until one succeeds, or may have cost something. Raises ModelError when there is no further one."""
        while True:
            attempt.under_way = True
            try:
                return await model.ask(prompt, self._calls.say)
            except ModelError as error:
                attempt.under_way = False
                wait = persistence.wait_after(error)
                if wait is None:
                    raise persistence.given_up(error) from None
                if error.spent is not Spent.NOTHING:
                    return _Paid(error, wait)
                await self._calls.wait(wait, countdown(error, persistence))

    async def _unless_cancelled(self, call: ModelCall, request: Awaitable[R]) -> R:
        """The reply. Raises CallCancelled if someone cancels the call, and cancels the request."""
        try:
            async with asyncio.timeout(None) as timeout:
                watcher = asyncio.create_task(self._expire_when_cancelled(call.id, timeout))
                try:
                    return await request
                finally:
                    watcher.cancel()
        except TimeoutError:
            if (now := self._calls.state.calls[call.id]).cancelled:
                raise _cancelled(now) from None
            raise

    async def _expire_when_cancelled(self, call: str, timeout: asyncio.Timeout) -> None:
        await self._calls.wait_cancelled(call)
        timeout.reschedule(asyncio.get_running_loop().time())


def _cancelled(call: ModelCall) -> CallCancelled:
    return CallCancelled(f"{call.id} was {call.reason}")


@dataclass(slots=True)
class _Attempt:
    """Whether a request is under way, which costs even if nobody waits for its reply."""

    under_way: bool = False


@dataclass(frozen=True, slots=True)
class _Paid:
    """An attempt that failed and may have cost something; another one follows after ``wait`` seconds."""

    error: ModelError
    wait: float


def _dropped(error: BaseException) -> str:
    """Why a call ended without an outcome: its work was abandoned, or a defect ended it."""
    if not isinstance(error, Exception):
        return DROPPED
    return f"{DROPPED}: {one_line(str(error), otherwise=type(error).__name__)}"


def _price(tariff: Tariff | None, cancelled: ModelCall) -> Cost:
    """The dollars of a call that was cancelled by hand, whose tokens were charged then."""
    return Cost(Usage(), _usd(tariff, cancelled.usage), estimated=True)


def _cost(tariff: Tariff | None, usage: Usage, estimated: bool) -> Cost:
    return Cost(usage, _usd(tariff, usage), estimated)


def _usd(tariff: Tariff | None, usage: Usage) -> float | None:
    """The cost of a usage; ``None`` if the price is unknown or nothing was counted."""
    return tariff(usage) if tariff is not None and usage.total else None
