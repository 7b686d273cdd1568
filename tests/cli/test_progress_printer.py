"""Progress lines: whom a lease is waited for is printed when that changes, however often it is said."""

from __future__ import annotations

import asyncio

import pytest

from engine.cli import drive
from engine.cli.drive import ProgressPrinter

WAITING = "waiting for cpu, held by process 41"


def test_a_lease_that_is_waited_for_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    printer = ProgressPrinter()
    for text in (WAITING, WAITING, "prepare", WAITING, f"{WAITING}, 1 ahead", "cpu is free", WAITING):
        printer.step(text)
    printed = capsys.readouterr().err.splitlines()
    assert [line.partition("waiting for ")[2] for line in printed] == [
        "cpu, held by process 41", "", "cpu, held by process 41, 1 ahead", "", "cpu, held by process 41",
    ], printed  # fmt: skip


def test_without_a_terminal_passing_progress_prints_whom_it_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    printer = ProgressPrinter()
    for text in (WAITING, "trial 1 of 5", WAITING):
        printer.show(text)
    (printed,) = capsys.readouterr().err.splitlines()
    assert WAITING in printed


def test_without_a_terminal_a_long_silence_ends_with_what_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(drive.time, "time", lambda: now)
    printer = ProgressPrinter()
    for moment in (101.0, 109.0, 111.0, 112.0, 123.0):
        now = moment
        printer.show(f"k3 trial at {moment}")
    assert [line.partition("trial at ")[2] for line in capsys.readouterr().err.splitlines()] == ["111.0", "123.0"]


def test_without_a_terminal_what_runs_for_long_is_printed_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drive, "_SILENCE", 0.05)

    async def work() -> None:
        printer = ProgressPrinter()
        printer.show("building")
        printer.show("reading the problem")
        await asyncio.sleep(0.3)
        printer.step("measured")
        printer.show("the next kernel")
        printer.clear()
        await asyncio.sleep(0.2)

    asyncio.run(work())
    one, other = capsys.readouterr().err.splitlines()
    assert "reading the problem" in one
    assert "measured" in other
