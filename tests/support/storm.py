"""Storms: random keys, clicks, resizes and toasts over every screen, live, replayed and followed.

By hand: ``PYTHONPATH=.:tests python -m support.storm --acts 2000``: 10,000 acts. Prints the longest time that the event loop
went without a pause, as work (processor time) and by the wall clock, and where it was, if that is a freeze. Keys, clicks and
sizes are posted as the terminal's driver posts them, and every ``EACH`` acts the screen must answer.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from support import sessions, ui
from textual.drivers.headless_driver import HeadlessDriver
from textual.events import Key, MouseDown, MouseUp, Resize
from textual.geometry import Size
from textual.message_pump import MessagePump

from engine.journal import journal, store
from tui import actions
from tui.app import EspalierApp

FREEZE = 0.2
"""Seconds of work without a pause that an engineer notices."""
ANSWER_SECONDS = 120.0
"""After this a screen that does not answer hangs: a busy machine included."""
EACH = 20
"""Acts after which the storm waits for an answer."""
SIZES = ((120, 40), (80, 24), (40, 12), (200, 60), (21, 5), (110, 45), (1, 1), (169, 30))
LEAVING = frozenset({"app.quit", "home.leave", "app.suspend", "app.screenshot", "home.delete", "session.editor"})
"""Actions that a storm leaves alone: they end the program, stop it, or write and delete files of its user."""
EVERYWHERE = (
    "up", "down", "left", "right", "enter", "escape", "tab", "shift+tab", "pageup", "pagedown", "home", "end", "space",
    "backspace", "x", "1", "0", "minus", "ctrl+s",
)  # fmt: skip
KEYS = tuple(
    dict.fromkeys(
        (*EVERYWHERE, *(key for a in actions.ACTIONS if a.id not in LEAVING for key in a.key.split(",") if key != "D"))
    )
)


@dataclass
class Heart:
    """Notes the longest time that the event loop went without a pause, and what it ran then."""

    acts: int = 0
    quits: int = 0
    """Times that a click or the palette would have ended the program."""
    worked: float = 0.0
    """Processor seconds of the loop's thread at a stretch, at most: a busy machine does not count."""
    waited: float = 0.0
    """Seconds by the wall clock at a stretch, at most."""
    place: str = ""
    """What the loop ran when it worked longest."""
    _seen: str = ""
    _beat: float = field(default_factory=time.monotonic)

    async def beat(self) -> None:
        """Look at both clocks as often as the loop allows."""
        while True:
            worked, self._beat, self._seen = time.thread_time(), time.monotonic(), ""
            await asyncio.sleep(0)
            self.waited = max(self.waited, time.monotonic() - self._beat)
            if (seconds := time.thread_time() - worked) > self.worked:
                self.worked, self.place = seconds, self._seen
            await asyncio.sleep(0.005)

    def look(self, thread: int, ended: threading.Event) -> None:
        """Keep what the loop runs while it does not pause; runs on a thread of its own.

        The innermost frame only: walking the frames of a thread that runs crashes Python 3.11.
        """
        while not ended.wait(0.02):
            if time.monotonic() - self._beat > 0.1:
                frame = sys._current_frames()[thread]
                self._seen = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}\n"


def press(app: EspalierApp, key: str) -> None:
    """A key as the driver's thread gives it, without waiting for what it does."""
    shown = actions.key_names(key)
    app.post_message(Key(key, shown if len(shown) == 1 else None))


def click(app: EspalierApp, x: int, y: int, times: int) -> None:
    """Clicks as the driver's thread gives them: the screen may change or close meanwhile."""
    for _ in range(times):
        for kind in (MouseDown, MouseUp):
            app.post_message(kind(None, x, y, 0, 0, 1, False, False, False))


def resize(app: EspalierApp, width: int, height: int) -> None:
    """A change of the terminal's size, as its signal gives it."""
    assert isinstance(app._driver, HeadlessDriver)
    app._driver._size = (width, height)
    app.post_message(Resize(Size(width, height), Size(width, height)))


async def answer(app: EspalierApp) -> None:
    """Wait until the app, the screen on top and its widgets, but those that go meanwhile, have handled what they were sent.

    Raises AssertionError with the names of those that hang.
    """
    silent: set[MessagePump] = {app, *app.screen.walk_children(with_self=True)}

    def hear(one: MessagePump) -> None:
        silent.discard(one)

    for one in tuple(silent):
        one.call_later(hear, one)
    end = time.monotonic() + ANSWER_SECONDS
    while app._exception is None and (hung := [one for one in silent if one.is_attached and not one._closing]):
        if time.monotonic() > end:
            raise AssertionError(f"without an answer for {ANSWER_SECONDS:.0f} s: {hung}")
        await asyncio.sleep(0.01)


async def storm(app: EspalierApp, seed: int, acts: int, heart: Heart) -> None:
    """Act at random. Without waiting for the screen between most acts, as an auto-repeating key does."""
    dice = random.Random(seed)
    for act in range(acts):
        heart.acts += 1
        what = dice.random()
        if what < 0.80:
            for key in dice.choices(KEYS, k=dice.choice((1, 1, 2, 5))):
                press(app, key)
            await asyncio.sleep(dice.choice((0, 0, 0.002, 0.02)))
        elif what < 0.88:
            width, height = app.size
            click(app, dice.randrange(max(1, width)), dice.randrange(max(1, height)), dice.choice((1, 1, 2)))
            await asyncio.sleep(0.002)
        elif what < 0.94:
            resize(app, *dice.choice(SIZES))
            await asyncio.sleep(0.002)
        else:
            for n in range(dice.choice((1, 3, 20))):
                timeout = dice.choice((-1.0, 0.0, 1e-6, 0.001, 0.05, 2.0))
                app.notify(f"toast [{n}]", timeout=timeout, markup=False, severity=dice.choice(("information", "error")))
        if act % EACH == 0 or act == acts - 1:
            await answer(app)
        if app._exception is not None:
            return


OPENINGS: dict[str, Callable[[Path], tuple[str, object]]] = {
    "home": lambda folder: ("home", None),
    "live": lambda folder: ("new", ui.new(folder.parent / "live")),
    "autopilot": lambda folder: ("new", ui.new(folder.parent / "live", "autopilot")),
    "replay": lambda folder: ("replay", folder),
    "follow": lambda folder: ("follow", folder),
}


def run(opening: str, root: Path, seed: int, acts: int) -> Heart:
    """One storm over a fresh home with one ended session; checks that every journal can still be read."""
    folder = root / "sessions" / "softmax-2026-11-18-1"
    sessions.whole(folder)
    heart = Heart()

    async def body() -> None:
        action, subject = OPENINGS[opening](folder)
        app = ui.app(ui.FakeOpener(pause=0.002), action, subject)
        leave = app._leave

        async def stay() -> None:
            heart.quits += 1

        app._leave = stay  # type: ignore[method-assign]  # a click may hit Quit, and the storm goes on
        ended = threading.Event()
        looking = threading.Thread(target=heart.look, args=(threading.get_ident(), ended), daemon=True)
        async with app.run_test(size=SIZES[0]):
            looking.start()
            beating = asyncio.create_task(heart.beat())
            try:
                await storm(app, seed, acts, heart)
            finally:
                beating.cancel()
                ended.set()
            await leave()
        if app.fault is not None:
            raise app.fault

    asyncio.run(body())
    for one in store.summaries():
        if one.status == "unreadable":
            raise AssertionError(f"{one.folder}: {one.reason}")
        journal.read(one.folder)
    return heart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--acts", type=int, default=2000, help="acts per opening")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for one opening, after which it counts as hung")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=tuple(OPENINGS), action="append")
    options = parser.parse_args()
    faulthandler.enable()
    for opening in options.only or OPENINGS:
        with tempfile.TemporaryDirectory(prefix="espalier-storm-") as name:
            os.environ["ESPALIER_HOME"] = name
            faulthandler.dump_traceback_later(options.limit, exit=True)
            heart = run(opening, Path(name), options.seed, options.acts)
            figures = f"{1000 * heart.worked:.0f} ms of work, {1000 * heart.waited:.0f} ms by the wall clock"
            sys.stdout.write(f"{opening:<10} {heart.acts} acts, {heart.quits} quits; without a pause at most {figures}\n")
            if heart.worked > FREEZE:
                sys.stdout.write(f"a freeze:\n{heart.place}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
