"""No timer stops the event loop, whatever its interval, and a timer that fires once fires."""

from __future__ import annotations

import asyncio
import itertools
import math

import pytest
from support import ui
from textual import _time
from textual.app import App
from textual.notifications import Notification, Notify
from textual.timer import Timer
from textual.widgets._toast import Toast

from tui import timers
from tui.timers import guard_timers


class _Looped(Exception):
    """The loop of a timer asked for the time again and again without waiting."""


@pytest.mark.parametrize("interval", [-1.0, -1e-9, 0.0, 1e-12, math.nan, -math.inf])
def test_a_timer_that_is_due_once_fires_once_at_any_interval(interval: float) -> None:
    guard_timers()
    fired: list[float] = []

    async def act() -> None:
        app: App[None] = App()
        async with app.run_test() as pilot:
            app.set_timer(interval, lambda: fired.append(interval))
            await pilot.pause(0.05)

    asyncio.run(act())
    assert fired == [interval]


class _Recorded(Timer):
    """A timer that notes its ticks."""

    ticks = 0

    async def _tick(self, *, next_timer: float, count: int) -> None:
        self.ticks += 1


def test_a_late_timer_that_is_due_once_still_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    guard_timers()
    now = itertools.count(0, 5)  # each look at the clock is five seconds later
    monkeypatch.setattr(_time, "get_time", lambda: float(next(now)))
    timer = _Recorded(App(), 0.001, repeat=0)
    asyncio.run(asyncio.wait_for(timer._run(), 5))
    assert timer.ticks == 1


def test_textual_still_needs_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """When this fails, Textual has fixed its timers: remove ``tui.timers``."""
    looks = itertools.count()

    def look() -> float:
        if (seen := next(looks)) > 10_000:
            raise _Looped
        return seen * 1e-6

    monkeypatch.setattr(_time, "get_time", look)
    monkeypatch.setattr(Timer, "__init__", timers._original_init)
    with pytest.raises(_Looped):
        asyncio.run(_Recorded(App(), -0.001, repeat=0)._run())


def test_a_toast_past_its_time_goes_away_and_stops_nothing() -> None:
    guard_timers()

    async def act() -> None:
        app: App[None] = App()
        async with app.run_test() as pilot:
            await app.screen.mount(Toast(Notification("late", timeout=-5.0)))
            await pilot.pause(0.1)
            assert not app.screen.query(Toast)

    asyncio.run(act())


class _Fading(Notification):
    """A notification whose time is over from the second look on."""

    looks = itertools.count()

    @property
    def has_expired(self) -> bool:
        return next(self.looks) > 0


@pytest.mark.slow
def test_a_toast_whose_time_ends_while_another_comes_is_no_error() -> None:
    _Fading.looks = itertools.count()

    async def act() -> None:
        app = ui.app()
        async with app.run_test():
            app._notifications.add(_Fading("old"))
            app._on_notify(Notify(Notification("new")))

    asyncio.run(act())
