"""The colour of every ink: contrast with its ground, also with 16 colours."""

from __future__ import annotations

import pytest
from rich._palettes import STANDARD_PALETTE
from rich.color import Color as RichColor
from rich.color import ColorSystem
from textual.color import Color
from textual.theme import Theme

from tui import inks, theme
from tui.viewmodel.cells import Ground, Ink

BANDS = {"band-good", "band-bad", "band-undecided"}
QUIET = {"ink-rule", *BANDS}


def rounded(value: str) -> int | None:
    return RichColor.parse(value).downgrade(ColorSystem.STANDARD).number


def by_name(theme_: Theme) -> str:
    return theme_.name


@pytest.mark.parametrize("one", theme.THEMES, ids=by_name)
def test_every_ink_and_ground_has_a_colour_and_no_colour_is_unused(one: Theme) -> None:
    named = {look.variable for look in inks.INKS.values() if look.variable} | set(inks.GROUNDS.values())
    assert set(inks.INKS) == set(Ink)
    assert set(inks.GROUNDS) == set(Ground) - {Ground.NONE}
    assert named <= set(one.variables)
    assert set(theme.variable_defaults(one.dark)) == named


@pytest.mark.parametrize("one", theme.THEMES, ids=by_name)
def test_text_has_contrast_on_every_ground(one: Theme) -> None:
    grounds = [Color.parse(str(one.surface)), Color.parse(one.variables["block-cursor-background"])]
    for look in inks.INKS.values():
        if look.variable and look.variable not in QUIET and not look.variable.startswith(("bar-", "code-")):
            ink = Color.parse(one.variables[look.variable])
            assert all(abs(ink.brightness - ground.brightness) > 0.14 for ground in grounds), look.variable


@pytest.mark.parametrize("one", theme.THEMES, ids=by_name)
def test_muted_text_has_a_colour_of_its_own(one: Theme) -> None:
    """Textual's "auto 60%" is pure white or black where a text, and not a style sheet, asks for it: brighter than the rest."""
    muted, text = Color.parse(one.variables["text-muted"]), Color.parse(str(one.foreground))
    ground = Color.parse(str(one.surface))
    assert abs(muted.brightness - ground.brightness) <= abs(text.brightness - ground.brightness)


@pytest.mark.parametrize("one", theme.THEMES, ids=by_name)
def test_text_stays_visible_in_sixteen_colours(one: Theme) -> None:
    page = rounded(str(one.surface))
    for look in inks.INKS.values():
        if look.variable:
            assert rounded(one.variables[look.variable]) != page, look.variable


def test_the_sixteen_colour_theme_uses_only_those_colours() -> None:
    one = next(t for t in theme.THEMES if t.name == theme.SIXTEEN)
    for value in one.variables.values():
        if value.startswith("#"):
            number = rounded(value)
            assert number is not None
            assert STANDARD_PALETTE[number].hex == value
    assert rounded(one.variables["block-cursor-background"]) != rounded(str(one.surface))
    assert rounded(one.variables["band-good"]) != rounded(one.variables["bar-good"])


@pytest.mark.parametrize(
    ("system", "dark", "name"),
    [("truecolor", True, theme.DARK), ("256", False, theme.LIGHT), ("standard", True, theme.SIXTEEN), (None, True, theme.DARK)],
)
def test_theme_by_colour_system(system: str | None, dark: bool, name: str) -> None:
    assert theme.theme_for(system, dark) == name


def _luminance(colour: Color) -> float:
    parts = (part / 255 for part in colour.rgb)
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_high_contrast_is_seven_to_one_on_every_ground() -> None:
    """WCAG 2.2, 1.4.6."""
    one = next(t for t in theme.THEMES if t.name == theme.CONTRAST)
    grounds = [str(one.surface), one.variables["block-cursor-background"], one.variables["block-cursor-blurred-background"]]
    grounds += [one.variables[name] for name in set(inks.GROUNDS.values()) - BANDS]
    for look in inks.INKS.values():
        if look.variable and look.variable not in BANDS:
            ink = _luminance(Color.parse(one.variables[look.variable]))
            for ground in grounds:
                assert (ink + 0.05) / (_luminance(Color.parse(ground)) + 0.05) >= 7.0, (look.variable, ground)


def test_themes_go_round() -> None:
    seen = [theme.DARK]
    while (after := theme.next_theme(seen[-1], "truecolor")) not in seen:
        seen.append(after)
    assert seen == [theme.DARK, theme.LIGHT, theme.CONTRAST]
    assert theme.next_theme(theme.COLOURLESS, "standard") == theme.SIXTEEN
