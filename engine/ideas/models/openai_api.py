"""``openai:NAME``: the OpenAI chat completions protocol through the official SDK.

The same protocol is spoken by vLLM, Ollama, llama.cpp and gateways, each with options of its own that it does not know.
An option that a server refuses is left out from then on, with the nearest thing in its place (``Option``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from engine.domain.model import Usage
from engine.ideas.models.conduct import (
    CONNECT_SECONDS,
    USUAL,
    Again,
    Answer,
    Conduct,
    MalformedError,
    Meter,
    Setback,
    json_wanted,
    one_line,
    persist,
    retry_after,
)
from engine.ideas.models.keys import Secret, find_key, need_key
from engine.ideas.models.model import Finish, Heard, Prompt, Reply, Trouble

if TYPE_CHECKING:
    import openai
    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletionChunk

BASE_URL = "OPENAI_BASE_URL"
_EXHAUSTED = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
_FILTERED = frozenset({"content_filter", "content_policy_violation"})
_NO_MODEL = frozenset({"model_not_found", "invalid_model"})


class Option(StrEnum):
    """What a compatible server may not know."""

    SCHEMA = "response_format"
    """Without it the schema is spelled out in the prompt."""
    OUTPUT = "max_completion_tokens"
    """Without it the older ``max_tokens`` is sent."""
    USAGE = "stream_options"
    """Without it the server counts nothing unasked."""


_SIGNS: Mapping[Option, tuple[str, ...]] = {
    Option.OUTPUT: ("max_completion_tokens",),
    Option.USAGE: ("stream_options", "include_usage"),
    Option.SCHEMA: ("response_format", "json_schema", "schema", "structured", "guided", "grammar"),
}
"""Words by which a server's complaint names an option."""


class OpenAIModel:
    """A model behind the chat completions protocol."""

    def __init__(self, model: str, *, base_url: str | None = None, key: Secret | None = None, conduct: Conduct = USUAL) -> None:
        """Make the client; nothing is sent yet.

        Args:
            model: as the server names it.
            base_url: the server, with its version path (``http://localhost:8000/v1``); else OPENAI_BASE_URL, else OpenAI's own.
            key: else OPENAI_API_KEY or the keyring's. A server of one's own may need none.
            conduct: limits of each ask.

        Raises:
            ModelError: OpenAI's own server is asked and there is no key.
        """
        import httpx2
        from openai import AsyncOpenAI

        base_url = base_url or os.environ.get(BASE_URL) or None
        self._key = key or (find_key("openai") or Secret("none") if base_url else need_key("openai"))
        self._model = model
        self._conduct = conduct
        self._refused: set[Option] = set()
        self._counted = True
        self._client = AsyncOpenAI(
            api_key=self._key.reveal(),
            base_url=base_url,
            max_retries=0,
            timeout=httpx2.Timeout(conduct.silence, connect=min(CONNECT_SECONDS, conduct.silence)),
        )

    @property
    def name(self) -> str:
        return f"openai:{self._model}"

    @property
    def counted(self) -> bool:
        """False once a compatible server has answered without saying what it cost."""
        return self._counted

    async def ask(self, prompt: Prompt, heard: Heard) -> Reply:
        """Raises ModelError; can be cancelled at any time."""
        return await persist(self.name, lambda meter: self._attempt(prompt, heard, meter), self._conduct, heard, prompt.spare)

    async def close(self) -> None:
        await self._client.close()

    async def _attempt(self, prompt: Prompt, heard: Heard, meter: Meter) -> Answer | Setback:
        import openai

        while True:
            try:
                return await self._stream(prompt, heard, meter)
            except openai.APIStatusError as error:
                option = self._blamed(error, prompt)
                if option is None:
                    return self._read_status(error)
                self._refused.add(option)
            except openai.APIConnectionError as error:
                return Setback(Trouble.UNREACHABLE, f"the connection failed: {_reason(error)}", Again())
            except openai.APIError as error:
                return self._read_event(error)
            except (MalformedError, json.JSONDecodeError, UnicodeDecodeError):
                return Setback(Trouble.REPLY, "the stream holds something that is not a chat completion", Again())

    async def _stream(self, prompt: Prompt, heard: Heard, meter: Meter) -> Answer | Setback:
        pieces: list[str] = []
        refusal: list[str] = []
        finish = ""
        counted = False
        async with await self._client.chat.completions.create(**self._request(prompt)) as stream:
            async for chunk in stream:
                piece = _read(chunk)
                if piece.usage is not None:
                    counted = True
                    meter.told(piece.usage)
                if piece.text:
                    pieces.append(piece.text)
                    heard(piece.text)
                refusal.append(piece.refusal)
                finish = piece.finish or finish
        if not finish:
            return _broken_off(bool(pieces))
        self._counted = counted
        if any(refusal):
            return Answer("".join(refusal), Finish.REFUSED)
        return Answer("".join(pieces), _FINISHES.get(finish, Finish.STOP))

    def _request(self, prompt: Prompt) -> dict[str, Any]:
        schema = prompt.schema
        spelled = schema is not None and Option.SCHEMA in self._refused
        user = json_wanted(prompt.user, schema) if schema is not None and spelled else prompt.user
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

    def _blamed(self, error: openai.APIStatusError, prompt: Prompt) -> Option | None:
        """The option that a server complains of and that can be left out."""
        if error.status_code not in (400, 422, 501) or error.code in _FILTERED | _NO_MODEL:
            return None
        words = f"{error.param} {error.message}".lower()
        for option, signs in _SIGNS.items():
            sent = option not in self._refused and (option is not Option.SCHEMA or prompt.schema is not None)
            if sent and any(sign in words for sign in signs):
                return option
        return None

    def _read_status(self, error: openai.APIStatusError) -> Answer | Setback:
        """What an HTTP status and the provider's error code come to."""
        status, codes = error.status_code, {error.code, error.type}
        again = None if error.response.headers.get("x-should-retry") == "false" else Again(retry_after(error.response.headers))
        said = self._said(error, f"status {status}")
        if codes & _FILTERED:
            return Answer(said, Finish.REFUSED)
        if codes & _EXHAUSTED or status == 402:
            return Setback(Trouble.QUOTA, f"out of credit: {said}")
        if status in (401, 403):
            return Setback(Trouble.KEY, f"the key is not accepted: {said}")
        if status == 404 or codes & _NO_MODEL:
            return Setback(Trouble.MODEL, f"not found: {said}")
        if status == 429:
            return Setback(Trouble.QUOTA, f"rate limit: {said}", again)
        if status in (408, 409) or status >= 500:
            return Setback(Trouble.UNREACHABLE, f"the server failed: {said}", again)
        return Setback(Trouble.REQUEST, f"the request was refused: {said}")

    def _read_event(self, error: openai.APIError) -> Answer | Setback:
        """An error that arrived inside a stream."""
        codes = {error.code, error.type}
        said = self._said(error, "error in the stream")
        if codes & _EXHAUSTED:
            return Setback(Trouble.QUOTA, f"out of credit: {said}")
        if codes & _FILTERED:
            return Answer(said, Finish.REFUSED)
        trouble = Trouble.QUOTA if "rate_limit_exceeded" in codes else Trouble.UNREACHABLE
        return Setback(trouble, f"the stream failed: {said}", Again())

    def _said(self, error: openai.APIError, otherwise: str) -> str:
        words = error.body.get("message") if isinstance(error.body, dict) else None
        if not isinstance(words, str):
            words = str(error.body) if error.body else ""
        return one_line(words, (self._key,), otherwise)


_FINISHES: Mapping[str, Finish] = {"length": Finish.LENGTH, "content_filter": Finish.REFUSED}


def _reason(error: openai.APIConnectionError) -> str:
    """The SDK's own words are the same for every lost connection; the one below it knows more."""
    cause = error.__cause__
    return one_line(str(cause), (), type(cause).__name__)


def _broken_off(begun: bool) -> Setback:
    if begun:
        return Setback(Trouble.UNREACHABLE, "the reply broke off before its end", Again())
    return Setback(Trouble.REPLY, "an answer came that is not a chat completion; check the base URL", Again())


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one chunk of a stream adds."""

    text: str = ""
    refusal: str = ""
    finish: str = ""
    usage: Usage | None = None


def _read(chunk: ChatCompletionChunk) -> _Piece:
    """The SDK does not check what servers send: any field may be missing or of another type."""
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
    """Whether a schema can be enforced strictly: every object lists all its properties as required and allows no others."""
    if isinstance(schema, list):
        return all(is_closed(item) for item in schema)
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object":
        required = set(schema.get("required", ()))
        if schema.get("additionalProperties") is not False or required != set(schema.get("properties", {})):
            return False
    return all(is_closed(value) for value in schema.values())
