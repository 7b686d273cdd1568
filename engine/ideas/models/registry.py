"""From ``openai:NAME``, ``gemini:NAME`` or ``command:CMD`` to a model that can be asked.

An SDK is imported only when a model of its kind is opened. Each provider has a limit on concurrent requests; further requests
wait in a queue.
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
"""Concurrent requests to one provider, unless set otherwise."""


class Provider(StrEnum):
    """Who runs the model."""

    OPENAI = "openai"
    GEMINI = "gemini"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model as it is named on the command line and in the journal."""

    provider: Provider
    name: str

    def __str__(self) -> str:
        return f"{self.provider}:{self.name}"


class ProviderLimits:
    """Concurrent requests to each provider, over all its models in one event loop."""

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
    """Read a model's name; imports no SDK and starts nothing.

    Raises:
        ProposerError: an unknown provider, no name, or a command that cannot be read.
    """
    word, separator, name = spec.partition(":")
    if not separator or word not in set(Provider):
        raise ProposerError(f"unknown model {spec!r}: write openai:NAME, gemini:NAME or command:CMD")
    provider = Provider(word)
    if provider is Provider.COMMAND:
        parse_command(name)
    elif not name:
        raise ProposerError(f"{provider}: which model? Write {provider}:NAME")
    elif re.search(r"\s", name) or not name.isprintable():
        raise ProposerError(f"{provider}: a model's name has no spaces: {name!r}")
    elif scrub(name) != name:
        raise ProposerError(f"{provider}: that is a key, not a model's name; set it as an environment variable")
    return ModelSpec(provider, name)


def open_model(
    spec: str,
    *,
    base_url: str | None = None,
    policy: RetryPolicy = DEFAULT_POLICY,
    limits: ProviderLimits = _SHARED,
) -> Model:
    """A model that can be asked; close it after use.

    Args:
        spec: ``openai:NAME``, ``gemini:NAME`` or ``command:CMD``.
        base_url: another server that speaks the provider's protocol.
        policy: limits of each request.
        limits: concurrent requests by provider; models opened with the same limits share them.

    Raises:
        ProposerError: the spec or the base URL is wrong.
        ModelError: no key is to be found.
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
        raise ProposerError("command: takes no base URL")
    try:
        parts = urlsplit(base_url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound:
        raise ProposerError(f"{spec.provider}: not a base URL: {base_url!r}; write one like http://localhost:8000/v1")


class _Queued:
    """A model whose requests wait for the provider's limit."""

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
