"""The themes (dark, light, 16 colours), and the colour of each ink and ground of the view models.

Colours are named by meaning. The third theme is for terminals with 16 colours, where the soft tones of the other two turn
grey. No colour carries a meaning alone: a glyph or a word repeats it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from textual.theme import Theme

from tui.viewmodel.cells import Ground, Ink

DARK = "espalier-dark"
LIGHT = "espalier-light"
SIXTEEN = "espalier-16"


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

_DARK_VARIABLES = {
    "ink-title": "#e9efe2",
    "ink-faint": "#87938a",
    "ink-label": "#6f9a94",
    "ink-rule": "#56645b",
    "ink-accent": "#7fb8b0",
    "badge-best": "#e6bd6a",
    "badge-pin": "#7fb8b0",
    "badge-mark": "#c99bd6",
    "speedup-good": "#93c47d",
    "speedup-bad": "#dd7b6a",
    "speedup-undecided": "#d3ab5f",
    "bar-good": "#6f9c5f",
    "bar-bad": "#b0614f",
    "bar-undecided": "#a88844",
    "band-good": "#3a5536",
    "band-bad": "#5d352e",
    "band-undecided": "#574726",
    "stage-build": "#6fa8dc",
    "stage-verify": "#b294d8",
    "stage-measure": "#e0b15a",
    "stage-repair": "#e29a6c",
    "stage-waiting": "#8a968d",
    "stage-measured": "#93c47d",
    "stage-quarantined": "#e58bb0",
    "stage-failed": "#dd7b6a",
    "stage-cancelled": "#7d8880",
    "code-keyword": "#c99bd6",
    "code-type": "#7fb8b0",
    "code-function": "#8fb6e0",
    "code-string": "#a9c98a",
    "code-number": "#e0a878",
    "code-comment": "#75827a",
    "code-directive": "#e6bd6a",
    "code-preprocessor": "#d08f8f",
    "code-operator": "#aab5ac",
    "diff-added": "#1b2f20",
    "diff-removed": "#3a2120",
    "diff-added-word": "#2f5a37",
    "diff-removed-word": "#6e3431",
    "track": "#2b342e",
    "chip": "#2c3a33",
}

_LIGHT_VARIABLES = {
    "ink-title": "#1d2420",
    "ink-faint": "#667068",
    "ink-label": "#3f716b",
    "ink-rule": "#b3b8aa",
    "ink-accent": "#1f6f68",
    "badge-best": "#8f5d00",
    "badge-pin": "#1f6f68",
    "badge-mark": "#7d3a94",
    "speedup-good": "#3f7a2c",
    "speedup-bad": "#b1392b",
    "speedup-undecided": "#8a6010",
    "bar-good": "#74a45f",
    "bar-bad": "#cf7a6a",
    "bar-undecided": "#c49d4e",
    "band-good": "#bfd8b2",
    "band-bad": "#ecc6be",
    "band-undecided": "#e6d5ab",
    "stage-build": "#2767a8",
    "stage-verify": "#6f43a6",
    "stage-measure": "#8f5d00",
    "stage-repair": "#a4501a",
    "stage-waiting": "#667068",
    "stage-measured": "#3f7a2c",
    "stage-quarantined": "#a02c68",
    "stage-failed": "#b1392b",
    "stage-cancelled": "#737b74",
    "code-keyword": "#7d3a94",
    "code-type": "#1f6f68",
    "code-function": "#2767a8",
    "code-string": "#4b7320",
    "code-number": "#a4501a",
    "code-comment": "#7b857d",
    "code-directive": "#8f5d00",
    "code-preprocessor": "#a03f4e",
    "code-operator": "#4e5850",
    "diff-added": "#e2efd9",
    "diff-removed": "#f6e0db",
    "diff-added-word": "#b9dca8",
    "diff-removed-word": "#eab8ae",
    "track": "#dedccd",
    "chip": "#e2e4d6",
}

_BLACK, _RED, _GREEN, _BROWN, _CYAN, _GREY = "#000000", "#aa0000", "#00aa00", "#aa5500", "#00aaaa", "#aaaaaa"
_SHADE, _PINK, _LIME, _YELLOW, _SKY, _VIOLET, _AQUA, _WHITE = (
    "#555555", "#ff5555", "#55ff55", "#ffff55", "#5555ff", "#ff55ff", "#55ffff", "#ffffff",
)  # fmt: skip

_SIXTEEN_VARIABLES = {
    **{f"ink-{name}": value for name, value in (("title", _WHITE), ("faint", _GREY), ("label", _CYAN), ("rule", _SHADE))},
    "ink-accent": _AQUA,
    "badge-best": _YELLOW,
    "badge-pin": _AQUA,
    "badge-mark": _VIOLET,
    "speedup-good": _LIME,
    "speedup-bad": _PINK,
    "speedup-undecided": _YELLOW,
    "bar-good": _LIME,
    "bar-bad": _PINK,
    "bar-undecided": _YELLOW,
    "band-good": _GREEN,
    "band-bad": _RED,
    "band-undecided": _BROWN,
    "stage-build": _SKY,
    "stage-verify": _VIOLET,
    "stage-measure": _YELLOW,
    "stage-repair": _BROWN,
    "stage-waiting": _GREY,
    "stage-measured": _LIME,
    "stage-quarantined": _VIOLET,
    "stage-failed": _PINK,
    "stage-cancelled": _GREY,
    "code-keyword": _VIOLET,
    "code-type": _AQUA,
    "code-function": _SKY,
    "code-string": _LIME,
    "code-number": _YELLOW,
    "code-comment": _GREY,
    "code-directive": _YELLOW,
    "code-preprocessor": _PINK,
    "code-operator": _WHITE,
    "diff-added": _BLACK,
    "diff-removed": _BLACK,
    "diff-added-word": _GREEN,
    "diff-removed-word": _RED,
    "track": _SHADE,
    "chip": _SHADE,
}

THEMES = (
    Theme(
        name=DARK,
        dark=True,
        primary="#8fb573",
        secondary="#6fa3a0",
        accent="#e0b15a",
        warning="#e0b15a",
        error="#dd7b6a",
        success="#93c47d",
        foreground="#d5ddd2",
        background="#101512",
        surface="#161d19",
        panel="#1f2823",
        boost="#26312b",
        variables={
            **_DARK_VARIABLES,
            "block-cursor-background": "#2e4436",
            "block-cursor-foreground": "#f1f6ec",
            "block-cursor-text-style": "bold",
            "block-cursor-blurred-background": "#222d27",
            "block-cursor-blurred-foreground": "#d5ddd2",
            "block-cursor-blurred-text-style": "none",
            "footer-key-foreground": "#e0b15a",
            "border": "#5d7a55",
            "border-blurred": "#2c3832",
            "scrollbar": "#2f3b34",
            "scrollbar-hover": "#42524a",
            "scrollbar-active": "#8fb573",
            "scrollbar-background": "#131a16",
            "scrollbar-background-hover": "#131a16",
            "scrollbar-background-active": "#131a16",
            "scrollbar-corner-color": "#131a16",
        },
    ),
    Theme(
        name=LIGHT,
        dark=False,
        primary="#4c7a34",
        secondary="#2c6e75",
        accent="#8f5d00",
        warning="#8f5d00",
        error="#b1392b",
        success="#3f7a2c",
        foreground="#2a312c",
        background="#f3f1e7",
        surface="#faf9f3",
        panel="#e9e7da",
        boost="#e2e0d0",
        variables={
            **_LIGHT_VARIABLES,
            "block-cursor-background": "#d3e2c6",
            "block-cursor-foreground": "#1d2420",
            "block-cursor-text-style": "bold",
            "block-cursor-blurred-background": "#e6e9da",
            "block-cursor-blurred-foreground": "#2a312c",
            "block-cursor-blurred-text-style": "none",
            "footer-key-foreground": "#8f5d00",
            "border": "#6c9156",
            "border-blurred": "#d2d0c0",
            "scrollbar": "#cfcfbd",
            "scrollbar-hover": "#b4b6a2",
            "scrollbar-active": "#4c7a34",
            "scrollbar-background": "#f0eee3",
            "scrollbar-background-hover": "#f0eee3",
            "scrollbar-background-active": "#f0eee3",
            "scrollbar-corner-color": "#f0eee3",
        },
    ),
    Theme(
        name=SIXTEEN,
        dark=True,
        primary=_LIME,
        secondary=_AQUA,
        accent=_YELLOW,
        warning=_YELLOW,
        error=_PINK,
        success=_LIME,
        foreground=_WHITE,
        background=_BLACK,
        surface=_BLACK,
        panel=_BLACK,
        boost=_BLACK,
        luminosity_spread=0.0,
        text_alpha=1.0,
        variables={
            **_SIXTEEN_VARIABLES,
            "block-cursor-background": "#0000aa",
            "block-cursor-foreground": _WHITE,
            "block-cursor-text-style": "bold",
            "block-cursor-blurred-background": _SHADE,
            "block-cursor-blurred-foreground": _WHITE,
            "block-cursor-blurred-text-style": "none",
            "border": _LIME,
            "border-blurred": _SHADE,
        },
    ),
)


def variable_defaults(dark: bool) -> dict[str, str]:
    """The colours by meaning, for themes that do not define them."""
    return dict(_DARK_VARIABLES if dark else _LIGHT_VARIABLES)


def theme_for(color_system: str | None, dark: bool = True) -> str:
    """The theme for a terminal's colour system (``App.console.color_system``)."""
    if color_system in ("standard", "windows"):
        return SIXTEEN
    return DARK if dark else LIGHT
