"""``gemini:NAME``: the Gemini protocol through the official SDK, google-genai."""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.domain.model import Usage
from engine.ideas.models.keys import Secret, require_key
from engine.ideas.models.model import Finish, OnText, Prompt, Reply, Trouble
from engine.ideas.models.retry_policy import (
    CONNECT_SECONDS,
    DEFAULT_POLICY,
    CompleteAnswer,
    FailedAttempt,
    MalformedError,
    Meter,
    Retry,
    RetryPolicy,
    ask_with_retries,
    one_line,
    retry_after,
    with_schema,
)

if TYPE_CHECKING:
    import httpx2
    from google.genai import errors, types

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
_SCHEMA_SIGNS = ("schema", "response_mime_type", "responsemimetype", "json mode")


class GeminiModel:
    """A model behind the Gemini protocol."""

    def __init__(
        self, model: str, *, base_url: str | None = None, key: Secret | None = None, policy: RetryPolicy = DEFAULT_POLICY
    ) -> None:
        """Make the client; nothing is sent yet.

        Args:
            model: as Google names it, without ``models/``.
            base_url: the server, without a version path; else GOOGLE_GEMINI_BASE_URL, else Google's own.
            key: else GEMINI_API_KEY, GOOGLE_API_KEY or the keyring's.
            policy: limits of each request.

        Raises:
            ModelError: there is no key.
        """
        import httpx2
        from google import genai
        from google.genai import types

        # On standard error, which may be the terminal UI, the SDK warns of finish reasons that are newer than itself.
        warnings.filterwarnings("ignore", ".* is not a valid ", UserWarning, r"google\.genai")
        self._key = key or require_key("gemini")
        self._model = model
        self._policy = policy
        self._schema_in_prompt = False
        self._http = httpx2.AsyncClient(follow_redirects=True, event_hooks={"request": [partial(_limit, policy.silence)]})
        self._client = genai.Client(
            vertexai=False,
            api_key=self._key.reveal(),
            http_options=types.HttpOptions(
                base_url=base_url or None,
                timeout=round(policy.seconds * 1000),
                httpx_async_client=self._http,
            ),
        )

    @property
    def name(self) -> str:
        return f"gemini:{self._model}"

    @property
    def counted(self) -> bool:
        return True

    async def ask(self, prompt: Prompt, on_text: OnText) -> Reply:
        """Raises ModelError; can be cancelled at any time."""
        return await ask_with_retries(
            self.name, lambda meter: self._attempt(prompt, on_text, meter), self._policy, on_text, prompt.spare
        )

    async def close(self) -> None:
        self._client.close()
        await self._client.aio.aclose()
        await self._http.aclose()

    async def _attempt(self, prompt: Prompt, on_text: OnText, meter: Meter) -> CompleteAnswer | FailedAttempt:
        import httpx2
        from google.genai import errors

        while True:
            try:
                return await self._stream(prompt, on_text, meter)
            except errors.APIError as error:
                if not self._schema_refused(error, prompt):
                    return self._read_error(error)
                self._schema_in_prompt = True
            except httpx2.RequestError as error:
                message = one_line(str(error), (self._key,), type(error).__name__)
                return FailedAttempt(Trouble.UNREACHABLE, f"the connection failed: {message}", Retry())
            except MalformedError:
                return FailedAttempt(Trouble.REPLY, "the stream is not a valid Gemini reply", Retry())

    async def _stream(self, prompt: Prompt, on_text: OnText, meter: Meter) -> CompleteAnswer | FailedAttempt:
        pieces: list[str] = []
        finish: str | None = None
        blocked: str | None = None
        stream = await self._client.aio.models.generate_content_stream(
            model=self._model, contents=self._question(prompt), config=self._config(prompt)
        )
        async with aclosing(_checked(stream)) as chunks:
            async for chunk in chunks:
                if chunk.usage_metadata is not None:
                    meter.update(_usage(chunk.usage_metadata))
                if chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason is not None:
                    blocked = chunk.prompt_feedback.block_reason.value
                for candidate in (chunk.candidates or ())[:1]:
                    if candidate.finish_reason is not None:
                        finish = candidate.finish_reason.value
                    for piece in _pieces(candidate):
                        pieces.append(piece)
                        on_text(piece)
        if blocked is not None:
            return CompleteAnswer(f"the prompt was blocked: {blocked}", Finish.REFUSED)
        return _outcome("".join(pieces), finish)

    def _question(self, prompt: Prompt) -> str:
        return with_schema(prompt.user, prompt.schema) if prompt.schema is not None and self._schema_in_prompt else prompt.user

    def _config(self, prompt: Prompt) -> types.GenerateContentConfig:
        from google.genai import types

        enforced = prompt.schema is not None and not self._schema_in_prompt
        return types.GenerateContentConfig(
            system_instruction=prompt.system or None,
            max_output_tokens=prompt.max_output,
            response_mime_type="application/json" if enforced else None,
            response_json_schema=dict(prompt.schema) if enforced and prompt.schema is not None else None,
            automatic_continuation=False,
        )

    def _schema_refused(self, error: errors.APIError, prompt: Prompt) -> bool:
        words = str(error.message).lower()
        return (
            error.code == 400
            and prompt.schema is not None
            and not self._schema_in_prompt
            and any(sign in words for sign in _SCHEMA_SIGNS)
        )

    def _read_error(self, error: errors.APIError) -> FailedAttempt:
        """The failed attempt that a status and Google's error details describe."""
        status = error.code or 0
        message = one_line(str(error.message or ""), (self._key,), f"status {status}")
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


def _outcome(text: str, finish: str | None) -> CompleteAnswer | FailedAttempt:
    if finish is None and text:
        return FailedAttempt(Trouble.UNREACHABLE, "the reply was cut off", Retry())
    if finish is None:
        return FailedAttempt(Trouble.REPLY, "the response is not a Gemini reply: check the base URL", Retry())
    outcome = _FINISHES.get(finish)
    if outcome is None:
        return FailedAttempt(Trouble.REPLY, f"the model stopped with finish reason {finish}", Retry())
    if outcome is Finish.REFUSED and not text:
        return CompleteAnswer(f"the reply was blocked: {finish}", outcome)
    return CompleteAnswer(text, outcome)


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
