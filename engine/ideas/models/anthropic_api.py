"""``anthropic:NAME``: the Messages API through Anthropic's official SDK: cached prompts, thinking, structured outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.domain.model import Usage
from engine.ideas.models.http_model import HttpModel, Outcome, counted, status_failed
from engine.ideas.models.keys import Secret
from engine.ideas.models.model import Finish, OnText, Prompt, Retry, Spent, Trouble
from engine.ideas.models.options import Option, Sent
from engine.ideas.models.retry_policy import (
    CompleteAnswer,
    FailedAttempt,
    MalformedError,
    Meter,
    RetryPolicy,
    one_line,
    retry_after,
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
_EFFORTS = {"minimal": "low"}
"""Efforts that this protocol spells differently. ``none`` disables thinking instead."""
_SMALLEST_BUDGET = 1024
_CACHED = {"type": "ephemeral"}


class AnthropicModel(HttpModel):
    """A model behind the Messages API."""

    reply = "message"

    def __init__(self, name: str, model: str, url: str | None, key: Secret | None, policy: RetryPolicy) -> None:
        """Make the client; nothing is sent yet. ``url``: the server; ``None`` for Anthropic's own."""
        from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

        from engine.ideas.models import one_server

        super().__init__(name, model, key, policy)
        self._thinking = ["adaptive", "enabled"]
        """Ways to think that the model may accept, the preferred one first."""
        timeout = one_server.timeout(policy.silence)
        self._client = AsyncAnthropic(
            api_key=key.reveal() if key is not None else "none",
            base_url=url or "https://api.anthropic.com",
            max_retries=0,
            timeout=timeout,
            http_client=DefaultAsyncHttpxClient(timeout=timeout, event_hooks=one_server.hooks(has_key=key is not None)),
        )

    async def close(self) -> None:
        await self._client.close()

    def _failed(self, error: Exception, sent: Sent, on_text: OnText, meter: Meter) -> Outcome | int | None:
        import anthropic

        match error:
            case anthropic.APIStatusError() if meter.usage is None:
                learnt = self._learn(error, sent, on_text)
                return self._read_status(error) if learnt is None else learnt
            case anthropic.APIConnectionError():
                return self._disconnected(error.__cause__, meter)
            case anthropic.APIError():  # one inside a stream has the status of its response, 200
                return self._read_event(error, meter)
        return None

    def _request(self, prompt: Prompt, output: int) -> dict[str, Any]:
        user, schema = self._question(prompt)
        stable = prompt.stable if Option.CACHE not in self._learned.refused else 0
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
        if schema is not None:
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

    def _learn(self, error: anthropic.APIStatusError, sent: Sent, on_text: OnText) -> int | None:
        if error.status_code not in (400, 422):
            return None
        words = _words(error).lower()
        config = sent.request.get("output_config", {})
        given = {
            Option.EFFORT: "effort" in config,
            Option.SCHEMA: "format" in config,
            Option.TEMPERATURE: "extra_body" in sent.request,
            Option.CACHE: len(sent.request["messages"][0]["content"]) > 1,
        }
        thinking = sent.request.get("thinking", {}).get("type")
        if thinking and "thinking" in words and not (given[Option.TEMPERATURE] and "temperature" in words):
            self._thinking = [way for way in self._thinking if way != thinking]
            return sent.output
        return self._learned.learn(words, frozenset(o for o, is_given in given.items() if is_given), sent, on_text)

    async def _stream(self, request: dict[str, Any], on_text: OnText, meter: Meter) -> Outcome:
        pieces: list[str] = []
        finish: str | None = None
        ended = started = False
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
            return self._unfinished(started, meter)
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
        return status_failed(402 if "credit balance" in message.lower() else status, message, retry)

    def _read_event(self, error: anthropic.APIError, meter: Meter) -> FailedAttempt:
        """An error that arrived inside a stream: the model had begun."""
        message = one_line(_words(error), self._keys, "error in the stream")
        usage = meter.usage or Usage()
        trouble = Trouble.QUOTA if "rate_limit" in _kind(error) else Trouble.UNREACHABLE
        return FailedAttempt(trouble, f"the stream failed: {message}", Retry(), Spent.UNKNOWN, usage)


def _error(error: anthropic.APIError) -> Mapping[str, Any]:
    body = error.body if isinstance(error.body, dict) else {}
    inner = body.get("error", body)
    return inner if isinstance(inner, dict) else {}


def _kind(error: anthropic.APIError) -> str:
    return str(_error(error).get("type", ""))


def _words(error: anthropic.APIError) -> str:
    words = _error(error).get("message")
    return words if isinstance(words, str) else str(error.body or "")


def _usage(counts: Any, before: Usage | None) -> Usage | None:
    """The running total. Tokens that were written to or read from the cache are reported beside the others."""
    read = getattr(counts, "cache_read_input_tokens", None)
    written = getattr(counts, "cache_creation_input_tokens", None)
    fresh = getattr(counts, "input_tokens", None)
    if fresh is None:
        return counted(before.input, before.cached, counts.output_tokens) if before is not None else None
    return counted(fresh + (read or 0) + (written or 0), read, counts.output_tokens)
