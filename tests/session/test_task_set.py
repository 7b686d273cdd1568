"""Work as tasks: abandoned work has no result and keeps its key until it has ended."""

from __future__ import annotations

import asyncio
from typing import Any

from support import sessions

from engine.domain import work as w
from engine.session.task_set import TaskSet

WORK = w.Build("k1", 0)
RESULT = w.Built("artefact", 0.1)


def _task_set() -> tuple[TaskSet, list[None]]:
    ended: list[None] = []
    return TaskSet(lambda: ended.append(None)), ended


async def _result(gate: asyncio.Event | None = None) -> w.Result:
    if gate is not None:
        await gate.wait()
    return RESULT


async def _stubborn(gate: asyncio.Event) -> w.Result:
    """Ends slowly after a cancellation, then returns a result anyway."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await gate.wait()
    return RESULT


async def _turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_result_is_collected_once_and_frees_the_key() -> None:
    async def act() -> Any:
        tasks, ended = _task_set()
        tasks.start(WORK, _result())
        assert tasks.keys == {WORK.key}
        await _turns()
        return tasks.collect(), tasks.collect(), tasks.keys, len(ended)

    assert sessions.run(act) == ([(WORK, RESULT)], [], frozenset(), 1)


def test_abandoned_work_keeps_its_key_until_it_has_ended_and_has_no_result() -> None:
    async def act() -> None:
        tasks, _ = _task_set()
        gate = asyncio.Event()
        tasks.start(WORK, _stubborn(gate))
        await _turns()
        tasks.abandon([WORK.key])
        await _turns()
        assert tasks.keys == {WORK.key}
        assert tasks.active == frozenset()
        gate.set()
        await _turns()
        assert tasks.collect() == []
        assert tasks.keys == frozenset()

    sessions.run(act)


def test_externally_cancelled_work_is_impossible_not_lost() -> None:
    async def act() -> Any:
        tasks, _ = _task_set()
        tasks.start(WORK, _result(asyncio.Event()))
        await _turns()
        for task in asyncio.all_tasks():
            if task.get_name() == str(WORK.key):
                task.cancel()
        await _turns()
        return tasks.collect()

    assert sessions.run(act) == [(WORK, w.Impossible("the task was cancelled"))]


def test_dropping_all_waits_until_everything_has_ended() -> None:
    async def act() -> None:
        tasks, _ = _task_set()
        gate = asyncio.Event()
        tasks.start(WORK, _stubborn(gate))
        await _turns()
        dropping = asyncio.create_task(tasks.drop_all())
        await _turns()
        assert not dropping.done()
        gate.set()
        await dropping
        assert tasks.keys == frozenset()
        assert tasks.collect() == []

    sessions.run(act)
