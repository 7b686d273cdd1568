"""Retries requests to any provider: which failures, after how long, within which limits; counts the tokens of all attempts.

The SDKs' own retries are disabled: they retry when the credit is exhausted, do not handle interrupted streams, and the Gemini
SDK ignores ``Retry-After``.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.domain.model import Usage
from engine.ideas.models.keys import Secret, scrub
from engine.ideas.models.model import Finish, ModelError, OnText, Reply, Trouble

CONNECT_SECONDS = 10.0
MESSAGE_LENGTH = 400
"""Characters of a provider's message that an error quotes."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of one request, its retries included."""

    attempts: int = 5
    first_wait: float = 1.0
    """Seconds before the second attempt; doubles for each further one, less a random part of up to a quarter."""
    longest_wait: float = 60.0
    """Seconds of the longest wait, and of the longest ``Retry-After`` that is honoured."""
    silence: float = 300.0
    """Seconds without data before a connection counts as dead. Reasoning models may be silent for minutes."""
    seconds: float = 1200.0
    """Time limit of the whole request, waits and retries included."""


DEFAULT_POLICY = RetryPolicy()


@dataclass(frozen=True, slots=True)
class CompleteAnswer:
    """A complete reply."""

    text: str
    finish: Finish


@dataclass(frozen=True, slots=True)
class Retry:
    """Another attempt may succeed; ``after`` is the wait in seconds that the provider requests."""

    after: float | None = None


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A failed attempt. A value and not an exception: SDK errors, whose text may contain a key, are never chained."""

    trouble: Trouble
    message: str
    retry: Retry | None = None


class MalformedError(Exception):
    """A stream violates the protocol. Adapters catch it."""


class Meter:
    """Counts the tokens of one request: those of failed attempts and of the current one."""

    def __init__(self) -> None:
        self._failed = Usage()
        self._latest = Usage()

    def update(self, usage: Usage) -> None:
        """Set the provider's running total of the current attempt."""
        self._latest = usage

    def restart(self) -> None:
        self._failed += self._latest
        self._latest = Usage()

    @property
    def total(self) -> Usage:
        return self._failed + self._latest


async def ask_with_retries(
    name: str,
    attempt: Callable[[Meter], Awaitable[CompleteAnswer | FailedAttempt]],
    policy: RetryPolicy,
    on_text: OnText,
    spare: int | None,
) -> Reply:
    """Repeat the attempt until it succeeds, fails for good, or the limits on attempts or tokens are reached.

    Waits are reported through ``on_text``, because the next attempt streams the reply from its beginning.

    Raises:
        ModelError: the last failure, with the usage of every attempt.
    """
    meter = Meter()
    try:
        async with asyncio.timeout(policy.seconds):
            for number in range(1, policy.attempts + 1):
                outcome = await attempt(meter)
                if isinstance(outcome, CompleteAnswer):
                    return Reply(outcome.text, meter.total, outcome.finish)
                wait = _wait(outcome, number, policy)
                if wait is None or (spare is not None and meter.total.total > spare):
                    raise _final_error(name, outcome, number, meter.total)
                on_text(f"\n[{outcome.message}; retrying in {wait:.0f} s]\n")
                await asyncio.sleep(wait)
                meter.restart()
    except TimeoutError:
        pass
    message = f"{name}: no complete reply in {policy.seconds:g} s: try again, or use another model"
    raise ModelError(Trouble.UNREACHABLE, message, meter.total)


def _wait(failed: FailedAttempt, number: int, policy: RetryPolicy) -> float | None:
    """Seconds before attempt ``number + 1``; ``None`` if there is no further attempt."""
    if failed.retry is None or number >= policy.attempts:
        return None
    if failed.retry.after is not None:
        return failed.retry.after if failed.retry.after <= policy.longest_wait else None
    return min(policy.first_wait * 2.0 ** (number - 1), policy.longest_wait) * (1 - 0.25 * random.random())


def _final_error(name: str, failed: FailedAttempt, attempts: int, usage: Usage) -> ModelError:
    tried = f" ({attempts} attempts)" if attempts > 1 else ""
    seconds = failed.retry.after if failed.retry else None
    later = f"; retry after {seconds:.0f} s" if seconds else ""
    return ModelError(failed.trouble, f"{name}: {failed.message}{tried}{later}", usage)


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
