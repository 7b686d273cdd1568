"""Figures that come from beside the session: the device's load, and what is in the machine code."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

from support import faces, sessions, showcase
from support.faces import FakeDoors, Watch, until
from support.hosts import Host
from textual.pilot import Pilot

from engine.domain.state import Kernel
from engine.session.live import LiveSession
from tui.app import EspalierApp
from tui.bridge import Bridge, NewSession, Say
from tui.mixes import Mixes
from tui.telemetry import Feed, Reading, feed_for
from tui.widgets.detail_tabs import DetailTabs, Tab
from tui.widgets.session_header import SessionHeader


def test_a_feed_shows_the_latest_reading_until_it_is_closed() -> None:
    readings = iter([Reading(10, 50), Reading(83, 61, "power cap")])
    feed = Feed(lambda: lambda: next(readings), every=0.01)
    end = time.monotonic() + 5
    words = []
    while time.monotonic() < end and len(words) < 3:
        found = feed.latest
        if found is None and words:
            break
        if found is not None and found.words not in words:
            words.append(found.words)
    feed.close()
    assert words[0] == "GPU 10 % 50 °C"
    assert words[-1] in ("GPU 10 % 50 °C", "GPU 83 % 61 °C ▼ throttled: power cap")


def test_a_device_that_cannot_be_read_is_silence() -> None:
    def missing() -> object:
        raise ImportError("no library")

    feed = Feed(missing)  # type: ignore[arg-type]
    feed.close()
    assert feed.latest is None
    assert feed_for("cpu") is None


class FedDoors(FakeDoors):
    async def begin(self, wanted: NewSession, say: Say) -> Bridge:
        assert wanted.folder is not None
        live = LiveSession.create(wanted.folder, sessions.opened(mode=wanted.mode), self.ports(wanted.folder))
        return Bridge(live, live.folder, live=live, feed=Feed(lambda: lambda: Reading(83, 61, "heat")))


def test_the_header_shows_the_device(tmp_path: Path) -> None:
    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await pilot.press("escape")
        words = "GPU 83 % 61 °C ▼ throttled: heat"
        await until(pilot, lambda: any(words in head.render_line(0).text for head in app.screen.query(SessionHeader)))

    faces.steered(tmp_path / "s", act, doors=FedDoors(), size=(160, 40))


def test_the_instruction_mix_is_looked_up_once_and_shown_when_it_is_there() -> None:
    asked: list[str] = []

    async def read(key: str) -> dict[str, int]:
        asked.append(key)
        await asyncio.sleep(0)
        return {"total": 400, "FFMA": 128 if key == "artefact k14" else 96, "LDG.128": 8}

    async def run() -> None:
        mixes = Mixes(read)
        host = Host(lambda: DetailTabs(showcase.read_blob, mixes.of))
        async with host.run_test(size=(100, 40)) as pilot:
            tabs = host.query_one(DetailTabs)
            mixes.told = tabs.mixes_came
            tabs.kernel = "k14"
            tabs.show(Tab.MACHINE)
            view = tabs.query_one("LinesView")
            await until(pilot, lambda: any("FFMA" in line.text and "▲ 32" in line.text for line in view.lines))  # type: ignore[attr-defined]
            tabs.kernel = "k1"
            tabs.kernel = "k14"
            await pilot.pause()
        assert sorted(asked) == sorted(set(asked))

    asyncio.run(run())


def test_a_kernel_without_an_artefact_has_no_mix() -> None:
    state, _ = showcase.session()
    kernel: Kernel = state.kernels["k20"]
    assert not kernel.artefact
    assert Mixes().of(kernel) is None


def test_a_mix_that_the_journal_has_is_not_looked_up() -> None:
    async def read(key: str) -> dict[str, int]:
        raise AssertionError(f"{key} was looked up")

    async def run() -> None:
        state, _ = showcase.session()
        kernel = replace(state.kernels["k14"], instructions={"total": 7, "FFMA": 3})
        assert Mixes(read).of(kernel) == {"total": 7, "FFMA": 3}
        await asyncio.sleep(0)

    asyncio.run(run())
