"""What the models behind HTTP protocols share: name, keys, what they learnt of their server, and one attempt.

An adapter makes the request, reads the stream of its reply, and says what an exception of its SDK means.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from engine.domain.model import Usage
from engine.ideas.models.keys import Secret
from engine.ideas.models.model import OnText, Prompt, Reply, Retry, Spent, Trouble
from engine.ideas.models.options import Learned, Option, Sent
from engine.ideas.models.retry_policy import (
    CompleteAnswer,
    FailedAttempt,
    MalformedError,
    Meter,
    RetryPolicy,
    ask_once,
    one_line,
    time_limit,
    with_schema,
)

Outcome = CompleteAnswer | FailedAttempt


class HttpModel(ABC):
    """One model behind one protocol; implements ``Model``."""

    reply = "reply"
    """What this protocol calls a reply, for messages."""
    advice = "check the base URL"
    """What to do if the server's response is none."""

    def __init__(self, name: str, model: str, key: Secret | None, policy: RetryPolicy) -> None:
        """``name``: the author; ``model``: as the server names it; ``key``: what the server gets."""
        self._name = name
        self._model = model
        self._key = key
        self._keys = (key,) if key is not None else ()
        self._policy = policy
        self._learned = Learned()

    @property
    def name(self) -> str:
        return self._name

    @property
    def output_limit(self) -> int | None:
        return self._learned.output_limit

    async def ask(self, prompt: Prompt, on_text: OnText) -> Reply:
        """Raises ModelError; can be cancelled at any time."""
        seconds = time_limit(prompt, self._policy)
        return await ask_once(self._name, lambda meter: self._attempt(prompt, on_text, meter), seconds)

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    def _request(self, prompt: Prompt, output: int) -> dict[str, Any]:
        """The request, without the options that the server has rejected. ``output``: the limit on the reply."""

    @abstractmethod
    async def _stream(self, request: dict[str, Any], on_text: OnText, meter: Meter) -> Outcome:
        """Send the request and read the reply. Raises MalformedError and the SDK's exceptions."""

    @abstractmethod
    def _failed(self, error: Exception, sent: Sent, on_text: OnText, meter: Meter) -> Outcome | int | None:
        """What an exception of the SDK means: an outcome, or the limit on the reply for another request, without what the
        server rejected; ``None`` for any other exception."""

    async def _attempt(self, prompt: Prompt, on_text: OnText, meter: Meter) -> Outcome:
        import httpx2

        output = min(prompt.max_output, self._learned.output_limit or prompt.max_output)
        while True:
            sent = Sent(self._request(prompt, output), prompt, output, self._learned.effort(prompt))
            meter.begun = True
            try:
                return await self._stream(sent.request, _bounded(on_text, output), meter)
            except _TooLongError:
                return self._no_reply(f"the reply is longer than its limit of {output:,} tokens allows", meter)
            except (MalformedError, json.JSONDecodeError, UnicodeDecodeError):
                return self._no_reply(f"the stream is not a valid {self.reply}", meter)
            except httpx2.RequestError as error:  # some SDKs do not wrap what interrupts a stream
                return self._disconnected(error, meter)
            except Exception as error:
                found = self._failed(error, sent, on_text, meter)
                if found is None:
                    raise
                if not isinstance(found, int):
                    return found
                meter.begun = False
                output = found

    def _question(self, prompt: Prompt) -> tuple[str, Mapping[str, Any] | None]:
        """(the user's part of the prompt, the schema to enforce): the schema is in the text if the server enforces none."""
        if prompt.schema is None or Option.SCHEMA not in self._learned.refused:
            return prompt.user, prompt.schema
        return with_schema(prompt.user, prompt.schema), None

    def _unfinished(self, begun: bool, meter: Meter) -> FailedAttempt:
        """A stream that ended without the protocol's end."""
        if begun:
            return FailedAttempt(Trouble.UNREACHABLE, "the reply was cut off", Retry(), Spent.UNKNOWN, meter.usage or Usage())
        return self._no_reply(f"the response is not a {self.reply}: {self.advice}", meter)

    def _no_reply(self, message: str, meter: Meter) -> FailedAttempt:
        return FailedAttempt(Trouble.REPLY, message, Retry(), Spent.UNKNOWN, meter.usage or Usage())

    def _disconnected(self, cause: BaseException | None, meter: Meter) -> FailedAttempt:
        """A connection that failed. Unless it was never made, the model may have begun."""
        import httpx2

        from engine.ideas.models.one_server import ExcessiveResponse, OtherServer

        reason = one_line(str(cause), self._keys, type(cause).__name__)
        if isinstance(cause, OtherServer):
            return FailedAttempt(Trouble.REQUEST, reason)
        if isinstance(cause, ExcessiveResponse):
            return self._no_reply(reason, meter)
        never_sent = isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
        spent = Spent.NOTHING if never_sent else Spent.UNKNOWN
        message = f"the connection failed: {reason}"
        return FailedAttempt(Trouble.UNREACHABLE, message, Retry(), spent, meter.usage or Usage())


class _TooLongError(Exception):
    """A server goes on beyond the limit on the reply."""


_CHARACTERS = 64
"""More than a token of a reply has on average."""


def _bounded(on_text: OnText, output: int) -> OnText:
    """``on_text`` for a reply of at most ``output`` tokens. Raises _TooLongError."""
    left = output * _CHARACTERS

    def heard(piece: str) -> None:
        nonlocal left
        left -= len(piece)
        if left < 0:
            raise _TooLongError
        on_text(piece)

    return heard


def counted(tokens: object, cached: object, output: object) -> Usage | None:
    """The usage that a server reports; ``None`` if a figure is no count, which is as if it had reported none.

    A missing figure is 0. ``tokens``: of the prompt, those ``cached`` among them.
    """
    figures = [0 if figure is None else figure for figure in (tokens, cached, output)]
    if not all(isinstance(figure, int) and not isinstance(figure, bool) and figure >= 0 for figure in figures):
        return None
    sent, read, written = (int(figure) for figure in figures if isinstance(figure, int))
    return Usage(sent, min(read, sent), written)


def status_failed(status: int, message: str, retry: Retry | None) -> FailedAttempt:
    """What an HTTP status stands for. The model did not begin."""
    if status == 402:
        return FailedAttempt(Trouble.QUOTA, f"out of credit: {message}")
    if status in (401, 403):
        return FailedAttempt(Trouble.KEY, f"the provider rejected the key: {message}")
    if status == 404:
        return FailedAttempt(Trouble.MODEL, f"not found: {message}")
    if status == 429:
        return FailedAttempt(Trouble.QUOTA, f"rate limit: {message}", retry)
    if status == 529:
        return FailedAttempt(Trouble.UNREACHABLE, f"the provider is overloaded: {message}", retry)
    if status in (408, 409) or status >= 500:
        return FailedAttempt(Trouble.UNREACHABLE, f"the server failed: {message}", retry)
    return FailedAttempt(Trouble.REQUEST, f"the provider rejected the request: {message}")
