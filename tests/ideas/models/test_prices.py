"""The cost of calls: the shipped list, the user's list, unknown prices."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest

from engine.domain.errors import ProposerError
from engine.domain.model import Usage
from engine.ideas.models.prices import LongRates, Price, cost, own_list, price

DAY = date(2026, 11, 20)


def test_cached_tokens_are_billed_at_their_own_rate() -> None:
    rates = Price(input=2.0, cached=0.5, output=8.0)
    assert cost(rates, Usage(input=1_000_000, cached=400_000, output=100_000)) == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.1 * 8)
    assert cost(Price(input=2.0, output=8.0), Usage(input=1_000_000, cached=400_000)) == pytest.approx(2.0)
    assert cost(rates, Usage()) == 0.0


def test_tokens_possibly_written_to_the_cache_are_billed_at_that_rate() -> None:
    rates = Price(input=2.0, cached=0.2, written=2.5, output=10.0)
    assert cost(rates, Usage(input=1_000_000, cached=400_000)) == pytest.approx(0.6 * 2.5 + 0.4 * 0.2)


def test_a_long_prompt_is_billed_as_a_whole_at_the_long_rates() -> None:
    rates = Price(input=1.0, output=10.0, long=LongRates(over=200_000, input=2.0, output=15.0))
    assert cost(rates, Usage(input=200_000, output=1000)) == pytest.approx(0.2 + 0.01)
    assert cost(rates, Usage(input=200_001, output=1000)) == pytest.approx(0.400002 + 0.015)


@pytest.mark.parametrize(
    ("model", "input_rate", "cached", "output"),
    [
        ("openai:gpt-5", 1.25, 0.125, 10.0),
        ("openai:gpt-5-2025-08-07", 1.25, 0.125, 10.0),
        ("openai:gpt-4o-2024-05-13", 5.0, None, 15.0),
        ("openai:gpt-4o-2024-11-20", 2.5, 1.25, 10.0),
        ("gemini:gemini-2.5-flash", 0.3, 0.03, 2.5),
        ("gemini:models/gemini-2.5-flash", 0.3, 0.03, 2.5),
    ],
)
def test_the_shipped_price_list_has_these_rates(model: str, input_rate: float, cached: float | None, output: float) -> None:
    found = price(model, DAY)
    assert found is not None
    assert (found.input, found.cached, found.output) == (input_rate, cached, output)


@pytest.mark.parametrize("model", ["openai:llama-3", "openai:gpt-5-turbo", "gemini:gpt-5", "command:llm -m gpt-5", "gpt-5", ""])
def test_unknown_prices_stay_unknown(model: str) -> None:
    assert price(model) is None


def test_a_price_with_an_announced_end_ends() -> None:
    last = date(2026, 12, 31)
    before, after = price("gemini:gemini-3.8-flash", last), price("gemini:gemini-3.8-flash", last + timedelta(days=1))
    assert before is not None
    assert after is not None
    assert (before.output, after.output) == (3.75, 7.5)
    assert price("openai:gpt-5.6-sol", date(2026, 11, 21)) is not None
    assert price("openai:gpt-5.6-sol", date(2026, 11, 22)) is None


def write_own(text: str) -> Path:
    path = own_list()
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_the_users_list_overrides_the_shipped_one() -> None:
    write_own('[openai]\n"gpt-5" = { input = 1, output = 2 }\n"my-llama" = { input = 0, output = 0 }\n')
    corrected, added, shipped = price("openai:gpt-5"), price("openai:my-llama"), price("openai:gpt-5-mini")
    assert corrected is not None
    assert (corrected.input, corrected.cached) == (1.0, None)
    assert added is not None
    assert cost(added, Usage(10**9, 0, 10**9)) == 0.0
    assert shipped is not None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[openai", "malformed"),
        ('[openai]\n"x" = { input = "1", output = 2 }', "openai.x.input: expected float, got str"),
        ('[openai]\n"x" = { input = 1 }', "openai.x.output: required"),
        ('[openai]\n"x" = { input = -1, output = 2 }', "openai.x.input: expected float >= 0.0"),
        ('[openai]\n"x" = { input = 1, output = 2, inptu = 3 }', "openai.x: unknown key 'inptu'"),
        ('[opnai]\n"x" = { input = 1, output = 2 }', "unknown key 'opnai': use anthropic, azure"),
        ("\xff", "malformed"),
    ],
)
def test_a_malformed_list_is_one_clear_error(text: str, words: str) -> None:
    path = write_own("")
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ProposerError) as caught:
        price("openai:gpt-5")
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
