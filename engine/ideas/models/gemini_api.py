"""``gemini:NAME``: the Gemini protocol through the official SDK, google-genai."""

from __future__ import annotations

import os
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.domain.model import Usage
from engine.ideas.models.http_model import HttpModel, Outcome, counted, status_failed
from engine.ideas.models.keys import Secret
from engine.ideas.models.model import Finish, ModelError, OnText, Prompt, Retry, Spent, Trouble
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
    import httpx2
    from google.genai import Client, errors, types

_FINISHES: Mapping[str, Finish] = {
    "STOP": Finish.STOP,
    "MAX_TOKENS": Finish.LENGTH,
    "CONTINUATION": Finish.LENGTH,
    **dict.fromkeys(
        ("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "ESCALATION", "PUP_LIMITED_DISABLED"),
        Finish.REFUSED,
    ),
}
"""Any other reason (``OTHER``, ``MALFORMED_RESPONSE``) is a failed attempt."""


class GeminiModel(HttpModel):
    """A model behind the Gemini protocol."""

    reply = "Gemini reply"

    def __init__(
        self, name: str, model: str, url: str | None, key: Secret | None, policy: RetryPolicy, *, vertex: bool = False
    ) -> None:
        """Make the client; nothing is sent yet.

        Args:
            name: the author.
            model: as Google names it, without ``models/``.
            url: the server, without a version path; ``None`` for Google's own.
            key: what the server gets; for Vertex AI without one, Google's application default credentials are used.
            policy: limits of each request.
            vertex: Vertex AI instead of the Gemini API. Its project and location come from GOOGLE_CLOUD_PROJECT and
                GOOGLE_CLOUD_LOCATION, unless there is a key.
        """
        import httpx2
        from google.genai import types

        from engine.ideas.models import one_server

        super().__init__(name, model, key, policy)
        # On standard error, which may be the terminal UI, the SDK warns of finish reasons that are newer than itself.
        warnings.filterwarnings("ignore", ".* is not a valid ", UserWarning, r"google\.genai")
        hooks = one_server.hooks(has_key=True)
        hooks["request"].append(partial(_limit, policy.silence))
        self._http = httpx2.AsyncClient(follow_redirects=True, event_hooks=hooks)
        options = types.HttpOptions(
            base_url=url, timeout=round(policy.seconds * 1000), httpx_async_client=self._http
        )  # fmt: skip
        self._client = _client(key, options, vertex=vertex)

    async def close(self) -> None:
        self._client.close()
        await self._client.aio.aclose()
        await self._http.aclose()

    def _failed(self, error: Exception, sent: Sent, on_text: OnText, meter: Meter) -> Outcome | int | None:
        from google.genai import errors

        if not isinstance(error, errors.APIError):
            return None
        if meter.usage is not None:
            return self._read_event(error, meter)
        learnt = self._learn(error, sent, on_text)
        return self._read_error(error) if learnt is None else learnt

    async def _stream(self, request: dict[str, Any], on_text: OnText, meter: Meter) -> Outcome:
        pieces: list[str] = []
        finish: str | None = None
        blocked: str | None = None
        stream = await self._client.aio.models.generate_content_stream(**request)
        async with aclosing(_checked(stream)) as chunks:
            async for chunk in chunks:
                if chunk.usage_metadata is not None:
                    meter.usage = _usage(chunk.usage_metadata)
                if chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason is not None:
                    blocked = chunk.prompt_feedback.block_reason.value
                for candidate in (chunk.candidates or ())[:1]:
                    if candidate.finish_reason is not None:
                        finish = candidate.finish_reason.value
                    for piece in _pieces(candidate):
                        pieces.append(piece)
                        on_text(piece)
        if blocked is not None:
            return CompleteAnswer(f"the prompt was blocked: {blocked}", Finish.REFUSED, meter.usage)
        if finish is None:
            return self._unfinished(bool(pieces), meter)
        return _outcome("".join(pieces), finish, meter.usage)

    def _request(self, prompt: Prompt, output: int) -> dict[str, Any]:
        from google.genai import types

        user, schema = self._question(prompt)
        effort = self._learned.effort(prompt)
        config = types.GenerateContentConfig(
            system_instruction=prompt.system or None,
            max_output_tokens=output,
            temperature=self._learned.temperature(prompt),
            thinking_config=_thinking(effort) if effort else None,
            response_mime_type="application/json" if schema is not None else None,
            response_json_schema=dict(schema) if schema is not None else None,
            automatic_continuation=False,
        )
        return {"model": self._model, "contents": user, "config": config}

    def _learn(self, error: errors.APIError, sent: Sent, on_text: OnText) -> int | None:
        if error.code != 400:
            return None
        config = sent.request["config"]
        given = {
            Option.SCHEMA: config.response_json_schema is not None,
            Option.EFFORT: config.thinking_config is not None,
            Option.TEMPERATURE: config.temperature is not None,
        }
        words = str(error.message).lower()
        if given[Option.EFFORT] and "thinking" in words:
            words = f"{words} effort"
        return self._learned.learn(words, frozenset(o for o, is_given in given.items() if is_given), sent, on_text)

    def _read_event(self, error: errors.APIError, meter: Meter) -> FailedAttempt:
        """An error that arrived inside a stream: the model had begun."""
        found = self._read_error(error)
        return FailedAttempt(found.trouble, found.message, found.retry, Spent.UNKNOWN, meter.usage or Usage())

    def _read_error(self, error: errors.APIError) -> FailedAttempt:
        """The failed attempt that a status and Google's error details describe."""
        status = error.code or 0
        message = one_line(str(error.message or ""), self._keys, f"status {status}")
        details = tuple(_details(error.details))
        if any(detail.get("reason") == "API_KEY_INVALID" for detail in details):
            status = 401
        daily = any("PerDay" in str(violation) for detail in details for violation in detail.get("violations", ()))
        return status_failed(status, message, None if daily else Retry(_requested_wait(error, details)))


async def _limit(silence: float, request: httpx2.Request) -> None:
    """Shortens the read time-out of a request: the SDK has one time limit, which it also sends to the server."""
    from engine.ideas.models.one_server import CONNECT_SECONDS

    limits = request.extensions["timeout"]
    request.extensions["timeout"] = {**limits, "connect": min(CONNECT_SECONDS, silence), "read": silence}


async def _checked(
    stream: AsyncIterator[types.GenerateContentResponse],
) -> AsyncGenerator[types.GenerateContentResponse, None]:
    """The stream; whatever the SDK raises on unexpected content becomes MalformedError."""
    try:
        async for chunk in stream:
            yield chunk
    except (ValueError, TypeError, AttributeError):
        raise MalformedError from None


def _pieces(candidate: types.Candidate) -> Iterator[str]:
    """The text of one chunk, without the model's thoughts."""
    for part in (candidate.content.parts or ()) if candidate.content is not None else ():
        if part.text and not part.thought:
            yield part.text


def _client(key: Secret | None, options: types.HttpOptions, *, vertex: bool) -> Client:
    """The SDK's client. Raises ModelError where Vertex AI has neither a key nor a project."""
    from google import genai

    if not vertex:
        return genai.Client(vertexai=False, api_key=key.reveal() if key else "none", http_options=options)
    project = os.environ.get("GOOGLE_CLOUD_PROJECT", "").strip()
    if key is not None:
        return genai.Client(vertexai=True, api_key=key.reveal(), http_options=options)
    if not project:
        advice = "set GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION, or VERTEX_API_KEY"
        raise ModelError(Trouble.KEY, f"no project for vertex: {advice}")
    location = os.environ.get("GOOGLE_CLOUD_LOCATION", "").strip() or "global"
    try:
        return genai.Client(vertexai=True, project=project, location=location, http_options=options)
    except Exception as error:
        raise ModelError(Trouble.KEY, f"no credentials for vertex: {one_line(str(error), (), type(error).__name__)}") from None


def _thinking(effort: str) -> types.ThinkingConfig:
    """The SDK has levels; ``none`` is a budget of no tokens."""
    from google.genai import types

    if effort == "none":
        return types.ThinkingConfig(thinking_budget=0)
    level = {"xhigh": "high", "max": "high"}.get(effort, effort)
    return types.ThinkingConfig(thinking_level=types.ThinkingLevel(level.upper()))


def _outcome(text: str, finish: str, usage: Usage | None) -> Outcome:
    counted = usage or Usage()
    outcome = _FINISHES.get(finish)
    if outcome is None:
        spent = Spent.COUNTED if usage is not None else Spent.UNKNOWN
        return FailedAttempt(Trouble.REPLY, f"the model stopped with finish reason {finish}", Retry(), spent, counted)
    if outcome is Finish.REFUSED and not text:
        return CompleteAnswer(f"the reply was blocked: {finish}", outcome, usage)
    return CompleteAnswer(text, outcome, usage)


def _usage(counts: types.GenerateContentResponseUsageMetadata) -> Usage | None:
    return counted(
        (counts.prompt_token_count or 0) + (counts.tool_use_prompt_token_count or 0),
        counts.cached_content_token_count,
        (counts.candidates_token_count or 0) + (counts.thoughts_token_count or 0),
    )


def _details(answer: Any) -> Iterator[Mapping[str, Any]]:
    """The details of a Google error: ``ErrorInfo``, ``QuotaFailure``, ``RetryInfo``."""
    error = answer.get("error", answer) if isinstance(answer, dict) else {}
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict):
            yield detail


def _requested_wait(error: errors.APIError, details: tuple[Mapping[str, Any], ...]) -> float | None:
    """Seconds from ``RetryInfo``, else from the ``Retry-After`` header."""
    for detail in details:
        delay = detail.get("retryDelay")
        if isinstance(delay, str) and delay.endswith("s"):
            try:
                return max(0.0, float(delay[:-1]))
            except ValueError:
                continue
    headers = getattr(error.response, "headers", None)
    return retry_after(headers) if headers is not None else None
