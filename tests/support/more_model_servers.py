"""Loopback servers for the Responses API and for the Messages API. See ``model_servers``.

The shapes are those of the official SDKs' types: every event is named, the usage of a response comes with its last event,
that of a message with its first and its last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from support.model_servers import ChatErrors, LostError, ModelServer
from support.model_turns import (
    Asked,
    BreaksOff,
    Fails,
    FailsInside,
    Garbled,
    Limited,
    OutOfCredit,
    Refuses,
    Says,
    Turn,
    pieces,
    usage_of,
)

from engine.domain.model import Usage

ANTHROPIC_KEY = "sk-ant-test-0123456789abcdef"


def _event(kind: str, **data: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()


class ResponsesServer(ChatErrors, ModelServer):
    """``POST /v1/responses``, streamed."""

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def read(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Asked:
        if path != "/v1/responses" or not body["stream"]:
            raise LookupError(path)
        form = body.get("text", {}).get("format")
        return Asked(
            model=body["model"],
            system=body.get("instructions", ""),
            user=body["input"],
            schema=form["schema"] if form else None,
            max_output=body["max_output_tokens"],
            key=headers["Authorization"].removeprefix("Bearer "),
            options=frozenset(body) & {"text", "reasoning", "temperature", "prompt_cache_key"},
            body=body,
            headers=dict(headers),
        )

    def stream(self, number: int, asked: Asked, turn: Turn) -> Iterator[str | bytes]:
        frame: dict[str, Any] = {
            "id": f"resp_{number}", "object": "response", "created_at": 1, "model": asked.model, "output": [], "tools": [],
            "parallel_tool_calls": True, "tool_choice": "auto", "status": "in_progress", "error": None, "usage": None,
            "incomplete_details": None, "instructions": None, "metadata": {}, "temperature": 1.0, "top_p": 1.0,
        }  # fmt: skip
        place = {"item_id": f"msg_{number}", "output_index": 0, "content_index": 0}
        yield _event("response.created", sequence_number=0, response=frame)
        match turn:
            case Says(text=text):
                for n, piece in enumerate(pieces(text)):
                    yield _event("response.output_text.delta", sequence_number=n + 1, delta=piece, logprobs=[], **place)
                if turn.unended:
                    return
                why = {"length": "max_output_tokens", "filtered": "content_filter"}.get(turn.finish)
                usage = self._told_usage(number, usage_of(asked, turn, text), turn.reasoning) if turn.counts else None
                status = {"status": "incomplete" if why else "completed", "usage": usage}
                details = {"incomplete_details": {"reason": why} if why else None}
                yield _event("response.incomplete" if why else "response.completed", sequence_number=9,
                             response={**frame, **status, **details})  # fmt: skip
            case Refuses(text=text):
                for n, piece in enumerate(pieces(text)):
                    yield _event("response.refusal.delta", sequence_number=n + 1, delta=piece, **place)
                usage = self._told_usage(number, usage_of(asked, Says(text), text), 0)
                yield _event("response.completed", sequence_number=9, response={**frame, "status": "completed", "usage": usage})
            case BreaksOff(text=text, after=after):
                for n, piece in enumerate(pieces(text)[:after]):
                    yield _event("response.output_text.delta", sequence_number=n + 1, delta=piece, logprobs=[], **place)
                raise LostError
            case Garbled(text=text, chunk=garbage):
                yield _event("response.output_text.delta", sequence_number=1, delta=pieces(text)[0], logprobs=[], **place)
                yield garbage
            case FailsInside(message=message, kind=kind):
                yield _event("response.output_text.delta", sequence_number=1, delta="x", logprobs=[], **place)
                error = {"code": kind, "message": message}
                yield _event("response.failed", sequence_number=2, response={**frame, "status": "failed", "error": error})
            case _:
                raise AssertionError(turn)

    def _told_usage(self, number: int, usage: Usage, reasoning: int) -> Mapping[str, Any]:
        self.told(number, usage)
        return {
            "input_tokens": usage.input,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": usage.total,
        }


class MessagesServer(ModelServer):
    """``POST /v1/messages``, streamed."""

    @property
    def url(self) -> str:
        return self.root

    def read(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Asked:
        if path != "/v1/messages" or not body["stream"]:
            raise LookupError(path)
        blocks = body["messages"][0]["content"]
        config = body.get("output_config", {})
        return Asked(
            model=body["model"],
            system=body.get("system", ""),
            user="".join(block["text"] for block in blocks),
            schema=config.get("format", {}).get("schema"),
            max_output=body["max_tokens"],
            key=headers["X-Api-Key"] or headers["Authorization"].removeprefix("Bearer "),
            options=frozenset(body) & {"thinking", "temperature"} | {f"output_config.{name}" for name in config},
            body=body,
            headers=dict(headers),
        )

    def stream(self, number: int, asked: Asked, turn: Turn) -> Iterator[str | bytes]:
        match turn:
            case Says(text=text):
                usage = usage_of(asked, turn, text)
                yield self._begins(number, asked, usage)
                yield from self._text(text, len(pieces(text)), thought=bool(turn.reasoning))
                if not turn.unended:
                    yield from self._ends(
                        number, usage, {"stop": "end_turn", "length": "max_tokens"}.get(turn.finish, "refusal")
                    )
            case Refuses(text=text):
                usage = usage_of(asked, Says(text), text)
                yield self._begins(number, asked, usage)
                yield from self._text(text, len(pieces(text)))
                yield from self._ends(number, usage, "refusal")
            case BreaksOff(text=text, after=after):
                yield self._begins(number, asked, Usage(asked.tokens))
                yield from self._text(text, after)
                raise LostError
            case Garbled(text=text, chunk=garbage):
                yield self._begins(number, asked, Usage(asked.tokens))
                yield from self._text(text, 1)
                yield f"event: content_block_delta\ndata: {garbage}\n\n".encode()
            case FailsInside(message=message):
                yield self._begins(number, asked, Usage(asked.tokens))
                yield _event("error", error={"type": "overloaded_error", "message": message})
            case _:
                raise AssertionError(turn)

    def _begins(self, number: int, asked: Asked, usage: Usage) -> bytes:
        self.told(number, Usage(usage.input, usage.cached, 1))
        counts = {
            "input_tokens": usage.input - usage.cached, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached, "output_tokens": 1,
        }  # fmt: skip
        message = {
            "id": f"msg_{number}", "type": "message", "role": "assistant", "model": asked.model, "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": counts,
        }  # fmt: skip
        return _event("message_start", message=message)

    def _text(self, text: str, most: int, *, thought: bool = False) -> Iterator[bytes]:
        if thought:
            yield _event("content_block_start", index=0, content_block={"type": "thinking", "thinking": "", "signature": ""})
            yield _event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "weighing it"})
            yield _event("content_block_stop", index=0)
        yield _event("content_block_start", index=1, content_block={"type": "text", "text": ""})
        for piece in pieces(text)[:most]:
            yield _event("content_block_delta", index=1, delta={"type": "text_delta", "text": piece})
        yield _event("ping")
        yield _event("content_block_stop", index=1)

    def _ends(self, number: int, usage: Usage, reason: str) -> Iterator[bytes]:
        self.told(number, usage)
        yield _event(
            "message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={"output_tokens": usage.output}
        )
        yield _event("message_stop")

    def refusal(self, turn: Limited | Fails | OutOfCredit) -> tuple[Fails, Any]:
        match turn:
            case Limited(after=after):
                wait = () if after is None else (("Retry-After", f"{after:g}"),)
                failure = Fails(429, "This request would exceed your rate limit.", "rate_limit_error", wait)
            case OutOfCredit():
                message = "Your credit balance is too low: you exceeded your current quota."
                failure = Fails(400, message, "invalid_request_error")
            case Fails():
                failure = turn
        return failure, {"type": "error", "error": {"type": failure.kind or "api_error", "message": failure.message}}

    def wrong_key(self, key: str) -> Fails:
        return Fails(401, f"invalid x-api-key {key}", "authentication_error")

    def no_model(self, model: str) -> Fails:
        return Fails(404, f"model: {model}", "not_found_error")
