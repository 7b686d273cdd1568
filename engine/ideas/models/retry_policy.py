"""One attempt at a request to any provider: its limits, its outcome, and how long to wait after which failure.

The SDKs' own retries are disabled: they retry when the credit is exhausted, do not handle interrupted streams, and pay for
attempts that no budget has reserved.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.domain.model import Usage
from engine.ideas.models.keys import Secret, scrub
from engine.ideas.models.model import Finish, ModelError, Prompt, Reply, Retry, Spent, Trouble

_PAID_GROWTH = 8.0
"""Attempts that may have cost something are few, so they are spread over minutes."""
MESSAGE_LENGTH = 400
"""Characters of a provider's message that an error quotes."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of one attempt, and the waits between attempts."""

    attempts: int = 5
    """Attempts that may have cost something, or whose reply was no reply: further ones are not made."""
    first_wait: float = 1.0
    """Seconds before the second attempt; doubles for each further one, or grows eightfold for each that may have cost
    something, less a random part of up to a quarter."""
    longest_wait: float = 60.0
    """Seconds of the longest wait that the provider has not requested; ten times that after an attempt that may have cost
    something."""
    silence: float = 300.0
    """Seconds without data before a connection counts as dead. Reasoning models may be silent for minutes."""
    seconds: float = 1200.0
    """Time limit of an attempt, unless the call's options give another."""


DEFAULT_POLICY = RetryPolicy()


@dataclass(frozen=True, slots=True)
class CompleteAnswer:
    """A complete reply."""

    text: str
    finish: Finish
    usage: Usage | None = None
    """``None`` if the provider reported none."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A failed attempt. A value and not an exception: SDK errors, whose text may contain a key, are never chained."""

    trouble: Trouble
    message: str
    retry: Retry | None = None
    spent: Spent = Spent.NOTHING
    usage: Usage = field(default_factory=Usage)


class MalformedError(Exception):
    """A stream violates the protocol. Adapters catch it."""


class Meter:
    """The tokens of one attempt that the provider has reported so far."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.begun = False
        """The request was sent, and the provider has not refused it: it may cost something."""

    @property
    def spent(self) -> Spent:
        return Spent.UNKNOWN if self.begun else Spent.NOTHING


async def ask_once(
    name: str, attempt: Callable[[Meter], Awaitable[CompleteAnswer | FailedAttempt]], seconds: float
) -> Reply:  # fmt: skip
    """The reply of one attempt. Raises ModelError, also after ``seconds``."""
    meter = Meter()
    try:
        async with asyncio.timeout(seconds):
            outcome = await attempt(meter)
    except TimeoutError:
        message = f"no complete reply in {seconds:g} s"
        outcome = FailedAttempt(Trouble.UNREACHABLE, message, Retry(), meter.spent, meter.usage or Usage())
    if isinstance(outcome, CompleteAnswer):
        return Reply(outcome.text, outcome.usage or Usage(), outcome.finish, outcome.usage is not None)
    raise ModelError(
        outcome.trouble, f"{name}: {outcome.message}", outcome.usage, spent=outcome.spent, retry=outcome.retry
    )  # fmt: skip


def time_limit(prompt: Prompt, policy: RetryPolicy) -> float:
    """Seconds of one attempt."""
    return prompt.options.timeout or policy.seconds


class Persistence:
    """How often and how long one question is asked again. One object a question."""

    def __init__(
        self, patience: float, policy: RetryPolicy = DEFAULT_POLICY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``patience``: seconds for which a provider that is out of reach is waited for, from the first failure on, and again
        after an attempt that reached it."""
        self._patience = patience
        self._policy = policy
        self._clock = clock
        self._began: float | None = None
        self._failures = 0
        self._paid = 0

    @property
    def failures(self) -> int:
        return self._failures

    def left(self) -> float:
        """Seconds of patience that are left."""
        return self._patience if self._began is None else max(0.0, self._began + self._patience - self._clock())

    def wait_after(self, error: ModelError) -> float | None:
        """Seconds before the next attempt; ``None`` to give up."""
        self._failures += 1
        if self._began is None or error.spent is not Spent.NOTHING:
            self._began = self._clock()
        costly = error.spent is not Spent.NOTHING or error.trouble is Trouble.REPLY
        self._paid += costly
        left = self.left()
        if error.retry is None or self._paid >= self._policy.attempts or left <= 0.0:
            return None
        if error.retry.after is not None:
            return error.retry.after if error.retry.after <= left else None
        if costly:
            backoff = min(self._policy.first_wait * _PAID_GROWTH ** (self._paid - 1), 10 * self._policy.longest_wait)
        else:
            backoff = min(self._policy.first_wait * 2.0 ** min(self._failures - 1, 30), self._policy.longest_wait)
        return min(backoff * (1 - 0.25 * random.random()), left)

    def given_up(self, error: ModelError) -> ModelError:
        """The error of the last attempt, with what was tried."""
        tried = f" ({self._failures} attempts)" if self._failures > 1 else ""
        after = error.retry.after if error.retry else None
        later = f"; retry after {after:.0f} s" if after else ""
        return ModelError(error.trouble, f"{error}{tried}{later}", error.usage, spent=error.spent)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The wait in seconds that response headers request: ``retry-after-ms``, or ``Retry-After`` as seconds or as a date."""
    for header, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(header, "")) / unit
        except ValueError:
            continue
        if 0.0 <= seconds < float("inf"):
            return seconds
    date = email.utils.parsedate_tz(headers.get("retry-after", ""))
    return None if date is None else max(0.0, email.utils.mktime_tz(date) - time.time())


def one_line(text: str, secrets: Iterable[Secret] = (), otherwise: str = "") -> str:
    """Foreign text as one short line without keys; ``otherwise`` if it is empty or a web page."""
    line = " ".join(scrub(text, secrets).split())
    if not line or line.startswith("<"):
        return otherwise
    return line if len(line) <= MESSAGE_LENGTH else line[: MESSAGE_LENGTH - 1] + "…"


def with_schema(user: str, schema: Mapping[str, Any]) -> str:
    """A prompt followed by its schema, for models without structured output."""
    text = json.dumps(schema, ensure_ascii=False)
    return f"{user}\n\nReply with JSON only, without prose or code fences. The JSON must follow this schema:\n{text}"
