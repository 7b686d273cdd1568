"""Renders the screens as SVG files for the documentation: ``python scripts/pictures.py [SESSION ...]``.

Writes to docs/pictures/ unless ``--into`` names another folder; ``--size 80x24`` is repeatable; ``--theme`` names another
theme; ``--scene`` (repeatable) limits the scenes, ``--all`` adds every page, form and dialog. The session shown is that of the
tests, frozen in its fifth round: the pictures are the same on every machine. Each SESSION (a folder) is shown as well, as its
replay ends.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import msgspec  # noqa: E402
from support import builders, showcase, ui  # noqa: E402  # the session of the tests
from textual.pilot import Pilot  # noqa: E402
from textual.widgets import ContentSwitcher  # noqa: E402

from engine.domain import events as e  # noqa: E402
from engine.domain.commands import Command  # noqa: E402
from engine.domain.errors import CommandRejected  # noqa: E402
from engine.domain.events import Entry  # noqa: E402
from engine.domain.folds import advance  # noqa: E402
from engine.domain.model import ENGINE, CallRole  # noqa: E402
from engine.domain.state import ModelCall, SessionState  # noqa: E402
from engine.domain.trust import PathKind, Permissions, Server, ServerAccess, TrustQuestion  # noqa: E402
from engine.domain.work import WorkKey  # noqa: E402
from engine.journal.journal import Journal  # noqa: E402
from engine.session.source import Batch, Capability, Progress  # noqa: E402
from tui.app import EspalierApp  # noqa: E402
from tui.bridge import Bridge  # noqa: E402
from tui.preferences import PREFERENCES, Preferences, ThemeChoice, write_preferences  # noqa: E402
from tui.screens.open_session import OpenSessionDialog  # noqa: E402
from tui.screens.session import SessionScreen  # noqa: E402
from tui.screens.trust_dialog import TrustDialog  # noqa: E402
from tui.widgets.charts import Charts  # noqa: E402
from tui.widgets.kernel_tree import KernelTree  # noqa: E402

WORDS = {
    "build:k20:0": "g++ -O3, 0.6 s",
    "verify:k19:0": "trial 3 of 5",
    "measure:k18:0": "pair 2 of 4",
}
MIXES = {
    "k14": {"total": 412, "ymm": 168, "fma": 96, "xmm": 31, "call": 2},
    "k12": {"total": 377, "ymm": 120, "fma": 48, "call": 18},
}
ASKED = TrustQuestion(
    path="/home/eng/downloads/softmax-2026-11-18-1", kind=PathKind.SESSION, name="softmax-2026-11-18-1",
    why="it was made on another machine",
    needs=Permissions("4be1" * 16, ("my-proposer --fast",), (Server("openai", "https://models.example.org/v1", "MODELS_KEY"),)),
    problem="softmax", file="/home/kim/problems/softmax/reference.py",
    code="import torch\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return torch.softmax(x, dim=-1)\n",
    ships=False, altered=True,
    servers=(ServerAccess(Server("openai", "https://models.example.org/v1", "MODELS_KEY"), "https://models.example.org/v1",
                          "MODELS_KEY", True),),
    unsandboxed="",
)  # fmt: skip
LISTING = msgspec.json.encode(builders.machine_listing()).decode()
Act = Callable[[EspalierApp, Pilot[None]], Awaitable[None]]


class Frozen:
    """A ``SessionSource`` with the capabilities of a live one, in which nothing happens."""

    capabilities = frozenset({Capability.SUBMIT})
    is_run = True

    def __init__(self, state: SessionState, entries: tuple[Entry, ...]) -> None:
        self.state = state
        self._entries = entries

    async def batches(self) -> AsyncIterator[Batch]:
        yield Batch(self._entries, self.state)
        await asyncio.Event().wait()

    async def progress(self) -> AsyncIterator[Progress]:
        for work, words in WORDS.items():
            yield Progress(WorkKey.parse(work), words)
        await asyncio.Event().wait()

    async def submit(self, command: Command) -> None:
        raise CommandRejected("this is a picture")

    async def close(self) -> None:
        """Nothing to close."""


def keys(*pressed: str) -> Act:
    """Press these keys on the session screen."""

    async def act(app: EspalierApp, pilot: Pilot[None]) -> None:
        await pilot.press(*pressed)

    return act


def pane(name: str) -> Act:
    """Show the pane of this name."""

    async def act(app: EspalierApp, pilot: Pilot[None]) -> None:
        while app.screen.query_one("#pane", ContentSwitcher).current != name:
            await pilot.press("t")

    return act


async def roofline(app: EspalierApp, pilot: Pilot[None]) -> None:
    """Show the charts; where one at a time is shown, the second."""
    await pane("charts")(app, pilot)
    app.screen.query_one("#charts", Charts).show_next()


async def best(app: EspalierApp, pilot: Pilot[None]) -> None:
    app.screen.query_one(KernelTree).reveal("k14")


def on(kernel: str, *pressed: str) -> Act:
    """Select a kernel, then press these keys."""

    async def act(app: EspalierApp, pilot: Pilot[None]) -> None:
        app.screen.query_one(KernelTree).reveal(kernel)
        await pilot.pause()
        await pilot.press(*pressed)

    return act


def compared_tab(key: str) -> Act:
    """Compare two kernels and show one tab of theirs."""

    async def act(app: EspalierApp, pilot: Pilot[None]) -> None:
        await compared(app, pilot)
        await pilot.pause()
        await pilot.press(key)

    return act


async def combined(app: EspalierApp, pilot: Pilot[None]) -> None:
    tree = app.screen.query_one(KernelTree)
    tree.reveal("k12")
    await pilot.press("m")
    tree.reveal("k14")
    await pilot.press("X")


async def heat_map(app: EspalierApp, pilot: Pilot[None]) -> None:
    """Show the charts; where one at a time is shown, the last."""
    await pane("charts")(app, pilot)
    charts = app.screen.query_one("#charts", Charts)
    charts.show_next()
    charts.show_next()


async def nobody_writes(app: EspalierApp, pilot: Pilot[None]) -> None:
    """The question after an idea that no writer of the session can write."""
    screen = app.screen
    assert isinstance(screen, SessionScreen)
    screen.run_worker(screen._ask_writer(screen.bridge.state.ideas["i12"]))


async def still(app: EspalierApp, pilot: Pilot[None]) -> None:
    """Do nothing."""


async def preparing(app: EspalierApp, pilot: Pilot[None]) -> None:
    """A session of which only the preparation has begun."""
    opened, *_ = showcase.history()
    entries = builders.entries([opened, e.WorkStarted("prepare")])
    bridge = Bridge(Frozen(advance(SessionState(), entries), entries), Path("sessions/softmax-2026-11-18-1"))
    bridge.start.add("loading torch and the problem", ui.NOW - 9)
    bridge.start.add("measuring the baseline eager", ui.NOW - 4)
    await app._show(bridge)


async def trusted(app: EspalierApp, pilot: Pilot[None]) -> None:
    app.push_screen(TrustDialog(ASKED))


async def opening(app: EspalierApp, pilot: Pilot[None]) -> None:
    async def never(say: Callable[[str], None]) -> Bridge:
        say("measuring the baselines eager and compile on cuda:0")
        await asyncio.Event().wait()
        raise AssertionError

    app.push_screen(OpenSessionDialog("Opening softmax-2026-11-18-1", never))


async def compared(app: EspalierApp, pilot: Pilot[None]) -> None:
    tree = app.screen.query_one(KernelTree)
    tree.reveal("k12")
    await pilot.press("m")
    tree.reveal("k14")
    await pilot.press("v")


SCENES: dict[str, Act] = {
    "session": best,
    "gate": keys("i"),
    "code": on("k14", "2"),
    "difference": on("k12", "3"),
    "quarantine": on("k22", "4"),
    "timing": on("k14", "5"),
    "resources": on("k14", "6"),
    "charts": on("k14", "t"),
    "events": pane("events"),
    "usage": keys("dollar_sign"),
    "compare": compared,
    "palette": keys("ctrl+p"),
    "help": keys("question_mark"),
}


DIALOGS: dict[str, Act] = {
    "roofline": roofline,
    "notes": pane("notes"),
    "log": on("k14", "7"),
    "checks": on("k14", "4"),
    "idea": on("k12", "1"),
    "zoomed": on("k14", "5", "z"),
    "filter": keys("slash", *"chains"),
    "by-speedup": keys("S", "S"),
    "compare-code": compared_tab("2"),
    "gate-edit": keys("i", "e"),
    "gate-reject": keys("i", "r"),
    "gate-write": keys("i", "w"),
    "gate-parent": keys("i", "p"),
    "gate-writer": keys("i", "W"),
    "gate-attach": keys("i", "m"),
    "gate-help": keys("i", "question_mark"),
    "form-idea": keys("N"),
    "form-seed": keys("s"),
    "form-mode": keys("o"),
    "form-limits": keys("L"),
    "form-models": keys("O"),
    "form-pauses": keys("C"),
    "form-prompts": keys("Q"),
    "awaiting": keys("Q", "escape"),
    "form-instruct": keys("I"),
    "form-settings": keys("f3"),
    "form-note": on("k14", "n"),
    "form-accept": on("k22", "a"),
    "form-prune": on("k12", "x"),
    "form-attach": on("k12", "A"),
    "form-fork": on("k12", "F"),
    "form-combine": combined,
    "confirm-end": keys("ctrl+e"),
    "keys": keys("backslash"),
    "columns": keys("vertical_line"),
    "machine-code": on("k14", "8"),
    "nobody-writes": nobody_writes,
}
"""Further pages, forms and dialogs over a session, drawn with ``--all``."""
ASKING = ("form-prompts", "awaiting")
"""Of these, the scenes in which a prompt awaits an answer."""
AT_HOME: dict[str, Act] = {
    "home-help": keys("question_mark"),
    "home-new": keys("n"),
    "home-beside": keys("v"),
    "home-delete": keys("D"),
    "home-settings": keys("f3"),
    "home-trust": trusted,
    "home-opening": opening,
}
"""Dialogs over home, drawn with ``--all``."""
REPLAYED: dict[str, Act] = {"replay": keys("b"), "replay-fork": on("k12", "F"), "replay-events": pane("events")}
"""A replayed session, drawn with ``--all``."""
SUITE: dict[str, Act] = {"workloads": keys("W"), "heat-map": heat_map}
"""The recorded session of a suite that ships, drawn with ``--all``."""
FIRST: dict[str, Act] = {"welcome": still, "start": preparing}
"""A new user's first screens, drawn with ``--all``."""
EVERYTHING = (*SCENES, "home", "light", *DIALOGS, *AT_HOME, *REPLAYED, *SUITE, *FIRST)


def stored(folder: Path) -> Path:
    """Write the showcase as a session on disk."""
    with Journal.create(folder) as journal:
        for text in (*showcase.BLOBS.values(), LISTING):
            journal.blobs.put(text.encode())
        moment = iter(range(10**6))
        journal.append(tuple(showcase.history()), ENGINE, lambda: builders.START + 6.0 * next(moment))
    return folder


async def picture(app: EspalierApp, size: tuple[int, int], act: Act, bridge: Bridge | None, file: Path) -> None:
    """Render one screen after ``act``."""
    app.animation_level = "none"
    async with app.run_test(size=size) as pilot:
        app._notifications.clear()
        if bridge is not None:
            await app._show(bridge)
        await ui.until(pilot, lambda: (bridge is None and app._first[0] == "home") or ui.shows_tree(app))
        await act(app, pilot)
        await pilot.pause(0.4)
        await pilot.pause()
        svg = app.export_screenshot(title=f"espalier · {file.stem.partition('-')[0]}", simplify=True)
        file.write_text(svg, encoding="utf-8")


def live(folder: Path, *, asks: bool = False) -> Bridge:
    """A bridge to the frozen showcase, with instruction counts. ``asks``: with a prompt to answer by hand."""
    state, entries = showcase.session()
    kernels = {name: replace(kernel, instructions=MIXES.get(name, {})) for name, kernel in state.kernels.items()}
    profile = replace(builders.profile(), hot=builders.hot_code(builders.digest(LISTING)))
    kernels["k14"] = replace(kernels["k14"], profile=profile)
    work, prompt = WorkKey.parse("implement:i11"), builders.digest(showcase.PROMPT)
    call = ModelCall("c60", work, CallRole.CODE, "paste", prompt, 9000, state.at)
    calls = {**state.calls, call.id: call} if asks else state.calls
    return Bridge(Frozen(replace(state, kernels=kernels, calls=calls), entries), folder)


async def home(app: EspalierApp, pilot: Pilot[None]) -> None:
    """Wait until the sessions are listed."""
    await ui.until(pilot, lambda: app.focused is not None and app.focused.id == "sessions")


def after(first: Act, then: Act) -> Act:
    """One act after another."""

    async def act(app: EspalierApp, pilot: Pilot[None]) -> None:
        await first(app, pilot)
        await then(app, pilot)

    return act


def clock() -> float:
    return ui.NOW


def app_on(action: str = "home", subject: object = None, *, opener: ui.FakeOpener | None = None) -> EspalierApp:
    """The app with the theme of the pictures, which lies in the working folder."""
    return ui.app(opener, action, subject, clock=clock, keymap=Path("keys.toml").resolve())


async def make(into: Path, size: tuple[int, int], sessions: list[Path], root: Path, scenes: list[str]) -> None:
    """Render all scenes at one size."""
    name = f"{size[0]}x{size[1]}"
    opener = ui.FakeOpener(clock=clock)
    for scene, act in ({"home": still} | AT_HOME).items():
        if scene in scenes:
            await picture(app_on(opener=opener), size, after(home, act), None, into / f"{scene}-{name}.svg")
    for scene, act in (SCENES | DIALOGS).items():
        if scene in scenes:
            app = app_on("none", opener=opener)
            bridge = live(root / "softmax-2026-11-18-1", asks=scene in ASKING)
            await picture(app, size, act, bridge, into / f"{scene}-{name}.svg")
    for scene, act in REPLAYED.items():
        if scene in scenes:
            app = app_on("replay", root / "softmax-2026-11-18-1", opener=opener)
            await picture(app, size, act, None, into / f"{scene}-{name}.svg")
    for scene, act in SUITE.items():
        if scene in scenes:
            app = app_on("replay", ROOT / "sessions" / "rmsnorm_bf16", opener=opener)
            await picture(app, size, act, None, into / f"{scene}-{name}.svg")
    for scene, act in FIRST.items():
        if scene in scenes:
            os.environ["ESPALIER_HOME"] = "empty"
            await picture(app_on(opener=opener), size, act, None, into / f"{scene}-{name}.svg")
            os.environ["ESPALIER_HOME"] = "."
    for folder in sessions:
        app = app_on("replay", folder, opener=ui.FakeOpener())
        await picture(app, size, keys("b"), None, into / f"{folder.name}-{name}.svg")
        app = app_on("replay", folder, opener=ui.FakeOpener())
        await picture(app, size, keys("b", "t"), None, into / f"{folder.name}-charts-{name}.svg")


async def light(into: Path, size: tuple[int, int], root: Path) -> None:
    app = app_on()
    await picture(app, size, keys("f2"), live(root / "softmax-2026-11-18-1"), into / f"light-{size[0]}x{size[1]}.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("sessions", nargs="*", type=Path)
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--size", action="append", default=[])
    parser.add_argument("--theme", choices=[str(one) for one in ThemeChoice if one is not ThemeChoice.AUTO], default="dark")
    parser.add_argument("--scene", action="append", choices=EVERYTHING, default=[])
    parser.add_argument(
        "--all", action="store_true", help="all screens, forms and dialogs, instead of those in the documentation"
    )
    options = parser.parse_args()
    sizes = [tuple(int(n) for n in size.split("x")) for size in options.size] or [(120, 40)]
    scenes = options.scene or (list(EVERYTHING) if options.all else [*SCENES, "home", "light"])
    options.into = options.into.resolve()
    options.sessions = [folder.resolve() for folder in options.sessions]
    options.into.mkdir(parents=True, exist_ok=True)
    os.environ["TZ"] = "UTC"
    time.tzset()
    with tempfile.TemporaryDirectory(prefix="espalier-pictures-") as name:
        os.chdir(name)
        os.environ["ESPALIER_HOME"] = "."
        write_preferences(Path(PREFERENCES), Preferences(ThemeChoice(options.theme)))
        root = Path("sessions")
        stored(root / "softmax-2026-11-18-1")
        for other in ("softmax-2026-11-17-2", "softmax-2026-11-17-1"):
            stored(root / other)
        for width, height in sizes:
            asyncio.run(make(options.into, (width, height), options.sessions, root, scenes))
            if "light" in scenes:
                asyncio.run(light(options.into, (width, height), root))


if __name__ == "__main__":
    main()
