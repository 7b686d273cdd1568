"""A stylesheet that keeps what it parsed has the rules that Textual's has."""

from __future__ import annotations

import pytest
from textual.css.errors import StylesheetError
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

from tui.kept_stylesheet import KeptStylesheet

DARK, LIGHT = {"ground": "#000000"}, {"ground": "#ffffff"}


def styled() -> KeptStylesheet:
    sheet = KeptStylesheet(DARK)
    sheet.add_source("Label { background: $ground; }", ("a", ""))
    sheet.add_source("Button { color: $ground; }", ("b", ""), is_default_css=True)
    return sheet


def change(sheet: KeptStylesheet, variables: dict[str, str]) -> list[RuleSet]:
    """The rules after a change of the theme; they are what a new stylesheet of Textual's own has."""
    sheet.set_variables(variables)
    sheet.reparse()
    usual = sheet.copy()
    usual.reparse()
    assert type(usual) is Stylesheet
    assert [rule.css for rule in sheet.rules] == [rule.css for rule in usual.rules]
    assert list(sheet.rules_map) == list(usual.rules_map)
    return sheet.rules


def test_each_theme_has_its_rules_and_a_theme_that_comes_back_is_not_parsed_again() -> None:
    sheet = styled()
    dark = change(sheet, DARK)
    light = change(sheet, LIGHT)
    assert [rule.css for rule in light] != [rule.css for rule in dark]
    again = change(sheet, dict(DARK))
    assert [id(rule) for rule in again] == [id(rule) for rule in dark]


def test_a_new_source_is_parsed_beside_those_kept() -> None:
    sheet = styled()
    before = change(sheet, DARK)
    sheet.add_source("Input { background: $ground; }", ("c", ""))
    after = change(sheet, DARK)
    assert [id(rule) for rule in after[:-1]] == [id(rule) for rule in before]


def test_a_wrong_source_leaves_the_rules() -> None:
    sheet = styled()
    before = list(change(sheet, DARK))
    sheet.add_source("Input { background: 12 12 12 nonsense; }", ("c", ""))
    with pytest.raises(StylesheetError):
        sheet.reparse()
    assert sheet._rules == before
