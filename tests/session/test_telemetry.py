"""A device's load, as the session's header shows it."""

from __future__ import annotations

import time

from engine.session.telemetry import LoadMonitor, LoadReading, open_monitor


def test_a_monitor_has_the_latest_reading_until_it_is_closed() -> None:
    readings = iter([LoadReading(10, 50), LoadReading(83, 61, "power cap")])
    monitor = LoadMonitor(lambda: lambda: next(readings), period=0.01)
    end = time.monotonic() + 5
    texts: list[str] = []
    while time.monotonic() < end and len(texts) < 3:
        latest = monitor.latest
        if latest is None and texts:
            break
        if latest is not None and latest.text not in texts:
            texts.append(latest.text)
    monitor.close()
    assert texts[0] == "GPU 10% 50 °C"
    assert texts[-1] in ("GPU 10% 50 °C", "GPU 83% 61 °C ▼ throttled: power cap")


def test_a_device_that_cannot_be_read_has_no_reading() -> None:
    def missing() -> object:
        raise ImportError("no library")

    monitor = LoadMonitor(missing)  # type: ignore[arg-type]
    monitor.close()
    assert monitor.latest is None
    assert open_monitor("cpu") is None
