"""OpenAI's Responses API through the official SDK: structured outputs, reasoning effort, cached prompts, streamed.

Nothing is stored at the provider (``store`` is false). A server without this API has Chat Completions (``chat_api``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.domain.model import Usage
from engine.ideas.models.http_model import Outcome, counted
from engine.ideas.models.model import Finish, OnText, Prompt, Spent
from engine.ideas.models.openai_model import OpenAIModel, failed_inside, is_closed
from engine.ideas.models.options import Option
from engine.ideas.models.retry_policy import CompleteAnswer, FailedAttempt, MalformedError, Meter, one_line

if TYPE_CHECKING:
    from openai.types.responses import ResponseStreamEvent

_CACHE_KEY = "espalier-"
_OPTIONS: Mapping[str, Option] = {
    "text": Option.SCHEMA,
    "reasoning": Option.EFFORT,
    "temperature": Option.TEMPERATURE,
    "prompt_cache_key": Option.CACHE,
}


class ResponsesModel(OpenAIModel):
    """A model behind the Responses API."""

    reply = "response of this API"
    advice = "check the base URL, or use api=chat"

    def _request(self, prompt: Prompt, output: int) -> dict[str, Any]:
        user, schema = self._question(prompt)
        request: dict[str, Any] = {
            "model": self._model,
            "input": user,
            "max_output_tokens": output,
            "stream": True,
            "store": False,
        }
        if prompt.system:
            request["instructions"] = prompt.system
        if prompt.stable and Option.CACHE not in self._learned.refused:
            request["prompt_cache_key"] = cache_key(prompt)
        if effort := self._learned.effort(prompt):
            request["reasoning"] = {"effort": effort}
        if (temperature := self._learned.temperature(prompt)) is not None:
            request["temperature"] = temperature
        if schema is not None:
            form = {"type": "json_schema", "name": "reply", "schema": schema, "strict": is_closed(schema)}
            request["text"] = {"format": form}
        return request

    async def _stream(self, request: dict[str, Any], on_text: OnText, meter: Meter) -> Outcome:
        pieces: list[str] = []
        refusal: list[str] = []
        async with await self._client.responses.create(**request) as stream:
            async for event in stream:
                kind = getattr(event, "type", None)
                if kind == "response.output_text.delta":
                    piece = _delta(event)
                    pieces.append(piece)
                    on_text(piece)
                elif kind == "response.refusal.delta":
                    refusal.append(_delta(event))
                elif kind in ("response.completed", "response.incomplete", "response.failed"):
                    return self._ended(event, "".join(pieces), "".join(refusal), meter)
                elif kind == "error":
                    message = one_line(str(getattr(event, "message", "")), self._keys, "error in the stream")
                    return failed_inside({getattr(event, "code", None)}, message, meter)
        return self._unfinished(bool(pieces or refusal), meter)

    def _ended(self, event: ResponseStreamEvent, text: str, refusal: str, meter: Meter) -> Outcome:
        """The outcome of a stream whose last event has the whole response with its usage."""
        try:
            response = event.response  # type: ignore[union-attr]
            usage = meter.usage = None if response.usage is None else _usage(response.usage)
            if response.status == "failed":
                error = response.error
                message = one_line(str(error.message if error else ""), self._keys, "the response failed")
                found = failed_inside({error.code if error else None}, message, meter)
                if isinstance(found, FailedAttempt) and usage is not None:
                    return FailedAttempt(found.trouble, found.message, found.retry, Spent.COUNTED, usage)
                return found
            why = response.incomplete_details.reason if response.incomplete_details else None
        except (AttributeError, TypeError, LookupError):
            raise MalformedError from None
        if refusal or why == "content_filter":
            return CompleteAnswer(refusal or text, Finish.REFUSED, usage)
        return CompleteAnswer(text, Finish.STOP if why is None else Finish.LENGTH, usage)

    def _options(self, request: dict[str, Any]) -> frozenset[Option]:
        return frozenset(option for name, option in _OPTIONS.items() if name in request)


def cache_key(prompt: Prompt) -> str:
    """The same for prompts with the same beginning: the provider routes them to one cache."""
    head = f"{prompt.system}\0{prompt.user[: prompt.stable]}"
    return _CACHE_KEY + hashlib.sha256(head.encode("utf-8", "replace")).hexdigest()[:24]


def _delta(event: Any) -> str:
    delta = getattr(event, "delta", None)
    if not isinstance(delta, str):
        raise MalformedError
    return delta


def _usage(counts: Any) -> Usage | None:
    details = counts.input_tokens_details
    return counted(counts.input_tokens, details.cached_tokens if details else 0, counts.output_tokens)
