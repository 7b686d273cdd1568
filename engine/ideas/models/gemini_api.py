"""``gemini:NAME``: the Gemini protocol through the official SDK, google-genai."""

from __future__ import annotations

import os
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.domain.model import Usage
from engine.ideas.models.keys import Secret
from engine.ideas.models.model import Finish, ModelError, OnText, Prompt, Reply, Retry, Spent, Trouble
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


class GeminiModel:
    """A model behind the Gemini protocol."""

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

        from engine.ideas.models.one_server import refuse_other_server

        # On standard error, which may be the terminal UI, the SDK warns of finish reasons that are newer than itself.
        warnings.filterwarnings("ignore", ".* is not a valid ", UserWarning, r"google\.genai")
        self._name = name
        self._keys = (key,) if key is not None else ()
        self._model = model
        self._policy = policy
        self._learned = Learned()
        hooks: dict[str, list[Callable[..., Any]]] = {
            "request": [partial(_limit, policy.silence)],
            "response": [refuse_other_server],
        }
        self._http = httpx2.AsyncClient(follow_redirects=True, event_hooks=hooks)
        options = types.HttpOptions(
            base_url=url, timeout=round(policy.seconds * 1000), httpx_async_client=self._http
        )  # fmt: skip
        self._client = _client(key, options, vertex=vertex)

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
        self._client.close()
        await self._client.aio.aclose()
        await self._http.aclose()

    async def _attempt(self, prompt: Prompt, on_text: OnText, meter: Meter) -> CompleteAnswer | FailedAttempt:
        import httpx2
        from google.genai import errors

        from engine.ideas.models.one_server import OtherServer

        output = min(prompt.max_output, self._learned.output_limit or prompt.max_output)
        while True:
            try:
                return await self._stream(prompt, output, on_text, meter)
            except errors.APIError as error:
                if meter.usage is not None:
                    return self._read_event(error, meter)
                meter.begun = False
                learnt = self._learn(error, prompt, output, on_text)
                if learnt is None:
                    return self._read_error(error)
                output = learnt
            except OtherServer as error:
                return FailedAttempt(Trouble.REQUEST, str(error))
            except httpx2.RequestError as error:
                message = one_line(str(error), self._keys, type(error).__name__)
                never_sent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
                spent = Spent.NOTHING if never_sent else Spent.UNKNOWN
                usage = meter.usage or Usage()
                return FailedAttempt(Trouble.UNREACHABLE, f"the connection failed: {message}", Retry(), spent, usage)
            except MalformedError:
                usage = meter.usage or Usage()
                return FailedAttempt(Trouble.REPLY, "the stream is not a valid Gemini reply", Retry(), Spent.UNKNOWN, usage)

    async def _stream(self, prompt: Prompt, output: int, on_text: OnText, meter: Meter) -> CompleteAnswer | FailedAttempt:
        pieces: list[str] = []
        finish: str | None = None
        blocked: str | None = None
        meter.begun = True
        stream = await self._client.aio.models.generate_content_stream(
            model=self._model, contents=self._question(prompt), config=self._config(prompt, output)
        )
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
        return _outcome("".join(pieces), finish, meter.usage)

    def _question(self, prompt: Prompt) -> str:
        spelled = prompt.schema is not None and Option.SCHEMA in self._learned.refused
        return with_schema(prompt.user, prompt.schema) if prompt.schema is not None and spelled else prompt.user

    def _config(self, prompt: Prompt, output: int) -> types.GenerateContentConfig:
        from google.genai import types

        enforced = prompt.schema is not None and Option.SCHEMA not in self._learned.refused
        effort = self._learned.effort(prompt)
        return types.GenerateContentConfig(
            system_instruction=prompt.system or None,
            max_output_tokens=output,
            temperature=self._learned.temperature(prompt),
            thinking_config=_thinking(effort) if effort else None,
            response_mime_type="application/json" if enforced else None,
            response_json_schema=dict(prompt.schema) if enforced and prompt.schema is not None else None,
            automatic_continuation=False,
        )

    def _learn(self, error: errors.APIError, prompt: Prompt, output: int, on_text: OnText) -> int | None:
        if error.code != 400:
            return None
        sent = {
            Option.SCHEMA: prompt.schema is not None and Option.SCHEMA not in self._learned.refused,
            Option.EFFORT: bool(self._learned.effort(prompt)),
            Option.TEMPERATURE: self._learned.temperature(prompt) is not None,
        }
        words = str(error.message).lower()
        if sent[Option.EFFORT] and "thinking" in words:
            words = f"{words} effort"
        return self._learned.learn(words, frozenset(o for o, given in sent.items() if given), prompt, output, on_text)

    def _read_event(self, error: errors.APIError, meter: Meter) -> FailedAttempt:
        """An error that arrived inside a stream: the model had begun."""
        found = self._read_error(error)
        return FailedAttempt(found.trouble, found.message, found.retry, Spent.UNKNOWN, meter.usage or Usage())

    def _read_error(self, error: errors.APIError) -> FailedAttempt:
        """The failed attempt that a status and Google's error details describe."""
        status = error.code or 0
        message = one_line(str(error.message or ""), self._keys, f"status {status}")
        details = tuple(_details(error.details))
        if status in (401, 403) or any(detail.get("reason") == "API_KEY_INVALID" for detail in details):
            return FailedAttempt(Trouble.KEY, f"the provider rejected the key: {message}")
        if status == 404:
            return FailedAttempt(Trouble.MODEL, f"not found: {message}")
        if status == 429:
            daily = any("PerDay" in str(violation) for detail in details for violation in detail.get("violations", ()))
            return FailedAttempt(
                Trouble.QUOTA, f"quota exceeded: {message}", None if daily else Retry(_requested_wait(error, details))
            )
        if status in (408, 409) or status >= 500:
            return FailedAttempt(Trouble.UNREACHABLE, f"the server failed: {message}", Retry(_requested_wait(error, details)))
        return FailedAttempt(Trouble.REQUEST, f"the provider rejected the request: {message}")


async def _limit(silence: float, request: httpx2.Request) -> None:
    """Shortens the read time-out of a request: the SDK has one time limit, which it also sends to the server."""
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


def _outcome(text: str, finish: str | None, usage: Usage | None) -> CompleteAnswer | FailedAttempt:
    counted = usage or Usage()
    if finish is None and text:
        return FailedAttempt(Trouble.UNREACHABLE, "the reply was cut off", Retry(), Spent.UNKNOWN, counted)
    if finish is None:
        message = "the response is not a Gemini reply: check the base URL"
        return FailedAttempt(Trouble.REPLY, message, Retry(), Spent.UNKNOWN, counted)
    outcome = _FINISHES.get(finish)
    if outcome is None:
        spent = Spent.COUNTED if usage is not None else Spent.UNKNOWN
        return FailedAttempt(Trouble.REPLY, f"the model stopped with finish reason {finish}", Retry(), spent, counted)
    if outcome is Finish.REFUSED and not text:
        return CompleteAnswer(f"the reply was blocked: {finish}", outcome, usage)
    return CompleteAnswer(text, outcome, usage)


def _usage(counts: types.GenerateContentResponseUsageMetadata) -> Usage:
    return Usage(
        input=(counts.prompt_token_count or 0) + (counts.tool_use_prompt_token_count or 0),
        cached=counts.cached_content_token_count or 0,
        output=(counts.candidates_token_count or 0) + (counts.thoughts_token_count or 0),
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
