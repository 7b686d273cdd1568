"""What both of OpenAI's protocols share: the client, the reading of its errors, and the schemas that it enforces."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.domain.model import Usage
from engine.ideas.models.http_model import HttpModel, Outcome, status_failed
from engine.ideas.models.keys import Secret
from engine.ideas.models.model import Finish, OnText, Retry, Spent, Trouble
from engine.ideas.models.options import Option, Sent
from engine.ideas.models.retry_policy import CompleteAnswer, FailedAttempt, Meter, RetryPolicy, one_line, retry_after

if TYPE_CHECKING:
    import openai

EXHAUSTED = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
FILTERED = frozenset({"content_filter", "content_policy_violation", "invalid_prompt", "bio_policy"})
NO_MODEL = frozenset({"model_not_found", "invalid_model"})
NO_KEY = "none"
"""Sent where a server gets no key."""


class OpenAIModel(HttpModel):
    """A model behind one of OpenAI's protocols."""

    def __init__(self, name: str, model: str, url: str | None, key: Secret | None, policy: RetryPolicy) -> None:
        """Make the client; nothing is sent yet. Without a key, no header from the environment reaches the server either.

        Args:
            name: the author.
            model: as the server names it.
            url: the server; ``None`` for OpenAI's own.
            key: what the server gets.
            policy: limits of each request.
        """
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        from engine.ideas.models import one_server

        super().__init__(name, model, key, policy)
        timeout = one_server.timeout(policy.silence)
        self._client = AsyncOpenAI(
            api_key=key.reveal() if key is not None else NO_KEY,
            base_url=url,
            max_retries=0,
            timeout=timeout,
            http_client=DefaultAsyncHttpxClient(timeout=timeout, event_hooks=one_server.hooks(has_key=key is not None)),
        )

    async def close(self) -> None:
        await self._client.close()

    @abstractmethod
    def _options(self, request: dict[str, Any]) -> frozenset[Option]:
        """The options in a request that can be left out of the next one."""

    def _failed(self, error: Exception, sent: Sent, on_text: OnText, meter: Meter) -> Outcome | int | None:
        import openai

        match error:
            case openai.APIStatusError():
                if error.status_code in (400, 422, 501) and error.code not in FILTERED | NO_MODEL:
                    learnt = self._learned.learn(words_of(error), self._options(sent.request), sent, on_text)
                    if learnt is not None:
                        return learnt
                return self._read_status(error)
            case openai.APIConnectionError():
                return self._disconnected(error.__cause__, meter)
            case openai.APIError():
                return failed_inside({error.code, error.type}, message_of(error, self._keys, "error in the stream"), meter)
        return None

    def _read_status(self, error: openai.APIStatusError) -> Outcome:
        """The result that an HTTP status and the provider's error code stand for. It cost nothing."""
        status, codes = error.status_code, {error.code, error.type}
        headers = error.response.headers
        retry = None if headers.get("x-should-retry") == "false" else Retry(retry_after(headers))
        message = message_of(error, self._keys, f"status {status}")
        if codes & FILTERED:
            return CompleteAnswer(message, Finish.REFUSED)
        if codes & EXHAUSTED:
            status = 402
        elif codes & NO_MODEL:
            status = 404
        elif status in (401, 403) and self._key is None:
            message += "; the server got no key: name its variable, --server NAME=URL,key=VARIABLE"
        return status_failed(status, message, retry)


def failed_inside(codes: set[str | None], message: str, meter: Meter) -> Outcome:
    """The result of an error inside a stream, by its codes: the model had begun."""
    usage = meter.usage or Usage()
    if codes & EXHAUSTED:
        return FailedAttempt(Trouble.QUOTA, f"out of credit: {message}", None, Spent.UNKNOWN, usage)
    if codes & FILTERED:
        return CompleteAnswer(message, Finish.REFUSED, meter.usage)
    trouble = Trouble.QUOTA if "rate_limit_exceeded" in codes else Trouble.UNREACHABLE
    return FailedAttempt(trouble, f"the stream failed: {message}", Retry(), Spent.UNKNOWN, usage)


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
