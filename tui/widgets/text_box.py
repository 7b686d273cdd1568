"""A field of several lines whose text is wrapped."""

from __future__ import annotations

from textual.widgets import TextArea


class TextBox(TextArea):
    """Draws its text again at another width.

    Textual 8.2 wraps it again but draws it only if the number of lines changed: until then the ends of lines were hidden.
    """

    def on_resize(self) -> None:
        """Draw the text as it is wrapped now."""
        self.refresh()
