"""The themes (dark, light, high contrast, 16 colours, none), and the colour of each ink and ground of the view models.

Colours are named by meaning. In the theme of high contrast every text stands out from its ground by 7:1 or more (WCAG AAA). The
fourth theme is for terminals with 16 colours, where the soft tones of the others turn grey; the last one for terminals without
colour, and for NO_COLOR: the cursor is inverse. No colour carries a meaning alone: a glyph or a word repeats it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tui.colours import COLOURLESS as COLOURLESS
from tui.colours import CONTRAST as CONTRAST
from tui.colours import DARK as DARK
from tui.colours import DARK_VARIABLES, LIGHT_VARIABLES
from tui.colours import LIGHT as LIGHT
from tui.colours import SIXTEEN as SIXTEEN
from tui.colours import THEMES as THEMES
from tui.viewmodel.cells import Ground, Ink


@dataclass(frozen=True, slots=True)
class InkStyle:
    """A colour variable (empty: the default colour) and a font style."""

    variable: str = ""
    bold: bool = False
    italic: bool = False


INKS: Mapping[Ink, InkStyle] = {
    Ink.PLAIN: InkStyle(),
    Ink.STRONG: InkStyle(bold=True),
    Ink.FAINT: InkStyle("ink-faint"),
    Ink.GOOD: InkStyle("speedup-good"),
    Ink.BAD: InkStyle("speedup-bad"),
    Ink.WARN: InkStyle("speedup-undecided"),
    Ink.TITLE: InkStyle("ink-title", bold=True),
    Ink.LABEL: InkStyle("ink-label"),
    Ink.RULE: InkStyle("ink-rule"),
    Ink.ACCENT: InkStyle("ink-accent"),
    Ink.BEST: InkStyle("badge-best", bold=True),
    Ink.PIN: InkStyle("badge-pin", bold=True),
    Ink.MARK: InkStyle("badge-mark", bold=True),
    Ink.FASTER: InkStyle("speedup-good"),
    Ink.SLOWER: InkStyle("speedup-bad"),
    Ink.UNDECIDED: InkStyle("speedup-undecided"),
    Ink.FASTER_BAR: InkStyle("bar-good"),
    Ink.SLOWER_BAR: InkStyle("bar-bad"),
    Ink.UNDECIDED_BAR: InkStyle("bar-undecided"),
    Ink.FASTER_BAND: InkStyle("band-good"),
    Ink.SLOWER_BAND: InkStyle("band-bad"),
    Ink.UNDECIDED_BAND: InkStyle("band-undecided"),
    Ink.BUILD: InkStyle("stage-build"),
    Ink.VERIFY: InkStyle("stage-verify"),
    Ink.MEASURE: InkStyle("stage-measure"),
    Ink.REPAIR: InkStyle("stage-repair"),
    Ink.WAITING: InkStyle("stage-waiting"),
    Ink.MEASURED: InkStyle("stage-measured"),
    Ink.QUARANTINED: InkStyle("stage-quarantined", bold=True),
    Ink.FAILED: InkStyle("stage-failed"),
    Ink.CANCELLED: InkStyle("stage-cancelled"),
    Ink.KEYWORD: InkStyle("code-keyword"),
    Ink.TYPE: InkStyle("code-type"),
    Ink.FUNCTION: InkStyle("code-function"),
    Ink.STRING: InkStyle("code-string"),
    Ink.NUMBER: InkStyle("code-number"),
    Ink.COMMENT: InkStyle("code-comment", italic=True),
    Ink.DIRECTIVE: InkStyle("code-directive", bold=True),
    Ink.PREPROCESSOR: InkStyle("code-preprocessor"),
    Ink.OPERATOR: InkStyle("code-operator"),
}

GROUNDS: Mapping[Ground, str] = {
    Ground.ADDED: "diff-added",
    Ground.REMOVED: "diff-removed",
    Ground.ADDED_WORD: "diff-added-word",
    Ground.REMOVED_WORD: "diff-removed-word",
    Ground.FASTER_BAND: "band-good",
    Ground.SLOWER_BAND: "band-bad",
    Ground.UNDECIDED_BAND: "band-undecided",
    Ground.TRACK: "track",
    Ground.CHIP: "chip",
}


def variable_defaults(dark: bool) -> dict[str, str]:
    """The colours by meaning, for themes that do not define them."""
    return dict(DARK_VARIABLES if dark else LIGHT_VARIABLES)


def theme_of(choice: str, color_system: str | None, *, colourless: bool) -> str:
    """The theme that was chosen (``dark``, ``light``, ``contrast``), or else the one for the terminal."""
    if colourless:
        return COLOURLESS
    return {"dark": theme_for(color_system), "light": LIGHT, "contrast": CONTRAST}.get(choice, theme_for(color_system))


def next_theme(name: str, color_system: str | None) -> str:
    """The theme after this one: dark (or 16 colours), light, high contrast."""
    order = (theme_for(color_system), LIGHT, CONTRAST)
    return order[(order.index(name) + 1) % len(order)] if name in order else order[0]


def theme_for(color_system: str | None, dark: bool = True) -> str:
    """The theme for a terminal's colour system (``App.console.color_system``)."""
    if color_system in ("standard", "windows"):
        return SIXTEEN
    return DARK if dark else LIGHT
