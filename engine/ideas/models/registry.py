"""Opens models by name: ``openai:NAME``, ``anthropic:NAME`` …, ``command:CMD``.

An SDK is imported only when one of its models is opened. Each provider has a limit on concurrent requests; further requests
wait.
"""

from __future__ import annotations

import asyncio
import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from engine.domain.errors import ProposerError
from engine.domain.settings import CONCURRENCY, ModelServer
from engine.ideas.models.command import CommandModel, parse_command
from engine.ideas.models.keys import endpoint_key, scrub
from engine.ideas.models.model import Model, OnText, Prompt, Reply
from engine.ideas.models.providers import NAMES, PROVIDERS, Protocol, endpoint
from engine.ideas.models.retry_policy import DEFAULT_POLICY, RetryPolicy
from engine.ideas.models.workspace import WorkspaceModel, uses_workspace


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model's name on the command line and in the journal."""

    provider: str
    """A key of ``PROVIDERS``."""
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
_by_size: dict[int, ProviderLimits] = {CONCURRENCY: _SHARED}


def limits_of(concurrency: int) -> ProviderLimits:
    """The limits of this process for sessions with this many concurrent calls to a provider."""
    return _by_size.setdefault(concurrency, ProviderLimits(default=concurrency))


def parse_spec(spec: str) -> ModelSpec:
    """Parse a model's name, without importing an SDK.

    Raises:
        ProposerError: an unknown provider, no name, or a malformed command.
    """
    provider, separator, name = spec.partition(":")
    if not separator or provider not in PROVIDERS:
        raise ProposerError(f"unknown model {spec!r}: write {NAMES}")
    if provider == Protocol.COMMAND:
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
    server: ModelServer | None = None,
    with_key: bool = True,
    policy: RetryPolicy = DEFAULT_POLICY,
    limits: ProviderLimits = _SHARED,
) -> Model:
    """Open a model; the caller closes it.

    Args:
        spec: ``openai:NAME``, ``anthropic:NAME`` …, ``command:CMD``.
        server: where it is asked; by default the provider's own server, or the one that the environment names.
        with_key: whether ``server`` gets its key: only if the user named or allowed it.
        policy: limits of each request.
        limits: limits on concurrent requests, shared by all models opened with them.

    Raises:
        ProposerError: the spec or the server is invalid.
        ModelError: there is no key.
    """
    known = parse_spec(spec)
    return _Queued(_open(known, server, with_key, policy), known.provider, limits)


def _open(spec: ModelSpec, server: ModelServer | None, with_key: bool, policy: RetryPolicy) -> Model:
    place = endpoint(PROVIDERS[spec.provider], server)
    if place.protocol is Protocol.COMMAND:
        if uses_workspace(spec.name):
            return WorkspaceModel(spec.name, policy=policy)
        return CommandModel(spec.name, policy=policy)
    key = endpoint_key(place) if with_key else None
    match place.protocol:
        case Protocol.RESPONSES:
            from engine.ideas.models.responses_api import ResponsesModel

            return ResponsesModel(str(spec), spec.name, place.url, key, policy)
        case Protocol.CHAT:
            from engine.ideas.models.chat_api import ChatModel

            return ChatModel(str(spec), spec.name, place.url, key, policy)
        case Protocol.MESSAGES:
            from engine.ideas.models.anthropic_api import AnthropicModel

            return AnthropicModel(str(spec), spec.name, place.url, key, policy)
        case _:
            from engine.ideas.models.gemini_api import GeminiModel

            vertex = place.protocol is Protocol.VERTEX
            return GeminiModel(str(spec), spec.name, place.url, key, policy, vertex=vertex)


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
    def output_limit(self) -> int | None:
        return self._model.output_limit

    async def ask(self, prompt: Prompt, on_text: OnText) -> Reply:
        async with self._limits.semaphore(self._provider):
            return await self._model.ask(prompt, on_text)

    async def close(self) -> None:
        await self._model.close()
