"""Storms: random keys, clicks, resizes and toasts over every screen, live, replayed and followed.

By hand: ``PYTHONPATH=.:tests python -m support.storm --acts 10000``. Prints the longest time that the event loop computed
at a stretch.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support import sessions, ui
from textual.app import ScreenStackError
from textual.events import Key
from textual.pilot import OutOfBounds, Pilot

from engine.journal import journal, store
from tui import actions
from tui.app import EspalierApp

SIZES = ((120, 40), (80, 24), (40, 12), (200, 60), (21, 5), (110, 45), (1, 1), (169, 30))
LEAVING = frozenset({"app.quit", "home.leave", "app.suspend", "app.screenshot", "home.delete"})
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
    """Notes the longest time that the event loop computed without a pause (processor time: a busy machine does not count)."""

    longest: float = 0.0
    acts: int = 0

    async def beat(self) -> None:
        """Look at the clock of this thread as often as the loop allows."""
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            self.longest = max(self.longest, time.thread_time() - before)
            await asyncio.sleep(0.005)


def press(app: EspalierApp, key: str) -> None:
    """A key as the driver's thread gives it, without waiting for what it does."""
    shown = actions.key_names(key)
    app.post_message(Key(key, shown if len(shown) == 1 else None))


async def storm(app: EspalierApp, pilot: Pilot[None], seed: int, acts: int, heart: Heart) -> None:
    """Act at random, until a click or the palette quits. Without waiting for the screen between most acts, as an auto-repeating
    key does."""
    dice = random.Random(seed)
    for _ in range(acts):
        heart.acts += 1
        what = dice.random()
        if what < 0.80:
            for key in dice.choices(KEYS, k=dice.choice((1, 1, 2, 5))):
                press(app, key)
            await asyncio.sleep(dice.choice((0, 0, 0.002, 0.02)))
        elif what < 0.88:
            width, height = app.size
            place = (dice.randrange(max(1, width)), dice.randrange(max(1, height)))
            try:
                await pilot.click(offset=place, times=dice.choice((1, 1, 2)))
            except OutOfBounds:
                continue  # the screen shrank between the two
            except ScreenStackError:
                return  # the click hit Quit in the footer
        elif what < 0.94:
            await pilot.resize_terminal(*dice.choice(SIZES))
        else:
            for n in range(dice.choice((1, 3, 20))):
                timeout = dice.choice((-1.0, 0.0, 1e-6, 0.001, 0.05, 2.0))
                app.notify(f"toast [{n}]", timeout=timeout, markup=False, severity=dice.choice(("information", "error")))
        if app._exit:
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
        async with app.run_test(size=SIZES[0]) as pilot:
            beating = asyncio.create_task(heart.beat())
            await storm(app, pilot, seed, acts, heart)
            beating.cancel()
            if not app._exit:
                await app._leave()
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
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=tuple(OPENINGS), action="append")
    options = parser.parse_args()
    faulthandler.enable()
    for opening in options.only or OPENINGS:
        with tempfile.TemporaryDirectory(prefix="espalier-storm-") as name:
            os.environ["ESPALIER_HOME"] = name
            faulthandler.dump_traceback_later(600, exit=True)
            heart = run(opening, Path(name), options.seed, options.acts)
            longest = f"{1000 * heart.longest:.0f} ms"
            sys.stdout.write(f"{opening:<10} {heart.acts} acts, the event loop computed for {longest} at most\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
