"""What a call costs, from the price list that ships with the program (``prices.toml``) and the user's own over it.

A model without a price has none: nothing is guessed. The user's list has the same format; a model in it replaces the
shipped entry as a whole.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import platformdirs

from engine.domain.errors import IdeaSourceError
from engine.domain.model import Usage

SHIPPED = Path(__file__).with_name("prices.toml")
_MILLION = 1_000_000
_SNAPSHOT = re.compile(r"-\d{4}-\d{2}-\d{2}$")

Dollars = Annotated[float, msgspec.Meta(ge=0)]


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """US dollars per million tokens."""

    input: Dollars
    output: Dollars
    cached: Dollars | None = None
    """For prompt tokens read from the provider's cache; ``None`` where they cost what others do."""
    written: Dollars | None = None
    """For prompt tokens put into the provider's cache, where that is billed."""


class LongRates(Rates, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The rates of calls with a prompt of more than ``over`` tokens."""

    over: Annotated[int, msgspec.Meta(gt=0)]


class Price(Rates, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a model costs on one day."""

    long: LongRates | None = None


class _Entry(Price, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model's line in the list."""

    until: date | None = None
    then: Price | None = None

    def on(self, day: date) -> Price | None:
        if self.until is not None and day > self.until:
            return self.then
        return Price(input=self.input, output=self.output, cached=self.cached, written=self.written, long=self.long)


class _List(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    date: date | None = None
    openai: dict[str, _Entry] = {}
    gemini: dict[str, _Entry] = {}


def own_list() -> Path:
    """Where a user's prices are: ``prices.toml`` in the folder of settings; it need not exist."""
    home = os.environ.get("ESPALIER_HOME")
    return (Path(home).expanduser() / "config" if home else platformdirs.user_config_path("espalier")) / "prices.toml"


def price(model: str, day: date | None = None) -> Price | None:
    """The price of a model named as its adapter names it (``openai:gpt-5``), on ``day`` or today; ``None`` where unknown.

    A dated snapshot (``gpt-5-2025-08-07``) costs what its model costs, unless it has an entry of its own.

    Raises:
        IdeaSourceError: the user's own list cannot be read.
    """
    provider, _, name = model.partition(":")
    entries = _entries(own_list()).get(provider, {})
    name = name.removeprefix("models/")
    entry = entries.get(name) or entries.get(_SNAPSHOT.sub("", name))
    return None if entry is None else entry.on(day or datetime.now(UTC).date())


def cost(price: Price, usage: Usage) -> float:
    """US dollars for one call. Never less than is billed: see ``written`` in the list."""
    rates: Rates = price.long if price.long is not None and usage.input > price.long.over else price
    fresh = rates.input if rates.written is None else rates.written
    cached = rates.input if rates.cached is None else rates.cached
    return ((usage.input - usage.cached) * fresh + usage.cached * cached + usage.output * rates.output) / _MILLION


def list_date() -> date | None:
    """The date of the shipped price list."""
    return _read(SHIPPED).date


@functools.lru_cache(maxsize=4)
def _entries(own: Path) -> Mapping[str, Mapping[str, _Entry]]:
    shipped, mine = _read(SHIPPED), _read(own) if own.exists() else _List()
    return {"openai": {**shipped.openai, **mine.openai}, "gemini": {**shipped.gemini, **mine.gemini}}


def _read(path: Path) -> _List:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=_List)
    except OSError as error:
        raise IdeaSourceError(f"the price list {path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise IdeaSourceError(f"the price list {path} is malformed: {error}") from None
