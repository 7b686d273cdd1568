"""Computes the cost of a call from the shipped price list (``prices.toml``) and the user's own list, which takes precedence.

The price of an unlisted model is unknown; nothing is guessed. The user's list has the same format; an entry there replaces the
shipped entry as a whole.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from engine.domain.errors import ProposerError
from engine.domain.model import Author, Usage
from engine.ideas.models.providers import PROVIDERS
from engine.journal.user_folders import config_folder
from engine.problem.files import strict_toml
from engine.problem.files.strict_toml import TomlError

SHIPPED = Path(__file__).with_name("prices.toml")
_MILLION = 1_000_000
_SNAPSHOT = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|20\d{6})$")

Dollars = Annotated[float, msgspec.Meta(ge=0)]


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """US dollars per million tokens."""

    input: Dollars
    """For prompt tokens."""
    output: Dollars
    """For reply tokens, reasoning included."""
    cached: Dollars | None = None
    """For prompt tokens read from the provider's cache; ``None`` if they cost the same as others."""
    written: Dollars | None = None
    """For prompt tokens written to the provider's cache, if the provider bills them."""


class LongRates(Rates, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The rates of calls with prompts of more than ``over`` tokens."""

    over: Annotated[int, msgspec.Meta(gt=0)]


class Price(Rates, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The price of a model on one day."""

    long: LongRates | None = None
    """The rates of whole calls whose prompt has more than ``over`` tokens."""


class _PriceEntry(Price, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model's entry in a price list."""

    until: date | None = None
    """The last day of this price."""
    then: Price | None = None
    """The price after ``until``."""

    def on(self, day: date) -> Price | None:
        if self.until is not None and day > self.until:
            return self.then
        return Price(input=self.input, output=self.output, cached=self.cached, written=self.written, long=self.long)


class _List(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    date: date | None = None
    openai: dict[str, _PriceEntry] = {}
    anthropic: dict[str, _PriceEntry] = {}
    gemini: dict[str, _PriceEntry] = {}
    vertex: dict[str, _PriceEntry] = {}
    azure: dict[str, _PriceEntry] = {}
    openrouter: dict[str, _PriceEntry] = {}
    vllm: dict[str, _PriceEntry] = {}
    ollama: dict[str, _PriceEntry] = {}
    command: dict[str, _PriceEntry] = {}

    def tables(self) -> dict[str, dict[str, _PriceEntry]]:
        """By provider."""
        return {name: getattr(self, name) for name in PROVIDERS}


def own_list() -> Path:
    """The user's ``prices.toml`` in the settings folder; it need not exist."""
    return config_folder() / "prices.toml"


def price(model: str, day: date | None = None) -> Price | None:
    """The price of a model (``openai:gpt-5``) on ``day`` or today; ``None`` if unknown.

    A dated snapshot (``gpt-5-2025-08-07``) has the price of its model, unless it has a separate entry. A local server costs
    nothing, unless it is listed.

    Raises:
        ProposerError: the user's price list cannot be read.
    """
    author = Author(model)
    entries = _entries(own_list()).get(author.provider, {})
    name = author.short.removeprefix("models/")
    entry = entries.get(name) or entries.get(_SNAPSHOT.sub("", name))
    if entry is None:
        provider = PROVIDERS.get(author.provider)
        return Price(input=0.0, output=0.0) if provider is not None and provider.free else None
    return entry.on(day or datetime.now(UTC).date())


def cost(price: Price, usage: Usage) -> float:
    """US dollars for one call, an upper bound of the bill: see ``written`` in the list."""
    rates: Rates = price.long if price.long is not None and usage.input > price.long.over else price
    fresh = rates.input if rates.written is None else rates.written
    cached = rates.input if rates.cached is None else rates.cached
    return ((usage.input - usage.cached) * fresh + usage.cached * cached + usage.output * rates.output) / _MILLION


@functools.lru_cache(maxsize=4)
def _entries(own: Path) -> Mapping[str, Mapping[str, _PriceEntry]]:
    shipped, mine = _read(SHIPPED).tables(), (_read(own) if own.exists() else _List()).tables()
    listed = {name: {**shipped[name], **mine[name]} for name in PROVIDERS}
    listed["vertex"] = {**shipped["gemini"], **listed["vertex"]}
    return listed


def _read(path: Path) -> _List:
    try:
        return strict_toml.decode(path.read_text(encoding="utf-8"), _List)
    except OSError as error:
        raise ProposerError(f"the price list {path} cannot be read: {error.strerror}") from None
    except (TomlError, UnicodeDecodeError) as error:
        raise ProposerError(f"the price list {path} is malformed: {error}") from None
