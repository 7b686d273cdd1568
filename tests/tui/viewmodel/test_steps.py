"""The steps of a session's start: a wait for the device is one step, and that the device is free is none."""

from __future__ import annotations

from engine.domain.device_waits import free_text, waiting_text
from tui.viewmodel.steps import StepLog, step_lines

WAITS = [waiting_text("cpu", f"process {number}") for number in (7, 8)]


def test_a_wait_for_the_device_is_one_step_that_ends_when_the_device_is_free() -> None:
    log = StepLog()
    for now, text in enumerate(("compiling the naive port", *WAITS)):
        log.add(text, float(now))
    assert [one.text for one in log.steps] == ["compiling the naive port", WAITS[1]]
    assert [line.text.strip()[0] for line in step_lines(log.steps, 5.0, 80)] == ["✓", "◔"]
    log.add(free_text("cpu"), 11.0)
    assert log.running is None
    shown = "\n".join(line.text for line in step_lines(log.steps, 60.0, 80))
    assert "free" not in shown
    assert "10 s" in shown, "the wait lasted so long"
    log.add("timing the baselines", 12.0)
    assert log.running is not None
    assert len(log.steps) == 3
