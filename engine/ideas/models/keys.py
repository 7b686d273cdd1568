"""Finds the keys of providers, and removes keys from every text that is shown or written.

A key comes from the environment or, if the optional ``keyring`` package is installed, from the platform's keyring (service
``espalier``, user ``openai`` or ``gemini``). It is passed as a ``Secret``. Adapters pass all provider messages through
``scrub``, because providers repeat rejected keys in their errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import NoReturn

from engine.ideas.models.model import ModelError, Trouble

SERVICE = "espalier"
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "openai": ("OPENAI_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}
"""Provider → environment variables that may hold its key; the first one set is used."""
OTHER_VARIABLES = ("OPENAI_ADMIN_KEY",)
"""Secrets that an SDK reads on its own."""

HIDDEN = "[key]"
_SHORTEST = 8
"""Servers without authentication receive a short placeholder as the key ("EMPTY", "none"), which is not a secret."""
_KEY_SHAPES = re.compile(r"\b(?:sk-|AIza)(?:[\w.-]*\*[\w*.-]*|[\w.-]{16,})")
"""A whole key of either provider, or one that the provider has masked with asterisks."""


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


def find_key(provider: str) -> Secret | None:
    """The provider's key from the environment, else from the platform's keyring, else ``None``."""
    for variable in VARIABLES[provider]:
        if value := os.environ.get(variable, "").strip():
            return Secret(value)
    return _from_keyring(provider)


def require_key(provider: str) -> Secret:
    """The provider's key.

    Raises:
        ModelError: there is no key; the message names the variable to set.
    """
    key = find_key(provider)
    if key is None:
        names = " or ".join(VARIABLES[provider])
        raise ModelError(
            Trouble.KEY, f"no key for {provider}: set {names}, or store it with `keyring set {SERVICE} {provider}`"
        )
    return key


def _from_keyring(provider: str) -> Secret | None:
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
    return frozenset(OTHER_VARIABLES).union(*VARIABLES.values())


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
