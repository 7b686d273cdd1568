"""Finds the keys of providers, and removes keys from every text that is shown or written.

A key comes from the environment or, if the optional ``keyring`` package is installed, from the platform's keyring (service
``espalier``, user ``openai``, ``gemini`` …). It is passed as a ``Secret``. Adapters pass all provider messages through
``scrub``, because providers repeat rejected keys in their errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NoReturn

from engine.ideas.models.model import ModelError, Trouble
from engine.ideas.models.providers import PROVIDERS, Endpoint

SERVICE = "espalier"
OTHER_VARIABLES = ("OPENAI_ADMIN_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_WEBHOOK_SIGNING_KEY", "ANTHROPIC_IDENTITY_TOKEN")
"""Secrets that an SDK reads on its own."""
_named: set[str] = set()
"""Variables that the user named as the key of a server."""

HIDDEN = "[key]"
_SHORTEST = 8
"""Servers without authentication receive a short placeholder as the key ("EMPTY", "none"), which is not a secret."""
_KEY_SHAPES = re.compile(r"\b(?:sk-|AIza)(?:[\w.-]*\*[\w*.-]*|[\w.-]{16,})")
"""A whole key of a provider, or one that the provider has masked with asterisks."""


class Secret:
    """A key that ``repr``, ``str``, formatting and pickling never show."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The key itself."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled")


def watch(variable: str) -> None:
    """Treat the content of this environment variable as a key from now on."""
    _named.add(variable)


def find_key(provider: str, variables: Iterable[str]) -> Secret | None:
    """The first of these variables that is set, else the provider's key in the platform's keyring, else ``None``."""
    for variable in variables:
        if value := os.environ.get(variable, "").strip():
            return Secret(value)
    return _from_keyring(provider)


def key_place(provider: str, variables: Iterable[str]) -> str:
    """Where a key would be found: a variable's name or ``the keyring``; empty if there is none."""
    for variable in variables:
        if os.environ.get(variable, "").strip():
            return variable
    return "the keyring" if _from_keyring(provider) is not None else ""


def endpoint_key(endpoint: Endpoint) -> Secret | None:
    """The key that this server gets; ``None`` if it gets none.

    Raises:
        ModelError: it needs one, and there is none; the message names the variable to set.
    """
    if not endpoint.variables:
        return None
    name = endpoint.provider.name
    own = endpoint.variables == endpoint.provider.keys
    for variable in endpoint.variables:
        watch(variable)
    key = find_key(name if own else "", endpoint.variables)
    if key is None and endpoint.needs_key:
        names = " or ".join(endpoint.variables)
        keyring = f", or store it with `keyring set {SERVICE} {name}`" if own else ""
        raise ModelError(Trouble.KEY, f"no key for {name}: set {names}{keyring}")
    return key


def _from_keyring(provider: str) -> Secret | None:
    if not provider:
        return None
    try:
        import keyring
        import keyring.errors
    except ImportError:
        return None
    try:
        value = keyring.get_password(SERVICE, provider)
    except keyring.errors.KeyringError:
        return None
    return Secret(value.strip()) if value and value.strip() else None


def held_variables() -> frozenset[str]:
    """All environment variables that may hold a key of a built-in provider."""
    own = (variable for provider in PROVIDERS.values() for variable in provider.keys)
    return frozenset({*OTHER_VARIABLES, *own, *_named})


def held_secrets() -> tuple[Secret, ...]:
    """All keys in this process's environment."""
    values = (os.environ.get(variable, "").strip() for variable in sorted(held_variables()))
    return tuple(Secret(value) for value in values if value)


def scrub(text: str, secrets: Iterable[Secret] = ()) -> str:
    """``text`` without keys: those given, those in the environment, and everything with the shape of a key."""
    values = {secret.reveal() for secret in (*secrets, *held_secrets())}
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _SHORTEST:
            text = text.replace(value, HIDDEN)
    return _KEY_SHAPES.sub(HIDDEN, text)
