"""Calls of models: every call is made here, so that nothing is paid for twice and no hard cap is exceeded.

A work holds one conversation with one model and asks its questions in an order that depends on the work alone. Questions that
the work asked in an earlier process are answered from the journal, usable or not; then from the recorded replies of another
session; then, where the engineer allows new spending and the caps have room, by the model.
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
DROPPED = "it was dropped before the reply came"


class CallRefused(ReplyError):
    """The model declined to answer; it would decline again."""


@dataclass(frozen=True, slots=True)
class ByHand:
    """A person in a model's place: shown the prompt, pastes the reply."""

    name: str = "paste"


Respondent = Model | ByHand


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """A prompt, and how its reply is parsed."""

    role: CallRole
    prompt: Prompt
    read: Callable[[str], T]
    """Raises ReplyError; its message is part of the next prompt."""
    reasks: int = 1
    """How often a model is asked again after a reply that cannot be used; by hand there is no limit."""
    retry_failed: bool = False
    """Whether a question that failed for good is asked again when its work runs again: where that failure stops the session,
    the work only runs again because someone wants another try."""


@dataclass(frozen=True, slots=True)
class _Received:
    """A new or recorded reply; ``unusable`` is the recorded reason why it could not be used."""

    call: str
    text: str
    finish: str
    unusable: str = ""


class ModelCalls:
    """What all conversations of a session share: prices, recorded replies, permission to spend, and budget held back."""

    def __init__(self, tariff_of: TariffOf, recall: Recall | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """``recall``: replies of another session; with them, the engineer confirms before the first question that they do not
        answer is asked."""
        self.tariff_of = tariff_of
        self.recall = recall or Recall()
        self.clock = clock
        self.reserved: dict[str, float] = {}
        """Call → dollars that it may cost, for the calls under way here."""
        self._call_ended = asyncio.Event()
        self._may_spend = recall is None

    def conversation(self, respondent: Respondent, calls: Calls) -> Conversation:
        """One run of a work, continuing from the calls that earlier runs of it made to the same model."""
        return Conversation(self, respondent, calls)

    async def confirm_spending(self, model: str, calls: Calls) -> None:
        """Return once new spending is allowed; the engineer confirms the first of it."""
        if not self._may_spend and not _has_spent(calls.state):
            words = f"no recorded reply answers the next prompt: going on asks {model} anew and spends"
            calls.say(words)
            await calls.confirm(words)
        self._may_spend = True

    async def affordable_ceiling(self, model: Model, prompt: Prompt, calls: Calls) -> Ceiling:
        """The most that the call can cost, once the caps allow it; waits where only calls under way use up the budget.

        Raises BudgetExhausted. The caller must start the call without yielding to the event loop in between.
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
        """Hold the call's ceiling back from the budget while the call lasts."""
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
    """Whether the session has paid for a call before: then spending was confirmed."""
    return any(not c.recalled and (c.ceiling or c.usage.total) for c in state.calls.values())


class Conversation:
    """Questions of one work to one model, one after another."""

    def __init__(self, shared: ModelCalls, respondent: Respondent, calls: Calls) -> None:
        self._shared = shared
        self._respondent = respondent
        self._calls = calls
        self._past = deque(call for call in calls.earlier() if call.model == respondent.name)

    async def ask(self, question: Question[T]) -> T:
        """The reply as ``question.read`` parses it.

        Raises:
            ReplyError: every reply was unusable; ``CallRefused`` where the model declined.
            ModelError: no reply came.
            CallCancelled: someone cancelled the call, now or in an earlier run of this work.
            BudgetExhausted: the next call could exceed a hard cap; it was not made.
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
            raise CallRefused(received.unusable or f"{self._respondent.name} declined to answer")
        if received.unusable:
            raise ReplyError(received.unusable)
        if received.finish == Finish.LENGTH:
            limit = question.prompt.max_output
            raise ReplyError(f"the reply was cut short at its limit of {limit:,} tokens: think and write more briefly")
        return question.read(received.text)

    def _drop_failed_questions(self, tries: int) -> None:
        """Skip the recorded questions that ended in ``ReplyError``, after as many unusable replies as are allowed."""
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
        """This work's next recorded reply, else another session's, else a new one."""
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
        """An open call of a process that has ended: a person or a recorded reply may still answer it, a model cannot."""
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
        self._calls.say(f"{call.id} awaits a reply by hand: its prompt is the session's blob {call.prompt}")
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
            if (now := calls.state.calls[call.id]).cancelled:  # cancelled as the reply came: it stays cancelled, with its cost
                calls.fail(call.id, now.reason, reply.usage, usd)
                raise _cancelled(now)
            calls.answer(call.id, reply.text, reply.usage, usd, reply.finish.value, shared.clock() - began)
        return _Received(call.id, reply.text, reply.finish.value)

    async def _unless_cancelled(self, call: ModelCall, request: Awaitable[Reply]) -> Reply:
        """The reply. Raises CallCancelled once someone cancels the call; the request is cancelled with it."""
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
    """Under a hard cap there is no retry after an attempt that has cost something: two could exceed the call's ceiling."""
    capped = state.limits.tokens is not None or state.limits.usd is not None
    return replace(prompt, spare=0) if capped else prompt


def _usd(tariff: Tariff | None, usage: Usage) -> float | None:
    """What a usage cost; ``None`` where the price is unknown or nothing was counted."""
    return tariff(usage) if tariff is not None and usage.total else None
