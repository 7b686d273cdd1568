"""Chat Completions through the OpenAI SDK: vLLM, Ollama, llama.cpp, OpenRouter and gateways speak it.

Each of them lacks some options. Once a server has rejected an option, later requests omit it and use the nearest substitute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.domain.model import Usage
from engine.ideas.models.http_model import Outcome, counted
from engine.ideas.models.model import Finish, OnText, Prompt
from engine.ideas.models.openai_model import OpenAIModel, is_closed
from engine.ideas.models.options import Option
from engine.ideas.models.retry_policy import CompleteAnswer, MalformedError, Meter

if TYPE_CHECKING:
    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletionChunk

_FINISHES: Mapping[str, Finish] = {"length": Finish.LENGTH, "content_filter": Finish.REFUSED}
_EFFORT = "reasoning_effort"


class ChatModel(OpenAIModel):
    """A model behind the chat completions protocol."""

    reply = "chat completion"

    async def _stream(self, request: dict[str, Any], on_text: OnText, meter: Meter) -> Outcome:
        pieces: list[str] = []
        refusal: list[str] = []
        finish = ""
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
            return self._unfinished(bool(pieces), meter)
        if any(refusal):
            return CompleteAnswer("".join(refusal), Finish.REFUSED, meter.usage)
        return CompleteAnswer("".join(pieces), _FINISHES.get(finish, Finish.STOP), meter.usage)

    def _request(self, prompt: Prompt, output: int) -> dict[str, Any]:
        user, schema = self._question(prompt)
        refused = self._learned.refused
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
        if schema is not None:
            request[Option.SCHEMA] = {
                "type": "json_schema",
                "json_schema": {"name": "reply", "schema": schema, "strict": is_closed(schema)},
            }
        return request

    def _options(self, request: dict[str, Any]) -> frozenset[Option]:
        effort = {Option.EFFORT} if _EFFORT in request else set()
        return frozenset({option for option in Option if option.value in request} | effort)


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


def _usage(usage: CompletionUsage) -> Usage | None:
    details = usage.prompt_tokens_details
    return counted(usage.prompt_tokens, details.cached_tokens if details else 0, usage.completion_tokens)
