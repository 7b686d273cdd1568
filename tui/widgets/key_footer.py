"""The footer: the keys that matter now, each a place to click. Of the engine it imports nothing: home shows it first."""

from __future__ import annotations

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from tui import actions
from tui.footer_key import FooterKey

_HELP = FooterKey("app.help")


class KeyFooter(Widget):
    """One line: help, then as many of ``keys`` as there is room for, the most urgent first. Without help where they name keys
    of a field, in which a question mark is text."""

    DEFAULT_CSS = """
    KeyFooter {
        dock: bottom; height: 1; background: $footer-background; color: $footer-foreground;
    }
    """
    ALLOW_SELECT = False
    keys: reactive[tuple[FooterKey, ...]] = reactive(())

    def __init__(self, keys: tuple[FooterKey, ...] = ()) -> None:
        super().__init__()
        self.set_reactive(KeyFooter.keys, keys)

    def render(self) -> Content:
        parts: list[tuple[str, str]] = []
        for key, words, _ in self._shown():
            parts += [(f" {key}", "bold $footer-key-foreground"), (f" {words} ", "$footer-description-foreground")]
        return Content.assemble(*parts)

    def on_click(self, event: events.Click) -> None:
        """Press the key under the mouse."""
        right = 0
        for key, words, name in self._shown():
            right += cell_len(f" {key} {words} ")
            if event.x < right:
                event.stop()
                self.app.simulate_key(name)
                return

    def _shown(self) -> list[tuple[str, str, str]]:
        """(key as printed, label, key's name) of those that fit."""
        own = getattr(self.app, "user_keys", {})
        shown: list[tuple[str, str, str]] = []
        room = self.size.width
        help_first = () if any(one.key for one in self.keys) else (_HELP,)
        for one in (*help_first, *self.keys):
            names = one.key or own.get(one.action, "") or actions.by_id(one.action).key
            name = names.split(",")[0].strip()
            key, words = actions.key_names(name), one.label or actions.by_id(one.action).label
            room -= cell_len(f" {key} {words} ")
            if room < 0:
                break
            shown.append((key, words, name))
        return shown
