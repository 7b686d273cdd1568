"""Who answers prompts: for each provider its protocol, its own server, and the variables that hold the server and the key."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatch
from urllib.parse import urlsplit

from engine.domain.errors import ProposerError
from engine.domain.settings import ModelServer

APIS = ("responses", "chat")


class Protocol(StrEnum):
    """What a server speaks."""

    RESPONSES = "responses"
    CHAT = "chat"
    MESSAGES = "messages"
    GEMINI = "gemini"
    VERTEX = "vertex"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider, or one kind of server."""

    name: str
    owner: str
    """Whose server it is by default, for people."""
    protocol: Protocol
    url: str = ""
    """Its own server; empty if the SDK knows it, or if only ``url_variable`` does."""
    url_variable: str = ""
    path: str = ""
    """Appended to the content of ``url_variable`` if it is missing there."""
    keys: tuple[str, ...] = ()
    """Environment variables that may hold its key; the first one set is used."""
    hosts: tuple[str, ...] = ()
    """Hosts that the key belongs to, as patterns."""
    needs_key: bool = True
    free: bool = False
    """A server of the user's own, which bills nothing."""

    @property
    def compatible(self) -> bool:
        """Whether it speaks one of OpenAI's protocols."""
        return self.protocol in (Protocol.RESPONSES, Protocol.CHAT)


_LOCAL = ("localhost", "127.0.0.1", "::1")
PROVIDERS: Mapping[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider("openai", "OpenAI", Protocol.RESPONSES, "", "OPENAI_BASE_URL", "", ("OPENAI_API_KEY",),
                 ("api.openai.com", "*.api.openai.com")),
        Provider("anthropic", "Anthropic", Protocol.MESSAGES, "", "ANTHROPIC_BASE_URL", "", ("ANTHROPIC_API_KEY",),
                 ("api.anthropic.com",)),
        Provider("gemini", "Google", Protocol.GEMINI, "", "GOOGLE_GEMINI_BASE_URL", "", ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
                 ("generativelanguage.googleapis.com",)),
        Provider("vertex", "Google Cloud", Protocol.VERTEX, "", "GOOGLE_VERTEX_BASE_URL", "", ("VERTEX_API_KEY",),
                 ("aiplatform.googleapis.com", "*-aiplatform.googleapis.com"), needs_key=False),
        Provider("azure", "Azure", Protocol.RESPONSES, "", "AZURE_OPENAI_ENDPOINT", "/openai/v1", ("AZURE_OPENAI_API_KEY",),
                 ("*.openai.azure.com", "*.cognitiveservices.azure.com", "*.services.ai.azure.com")),
        Provider("openrouter", "OpenRouter", Protocol.CHAT, "https://openrouter.ai/api/v1", "OPENROUTER_BASE_URL", "",
                 ("OPENROUTER_API_KEY",), ("openrouter.ai",)),
        Provider("vllm", "vLLM", Protocol.CHAT, "http://localhost:8000/v1", "VLLM_BASE_URL", "", ("VLLM_API_KEY",), _LOCAL,
                 needs_key=False, free=True),
        Provider("ollama", "Ollama", Protocol.CHAT, "http://localhost:11434/v1", "OLLAMA_BASE_URL", "", ("OLLAMA_API_KEY",),
                 _LOCAL, needs_key=False, free=True),
        Provider("command", "a program of yours", Protocol.COMMAND, needs_key=False),
    )
}  # fmt: skip
"""By the word before the colon: ``openai:NAME``."""

NAMES = ", ".join(f"{name}:CMD" if name == "command" else f"{name}:MODEL" for name in PROVIDERS)
"""For messages: how proposers are written."""


_NO_PATH = re.compile(r"https?://[^/]+/?")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one model is asked, and where its key comes from."""

    provider: Provider
    protocol: Protocol
    url: str | None
    """``None``: the SDK's default."""
    variables: tuple[str, ...]
    """Environment variables that may hold the key; empty if the server gets none."""
    needs_key: bool


def endpoint(provider: Provider, server: ModelServer | None) -> Endpoint:
    """Where the models of a provider are asked.

    A provider's own key belongs to its own hosts, and to a server that the environment names together with it. Any other
    server gets a key only from the variable that is named with it.

    Raises:
        ProposerError: the address is missing or malformed, or ``server`` does not fit the provider.
    """
    named = server.url if server is not None else ""
    if provider.path and _NO_PATH.fullmatch(named):
        named = _with_path(provider, named)
    if provider.protocol is Protocol.COMMAND:
        if named:
            raise ProposerError("command: does not take a server")
        return Endpoint(provider, provider.protocol, None, (), False)
    from_environment = _from_environment(provider)
    url = named or from_environment or provider.url
    if not url and provider.name == "azure":
        raise ProposerError("azure: no endpoint: set AZURE_OPENAI_ENDPOINT, e.g. https://NAME.openai.azure.com")
    if url:
        _check_url(provider, url)
    own = not named or named == from_environment or is_own(provider, named)
    variables = provider.keys if own else ()
    needs_key = provider.needs_key and (not url or is_own(provider, url))
    if server is not None and server.key:
        variables, needs_key = (server.key,), True
    return Endpoint(provider, _protocol(provider, server, url), url or None, variables, needs_key)


def is_own(provider: Provider, url: str) -> bool:
    """Whether an address is on one of the provider's own hosts, and safe for its key."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    secure = parts.scheme == "https" or host in _LOCAL
    return secure and any(fnmatch(host, pattern) for pattern in provider.hosts)


def _from_environment(provider: Provider) -> str:
    url = os.environ.get(provider.url_variable, "").strip().rstrip("/") if provider.url_variable else ""
    return _with_path(provider, url)


def _with_path(provider: Provider, url: str) -> str:
    """An address with the path of the provider's API: Azure's portal shows that of the resource."""
    bare = url.rstrip("/")
    return url if not bare or bare.endswith(provider.path) else f"{bare}{provider.path}"


def _protocol(provider: Provider, server: ModelServer | None, url: str) -> Protocol:
    """Compatible servers speak Chat Completions, unless the user says otherwise."""
    api = server.api if server is not None else ""
    if api and not provider.compatible:
        raise ProposerError(f"{provider.name}: api={api} is for servers with OpenAI's protocols")
    if api and api not in APIS:
        raise ProposerError(f"{provider.name}: unknown api {api!r}: use {' or '.join(APIS)}")
    if api:
        return Protocol(api)
    if provider.protocol is Protocol.RESPONSES and url and not is_own(provider, url):
        return Protocol.CHAT
    return provider.protocol


def _check_url(provider: Provider, url: str) -> None:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound:
        raise ProposerError(f"{provider.name}: invalid base URL {url!r}: write one like http://localhost:8000/v1")
