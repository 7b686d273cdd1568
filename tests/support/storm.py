"""Storms: random keys, clicks, resizes and toasts over every screen, live, replayed and followed.

Keys, clicks and sizes are posted as the terminal's driver posts them, and every ``EACH`` acts the screen must answer.
``python -m benchmarks.storms`` runs long ones and prints how long they kept the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support import sessions, ui
from support.stalls import LoopWatch
from textual.drivers.headless_driver import HeadlessDriver
from textual.events import Key, MouseDown, MouseUp, Resize
from textual.geometry import Size
from textual.message_pump import MessagePump

from engine.journal import journal, store
from engine.journal.lock import WriterLock
from engine.session.replay import Recording
from tui import actions
from tui.app import EspalierApp

RECORDED = Path(__file__).resolve().parents[2] / "sessions" / "layernorm"
"""A session with real code, listings and a suite."""
ANSWER_SECONDS = 120.0
"""After this a screen that does not answer hangs: a busy machine included."""
EACH = 20
"""Acts after which the storm waits for an answer."""
SIZES = ((120, 40), (80, 24), (40, 12), (200, 60), (21, 5), (110, 45), (1, 1), (169, 30))
LEAVING = frozenset({"app.quit", "home.leave", "app.suspend", "home.delete", "session.editor"})
"""Actions that a storm leaves alone: they end the program, stop it, or delete a session."""
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
class Storm:
    """What a storm did."""

    acts: int = 0
    quits: int = 0
    """Times that a click or the palette would have ended the program."""
    screens: Counter[str] = field(default_factory=Counter)
    """Screen → acts on it."""


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


async def rage(app: EspalierApp, seed: int, acts: int, told: Storm) -> None:
    """Act at random. Without waiting for the screen between most acts, as an auto-repeating key does."""
    dice = random.Random(seed)
    for act in range(acts):
        told.acts += 1
        told.screens[type(app.screen).__name__] += 1
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


async def write_slowly(folder: Path, data: bytes) -> None:
    """Append the rest of a session's journal as the process that runs it does: holding its lock, a few lines at a time.

    Cancelled, it appends what is left: as soon as the lock is free, a command that waits for the holder is decided on there.
    """
    dice, lock = random.Random(7), WriterLock(folder)
    with (folder / journal.NAME).open("ab", buffering=0) as file:
        lines = data[file.tell() :].splitlines(keepends=True)
        try:
            while lines:
                count = dice.choice((1, 1, 2, 20))
                file.write(b"".join(lines[:count]))
                del lines[:count]
                await asyncio.sleep(0.2)
        finally:
            file.write(b"".join(lines))
            lock.release()


def run(opening: str, root: Path, seed: int, acts: int, watch: LoopWatch | None = None) -> Storm:
    """One storm over a fresh home in ``root`` with one recorded session; ``watch`` keeps what the loop does meanwhile.

    Raises what the app raised, and AssertionError for an error that was only logged, and for a damaged journal.
    """
    folder = root / "sessions" / "layernorm-2026-11-18-1"
    shutil.copytree(RECORDED, folder)
    recorded = (folder / journal.NAME).read_bytes()
    if opening == "follow":
        begun = b"".join(recorded.splitlines(keepends=True)[:60])
        (folder / journal.NAME).write_bytes(begun)
    told = Storm()

    async def body() -> None:
        action, subject = OPENINGS[opening](folder)
        app = ui.app(ui.FakeOpener(pause=0.002), action, subject)
        leave = app._leave

        async def stay() -> None:
            told.quits += 1

        app._leave = stay  # type: ignore[method-assign]  # a click may hit Quit, and the storm goes on
        writing = asyncio.create_task(write_slowly(folder, recorded)) if opening == "follow" else None
        try:
            async with app.run_test(size=SIZES[0]):
                with watch.watching() if watch is not None else contextlib.nullcontext():
                    await rage(app, seed, acts, told)
                await leave()
        finally:
            if writing is not None:
                writing.cancel()
            if app.fault is not None:
                raise app.fault  # with its own traceback, where Textual raises that a worker failed

    with own_home(root), errors_logged() as errors:
        with asyncio.Runner(loop_factory=watch.loop if watch is not None else None) as runner:
            runner.run(body())
        gc.collect()  # what is only told when an object goes
        check_journals(folder, recorded)
    assert not errors, "\n".join(errors)
    return told


def check_journals(folder: Path, recorded: bytes) -> None:
    """Every journal can be read and replayed to its end, and the recorded one has lost nothing."""
    for one in store.summaries():
        assert one.status != "unreadable", f"{one.folder}: {one.reason}"
        entries = journal.read(one.folder).entries
        assert [entry.seq for entry in entries] == list(range(len(entries))), f"{one.folder}: numbers of entries"
        replayed = sessions.tree(Recording(entries).state_at(len(entries)))
        assert replayed == sessions.tree(store.state_of(one.folder)), f"{one.folder}: another state"
    found = (folder / journal.NAME).read_bytes().splitlines()
    for number, (now, before) in enumerate(zip(found, recorded.splitlines(), strict=False)):
        assert now == before, f"{folder}: line {number} of {len(found)} is {now.decode()[:400]}"


@contextlib.contextmanager
def own_home(root: Path) -> Iterator[None]:
    """Sessions and screenshots of this process go below ``root``."""
    (root / "downloads").mkdir()
    own = {"ESPALIER_HOME": str(root), "XDG_DOWNLOAD_DIR": str(root / "downloads")}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def errors_logged() -> Iterator[list[str]]:
    """Errors that end nothing: those logged, and exceptions that nobody could be given."""
    errors: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(logging.Formatter().format(record))  # type: ignore[method-assign]
    unraisable = sys.unraisablehook
    sys.unraisablehook = lambda found: errors.append(f"{found.object!r}: {found.exc_value!r}")
    logging.getLogger().addHandler(handler)
    try:
        yield errors
    finally:
        logging.getLogger().removeHandler(handler)
        sys.unraisablehook = unraisable
