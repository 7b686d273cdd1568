"""Work under way as tasks: what is abandoned leaves no result and keeps its key until it has ended."""

from __future__ import annotations

import asyncio
from typing import Any

from support import sessions

from engine.domain import work as w
from engine.session.hands import Hands

WORK = w.Build("k1", 0)
RESULT = w.Built("artefact", 0.1)


def _hands() -> tuple[Hands, list[None]]:
    ended: list[None] = []
    return Hands(lambda: ended.append(None)), ended


async def _result(gate: asyncio.Event | None = None) -> w.Result:
    if gate is not None:
        await gate.wait()
    return RESULT


async def _stubborn(gate: asyncio.Event) -> w.Result:
    """Takes its time to wind down, and then comes back as if nothing had happened."""
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
        hands, ended = _hands()
        hands.start(WORK, _result())
        assert hands.keys == {WORK.key}
        await _turns()
        return hands.collect(), hands.collect(), hands.keys, len(ended)

    assert sessions.run(act) == ([(WORK, RESULT)], [], frozenset(), 1)


def test_abandoned_work_keeps_its_key_until_it_has_ended_and_has_no_result() -> None:
    async def act() -> None:
        hands, _ = _hands()
        gate = asyncio.Event()
        hands.start(WORK, _stubborn(gate))
        await _turns()
        hands.abandon([WORK.key])
        await _turns()
        assert hands.keys == {WORK.key}
        assert hands.active == frozenset()
        gate.set()
        await _turns()
        assert hands.collect() == []
        assert hands.keys == frozenset()

    sessions.run(act)


def test_work_cancelled_from_outside_is_impossible_not_lost() -> None:
    async def act() -> Any:
        hands, _ = _hands()
        hands.start(WORK, _result(asyncio.Event()))
        await _turns()
        for task in asyncio.all_tasks():
            if task.get_name() == WORK.key:
                task.cancel()
        await _turns()
        return hands.collect()

    assert sessions.run(act) == [(WORK, w.Impossible("it was cancelled from outside"))]


def test_dropping_all_waits_until_everything_has_ended() -> None:
    async def act() -> None:
        hands, _ = _hands()
        gate = asyncio.Event()
        hands.start(WORK, _stubborn(gate))
        await _turns()
        dropping = asyncio.create_task(hands.drop_all())
        await _turns()
        assert not dropping.done()
        gate.set()
        await dropping
        assert hands.keys == frozenset()
        assert hands.collect() == []

    sessions.run(act)
