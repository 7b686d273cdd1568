"""Speed of the terminal UI: ``python -m benchmarks.screen``, on an otherwise idle machine.

Start: ``espalier --help``, and ``espalier`` in a pseudo-terminal of 120×40 from exec to its first frame and to its list
of problems, compared with a Textual app of one line, alternating. Open: a session of 10,000 kernels, from a key on the
home screen to the drawn tree, before and after its preview was read. Keys: from a cursor key in that tree to its repaint,
under 100 events per second. Memory: growth of the process over ``--minutes`` of that stream, without its first fifth.
Prints one line per measurement with its limit; ``--json`` prints one object; ``--only start open`` measures these parts
alone.

Beside seconds, opening and keys are printed as this process' CPU time in units of a fixed piece of Python that is timed in the
same seconds, and opening in first frames of the Textual app of one line: two versions can be compared by these on a machine
that other work slows down.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import pty
import random
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support import builders as b  # noqa: E402  # the tests' honest values
from textual import events  # noqa: E402

from benchmarks.screen_rest import rest_figures  # noqa: E402
from engine.domain import events as e  # noqa: E402
from engine.domain.commands import Command  # noqa: E402
from engine.domain.folds import advance  # noqa: E402
from engine.domain.model import ENGINE  # noqa: E402
from engine.domain.state import SessionState  # noqa: E402
from engine.domain.work import WorkKey  # noqa: E402
from engine.journal.journal import Journal  # noqa: E402
from engine.session.source import Batch, Capability, Progress  # noqa: E402
from tui.app import EspalierApp  # noqa: E402
from tui.bridge import Bridge  # noqa: E402
from tui.opener import SessionOpener  # noqa: E402
from tui.screens.home import TAG_LINE  # noqa: E402
from tui.screens.session import SessionScreen  # noqa: E402
from tui.widgets.kernel_tree import KernelTree  # noqa: E402
from tui.widgets.session_table import SessionTable  # noqa: E402

SIZE = (120, 40)
KERNELS = 10_000
A_ROUND = 40
EVENTS_A_SECOND = 100
PARTS = ("start", "rest", "open", "keys")
BARE = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    def compose(self):
        yield Static("a line of words")
Bare().run()
"""


@dataclass
class Figures:
    """The measured values by name."""

    values: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, value: float, text: str, bar: float | None = None) -> None:
        self.values[name] = round(value, 4)
        met = "" if bar is None else f"   bar {bar:g}: {'met' if value < bar else 'MISSED'}"
        print(f"{text:<74}{met}", file=sys.stderr)


def big_session(kernels: int) -> list[e.Event]:
    """A search of that many kernels in rounds of forty, with parents in the previous round and every outcome."""
    dice = random.Random(7)
    history: list[e.Event] = [b.opened(mode="ask", source="openai:gpt-test"), b.prepared()]
    before = [""]
    number = made = 0
    while made < kernels:
        count = 1 if number == 0 else min(A_ROUND, kernels - made)
        idea = f"i{number + 1}"
        text = replace(b.idea_text(), title=f"Idea {number}: fewer bytes, more of them in flight")
        proposed = e.ProposedIdea(idea, text, before[0] or None, b.MODEL, count)
        history += [e.RoundOpened(number, tuple(before[:1]) if before[0] else ()), e.IdeasProposed(number, (proposed,), True)]
        history.append(e.IdeaSelected(idea))
        here = [f"k{made + n + 1}" for n in range(count)]
        for kernel in here:
            parent = before[dice.randrange(len(before))] or None
            history += _kernel_events(kernel, idea, parent, number, dice)
        history += [e.IdeaImplemented(idea, tuple(here)), e.RoundClosed(number)]
        before, made, number = here, made + count, number + 1
    return history


def _kernel_events(kernel: str, idea: str, parent: str | None, number: int, dice: random.Random) -> Iterator[e.Event]:
    yield replace(b.drafted(kernel, idea=idea, parent=parent), round=number)
    yield e.KernelBuilt(kernel, f"artefact {kernel}", 0.4)
    if parent is not None and dice.random() < 0.25:
        yield e.KernelFailed(kernel, b.m.Failure(b.m.FailureKind.MISMATCH, "4.1e-03 at out[17, 9031]"), 0.3)
        return
    ratio = 1.0 + 0.01 * number * dice.random()
    yield e.KernelVerified(kernel, b.verification(), replace(b.measurement(ratio), depth="screen"), 0.9)
    yield e.KernelMeasured(kernel, b.measurement(ratio), 1.2)


class Stream:
    """A ``SessionSource`` that remeasures kernels endlessly, at a fixed number of events per second."""

    capabilities = frozenset({Capability.SUBMIT})
    is_run = True

    def __init__(self, history: list[e.Event], rate: float) -> None:
        self._first = b.entries(history)
        self.state = advance(SessionState(), self._first)
        self._rate = rate
        self._closed = False
        self.sent = 0

    async def batches(self) -> AsyncIterator[Batch]:
        yield Batch(self._first, self.state)
        self._first = ()
        dice, names = random.Random(3), list(self.state.kernels)
        begun = time.monotonic()
        while not self._closed:
            await asyncio.sleep(1 / self._rate)
            due = int((time.monotonic() - begun) * self._rate) - self.sent
            entries = tuple(self._next(dice, names) for _ in range(due))
            if entries:
                self.state = advance(self.state, entries)
                yield Batch(entries, self.state)

    def _next(self, dice: random.Random, names: list[str]) -> e.Entry:
        self.sent += 1
        kernel = names[dice.randrange(len(names))]
        event: e.Event = (
            e.KernelReopened(kernel, "measured again"),
            e.WorkStarted(f"build:{kernel}:0"),
            e.KernelBuilt(kernel, "artefact", 0.4),
            e.KernelMeasured(kernel, b.measurement(1 + dice.random()), 1.0),
        )[self.sent % 4]
        return e.Entry(self.state.seq + self.sent, time.time(), ENGINE, event)

    async def progress(self) -> AsyncIterator[Progress]:
        while not self._closed:
            await asyncio.sleep(0.05)
            yield Progress(WorkKey.parse("build:k1:0"), f"{time.monotonic():.2f} words of a compiler")

    async def submit(self, command: Command) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        self._closed = True


def environment(home: Path) -> dict[str, str]:
    """As for an installed program: its bytecode is kept, here below ``home``."""
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    terminal = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    bytecode = {"PYTHONPYCACHEPREFIX": str(home / "bytecode")}
    return {**usual, "ESPALIER_HOME": str(home), "PYTHONPATH": str(ROOT), **terminal, **bytecode}


def drawn_after(arguments: list[str], home: Path, *awaited: bytes) -> list[float]:
    """Seconds from exec until the program has drawn each of these texts in a pseudo-terminal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
    begun = time.monotonic()
    process = subprocess.Popen(
        arguments, stdin=slave, stdout=slave, stderr=slave, env=environment(home), start_new_session=True
    )
    os.close(slave)
    shown, seconds = b"", dict.fromkeys(awaited, 0.0)
    try:
        while waiting := [text for text in awaited if text not in shown]:
            if not select.select([master], [], [], 60)[0]:
                raise RuntimeError(f"{arguments} never drew {waiting}")
            shown += os.read(master, 65536)
            seconds.update((text, time.monotonic() - begun) for text in waiting if text in shown)
        return list(seconds.values())
    finally:
        process.terminate()
        with contextlib.suppress(OSError):
            while os.read(master, 65536):
                pass
        process.wait()
        os.close(master)


def seconds_of(arguments: list[str], home: Path) -> float:
    """Seconds from exec until the program has ended."""
    begun = time.monotonic()
    subprocess.run(arguments, env=environment(home), stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - begun


def measure_start(figures: Figures, home: Path, times: int) -> None:
    """Time all programs in turn, after one warm-up run of each."""
    program = [sys.executable, "-m", "espalier"]
    turns = [
        (
            seconds_of([*program, "--help"], home),
            bare_seconds(home),
            *drawn_after(program, home, TAG_LINE.encode(), b"softmax"),
        )
        for _ in range(times + 1)
    ]
    usage, bare, frame, lists = (statistics.median(seconds) for seconds in zip(*turns[1:], strict=True))
    figures.add("help_s", usage, f"espalier --help: {usage:.3f} s", 0.3)
    figures.add("bare_textual_s", bare, f"a Textual app of one line: first frame after {bare:.2f} s")
    figures.add("first_frame_s", frame, f"espalier: first frame after {frame:.2f} s")
    figures.add("first_frame_ratio", frame / bare, f"espalier: {frame / bare:.2f} × the first frame of the bare one", 2.0)
    figures.add("lists_s", lists, f"espalier: its problems are listed after {lists:.2f} s", 1.0)


def recorded_session(home: Path) -> Path:
    """The folder of a recorded session of ``KERNELS`` kernels. It is later than the shipped ones: the first in the list."""
    folder, moment = home / "sessions" / "big", iter(range(10**9))
    hour_ago = time.time() - 3600
    with Journal.create(folder) as journal:
        journal.append(big_session(KERNELS), ENGINE, lambda: hour_ago + 0.01 * next(moment))
    return folder


def bare_seconds(home: Path) -> float:
    """Seconds from exec to the first frame of a Textual app of one line."""
    return drawn_after([sys.executable, "-c", BARE], home, b"a line of words")[0]


async def measure_opening(figures: Figures, home: Path, folder: Path, *, previewed: bool) -> None:
    """Seconds from a key on the home screen to the drawn tree, in a warm process: after its preview was read, or at once."""
    bare = [bare_seconds(home) for _ in range(3)]
    app = EspalierApp(SessionOpener(), keymap=home / "none")
    async with app.run_test(size=SIZE) as pilot:
        while not (isinstance(app.focused, SessionTable) and app.focused.sessions):
            await pilot.pause(0.02)
        while previewed and not any(preview.display for preview in app.screen.query("#place Preview")):
            await pilot.pause(0.02)
        units = [unit_seconds() for _ in range(20)]
        begun, worked = time.monotonic(), time.process_time()
        app.post_message(events.Key("r", "r"))
        while not (isinstance(app.screen, SessionScreen) and any(len(t.rows) == KERNELS for t in app.screen.query(KernelTree))):
            await asyncio.sleep(0.02)
        await asyncio.sleep(0)
        while app.screen._repaint_required or app.screen._layout_required:
            await asyncio.sleep(0.02)
        seconds, work = time.monotonic() - begun, time.process_time() - worked
        units += [unit_seconds() for _ in range(20)]
    size = (folder / "journal.jsonl").stat().st_size / 1e6
    in_units = work / statistics.median(units)
    name = "open_10k" if previewed else "open_10k_unread"
    figures.values[f"{name}_work_units"] = round(in_units)
    when = "after its preview" if previewed else "before it was read"
    bare_frame = statistics.median([*bare, *(bare_seconds(home) for _ in range(3))])
    ratio = seconds / bare_frame
    figures.add(f"{name}_ratio", ratio, f"opened {when} in {ratio:.2f} × the first frame of a Textual app of one line")
    words = f"{KERNELS:,} kernels ({size:.1f} MB) open {when} in {seconds:.2f} s, {work:.2f} of work; {in_units:.0f} units"
    figures.add(f"{name}_s", seconds, words, 1.0)


class TimedApp(EspalierApp):
    """Records the time of each repaint and the selected kernel."""

    CSS_PATH = ROOT / "tui" / "app.tcss"

    def __init__(self, home: Path) -> None:
        super().__init__(SessionOpener(), keymap=home / "none")
        self.awaited: tuple[float, float, str] | None = None
        self.waits: list[tuple[float, float]] = []
        """(seconds, CPU seconds of this process) from a key to its repaint."""

    def _display(self, screen: object, renderable: object) -> None:
        super()._display(screen, renderable)  # type: ignore[arg-type]
        if self.awaited is not None and isinstance(self.screen, SessionScreen):
            pressed, worked, before = self.awaited
            if self.screen.query_one(KernelTree).selected != before:
                self.waits.append((time.monotonic() - pressed, time.process_time() - worked))
                self.awaited = None


async def measure_streaming(figures: Figures, home: Path, minutes: float) -> None:
    """Measure keys and memory under a stream, in one process."""
    app = TimedApp(home)
    bridge = Bridge(Stream(big_session(KERNELS), EVENTS_A_SECOND), home / "none")
    async with app.run_test(size=SIZE) as pilot:
        await app._show(bridge)
        async with asyncio.timeout(60):
            while not (isinstance(app.screen, SessionScreen) and any(t.selected for t in app.screen.query(KernelTree))):
                await pilot.pause(0.05)
        await pilot.pause(1.0)
        ended = threading.Event()
        presser = threading.Thread(target=_press_keys, args=(app, ended), daemon=True)
        presser.start()
        samples: list[tuple[float, float]] = []
        units: list[float] = []
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < minutes * 60:
            await asyncio.sleep(min(5.0, minutes * 3))
            samples.append((passed, _resident()))
            units += [unit_seconds() for _ in range(3)]
        ended.set()
        await asyncio.to_thread(presser.join)
    (middle, worst), (_, work) = ([_quantile(share, waits) for share in (0.5, 0.95)] for waits in zip(*app.waits, strict=True))
    words = f"key → repaint under {EVENTS_A_SECOND} events/s: median {1e3 * middle:.0f} ms, "
    in_units = work / statistics.median(units)
    words += f"95th percentile {1e3 * worst:.0f} ms; {in_units:.1f} units of work ({len(app.waits)} keys)"
    figures.values["key_p95_work_ms"] = round(1e3 * work, 1)
    figures.values["key_p95_work_units"] = round(in_units, 1)
    figures.add("key_p95_ms", 1e3 * worst, words, 50.0)
    settled = [mb for at, mb in samples if at >= minutes * 12] or [samples[-1][1]]
    gained = settled[-1] - settled[0]
    words = (
        f"memory over {minutes:g} min of {EVENTS_A_SECOND} events/s: {settled[0]:.0f} → {settled[-1]:.0f} MB ({gained:+.1f})"
    )
    figures.add("memory_gained_mb", gained, words, 16.0)


def _quantile(share: float, values: tuple[float, ...]) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def _press_keys(app: TimedApp, ended: threading.Event) -> None:
    """Moves the cursor from a separate thread, one key at a time, as a terminal does."""
    dice = random.Random(5)
    while not ended.wait(0.15 + 0.2 * dice.random()):
        screen = app.screen_stack[-1]
        if app.awaited is None and isinstance(screen, SessionScreen) and app._driver is not None:
            tree = screen.query_one(KernelTree)
            key = "down" if tree.selected != tree.rows[-1].kernel and dice.random() < 0.7 else "up"
            if key == "up" and tree.selected == tree.rows[0].kernel:
                key = "down"
            app.awaited = (time.monotonic(), time.process_time(), tree.selected)
            app._driver.process_message(events.Key(key, None))


def _resident() -> float:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def unit_seconds() -> float:
    """CPU seconds of a fixed piece of Python, about 2 ms."""
    begun, table = time.process_time(), {}
    for number in range(20_000):
        table[number & 1023] = (number, number)
    return time.process_time() - begun


def measure_rest(figures: Figures, home: Path) -> None:
    """Bytes written and share of a core while nobody types."""
    for one in rest_figures(environment(home), 20.0):
        words = f"{one.name}: {one.cpu_percent:.2f} % of a core"
        figures.add(f"{one.name}_cpu_percent", one.cpu_percent, words, one.cpu_limit)
        words = f"{one.name}: {one.bytes_a_second:.0f} bytes/s written"
        figures.add(f"{one.name}_bytes_a_second", one.bytes_a_second, words, one.bytes_limit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=0.5, help="duration of the stream")
    parser.add_argument("--times", type=int, default=5, help="starts per program")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="the parts to measure")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="espalier-screen-") as name:
        home = Path(name)
        os.environ["ESPALIER_HOME"] = name
        if "start" in options.only:
            measure_start(figures, home, options.times)
        if "rest" in options.only:
            measure_rest(figures, home)
        if "open" in options.only:
            folder = recorded_session(home)
            for previewed in (False, True):
                asyncio.run(measure_opening(figures, home, folder, previewed=previewed))
        if "keys" in options.only:
            asyncio.run(measure_streaming(figures, home, options.minutes))
    if options.json:
        print(json.dumps(figures.values))


if __name__ == "__main__":
    main()
