"""Makes all model calls: never pays for a reply twice and never exceeds a hard cap.

Each work item has one conversation with one model and asks its questions in a fixed order. A question that an earlier process
asked for the same work is answered from the journal, whether its reply was usable or not; otherwise from the recorded replies
of another session; otherwise by the model, if the engineer allows new spending and the caps leave room.
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
from engine.ideas.models.model import Finish, Model, ModelError, Prompt, Reply
from engine.ideas.prompts.compose import again, prompt_text
from engine.ideas.proposer import Calls
from engine.ideas.recall import Recall, Recorded
from engine.ideas.replies import ReplyError

T = TypeVar("T")

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


@dataclass(frozen=True, slots=True)
class _Received:
    """A new or recorded reply; ``unusable`` is the recorded reason for its rejection."""

    call: str
    text: str
    finish: str
    unusable: str = ""


class ModelCalls:
    """The shared state of a session's conversations: prices, recorded replies, permission to spend, reserved budget."""

    def __init__(self, tariff_of: TariffOf, recall: Recall | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """``recall``: replies of another session. The engineer confirms the first question that they do not answer before it
        is sent."""
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
        if not respondent.counted:
            return FREE
        texts = (prompt.system, prompt.user, *((repr(prompt.schema),) if prompt.schema is not None else ()))
        return budget.ceiling(texts, prompt.max_output, self.tariff_of(respondent.name))


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
        prompt, tries = question.prompt, 0
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
                prompt = again(question.prompt, str(error))

    def _parse(self, question: Question[T], received: _Received) -> T:
        if received.finish == Finish.REFUSED:
            raise CallRefused(received.unusable or f"{self._respondent.name} refused to answer")
        if received.unusable:
            raise ReplyError(received.unusable)
        if received.finish == Finish.LENGTH:
            limit = question.prompt.max_output
            raise ReplyError(f"the reply was cut off at the limit of {limit:,} tokens: reason and write more briefly")
        return question.read(received.text)

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
        if recorded := self._shared.recall.find(call.model, self._calls.text(call.prompt), self._calls.state):
            return self._answer_recorded(call, recorded)
        if isinstance(self._respondent, ByHand):
            return await self._wait_by_hand(call)
        self._calls.fail(call.id, DIED)
        return None

    async def _new_call(self, role: CallRole, prompt: Prompt) -> _Received:
        text, name = prompt_text(prompt), self._respondent.name
        if recorded := self._shared.recall.find(name, text, self._calls.state):
            return self._answer_recorded(self._calls.start(role, name, text, FREE.tokens), recorded)
        if isinstance(self._respondent, ByHand):
            return await self._wait_by_hand(self._calls.start(role, name, text, FREE.tokens))
        return await self._ask_model(self._respondent, role, prompt, text)

    def _answer_recorded(self, call: ModelCall, recorded: Recorded) -> _Received:
        self._calls.answer(call.id, recorded.reply, recorded.usage, None, recorded.finish, 0.0, recalled=True)
        return _Received(call.id, recorded.reply, recorded.finish)

    async def _wait_by_hand(self, call: ModelCall) -> _Received:
        self._calls.say(f"{call.id} awaits a pasted reply; its prompt is blob {call.prompt}")
        answered = await self._calls.wait_by_hand(call.id)
        if answered.cancelled:
            raise _cancelled(answered)
        return self._received(answered)

    async def _ask_model(self, model: Model, role: CallRole, prompt: Prompt, text: str) -> _Received:
        shared, calls = self._shared, self._calls
        await shared.confirm_spending(model.name, calls)
        ceiling = await shared.affordable_ceiling(model, prompt, calls)
        call = calls.start(role, model.name, text, ceiling.tokens)
        began = shared.clock()
        tariff = shared.tariff_of(model.name)
        with shared.reserve(call, ceiling):
            try:
                reply = await self._unless_cancelled(call, model.ask(_within_caps(prompt, calls.state), calls.say))
            except ModelError as error:
                calls.fail(call.id, str(error), error.usage, _usd(tariff, error.usage))
                raise
            except CallCancelled:
                raise
            except BaseException:
                if calls.state.calls[call.id].status is CallStatus.OPEN:
                    calls.fail(call.id, DROPPED)
                raise
            usd = _usd(tariff, reply.usage)
            if (now := calls.state.calls[call.id]).cancelled:  # cancelled just before the reply: record its cost, not the reply
                calls.fail(call.id, now.reason, reply.usage, usd)
                raise _cancelled(now)
            calls.answer(call.id, reply.text, reply.usage, usd, reply.finish.value, shared.clock() - began)
        return _Received(call.id, reply.text, reply.finish.value)

    async def _unless_cancelled(self, call: ModelCall, request: Awaitable[Reply]) -> Reply:
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


def _within_caps(prompt: Prompt, state: SessionState) -> Prompt:
    """Under a hard cap an attempt that has cost tokens is not retried: two attempts could exceed the call's ceiling."""
    capped = state.limits.tokens is not None or state.limits.usd is not None
    return replace(prompt, spare=0) if capped else prompt


def _usd(tariff: Tariff | None, usage: Usage) -> float | None:
    """The cost of a usage; ``None`` if the price is unknown or nothing was counted."""
    return tariff(usage) if tariff is not None and usage.total else None
