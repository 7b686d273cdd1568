"""What both of OpenAI's protocols share: the client, the reading of its errors, and options that a server lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from engine.ideas.models.keys import Secret
from engine.ideas.models.model import Finish, Retry, Spent, Trouble
from engine.ideas.models.retry_policy import (
    CONNECT_SECONDS,
    CompleteAnswer,
    FailedAttempt,
    Meter,
    RetryPolicy,
    one_line,
    retry_after,
)

if TYPE_CHECKING:
    import openai
    from openai import AsyncOpenAI

EXHAUSTED = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
FILTERED = frozenset({"content_filter", "content_policy_violation", "invalid_prompt", "bio_policy"})
NO_MODEL = frozenset({"model_not_found", "invalid_model"})
NO_KEY = "none"
"""Sent where a server gets no key."""


def client(url: str | None, key: Secret | None, policy: RetryPolicy) -> AsyncOpenAI:
    """A client for one server. Without a key, no header from the environment reaches the server either."""
    import httpx2
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    from engine.ideas.models.one_server import refuse_other_server, remove_secrets

    timeout = httpx2.Timeout(policy.silence, connect=min(CONNECT_SECONDS, policy.silence))
    hooks: dict[str, list[Callable[..., Any]]] = {
        "response": [refuse_other_server],
        "request": [] if key is not None else [remove_secrets],
    }
    return AsyncOpenAI(
        api_key=key.reveal() if key is not None else NO_KEY,
        base_url=url,
        max_retries=0,
        timeout=timeout,
        http_client=DefaultAsyncHttpxClient(timeout=timeout, event_hooks=hooks),
    )


def read_status(error: openai.APIStatusError, keys: tuple[Secret, ...], *, has_key: bool) -> CompleteAnswer | FailedAttempt:
    """The result that an HTTP status and the provider's error code stand for. It cost nothing."""
    status, codes = error.status_code, {error.code, error.type}
    retry = None if error.response.headers.get("x-should-retry") == "false" else Retry(retry_after(error.response.headers))
    message = message_of(error, keys, f"status {status}")
    if codes & FILTERED:
        return CompleteAnswer(message, Finish.REFUSED)
    if codes & EXHAUSTED or status == 402:
        return FailedAttempt(Trouble.QUOTA, f"out of credit: {message}")
    if status in (401, 403):
        missing = "" if has_key else "; the server got no key: name its variable, --server NAME=URL,key=VARIABLE"
        return FailedAttempt(Trouble.KEY, f"the provider rejected the key: {message}{missing}")
    if status == 404 or codes & NO_MODEL:
        return FailedAttempt(Trouble.MODEL, f"not found: {message}")
    if status == 429:
        return FailedAttempt(Trouble.QUOTA, f"rate limit: {message}", retry)
    if status in (408, 409) or status >= 500:
        return FailedAttempt(Trouble.UNREACHABLE, f"the server failed: {message}", retry)
    return FailedAttempt(Trouble.REQUEST, f"the provider rejected the request: {message}")


def read_connection(error: openai.APIConnectionError, keys: tuple[Secret, ...], meter: Meter) -> FailedAttempt:
    """A connection that failed. Unless it was never made, the model may have begun."""
    import httpx2

    from engine.ideas.models import one_server

    cause = error.__cause__
    reason = one_line(str(cause), keys, type(cause).__name__)
    if isinstance(cause, one_server.OtherServer):
        return FailedAttempt(Trouble.REQUEST, reason)
    never_sent = isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
    spent = Spent.NOTHING if never_sent else Spent.UNKNOWN
    return FailedAttempt(Trouble.UNREACHABLE, f"the connection failed: {reason}", Retry(), spent)


def read_event(error: openai.APIError, keys: tuple[Secret, ...]) -> CompleteAnswer | FailedAttempt:
    """An error that arrived inside a stream: the model had begun."""
    return failed_inside({error.code, error.type}, message_of(error, keys, "error in the stream"))


def failed_inside(codes: set[str | None], message: str) -> CompleteAnswer | FailedAttempt:
    """The result of an error inside a stream, by its codes."""
    if codes & EXHAUSTED:
        return FailedAttempt(Trouble.QUOTA, f"out of credit: {message}", None, Spent.UNKNOWN)
    if codes & FILTERED:
        return CompleteAnswer(message, Finish.REFUSED)
    trouble = Trouble.QUOTA if "rate_limit_exceeded" in codes else Trouble.UNREACHABLE
    return FailedAttempt(trouble, f"the stream failed: {message}", Retry(), Spent.UNKNOWN)


def message_of(error: openai.APIError, keys: tuple[Secret, ...], otherwise: str) -> str:
    """The provider's own words, as one line without keys."""
    words = error.body.get("message") if isinstance(error.body, dict) else None
    if not isinstance(words, str):
        words = str(error.body) if error.body else ""
    return one_line(words, keys, otherwise)


def words_of(error: openai.APIStatusError) -> str:
    """All that an error says, in lower case, to find the option that it names."""
    body = error.body if isinstance(error.body, dict) else {}
    return f"{error.param} {error.message} {body.get('message', '')}".lower()


def is_closed(schema: Any) -> bool:
    """Whether strict enforcement of a schema is possible: every object requires all its properties and allows no others."""
    if isinstance(schema, list):
        return all(is_closed(item) for item in schema)
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object":
        required = set(schema.get("required", ()))
        if schema.get("additionalProperties") is not False or required != set(schema.get("properties", {})):
            return False
    return all(is_closed(value) for value in schema.values())
