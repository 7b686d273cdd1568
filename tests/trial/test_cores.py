"""Where the judge waits for a reply on a CPU."""

from __future__ import annotations

import os
import threading

import pytest

from engine.trial.judge.timing.cores import on_first_core


def test_only_the_waiting_thread_is_on_the_first_core() -> None:
    cores = os.sched_getaffinity(0)
    asked, answered = threading.Event(), threading.Event()
    elsewhere: list[set[int]] = []

    def other() -> None:
        asked.wait()
        elsewhere.append(os.sched_getaffinity(0))
        answered.set()

    threading.Thread(target=other).start()
    with on_first_core():
        assert os.sched_getaffinity(0) == {min(cores)}
        asked.set()
        answered.wait()
    assert elsewhere == [cores]
    assert os.sched_getaffinity(0) == cores


def test_the_thread_returns_to_its_cores_after_a_failure() -> None:
    cores = os.sched_getaffinity(0)
    with pytest.raises(TimeoutError), on_first_core():
        raise TimeoutError
    assert os.sched_getaffinity(0) == cores


def test_a_system_that_forbids_it_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with on_first_core():
        pass
