"""Collections look at what changes, not at what was loaded to stay."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from tui import garbage


@pytest.fixture(autouse=True)
def usual_collections() -> Iterator[None]:
    gc.collect()
    callbacks, threshold = list(gc.callbacks), gc.get_threshold()
    yield
    gc.callbacks[:] = callbacks
    gc.set_threshold(*threshold)
    gc.unfreeze()


def kept_objects(count: int) -> list[list[int]]:
    return [[] for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize(("count", "is_frozen"), [(2 * garbage.MANY_NEW, True), (10, False)])
def test_what_was_read_is_frozen_where_it_is_much(count: int, is_frozen: bool) -> None:
    before = gc.get_freeze_count()
    with garbage.without_collections():
        assert not gc.isenabled()
        kept = kept_objects(count)
    assert gc.isenabled()
    assert (gc.get_freeze_count() >= before + len(kept)) is is_frozen


@pytest.mark.slow
def test_collections_go_on_after_an_error() -> None:
    with pytest.raises(ValueError, match="unread"), garbage.without_collections():
        raise ValueError("unread")
    assert gc.isenabled()


@pytest.mark.slow
@pytest.mark.parametrize(("count", "is_frozen"), [(2 * garbage.MANY_KEPT, True), (10, False)])
def test_a_growing_search_is_frozen_by_the_collection_that_looked_at_it(count: int, is_frozen: bool) -> None:
    garbage.shorten_collections()
    garbage.shorten_collections()
    assert gc.callbacks.count(garbage._freeze_many) == 1
    before = gc.get_freeze_count()
    kept = kept_objects(count)
    gc.collect()
    assert len(kept) == count
    assert (gc.get_freeze_count() >= before + garbage.MANY_KEPT) is is_frozen


@pytest.mark.slow
def test_a_tuple_that_another_thread_fills_meanwhile_is_left_alone() -> None:
    """A tuple that something else refers to while it grows is a SystemError."""
    garbage.shorten_collections()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(1) as pool:
            filling = pool.submit(lambda: [tuple(str(n) for n in range(100)) for _ in range(10_000)])
            while not filling.done():
                gc.collect()
                for _ in range(20):
                    garbage._freeze_many("stop", {"generation": 2})
    finally:
        sys.setswitchinterval(before)
    assert len(filling.result()) == 10_000


@pytest.mark.slow
def test_full_collections_wait_for_the_event_loop() -> None:
    full: list[bool] = []
    allocates = True

    def note(phase: str, about: Mapping[str, int]) -> None:
        if phase == "stop" and about["generation"] == 2:
            full.append(allocates)

    async def act() -> list[list[int]]:
        nonlocal allocates
        kept = kept_objects(300_000)
        allocates = False
        for _ in range(3):
            await asyncio.sleep(0)
        return kept

    garbage.shorten_collections()
    gc.callbacks.append(note)
    asyncio.run(act())
    assert full
    assert not any(full), "one began in the middle of what allocates"
