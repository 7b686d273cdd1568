"""The legend names every symbol once."""

from __future__ import annotations

from support import showcase

from tui.viewmodel import kernels
from tui.viewmodel.legend import legend

STATE = showcase.session()[0]


def test_every_outcome_of_a_session_is_in_the_legend() -> None:
    symbols = {symbol.text for symbol, _ in dict(legend())["Outcomes"]}
    assert {kernels.outcome(STATE, kernel).glyph for kernel in STATE.kernels.values()} <= symbols


def test_no_symbol_has_two_meanings_under_one_heading() -> None:
    for _, entries in legend():
        shown = [(symbol.text, symbol.ink) for symbol, _ in entries]
        assert len(shown) == len(set(shown))
