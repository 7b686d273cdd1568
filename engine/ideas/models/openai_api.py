"""``openai:NAME``: the OpenAI chat completions protocol through the official SDK.

vLLM, Ollama, llama.cpp and gateways speak the same protocol, but each lacks some options. Once a server has rejected an option,
later requests omit it and use the nearest substitute (``Option``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from engine.domain.model import Usage
from engine.ideas.models.keys import Secret, find_key, require_key
from engine.ideas.models.model import Finish, OnText, Prompt, Reply, Trouble
from engine.ideas.models.retry_policy import (
    CONNECT_SECONDS,
    DEFAULT_POLICY,
    CompleteAnswer,
    FailedAttempt,
    MalformedError,
    Meter,
    Retry,
    RetryPolicy,
    ask_with_retries,
    one_line,
    retry_after,
    with_schema,
)

if TYPE_CHECKING:
    import openai
    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletionChunk

BASE_URL = "OPENAI_BASE_URL"
_EXHAUSTED = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
_FILTERED = frozenset({"content_filter", "content_policy_violation"})
_NO_MODEL = frozenset({"model_not_found", "invalid_model"})


class Option(StrEnum):
    """An option that a compatible server may lack."""

    SCHEMA = "response_format"
    """Without it the prompt contains the schema."""
    OUTPUT = "max_completion_tokens"
    """Without it the request has the older ``max_tokens``."""
    USAGE = "stream_options"
    """Without it the server may report no usage."""


_SIGNS: Mapping[Option, tuple[str, ...]] = {
    Option.OUTPUT: ("max_completion_tokens",),
    Option.USAGE: ("stream_options", "include_usage"),
    Option.SCHEMA: ("response_format", "json_schema", "schema", "structured", "guided", "grammar"),
}
"""Words by which a server's error message names an option."""


class OpenAIModel:
    """A model behind the chat completions protocol."""

    def __init__(
        self, model: str, *, base_url: str | None = None, key: Secret | None = None, policy: RetryPolicy = DEFAULT_POLICY
    ) -> None:
        """Make the client; nothing is sent yet.

        Args:
            model: as the server names it.
            base_url: the server, with its version path (``http://localhost:8000/v1``); else OPENAI_BASE_URL, else OpenAI's own.
            key: else OPENAI_API_KEY or the keyring's. A local server may need none.
            policy: limits of each request.

        Raises:
            ModelError: there is no key for OpenAI's own server.
        """
        import httpx2
        from openai import AsyncOpenAI

        base_url = base_url or os.environ.get(BASE_URL) or None
        self._key = key or (find_key("openai") or Secret("none") if base_url else require_key("openai"))
        self._model = model
        self._policy = policy
        self._refused: set[Option] = set()
        self._counted = True
        self._client = AsyncOpenAI(
            api_key=self._key.reveal(),
            base_url=base_url,
            max_retries=0,
            timeout=httpx2.Timeout(policy.silence, connect=min(CONNECT_SECONDS, policy.silence)),
        )

    @property
    def name(self) -> str:
        return f"openai:{self._model}"

    @property
    def counted(self) -> bool:
        """False once a compatible server has answered without reporting usage."""
        return self._counted

    async def ask(self, prompt: Prompt, on_text: OnText) -> Reply:
        """Raises ModelError; can be cancelled at any time."""
        return await ask_with_retries(
            self.name, lambda meter: self._attempt(prompt, on_text, meter), self._policy, on_text, prompt.spare
        )

    async def close(self) -> None:
        await self._client.close()

    async def _attempt(self, prompt: Prompt, on_text: OnText, meter: Meter) -> CompleteAnswer | FailedAttempt:
        import openai

        while True:
            try:
                return await self._stream(prompt, on_text, meter)
            except openai.APIStatusError as error:
                option = self._refused_option(error, prompt)
                if option is None:
                    return self._read_status(error)
                self._refused.add(option)
            except openai.APIConnectionError as error:
                return FailedAttempt(Trouble.UNREACHABLE, f"the connection failed: {_reason(error)}", Retry())
            except openai.APIError as error:
                return self._read_event(error)
            except (MalformedError, json.JSONDecodeError, UnicodeDecodeError):
                return FailedAttempt(Trouble.REPLY, "the stream is not a valid chat completion", Retry())

    async def _stream(self, prompt: Prompt, on_text: OnText, meter: Meter) -> CompleteAnswer | FailedAttempt:
        pieces: list[str] = []
        refusal: list[str] = []
        finish = ""
        counted = False
        async with await self._client.chat.completions.create(**self._request(prompt)) as stream:
            async for chunk in stream:
                piece = _read(chunk)
                if piece.usage is not None:
                    counted = True
                    meter.update(piece.usage)
                if piece.text:
                    pieces.append(piece.text)
                    on_text(piece.text)
                refusal.append(piece.refusal)
                finish = piece.finish or finish
        if not finish:
            return _cut_off(bool(pieces))
        self._counted = counted
        if any(refusal):
            return CompleteAnswer("".join(refusal), Finish.REFUSED)
        return CompleteAnswer("".join(pieces), _FINISHES.get(finish, Finish.STOP))

    def _request(self, prompt: Prompt) -> dict[str, Any]:
        schema = prompt.schema
        spelled = schema is not None and Option.SCHEMA in self._refused
        user = with_schema(prompt.user, schema) if schema is not None and spelled else prompt.user
        system = [{"role": "system", "content": prompt.system}] if prompt.system else []
        request: dict[str, Any] = {
            "model": self._model,
            "messages": [*system, {"role": "user", "content": user}],
            "stream": True,
            "max_tokens" if Option.OUTPUT in self._refused else Option.OUTPUT.value: prompt.max_output,
        }
        if Option.USAGE not in self._refused:
            request[Option.USAGE] = {"include_usage": True}
        if schema is not None and not spelled:
            request[Option.SCHEMA] = {
                "type": "json_schema",
                "json_schema": {"name": "reply", "schema": schema, "strict": is_closed(schema)},
            }
        return request

    def _refused_option(self, error: openai.APIStatusError, prompt: Prompt) -> Option | None:
        """The option that an error message names and that can be omitted."""
        if error.status_code not in (400, 422, 501) or error.code in _FILTERED | _NO_MODEL:
            return None
        words = f"{error.param} {error.message}".lower()
        for option, signs in _SIGNS.items():
            sent = option not in self._refused and (option is not Option.SCHEMA or prompt.schema is not None)
            if sent and any(sign in words for sign in signs):
                return option
        return None

    def _read_status(self, error: openai.APIStatusError) -> CompleteAnswer | FailedAttempt:
        """The result that an HTTP status and the provider's error code stand for."""
        status, codes = error.status_code, {error.code, error.type}
        retry = None if error.response.headers.get("x-should-retry") == "false" else Retry(retry_after(error.response.headers))
        message = self._message(error, f"status {status}")
        if codes & _FILTERED:
            return CompleteAnswer(message, Finish.REFUSED)
        if codes & _EXHAUSTED or status == 402:
            return FailedAttempt(Trouble.QUOTA, f"out of credit: {message}")
        if status in (401, 403):
            return FailedAttempt(Trouble.KEY, f"the provider rejected the key: {message}")
        if status == 404 or codes & _NO_MODEL:
            return FailedAttempt(Trouble.MODEL, f"not found: {message}")
        if status == 429:
            return FailedAttempt(Trouble.QUOTA, f"rate limit: {message}", retry)
        if status in (408, 409) or status >= 500:
            return FailedAttempt(Trouble.UNREACHABLE, f"the server failed: {message}", retry)
        return FailedAttempt(Trouble.REQUEST, f"the provider rejected the request: {message}")

    def _read_event(self, error: openai.APIError) -> CompleteAnswer | FailedAttempt:
        """An error that arrived inside a stream."""
        codes = {error.code, error.type}
        message = self._message(error, "error in the stream")
        if codes & _EXHAUSTED:
            return FailedAttempt(Trouble.QUOTA, f"out of credit: {message}")
        if codes & _FILTERED:
            return CompleteAnswer(message, Finish.REFUSED)
        trouble = Trouble.QUOTA if "rate_limit_exceeded" in codes else Trouble.UNREACHABLE
        return FailedAttempt(trouble, f"the stream failed: {message}", Retry())

    def _message(self, error: openai.APIError, otherwise: str) -> str:
        words = error.body.get("message") if isinstance(error.body, dict) else None
        if not isinstance(words, str):
            words = str(error.body) if error.body else ""
        return one_line(words, (self._key,), otherwise)


_FINISHES: Mapping[str, Finish] = {"length": Finish.LENGTH, "content_filter": Finish.REFUSED}


def _reason(error: openai.APIConnectionError) -> str:
    """The cause of a connection error: the SDK's own message is the same for all."""
    cause = error.__cause__
    return one_line(str(cause), (), type(cause).__name__)


def _cut_off(begun: bool) -> FailedAttempt:
    if begun:
        return FailedAttempt(Trouble.UNREACHABLE, "the reply was cut off", Retry())
    return FailedAttempt(Trouble.REPLY, "the response is not a chat completion: check the base URL", Retry())


@dataclass(frozen=True, slots=True)
class _Piece:
    """The content of one chunk of a stream."""

    text: str = ""
    refusal: str = ""
    finish: str = ""
    usage: Usage | None = None


def _read(chunk: ChatCompletionChunk) -> _Piece:
    """The content of a chunk. The SDK does not validate chunks: any field may be missing or of another type."""
    try:
        usage = None if chunk.usage is None else _usage(chunk.usage)
        if not chunk.choices:
            return _Piece(usage=usage)
        choice = chunk.choices[0]
        text, refusal = (choice.delta.content, choice.delta.refusal) if choice.delta else ("", "")
        return _Piece(f"{text or ''}", f"{refusal or ''}", f"{choice.finish_reason or ''}", usage)
    except (AttributeError, TypeError, LookupError):
        raise MalformedError from None


def _usage(usage: CompletionUsage) -> Usage:
    details = usage.prompt_tokens_details
    cached = (details.cached_tokens or 0) if details else 0
    return Usage(input=usage.prompt_tokens or 0, cached=cached, output=usage.completion_tokens or 0)


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
