"""What a terminal sends, as events: nothing in a paste is a key, and no byte ends the program.

Reported as for upstream (Textual 8.2.8). Its parser sends what follows an ESC in a bracketed paste as keys, and the thread that
reads the terminal ends the program on a byte that is not UTF-8 (Alt in a terminal with ``meta8bit``, a mouse in one without SGR
reports, a pasted Latin-1 text) and on reports of keys with numbers out of range.
"""

from __future__ import annotations

import logging
import re
from codecs import getincrementaldecoder
from collections.abc import Generator, Iterable, Iterator

from textual import events
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.message import Message

_UNREADABLE = "\N{REPLACEMENT CHARACTER}"
"""What the decoder puts for bytes that are not UTF-8."""
_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)|\x1b[ -/][0-~]")
"""What terminals take as colours, titles and the like; here because logs are copied with it."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]")


class TerminalInput:
    """Turns the bytes of a terminal into events. Keeps what is incomplete until the next bytes."""

    def __init__(self) -> None:
        self._decode = getincrementaldecoder("utf-8")(errors="replace").decode
        self._parser = XTermParser()
        self._before = ""
        """The latest characters outside a paste: the mark that begins one may come in two reads."""
        self._pasted: str | None = None
        """The paste so far; ``None`` outside one."""

    def events_of(self, data: bytes) -> Iterator[Message]:
        """The events of these bytes."""
        text = self._decode(data)
        while text:
            if self._pasted is None:
                text = yield from self._keys(text)
            else:
                self._pasted += text
                text = yield from self._paste(self._pasted)

    def overdue_events(self) -> Iterator[Message]:
        """The events of what stayed incomplete for too long: an ESC alone is the key. To be called now and then."""
        yield from self._guarded(self._parser.tick())

    def _keys(self, text: str) -> Generator[Message, None, str]:
        """The events up to the next paste. Returns the text of that paste and what follows it."""
        seen = self._before + text
        at = seen.find(BRACKETED_PASTE_START)
        if at < 0:
            self._before = seen[1 - len(BRACKETED_PASTE_START) :]
            yield from self._guarded(self._parser.feed(text))
            return ""
        begins = at + len(BRACKETED_PASTE_START) - len(self._before)
        self._before, self._pasted = "", ""
        yield from self._guarded(self._parser.feed(text[:begins]))
        return text[begins:]

    def _paste(self, text: str) -> Generator[Message, None, str]:
        """The paste, if its end has come. Returns what follows it.

        Of several ends without a beginning in between, the last one counts: the others were copied with the text.
        """
        next_one = text.find(BRACKETED_PASTE_START)
        at = text.rfind(BRACKETED_PASTE_END, 0, next_one if next_one >= 0 else None)
        if at < 0:
            at = text.find(BRACKETED_PASTE_END)
        if at < 0:
            return ""
        self._pasted = None
        for _ in self._guarded(self._parser.feed(BRACKETED_PASTE_END)):
            pass  # its own event for a paste, which is empty: it has seen the two marks only
        yield events.Paste(pasted_words(text[:at]))
        return text[at + len(BRACKETED_PASTE_END) :]

    def _guarded(self, parsed: Iterable[Message]) -> Iterator[Message]:
        """The events but those of unreadable bytes. A parser that fails is replaced."""
        try:
            for event in parsed:
                if not (isinstance(event, events.Key) and event.character == _UNREADABLE):
                    yield event
        except Exception:
            logging.getLogger(__name__).warning("the terminal sent what cannot be parsed", exc_info=True)
            self._parser = XTermParser()


def pasted_words(text: str) -> str:
    """A pasted text without what only a terminal understands: escape sequences and control characters."""
    return _CONTROLS.sub("", _SEQUENCES.sub("", text))
