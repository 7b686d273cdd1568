"""OpenAI's Responses API through the official SDK: structured outputs, reasoning effort, cached prompts, streamed.

Nothing is stored at the provider (``store`` is false). A server without this API has Chat Completions (``chat_api``).
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from engine.domain.model import Usage
from engine.ideas.models import openai_client
from engine.ideas.models.keys import Secret
from engine.ideas.models.model import Finish, OnText, Prompt, Reply, Retry, Spent, Trouble
from engine.ideas.models.openai_client import is_closed
from engine.ideas.models.options import Learned, Option
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

if TYPE_CHECKING:
    from openai.types.responses import ResponseStreamEvent

_CACHE_KEY = "espalier-"


class ResponsesModel:
    """A model behind the Responses API."""

    def __init__(self, name: str, model: str, url: str | None, key: Secret | None, policy: RetryPolicy) -> None:
        """Make the client; nothing is sent yet. ``name``: the author; ``model``: as the server names it."""
        self._name = name
        self._model = model
        self._key = key
        self._keys = (key,) if key is not None else ()
        self._policy = policy
        self._learned = Learned()
        self._client = openai_client.client(url, key, policy)

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
        import openai

        output = min(prompt.max_output, self._learned.output_limit or prompt.max_output)
        while True:
            request = self._request(prompt, output)
            try:
                return await self._stream(request, on_text, meter)
            except openai.APIStatusError as error:
                meter.begun = False
                learnt = None
                if error.status_code in (400, 422) and error.code not in openai_client.FILTERED | openai_client.NO_MODEL:
                    learnt = self._learned.learn(openai_client.words_of(error), _sent(request), prompt, output, on_text)
                if learnt is None:
                    return openai_client.read_status(error, self._keys, has_key=self._key is not None)
                output = learnt
            except openai.APIConnectionError as error:
                return openai_client.read_connection(error, self._keys, meter)
            except openai.APIError as error:
                return openai_client.read_event(error, self._keys)
            except (MalformedError, json.JSONDecodeError, UnicodeDecodeError):
                return FailedAttempt(Trouble.REPLY, "the stream is not a valid response", Retry(), Spent.UNKNOWN)

    def _request(self, prompt: Prompt, output: int) -> dict[str, Any]:
        schema = prompt.schema
        spelled = schema is not None and Option.SCHEMA in self._learned.refused
        user = with_schema(prompt.user, schema) if schema is not None and spelled else prompt.user
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
        if schema is not None and not spelled:
            form = {"type": "json_schema", "name": "reply", "schema": schema, "strict": is_closed(schema)}
            request["text"] = {"format": form}
        return request

    async def _stream(self, request: dict[str, Any], on_text: OnText, meter: Meter) -> CompleteAnswer | FailedAttempt:
        pieces: list[str] = []
        refusal: list[str] = []
        meter.begun = True
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
                    return openai_client.failed_inside({getattr(event, "code", None)}, message)
        if pieces or refusal:
            return FailedAttempt(Trouble.UNREACHABLE, "the reply was cut off", Retry(), Spent.UNKNOWN)
        message = "the response is not one of the Responses API: check the base URL, or use api=chat"
        return FailedAttempt(Trouble.REPLY, message, Retry(), Spent.UNKNOWN)

    def _ended(self, event: ResponseStreamEvent, text: str, refusal: str, meter: Meter) -> CompleteAnswer | FailedAttempt:
        """The outcome of a stream whose last event has the whole response with its usage."""
        try:
            response = event.response  # type: ignore[union-attr]
            usage = meter.usage = None if response.usage is None else _usage(response.usage)
            if response.status == "failed":
                error = response.error
                message = one_line(str(error.message if error else ""), self._keys, "the response failed")
                found = openai_client.failed_inside({error.code if error else None}, message)
                if isinstance(found, FailedAttempt) and usage is not None:
                    return FailedAttempt(found.trouble, found.message, found.retry, Spent.COUNTED, usage)
                return found
            why = response.incomplete_details.reason if response.incomplete_details else None
        except (AttributeError, TypeError, LookupError):
            raise MalformedError from None
        if refusal or why == "content_filter":
            return CompleteAnswer(refusal or text, Finish.REFUSED, usage)
        return CompleteAnswer(text, Finish.STOP if why is None else Finish.LENGTH, usage)


def cache_key(prompt: Prompt) -> str:
    """The same for prompts with the same beginning: the provider routes them to one cache."""
    head = f"{prompt.system}\0{prompt.user[: prompt.stable]}"
    return _CACHE_KEY + hashlib.sha256(head.encode("utf-8", "replace")).hexdigest()[:24]


def _sent(request: dict[str, Any]) -> frozenset[Option]:
    names = {
        "text": Option.SCHEMA,
        "reasoning": Option.EFFORT,
        "temperature": Option.TEMPERATURE,
        "prompt_cache_key": Option.CACHE,
    }
    return frozenset(option for name, option in names.items() if name in request)


def _delta(event: Any) -> str:
    delta = getattr(event, "delta", None)
    if not isinstance(delta, str):
        raise MalformedError
    return delta


def _usage(counts: Any) -> Usage:
    details = counts.input_tokens_details
    return Usage(counts.input_tokens or 0, (details.cached_tokens or 0) if details else 0, counts.output_tokens or 0)
