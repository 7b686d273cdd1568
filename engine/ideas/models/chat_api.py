"""Chat Completions through the OpenAI SDK: vLLM, Ollama, llama.cpp, OpenRouter and gateways speak it.

Each of them lacks some options. Once a server has rejected an option, later requests omit it and use the nearest substitute.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
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
    time_limit,
    with_schema,
)

if TYPE_CHECKING:
    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletionChunk

_FINISHES: Mapping[str, Finish] = {"length": Finish.LENGTH, "content_filter": Finish.REFUSED}
_EFFORT = "reasoning_effort"


class ChatModel:
    """A model behind the chat completions protocol."""

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
                if error.status_code in (400, 422, 501) and error.code not in openai_client.FILTERED | openai_client.NO_MODEL:
                    learnt = self._learned.learn(openai_client.words_of(error), _sent(request), prompt, output, on_text)
                if learnt is None:
                    return openai_client.read_status(error, self._keys, has_key=self._key is not None)
                output = learnt
            except openai.APIConnectionError as error:
                return openai_client.read_connection(error, self._keys, meter)
            except openai.APIError as error:
                return openai_client.read_event(error, self._keys)
            except (MalformedError, json.JSONDecodeError, UnicodeDecodeError):
                return FailedAttempt(Trouble.REPLY, "the stream is not a valid chat completion", Retry(), Spent.UNKNOWN)

    async def _stream(self, request: dict[str, Any], on_text: OnText, meter: Meter) -> CompleteAnswer | FailedAttempt:
        pieces: list[str] = []
        refusal: list[str] = []
        finish = ""
        meter.begun = True
        async with await self._client.chat.completions.create(**request) as stream:
            async for chunk in stream:
                piece = _read(chunk)
                if piece.usage is not None:
                    meter.usage = piece.usage
                if piece.text:
                    pieces.append(piece.text)
                    on_text(piece.text)
                refusal.append(piece.refusal)
                finish = piece.finish or finish
        if not finish:
            return _cut_off(bool(pieces))
        if any(refusal):
            return CompleteAnswer("".join(refusal), Finish.REFUSED, meter.usage)
        return CompleteAnswer("".join(pieces), _FINISHES.get(finish, Finish.STOP), meter.usage)

    def _request(self, prompt: Prompt, output: int) -> dict[str, Any]:
        schema, refused = prompt.schema, self._learned.refused
        spelled = schema is not None and Option.SCHEMA in refused
        user = with_schema(prompt.user, schema) if schema is not None and spelled else prompt.user
        system = [{"role": "system", "content": prompt.system}] if prompt.system else []
        request: dict[str, Any] = {
            "model": self._model,
            "messages": [*system, {"role": "user", "content": user}],
            "stream": True,
            "max_tokens" if Option.OUTPUT in refused else Option.OUTPUT.value: output,
        }
        if Option.USAGE not in refused:
            request[Option.USAGE] = {"include_usage": True}
        if effort := self._learned.effort(prompt):
            request[_EFFORT] = effort
        if (temperature := self._learned.temperature(prompt)) is not None:
            request["temperature"] = temperature
        if schema is not None and not spelled:
            request[Option.SCHEMA] = {
                "type": "json_schema",
                "json_schema": {"name": "reply", "schema": schema, "strict": is_closed(schema)},
            }
        return request


def _sent(request: dict[str, Any]) -> frozenset[Option]:
    effort = {Option.EFFORT} if _EFFORT in request else set()
    return frozenset({option for option in Option if option.value in request} | effort)


def _cut_off(begun: bool) -> FailedAttempt:
    if begun:
        return FailedAttempt(Trouble.UNREACHABLE, "the reply was cut off", Retry(), Spent.UNKNOWN)
    message = "the response is not a chat completion: check the base URL"
    return FailedAttempt(Trouble.REPLY, message, Retry(), Spent.UNKNOWN)


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
