"""Opens models by name: ``openai:NAME``, ``gemini:NAME`` or ``command:CMD``.

An SDK is imported only when one of its models is opened. Each provider has a limit on concurrent requests; further requests
wait.
"""

from __future__ import annotations

import asyncio
import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from engine.domain.errors import ProposerError
from engine.ideas.models.command import CommandModel, parse_command
from engine.ideas.models.keys import scrub
from engine.ideas.models.model import Model, OnText, Prompt, Reply
from engine.ideas.models.retry_policy import DEFAULT_POLICY, RetryPolicy

CONCURRENCY = 4
"""The default limit on concurrent requests to one provider."""


class Provider(StrEnum):
    """Who runs the model."""

    OPENAI = "openai"
    GEMINI = "gemini"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model's name on the command line and in the journal."""

    provider: Provider
    name: str

    def __str__(self) -> str:
        return f"{self.provider}:{self.name}"


class ProviderLimits:
    """Limits on the concurrent requests to each provider, over all its models in one event loop."""

    def __init__(self, limits: Mapping[str, int] | None = None, default: int = CONCURRENCY) -> None:
        self._limits = dict(limits or {})
        self._default = default
        self._semaphores: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Semaphore]]
        self._semaphores = weakref.WeakKeyDictionary()

    def semaphore(self, provider: str) -> asyncio.Semaphore:
        """The provider's semaphore in the running loop."""
        semaphores = self._semaphores.setdefault(asyncio.get_running_loop(), {})
        if provider not in semaphores:
            semaphores[provider] = asyncio.Semaphore(max(1, self._limits.get(provider, self._default)))
        return semaphores[provider]


_SHARED = ProviderLimits()


def parse_spec(spec: str) -> ModelSpec:
    """Parse a model's name, without importing an SDK.

    Raises:
        ProposerError: an unknown provider, no name, or a malformed command.
    """
    word, separator, name = spec.partition(":")
    if not separator or word not in set(Provider):
        raise ProposerError(f"unknown model {spec!r}: write openai:NAME, gemini:NAME or command:CMD")
    provider = Provider(word)
    if provider is Provider.COMMAND:
        parse_command(name)
    elif not name:
        raise ProposerError(f"{provider}: no model name: write {provider}:NAME")
    elif re.search(r"\s", name) or not name.isprintable():
        raise ProposerError(f"{provider}: invalid model name {name!r}: it must not contain spaces")
    elif scrub(name) != name:
        raise ProposerError(f"{provider}: this is a key, not a model name: set the key as an environment variable")
    return ModelSpec(provider, name)


def open_model(
    spec: str,
    *,
    base_url: str | None = None,
    policy: RetryPolicy = DEFAULT_POLICY,
    limits: ProviderLimits = _SHARED,
) -> Model:
    """Open a model; the caller closes it.

    Args:
        spec: ``openai:NAME``, ``gemini:NAME`` or ``command:CMD``.
        base_url: another server with the provider's protocol.
        policy: limits of each request.
        limits: limits on concurrent requests, shared by all models opened with them.

    Raises:
        ProposerError: the spec or the base URL is invalid.
        ModelError: there is no key.
    """
    known = parse_spec(spec)
    if base_url is not None:
        _check_url(known, base_url)
    return _Queued(_open(known, base_url, policy), known.provider, limits)


def _open(spec: ModelSpec, base_url: str | None, policy: RetryPolicy) -> Model:
    match spec.provider:
        case Provider.OPENAI:
            from engine.ideas.models.openai_api import OpenAIModel

            return OpenAIModel(spec.name, base_url=base_url, policy=policy)
        case Provider.GEMINI:
            from engine.ideas.models.gemini_api import GeminiModel

            return GeminiModel(spec.name, base_url=base_url, policy=policy)
        case Provider.COMMAND:
            return CommandModel(spec.name, policy=policy)


def _check_url(spec: ModelSpec, base_url: str) -> None:
    if spec.provider is Provider.COMMAND:
        raise ProposerError("command: does not take a base URL")
    try:
        parts = urlsplit(base_url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound:
        raise ProposerError(f"{spec.provider}: invalid base URL {base_url!r}: write one like http://localhost:8000/v1")


class _Queued:
    """A model whose requests observe the provider's limit."""

    def __init__(self, model: Model, provider: str, limits: ProviderLimits) -> None:
        self._model = model
        self._provider = provider
        self._limits = limits

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def counted(self) -> bool:
        return self._model.counted

    async def ask(self, prompt: Prompt, on_text: OnText) -> Reply:
        async with self._limits.semaphore(self._provider):
            return await self._model.ask(prompt, on_text)

    async def close(self) -> None:
        await self._model.close()
