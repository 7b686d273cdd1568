"""``gemini:NAME``: the Gemini protocol through the official SDK, google-genai."""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from functools import partial
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
from engine.ideas.models.keys import Secret, need_key
from engine.ideas.models.model import Finish, Heard, Prompt, Reply, Trouble

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
"""Any other reason (``OTHER``, ``MALFORMED_RESPONSE``) is a reply gone wrong."""
_SCHEMA_SIGNS = ("schema", "response_mime_type", "responsemimetype", "json mode")


class GeminiModel:
    """A model behind the Gemini protocol."""

    def __init__(self, model: str, *, base_url: str | None = None, key: Secret | None = None, conduct: Conduct = USUAL) -> None:
        """Make the client; nothing is sent yet.

        Args:
            model: as Google names it, without ``models/``.
            base_url: the server, without a version path; else GOOGLE_GEMINI_BASE_URL, else Google's own.
            key: else GEMINI_API_KEY, GOOGLE_API_KEY or the keyring's.
            conduct: limits of each ask.

        Raises:
            ModelError: there is no key.
        """
        import httpx2
        from google import genai
        from google.genai import types

        # The SDK warns on standard error, which may be the screen, of reasons to stop that are newer than itself.
        warnings.filterwarnings("ignore", ".* is not a valid ", UserWarning, r"google\.genai")
        self._key = key or need_key("gemini")
        self._model = model
        self._conduct = conduct
        self._spelled = False
        self._http = httpx2.AsyncClient(follow_redirects=True, event_hooks={"request": [partial(_limit, conduct.silence)]})
        self._client = genai.Client(
            vertexai=False,
            api_key=self._key.reveal(),
            http_options=types.HttpOptions(
                base_url=base_url or None,
                timeout=round(conduct.seconds * 1000),
                httpx_async_client=self._http,
            ),
        )

    @property
    def name(self) -> str:
        return f"gemini:{self._model}"

    @property
    def counted(self) -> bool:
        return True

    async def ask(self, prompt: Prompt, heard: Heard) -> Reply:
        """Raises ModelError; can be cancelled at any time."""
        return await persist(self.name, lambda meter: self._attempt(prompt, heard, meter), self._conduct, heard, prompt.spare)

    async def close(self) -> None:
        self._client.close()
        await self._client.aio.aclose()
        await self._http.aclose()

    async def _attempt(self, prompt: Prompt, heard: Heard, meter: Meter) -> Answer | Setback:
        import httpx2
        from google.genai import errors

        while True:
            try:
                return await self._stream(prompt, heard, meter)
            except errors.APIError as error:
                if not self._schema_refused(error, prompt):
                    return self._read_error(error)
                self._spelled = True
            except httpx2.RequestError as error:
                said = one_line(str(error), (self._key,), type(error).__name__)
                return Setback(Trouble.UNREACHABLE, f"the connection failed: {said}", Again())
            except MalformedError:
                return Setback(Trouble.REPLY, "the stream holds something that is not a Gemini reply", Again())

    async def _stream(self, prompt: Prompt, heard: Heard, meter: Meter) -> Answer | Setback:
        pieces: list[str] = []
        finish: str | None = None
        blocked: str | None = None
        stream = await self._client.aio.models.generate_content_stream(
            model=self._model, contents=self._question(prompt), config=self._config(prompt)
        )
        async with aclosing(_sound(stream)) as chunks:
            async for chunk in chunks:
                if chunk.usage_metadata is not None:
                    meter.told(_usage(chunk.usage_metadata))
                if chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason is not None:
                    blocked = chunk.prompt_feedback.block_reason.value
                for candidate in (chunk.candidates or ())[:1]:
                    if candidate.finish_reason is not None:
                        finish = candidate.finish_reason.value
                    for piece in _pieces(candidate):
                        pieces.append(piece)
                        heard(piece)
        if blocked is not None:
            return Answer(f"the prompt was blocked: {blocked}", Finish.REFUSED)
        return _ended("".join(pieces), finish)

    def _question(self, prompt: Prompt) -> str:
        return json_wanted(prompt.user, prompt.schema) if prompt.schema is not None and self._spelled else prompt.user

    def _config(self, prompt: Prompt) -> types.GenerateContentConfig:
        from google.genai import types

        enforced = prompt.schema is not None and not self._spelled
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
            and not self._spelled
            and any(sign in words for sign in _SCHEMA_SIGNS)
        )

    def _read_error(self, error: errors.APIError) -> Setback:
        """What a status and Google's error details come to."""
        status = error.code or 0
        said = one_line(str(error.message or ""), (self._key,), f"status {status}")
        details = tuple(_details(error.details))
        if status in (401, 403) or any(detail.get("reason") == "API_KEY_INVALID" for detail in details):
            return Setback(Trouble.KEY, f"the key is not accepted: {said}")
        if status == 404:
            return Setback(Trouble.MODEL, f"not found: {said}")
        if status == 429:
            daily = any("PerDay" in str(violation) for detail in details for violation in detail.get("violations", ()))
            return Setback(Trouble.QUOTA, f"quota: {said}", None if daily else Again(_told_to_wait(error, details)))
        if status in (408, 409) or status >= 500:
            return Setback(Trouble.UNREACHABLE, f"the server failed: {said}", Again(_told_to_wait(error, details)))
        return Setback(Trouble.REQUEST, f"the request was refused: {said}")


async def _limit(silence: float, request: httpx2.Request) -> None:
    """The SDK knows one time limit, which it also tells the server; silence on the line is to end sooner than that."""
    limits = request.extensions["timeout"]
    request.extensions["timeout"] = {**limits, "connect": min(CONNECT_SECONDS, silence), "read": silence}


async def _sound(
    stream: AsyncIterator[types.GenerateContentResponse],
) -> AsyncGenerator[types.GenerateContentResponse, None]:
    """The SDK meets what it does not expect in a stream with whatever its own code then raises."""
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


def _ended(text: str, finish: str | None) -> Answer | Setback:
    if finish is None and text:
        return Setback(Trouble.UNREACHABLE, "the reply broke off before its end", Again())
    if finish is None:
        return Setback(Trouble.REPLY, "an answer came that is not a Gemini reply; check the base URL", Again())
    outcome = _FINISHES.get(finish)
    if outcome is None:
        return Setback(Trouble.REPLY, f"the model stopped for the reason {finish}", Again())
    if outcome is Finish.REFUSED and not text:
        return Answer(f"the reply was blocked: {finish}", outcome)
    return Answer(text, outcome)


def _usage(told: types.GenerateContentResponseUsageMetadata) -> Usage:
    return Usage(
        input=(told.prompt_token_count or 0) + (told.tool_use_prompt_token_count or 0),
        cached=told.cached_content_token_count or 0,
        output=(told.candidates_token_count or 0) + (told.thoughts_token_count or 0),
    )


def _details(answer: Any) -> Iterator[Mapping[str, Any]]:
    """The typed details of a Google error: ``ErrorInfo``, ``QuotaFailure``, ``RetryInfo``."""
    error = answer.get("error", answer) if isinstance(answer, dict) else {}
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict):
            yield detail


def _told_to_wait(error: errors.APIError, details: tuple[Mapping[str, Any], ...]) -> float | None:
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
