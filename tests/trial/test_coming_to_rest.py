"""Processes that were told to stop: one that waits for a core on a busy machine is not one that keeps running."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from engine.trial.runner import host

RUNNER = 77


@pytest.fixture
def stops_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, float], bool]:
    """The runner stops at the ``passes``-th look; each look takes 0.1 s, and meanwhile it uses so much of a core."""

    def told(passes: int, share: float) -> bool:
        clock, used, looks = count(), count(), count(1)
        monkeypatch.setattr("time.monotonic", lambda: 0.1 * next(clock))
        monkeypatch.setattr("time.sleep", lambda _: None)
        monkeypatch.setattr(host, "_signal_all", lambda _: None)
        monkeypatch.setattr(host, "_other_pids", lambda: [RUNNER])
        monkeypatch.setattr(host, "_processor_seconds", lambda: {RUNNER: 0.1 * share * next(used)})
        monkeypatch.setattr(host, "_threads_at_rest", lambda _: True)
        monkeypatch.setattr(host, "_stopped", lambda _: next(looks) >= passes)
        return host._come_to_rest({RUNNER})

    return told


@pytest.mark.parametrize(
    ("passes", "share", "rests"),
    [
        (1, 0.0, True),
        (3, 0.1, True),  # within half a second everything may still be on its way
        (3, 1.0, False),  # it worked for what is in no call's time
        (60, 0.0, True),  # six seconds without a core
        (200, 0.0, False),  # nothing waits for twenty
        (60, 1.0, False),  # woken by another, it runs
        (60, 0.1, False),
    ],
)
def test_a_runner_that_waits_for_a_core_is_waited_for(
    stops_after: Callable[[int, float], bool], passes: int, share: float, rests: bool
) -> None:
    assert stops_after(passes, share) is rests


@pytest.mark.parametrize(
    ("passes", "rests"),
    [
        (10, True),  # the driver may work for it for a second
        (60, False),  # woken by another
    ],
)
def test_a_runner_is_waited_for_while_the_driver_works_for_it(
    stops_after: Callable[[int, float], bool], monkeypatch: pytest.MonkeyPatch, passes: int, rests: bool
) -> None:
    """The baseline was said to keep running while the sandbox was frozen, and the problem could not be measured."""
    monkeypatch.setenv("ESPALIER_DEVICE", "cuda:0")
    assert stops_after(passes, 1.0) is rests


@pytest.mark.parametrize(("looks", "rests"), [(3, True), (200, False)])
def test_a_runner_rests_once_a_thread_that_ends_has_ended(looks: int, rests: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux reports a process as stopped while a thread of it ends. What that one does last can resume a child process."""
    clock, looked = count(), count()
    monkeypatch.setattr("time.monotonic", lambda: 0.1 * next(clock))
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(host, "_signal_all", lambda _: None)
    monkeypatch.setattr(host, "_other_pids", lambda: [RUNNER])
    monkeypatch.setattr(host, "_stopped", lambda _: True)
    monkeypatch.setattr(host, "_threads_at_rest", lambda _: next(looked) >= looks)
    assert host._come_to_rest({RUNNER}) is rests
    assert next(looked) >= min(looks, 100)


def test_processor_time_is_read_for_this_process() -> None:
    fields = host._fields("/proc/self")
    assert sum(map(int, fields[11:13])) > 0
