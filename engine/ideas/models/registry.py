"""From ``openai:NAME``, ``gemini:NAME`` or ``command:CMD`` to a model that can be asked.

An SDK is imported only when a model of its kind is opened. At most a few questions are under way at each provider; the
others wait for their turn.
"""

from __future__ import annotations

import asyncio
import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from engine.domain.errors import IdeaSourceError
from engine.ideas.models.command import CommandModel, parse_command
from engine.ideas.models.conduct import USUAL, Conduct
from engine.ideas.models.keys import scrub
from engine.ideas.models.model import Heard, Model, Prompt, Reply

CONCURRENCY = 4
"""Questions under way at one provider where nothing else is set."""


class Provider(StrEnum):
    """Who answers."""

    OPENAI = "openai"
    GEMINI = "gemini"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class Spec:
    """A model as it is named on the command line and in the journal."""

    provider: Provider
    name: str

    def __str__(self) -> str:
        return f"{self.provider}:{self.name}"


class Gates:
    """How many questions may be under way at each provider, over all models of it in one event loop."""

    def __init__(self, widths: Mapping[str, int] | None = None, otherwise: int = CONCURRENCY) -> None:
        self._widths = dict(widths or {})
        self._otherwise = otherwise
        self._gates: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Semaphore]]
        self._gates = weakref.WeakKeyDictionary()

    def of(self, provider: str) -> asyncio.Semaphore:
        """The provider's gate in the running loop."""
        gates = self._gates.setdefault(asyncio.get_running_loop(), {})
        if provider not in gates:
            gates[provider] = asyncio.Semaphore(max(1, self._widths.get(provider, self._otherwise)))
        return gates[provider]


_SHARED = Gates()


def check_spec(spec: str) -> Spec:
    """Read a model's name; imports no SDK and starts nothing.

    Raises:
        IdeaSourceError: an unknown provider, no name, or a command that cannot be read.
    """
    word, separator, name = spec.partition(":")
    if not separator or word not in set(Provider):
        raise IdeaSourceError(f"unknown model {spec!r}: write openai:NAME, gemini:NAME or command:CMD")
    provider = Provider(word)
    if provider is Provider.COMMAND:
        parse_command(name)
    elif not name:
        raise IdeaSourceError(f"{provider}: which model? Write {provider}:NAME")
    elif re.search(r"\s", name) or not name.isprintable():
        raise IdeaSourceError(f"{provider}: a model's name has no spaces: {name!r}")
    elif scrub(name) != name:
        raise IdeaSourceError(f"{provider}: that is a key, not a model's name; set it as an environment variable")
    return Spec(provider, name)


def open_model(
    spec: str,
    *,
    base_url: str | None = None,
    conduct: Conduct = USUAL,
    gates: Gates = _SHARED,
) -> Model:
    """A model that can be asked; close it after use.

    Args:
        spec: ``openai:NAME``, ``gemini:NAME`` or ``command:CMD``.
        base_url: another server that speaks the provider's protocol.
        conduct: limits of each question.
        gates: concurrency by provider; models opened with the same gates share them.

    Raises:
        IdeaSourceError: the spec or the base URL is wrong.
        ModelError: no key is to be found.
    """
    known = check_spec(spec)
    if base_url is not None:
        _check_url(known, base_url)
    return _Queued(_open(known, base_url, conduct), known.provider, gates)


def _open(spec: Spec, base_url: str | None, conduct: Conduct) -> Model:
    match spec.provider:
        case Provider.OPENAI:
            from engine.ideas.models.openai_api import OpenAIModel

            return OpenAIModel(spec.name, base_url=base_url, conduct=conduct)
        case Provider.GEMINI:
            from engine.ideas.models.gemini_api import GeminiModel

            return GeminiModel(spec.name, base_url=base_url, conduct=conduct)
        case Provider.COMMAND:
            return CommandModel(spec.name, conduct=conduct)


def _check_url(spec: Spec, base_url: str) -> None:
    if spec.provider is Provider.COMMAND:
        raise IdeaSourceError("command: takes no base URL")
    try:
        parts = urlsplit(base_url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound:
        raise IdeaSourceError(f"{spec.provider}: not a base URL: {base_url!r}; write one like http://localhost:8000/v1")


class _Queued:
    """A model whose questions wait for their turn at the provider."""

    def __init__(self, model: Model, provider: str, gates: Gates) -> None:
        self._model = model
        self._provider = provider
        self._gates = gates

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def counted(self) -> bool:
        return self._model.counted

    async def ask(self, prompt: Prompt, heard: Heard) -> Reply:
        async with self._gates.of(self._provider):
            return await self._model.ask(prompt, heard)

    async def close(self) -> None:
        await self._model.close()
