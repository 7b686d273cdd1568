"""The desk: every question to a model passes here, so that nothing is paid for twice and no cap is passed.

One performance of a work sits down with one model (``Desk.sit``) and asks its questions in an order that depends on the work
alone. What the work asked in an earlier process is answered from the record, usable or not; then come recorded replies of
another session; then, once the engineer allows new spending where they were to be asked, and within the hard caps, the model.
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
from engine.domain.state import Call, CallStatus, SessionState
from engine.ideas import budget
from engine.ideas.budget import FREE, BudgetHeld, Ceiling, Tariff, TariffOf
from engine.ideas.models.model import Finish, Model, ModelError, Prompt, Reply
from engine.ideas.questions import again, prompt_text
from engine.ideas.recall import Recall, Recorded
from engine.ideas.replies import ReplyError
from engine.ideas.source import Calls

T = TypeVar("T")

DIED = "the process ended before the reply came"
DROPPED = "it was dropped before the reply came"


class Refused(ReplyError):
    """The model declined to answer: asking again would be declined again."""


@dataclass(frozen=True, slots=True)
class ByHand:
    """Whoever stands in for a model: shown the prompt, gives the reply."""

    name: str = "paste"


Respondent = Model | ByHand


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """What is asked, and how its reply is read."""

    role: CallRole
    prompt: Prompt
    read: Callable[[str], T]
    """Raises ReplyError, whose words the model is told when it is asked once more."""
    reasks: int = 1
    """How often a model is asked once more after a reply that cannot be used; whoever answers by hand always is."""
    anew: bool = False
    """Whether a question that was given up is asked again when its work is taken up again: where giving up stops the session,
    the work is only done again because someone wants it tried again."""


@dataclass(frozen=True, slots=True)
class _Received:
    """A reply, just come or recorded; ``wrong`` is the reason recorded why it could not be used."""

    call: str
    text: str
    finish: str
    wrong: str = ""


class Desk:
    """What all questions of a session share: prices, recorded replies, the leave to spend, and ceilings of calls under way."""

    def __init__(self, tariff_of: TariffOf, recall: Recall | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """``recall``: replies of another session; with them, the first question that they do not answer is not asked before
        the engineer goes on."""
        self.tariff_of = tariff_of
        self.recall = recall or Recall()
        self.clock = clock
        self.reserved: dict[str, float] = {}
        """Call → dollars that it may cost, for the calls under way here."""
        self._ended = asyncio.Event()
        self._leave = recall is None

    def sit(self, respondent: Respondent, calls: Calls) -> Sitting:
        """One performance of a work, with the calls that earlier performances of it made to the same model."""
        return Sitting(self, respondent, calls)

    async def leave(self, model: str, calls: Calls) -> None:
        """Returns once new spending is allowed: the engineer is asked before the first of it."""
        if not self._leave and not _has_spent(calls.state):
            words = f"no recorded reply answers the next prompt: going on asks {model} anew and spends"
            calls.say(words)
            await calls.confirm(words)
        self._leave = True

    async def afford(self, model: Model, prompt: Prompt, calls: Calls) -> Ceiling:
        """The most that asking can cost, once the caps allow it; waits for calls under way where only they stand in the way.

        Raises BudgetExhausted. The caller starts the call without giving way to another in between.
        """
        found = self._ceiling(model, prompt)
        while True:
            try:
                budget.check(calls.state, model.name, found, self.tariff_of, self.reserved)
            except BudgetHeld:
                self._ended.clear()
                await self._ended.wait()
            else:
                return found

    @contextmanager
    def under_way(self, call: Call, ceiling: Ceiling) -> Iterator[None]:
        """While the call lasts, nothing else may count on what it may cost."""
        self.reserved[call.id] = ceiling.usd or 0.0
        try:
            yield
        finally:
            del self.reserved[call.id]
            self._ended.set()

    def _ceiling(self, respondent: Model, prompt: Prompt) -> Ceiling:
        if not respondent.counted:
            return FREE
        texts = (prompt.system, prompt.user, *((repr(prompt.schema),) if prompt.schema is not None else ()))
        return budget.ceiling(texts, prompt.max_output, self.tariff_of(respondent.name))


def _has_spent(state: SessionState) -> bool:
    """Whether a model was asked anew before: then that was allowed."""
    return any(not c.recalled and (c.ceiling or c.usage.total) for c in state.calls.values())


class Sitting:
    """Questions of one work to one model, one after another."""

    def __init__(self, desk: Desk, respondent: Respondent, calls: Calls) -> None:
        self._desk = desk
        self._respondent = respondent
        self._calls = calls
        self._past = deque(call for call in calls.earlier() if call.model == respondent.name)

    async def ask(self, question: Question[T]) -> T:
        """The reply as ``question.read`` reads it.

        Raises:
            ReplyError: every reply was unusable; ``Refused`` for one that declines.
            ModelError: no reply came.
            CallCancelled: someone stopped the call by hand, now or before this work was taken up again.
            BudgetExhausted: the next call could pass a hard cap; it was not made.
        """
        if question.anew:
            self._forget_given_up(question.reasks + 1)
        prompt, tries = question.prompt, 0
        while True:
            received = await self._next(question.role, prompt)
            tries += 1
            try:
                return self._usable(question, received)
            except ReplyError as error:
                if not received.wrong:
                    self._calls.fail(received.call, str(error))
                by_hand = isinstance(self._respondent, ByHand)
                if isinstance(error, Refused) or (tries > question.reasks and not by_hand):
                    raise
                prompt = again(question.prompt, str(error))

    def _usable(self, question: Question[T], received: _Received) -> T:
        if received.finish == Finish.REFUSED:
            raise Refused(received.wrong or f"{self._respondent.name} declined to answer")
        if received.wrong:
            raise ReplyError(received.wrong)
        if received.finish == Finish.LENGTH:
            limit = question.prompt.max_output
            raise ReplyError(f"the reply was cut short at its limit of {limit:,} tokens: think and write more briefly")
        return question.read(received.text)

    def _forget_given_up(self, tries: int) -> None:
        """Leave out of the record the questions that ended in ``ReplyError``: as many unusable replies as are allowed."""
        unusable: list[Call] = []
        for call in tuple(self._past):
            if call.status is not CallStatus.FAILED or call.cancelled:
                return
            unusable += [call] if call.reply else []
            if call.finish == Finish.REFUSED or len(unusable) == tries:
                while self._past.popleft() is not call:
                    continue
                unusable = []

    async def _next(self, role: CallRole, prompt: Prompt) -> _Received:
        """The next reply in the record, else a recorded one, else a new one."""
        while self._past:
            call = self._calls.state.calls[self._past.popleft().id]
            match call.status:
                case CallStatus.ANSWERED:
                    return self._received(call)
                case CallStatus.FAILED if call.cancelled:
                    raise _stopped(call)
                case CallStatus.FAILED if call.reply:
                    return self._received(call)
                case CallStatus.OPEN:
                    if received := await self._taken_up(call):
                        return received
        return await self._new(role, prompt)

    def _received(self, call: Call) -> _Received:
        return _Received(call.id, self._calls.text(call.reply), call.finish, call.reason)

    async def _taken_up(self, call: Call) -> _Received | None:
        """An open call of a process that is gone: a person may still answer it, a recorded reply may; a model cannot."""
        if recorded := self._desk.recall.find(call.model, self._calls.text(call.prompt), self._calls.state):
            return self._recalled(call, recorded)
        if isinstance(self._respondent, ByHand):
            return await self._pasted(call)
        self._calls.fail(call.id, DIED)
        return None

    async def _new(self, role: CallRole, prompt: Prompt) -> _Received:
        text, name = prompt_text(prompt), self._respondent.name
        if recorded := self._desk.recall.find(name, text, self._calls.state):
            return self._recalled(self._calls.start(role, name, text, FREE.tokens), recorded)
        if isinstance(self._respondent, ByHand):
            return await self._pasted(self._calls.start(role, name, text, FREE.tokens))
        return await self._asked(self._respondent, role, prompt, text)

    def _recalled(self, call: Call, recorded: Recorded) -> _Received:
        self._calls.answer(call.id, recorded.reply, recorded.usage, None, recorded.finish, 0.0, recalled=True)
        return _Received(call.id, recorded.reply, recorded.finish)

    async def _pasted(self, call: Call) -> _Received:
        self._calls.say(f"{call.id} awaits a reply by hand: its prompt is the session's blob {call.prompt}")
        answered = await self._calls.by_hand(call.id)
        if answered.cancelled:
            raise _stopped(answered)
        return self._received(answered)

    async def _asked(self, model: Model, role: CallRole, prompt: Prompt, text: str) -> _Received:
        desk, calls = self._desk, self._calls
        await desk.leave(model.name, calls)
        ceiling = await desk.afford(model, prompt, calls)
        call = calls.start(role, model.name, text, ceiling.tokens)
        began = desk.clock()
        tariff = desk.tariff_of(model.name)
        with desk.under_way(call, ceiling):
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
            if (now := calls.state.calls[call.id]).cancelled:  # in the same moment: it stays cancelled, and has cost something
                calls.fail(call.id, now.reason, reply.usage, usd)
                raise _stopped(now)
            calls.answer(call.id, reply.text, reply.usage, usd, reply.finish.value, desk.clock() - began)
        return _Received(call.id, reply.text, reply.finish.value)

    async def _unless_cancelled(self, call: Call, asking: Awaitable[Reply]) -> Reply:
        """The reply. Raises CallCancelled once someone stops the call: then the model is asked no longer."""
        try:
            async with asyncio.timeout(None) as asked:
                watching = asyncio.create_task(self._watch(call.id, asked))
                try:
                    return await asking
                finally:
                    watching.cancel()
        except TimeoutError:
            if (now := self._calls.state.calls[call.id]).cancelled:
                raise _stopped(now) from None
            raise

    async def _watch(self, call: str, asked: asyncio.Timeout) -> None:
        await self._calls.cancelled(call)
        asked.reschedule(asyncio.get_running_loop().time())


def _stopped(call: Call) -> CallCancelled:
    return CallCancelled(f"{call.id} was {call.reason}")


def _within_caps(prompt: Prompt, state: SessionState) -> Prompt:
    """Under a hard cap an attempt that broke off after it had cost something is the last: two could pass the call's ceiling."""
    capped = state.limits.tokens is not None or state.limits.usd is not None
    return replace(prompt, spare=0) if capped else prompt


def _usd(tariff: Tariff | None, usage: Usage) -> float | None:
    """What a usage cost; ``None`` where the price is not known, or nothing was counted."""
    return tariff(usage) if tariff is not None and usage.total else None
