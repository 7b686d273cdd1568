"""``anthropic:NAME``: the Messages API through Anthropic's official SDK: cached prompts, thinking, structured outputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from engine.domain.model import Usage
from engine.ideas.models.keys import Secret
from engine.ideas.models.model import Finish, OnText, Prompt, Reply, Retry, Spent, Trouble
from engine.ideas.models.options import Learned, Option
from engine.ideas.models.retry_policy import (
    CONNECT_SECONDS,
    CompleteAnswer,
    FailedAttempt,
    MalformedError,
    Meter,
    RetryPolicy,
    ask_once,
    one_line,
    retry_after,
    time_limit,
    with_schema,
)

if TYPE_CHECKING:
    import anthropic

_FINISHES: Mapping[str, Finish] = {
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "refusal": Finish.REFUSED,
}
_OVERLOADED = frozenset({"overloaded_error", "api_error", "timeout_error", "rate_limit_error"})
_EFFORTS = {"minimal": "low"}
"""Efforts that this protocol spells differently. ``none`` disables thinking instead."""
_SMALLEST_BUDGET = 1024
_CACHED = {"type": "ephemeral"}


class AnthropicModel:
    """A model behind the Messages API."""

    def __init__(self, name: str, model: str, url: str | None, key: Secret | None, policy: RetryPolicy) -> None:
        """Make the client; nothing is sent yet. ``name``: the author; ``model``: as the server names it."""
        import httpx2
        from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

        from engine.ideas.models.one_server import refuse_other_server, remove_secrets

        self._name = name
        self._model = model
        self._key = key
        self._keys = (key,) if key is not None else ()
        self._policy = policy
        self._learned = Learned()
        self._thinking = ["adaptive", "enabled"]
        """Ways to think that the model may accept, the preferred one first."""
        timeout = httpx2.Timeout(policy.silence, connect=min(CONNECT_SECONDS, policy.silence))
        hooks: dict[str, list[Callable[..., Any]]] = {
            "response": [refuse_other_server],
            "request": [] if key is not None else [remove_secrets],
        }
        self._client = AsyncAnthropic(
            api_key=key.reveal() if key is not None else "none",
            base_url=url or "https://api.anthropic.com",
            max_retries=0,
            timeout=timeout,
            http_client=DefaultAsyncHttpxClient(timeout=timeout, event_hooks=hooks),
        )

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

    async def close(self) -> None:
        await self._client.close()

    async def _attempt(self, prompt: Prompt, on_text: OnText, meter: Meter) -> CompleteAnswer | FailedAttempt:
        import anthropic
        import httpx2

        output = min(prompt.max_output, self._learned.output_limit or prompt.max_output)
        while True:
            request = self._request(prompt, output)
            try:
                return await self._stream(request, on_text, meter)
            except anthropic.APIStatusError as error:
                if meter.usage is not None:  # an error inside a stream has the status of its response, 200
                    return self._read_event(error, meter)
                if (learnt := self._learn(error, request, prompt, output, on_text)) is None:
                    return self._read_status(error)
                meter.begun = False
                output = learnt
            except anthropic.APIConnectionError as error:
                return self._read_connection(error, meter)
            except anthropic.APIError as error:
                return self._read_event(error, meter)
            except httpx2.RequestError as error:  # the SDK does not wrap what interrupts a stream
                message = one_line(str(error), self._keys, type(error).__name__)
                usage = meter.usage or Usage()
                return FailedAttempt(Trouble.UNREACHABLE, f"the connection failed: {message}", Retry(), Spent.UNKNOWN, usage)
            except (MalformedError, json.JSONDecodeError, UnicodeDecodeError):
                usage = meter.usage or Usage()
                return FailedAttempt(Trouble.REPLY, "the stream is not a valid message", Retry(), Spent.UNKNOWN, usage)

    def _request(self, prompt: Prompt, output: int) -> dict[str, Any]:
        schema, refused = prompt.schema, self._learned.refused
        spelled = schema is not None and Option.SCHEMA in refused
        user = with_schema(prompt.user, schema) if schema is not None and spelled else prompt.user
        stable = prompt.stable if Option.CACHE not in refused else 0
        head = [{"type": "text", "text": user[:stable], "cache_control": _CACHED}] if stable else []
        request: dict[str, Any] = {
            "model": self._model,
            "max_tokens": output,
            "messages": [{"role": "user", "content": [*head, {"type": "text", "text": user[stable:]}]}],
            "stream": True,
        }
        if prompt.system:
            request["system"] = prompt.system
        config: dict[str, Any] = {}
        effort = self._learned.effort(prompt)
        if effort and effort != "none":
            config["effort"] = _EFFORTS.get(effort, effort)
        if schema is not None and not spelled:
            config["format"] = {"type": "json_schema", "schema": schema}
        if config:
            request["output_config"] = config
        thinking = self._thinks(effort, output)
        if thinking is not None:
            request["thinking"] = thinking
        if (temperature := self._learned.temperature(prompt)) is not None:
            request["extra_body"] = {"temperature": temperature}  # older models accept it; the SDK has no argument for it
        return request

    def _thinks(self, effort: str, output: int) -> Mapping[str, Any] | None:
        """How the model thinks; ``None`` for a model that does not, and where the effort is ``none``."""
        if effort == "none" or not self._thinking:
            return None
        if self._thinking[0] == "adaptive":
            return {"type": "adaptive"}
        return {"type": "enabled", "budget_tokens": max(_SMALLEST_BUDGET, output // 2)}

    def _learn(
        self, error: anthropic.APIStatusError, request: dict[str, Any], prompt: Prompt, output: int, on_text: OnText
    ) -> int | None:
        if error.status_code not in (400, 422):
            return None
        words = _words(error).lower()
        config = request.get("output_config", {})
        sent = {
            Option.EFFORT: "effort" in config,
            Option.SCHEMA: "format" in config,
            Option.TEMPERATURE: "extra_body" in request,
            Option.CACHE: len(request["messages"][0]["content"]) > 1,
        }
        if "thinking" in words and "thinking" in request and not (sent[Option.TEMPERATURE] and "temperature" in words):
            self._thinking.pop(0)
            return output
        return self._learned.learn(words, frozenset(o for o, given in sent.items() if given), prompt, output, on_text)

    async def _stream(self, request: dict[str, Any], on_text: OnText, meter: Meter) -> CompleteAnswer | FailedAttempt:
        pieces: list[str] = []
        finish: str | None = None
        ended = started = False
        meter.begun = True
        async with await self._client.messages.create(**request) as stream:
            async for event in stream:
                try:
                    match event.type:
                        case "message_start":
                            started = True
                            meter.usage = _usage(event.message.usage, meter.usage)
                        case "content_block_delta" if event.delta.type == "text_delta":
                            pieces.append(event.delta.text)
                            on_text(event.delta.text)
                        case "message_delta":
                            finish = event.delta.stop_reason or finish
                            meter.usage = _usage(event.usage, meter.usage)
                        case "message_stop":
                            ended = True
                except (AttributeError, TypeError, LookupError):
                    raise MalformedError from None
        usage = meter.usage or Usage()
        if not ended or finish is None:
            if started:
                return FailedAttempt(Trouble.UNREACHABLE, "the reply was cut off", Retry(), Spent.UNKNOWN, usage)
            message = "the response is not a message: check the base URL"
            return FailedAttempt(Trouble.REPLY, message, Retry(), Spent.UNKNOWN)
        outcome = _FINISHES.get(finish)
        if outcome is None:
            message = f"the model stopped with reason {one_line(finish, self._keys)}"
            return FailedAttempt(Trouble.REPLY, message, Retry(), Spent.COUNTED, usage)
        text = "".join(pieces)
        return CompleteAnswer(text or ("the model refused" if outcome is Finish.REFUSED else ""), outcome, meter.usage)

    def _read_status(self, error: anthropic.APIStatusError) -> FailedAttempt:
        """The failed attempt that a status and the error's type stand for. It cost nothing."""
        status = error.status_code
        message = one_line(_words(error), self._keys, f"status {status}")
        retry = Retry(retry_after(error.response.headers))
        if status == 402 or "credit balance" in message.lower():
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

    def _read_event(self, error: anthropic.APIError, meter: Meter) -> FailedAttempt:
        """An error that arrived inside a stream: the model had begun."""
        message = one_line(_words(error), self._keys, "error in the stream")
        usage = meter.usage or Usage()
        trouble = Trouble.QUOTA if "rate_limit" in _kind(error) else Trouble.UNREACHABLE
        return FailedAttempt(trouble, f"the stream failed: {message}", Retry(), Spent.UNKNOWN, usage)

    def _read_connection(self, error: anthropic.APIConnectionError, meter: Meter) -> FailedAttempt:
        import httpx2

        from engine.ideas.models import one_server

        cause = error.__cause__
        reason = one_line(str(cause), self._keys, type(cause).__name__)
        if isinstance(cause, one_server.OtherServer):
            return FailedAttempt(Trouble.REQUEST, reason)
        never_sent = isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
        spent = Spent.NOTHING if never_sent else Spent.UNKNOWN
        return FailedAttempt(
            Trouble.UNREACHABLE, f"the connection failed: {reason}", Retry(), spent, meter.usage or Usage()
        )  # fmt: skip


def _error(error: anthropic.APIError) -> Mapping[str, Any]:
    body = error.body if isinstance(error.body, dict) else {}
    inner = body.get("error", body)
    return inner if isinstance(inner, dict) else {}


def _kind(error: anthropic.APIError) -> str:
    return str(_error(error).get("type", ""))


def _words(error: anthropic.APIError) -> str:
    words = _error(error).get("message")
    return words if isinstance(words, str) else str(error.body or "")


def _usage(counts: Any, before: Usage | None) -> Usage:
    """The running total. Tokens that were written to or read from the cache are reported beside the others."""
    read = getattr(counts, "cache_read_input_tokens", None)
    written = getattr(counts, "cache_creation_input_tokens", None)
    fresh = getattr(counts, "input_tokens", None)
    if fresh is None:
        return Usage(before.input if before else 0, before.cached if before else 0, counts.output_tokens or 0)
    return Usage(fresh + (read or 0) + (written or 0), read or 0, counts.output_tokens or 0)
