"""How any provider is asked: what is worth asking again, after how long, within which limits, and what it has cost so far.

The SDKs' own retries are switched off in favour of this one loop: they would ask again when the credit is used up, know
nothing of streams that break off half way, and the one for Gemini reads no ``Retry-After``.
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
from engine.ideas.models.model import Finish, Heard, ModelError, Reply, Trouble

CONNECT_SECONDS = 10.0
MESSAGE_LENGTH = 400
"""Characters of a provider's own words that an error carries."""


@dataclass(frozen=True, slots=True)
class Conduct:
    """Limits of one ask."""

    attempts: int = 5
    first_wait: float = 1.0
    """Seconds before the second attempt; doubled for each further one, less a random part of up to a quarter."""
    longest_wait: float = 60.0
    """Seconds that a wait grows to, and the longest that a provider's own ``Retry-After`` is obeyed."""
    silence: float = 300.0
    """Seconds without a byte before a connection counts as dead. Models that reason may be silent for minutes."""
    seconds: float = 1200.0
    """For the whole ask, waits and repeated attempts included."""


USUAL = Conduct()


@dataclass(frozen=True, slots=True)
class Answer:
    """An attempt that came to its end."""

    text: str
    finish: Finish


@dataclass(frozen=True, slots=True)
class Again:
    """Another attempt may go better; ``after`` is what the provider asked to wait, in seconds."""

    after: float | None = None


@dataclass(frozen=True, slots=True)
class Setback:
    """An attempt that failed. A value and no exception, so that no SDK error, whose text may hold a key, is chained to ours."""

    trouble: Trouble
    message: str
    again: Again | None = None


class MalformedError(Exception):
    """A stream holds something that the protocol does not know. Never leaves an adapter."""


class Meter:
    """Tokens of one ask: those of attempts given up and those of the attempt under way."""

    def __init__(self) -> None:
        self._given_up = Usage()
        self._latest = Usage()

    def told(self, usage: Usage) -> None:
        """The provider's running total for the attempt under way; each replaces the one before."""
        self._latest = usage

    def restart(self) -> None:
        self._given_up += self._latest
        self._latest = Usage()

    @property
    def total(self) -> Usage:
        return self._given_up + self._latest


async def persist(
    name: str,
    attempt: Callable[[Meter], Awaitable[Answer | Setback]],
    conduct: Conduct,
    heard: Heard,
    spare: int | None,
) -> Reply:
    """Attempt until there is an answer, a failure that is final, or no attempt left that may be paid for.

    A wait is announced through ``heard``, since what was streamed before it is about to be streamed anew.

    Raises:
        ModelError: the last failure, with the usage of every attempt.
    """
    meter = Meter()
    try:
        async with asyncio.timeout(conduct.seconds):
            for number in range(1, conduct.attempts + 1):
                outcome = await attempt(meter)
                if isinstance(outcome, Answer):
                    return Reply(outcome.text, meter.total, outcome.finish)
                wait = _wait(outcome, number, conduct)
                if wait is None or (spare is not None and meter.total.total > spare):
                    raise _given_up(name, outcome, number, meter.total)
                heard(f"\n[{outcome.message}; asked again in {wait:.0f} s]\n")
                await asyncio.sleep(wait)
                meter.restart()
    except TimeoutError:
        pass
    message = f"{name}: no complete reply in {conduct.seconds:g} s; ask again, or use another model"
    raise ModelError(Trouble.UNREACHABLE, message, meter.total)


def _wait(setback: Setback, number: int, conduct: Conduct) -> float | None:
    """Seconds before attempt ``number + 1``, or ``None`` where there must not be one."""
    if setback.again is None or number >= conduct.attempts:
        return None
    if setback.again.after is not None:
        return setback.again.after if setback.again.after <= conduct.longest_wait else None
    return min(conduct.first_wait * 2.0 ** (number - 1), conduct.longest_wait) * (1 - 0.25 * random.random())


def _given_up(name: str, setback: Setback, attempts: int, usage: Usage) -> ModelError:
    tried = f" ({attempts} attempts)" if attempts > 1 else ""
    wanted = setback.again.after if setback.again else None
    later = f"; the provider asks to wait {wanted:.0f} s" if wanted else ""
    return ModelError(setback.trouble, f"{name}: {setback.message}{tried}{later}", usage)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a response asks to wait: ``retry-after-ms``, or ``Retry-After`` as seconds or as a date."""
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
    """Somebody's words as one short line without keys; ``otherwise`` where there are none, or a web page."""
    line = " ".join(scrub(text, secrets).split())
    if not line or line.startswith("<"):
        return otherwise
    return line if len(line) <= MESSAGE_LENGTH else line[: MESSAGE_LENGTH - 1] + "…"


def json_wanted(user: str, schema: Mapping[str, Any]) -> str:
    """A question with its schema spelled out, for models that take none."""
    spelled = json.dumps(schema, ensure_ascii=False)
    return f"{user}\n\nReply with JSON only, without prose or code fences. It must follow this JSON schema:\n{spelled}"
