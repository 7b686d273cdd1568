"""A stylesheet that parses each source once per theme.

Textual (8.2.8) parses all sources again at every change of the theme, and when the first dialog of a kind opens, which brings
its own. Nothing is drawn meanwhile.
"""

from __future__ import annotations

from typing import Any

from textual.cache import LRUCache
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

_MOST_SOURCES = 256
"""Of a theme: more than there are classes with styles of their own."""
_Parsed = LRUCache[tuple[Any, ...], list[RuleSet]]


class KeptStylesheet(Stylesheet):
    """Keeps what it parsed with the colours of each theme."""

    def __init__(self, variables: dict[str, str]) -> None:
        super().__init__(variables=variables)
        self._parsed: dict[frozenset[tuple[str, str]], _Parsed] = {}
        self._keep(variables)

    def set_variables(self, variables: dict[str, str]) -> None:
        """Use the colours of this theme from the next parse on."""
        self._parse_cache = LRUCache(1)  # Textual clears the one in use
        super().set_variables(variables)
        self._keep(variables)

    def reparse(self) -> None:
        """Parse what was not parsed with these colours yet. Raises StylesheetError; the rules are the old ones then."""
        self.parse()

    def _keep(self, variables: dict[str, str]) -> None:
        self._parse_cache = self._parsed.setdefault(frozenset(variables.items()), LRUCache(_MOST_SOURCES))
