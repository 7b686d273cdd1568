"""The themes: dark, light, high contrast, 16 colours, none.

In the theme of high contrast every text stands out from its ground by 7:1 or more (WCAG AAA). The
fourth theme is for terminals with 16 colours, where the soft tones of the others turn grey; the last one for terminals without
colour, and for NO_COLOR: the cursor is inverse. No colour carries a meaning alone: a glyph or a word repeats it.
"""

from __future__ import annotations

from tui.colours import COLOURLESS as COLOURLESS
from tui.colours import CONTRAST as CONTRAST
from tui.colours import DARK as DARK
from tui.colours import DARK_VARIABLES, LIGHT_VARIABLES
from tui.colours import LIGHT as LIGHT
from tui.colours import SIXTEEN as SIXTEEN
from tui.colours import THEMES as THEMES


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
