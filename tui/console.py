"""Lines in, lines out: the console of the plain mode. No escape sequence, no colour, nothing is drawn over."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TextIO

from engine.domain.errors import head_and_tail
from tui.plain_output import plain_text

_QUOTED = 80
"""Characters of a wrong answer that are printed."""


class InputEnded(Exception):
    """Standard input has ended: the session is left as it stands."""


class Console:
    """Prints lines and asks for lines. Created inside the event loop."""

    def __init__(self, lines_in: TextIO, out: TextIO, *, interactive: bool) -> None:
        """``interactive``: a person types. Otherwise a line is read only when something is asked."""
        self.interactive = interactive
        self._out = out
        self._typed: deque[str] = deque()
        self._arrived = asyncio.Event()
        self._ended = False
        loop = asyncio.get_running_loop()
        reading = threading.Thread(target=self._read, args=(lines_in, loop), name="espalier-console", daemon=True)
        reading.start()

    def _read(self, lines_in: TextIO, loop: asyncio.AbstractEventLoop) -> None:
        try:
            for text in lines_in:
                loop.call_soon_threadsafe(self._take, text.rstrip("\r\n"))
            loop.call_soon_threadsafe(self._end)
        except RuntimeError:  # the loop is closed: nobody asks any more
            return

    def _take(self, text: str) -> None:
        self._typed.append(text)
        self._arrived.set()

    def _end(self) -> None:
        self._ended = True
        self._arrived.set()

    @property
    def has_line(self) -> bool:
        """Whether ``line`` would not wait: a line was typed, or there will be none."""
        return bool(self._typed) or self._ended

    async def line(self) -> str:
        """The next line. Raises InputEnded."""
        while not self._typed:
            if self._ended:
                raise InputEnded
            self._arrived.clear()
            await self._arrived.wait()
        return self._typed.popleft().strip()

    def tell(self, *lines: str) -> None:
        """Print lines."""
        for text in lines:
            for part in text.split("\n"):
                self._out.write(f"{plain_text(part)}\n")
        self._out.flush()

    async def ask(self, question: str) -> str:
        """A line in answer to a question. Raises InputEnded."""
        self.tell(question)
        return await self.line()

    async def choose(self, title: str, choices: Sequence[str], none: str) -> int | None:
        """The index of a numbered choice; ``None`` for an empty line or 0, which means ``none``. Raises InputEnded."""
        self.tell(title, *_numbered(choices), f"  0. {none}", "Type a number, then Enter:")
        while True:
            text = await self.line()
            if text in ("", "0"):
                return None
            if (number := whole_number(text, len(choices))) is not None:
                return number - 1
            self.tell(f"{quoted(text)} is not one of the choices. Type a number from 0 to {len(choices)}:")


def whole_number(text: str, most: int) -> int | None:
    """The number from 1 to ``most`` that was typed; ``None`` for anything else. ``int`` refuses thousands of digits."""
    if not text.isdecimal() or len(text) > len(str(most)):
        return None
    return number if 1 <= (number := int(text)) <= most else None


def quoted(text: str) -> str:
    """A wrong answer as a message repeats it: the beginning and the end of a long one."""
    return head_and_tail(text, _QUOTED)


def _numbered(choices: Iterable[str]) -> list[str]:
    return [f"  {number}. {choice}" for number, choice in enumerate(choices, 1)]
