"""Collections look at what changes, not at what was loaded to stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tui import garbage


@pytest.fixture(autouse=True)
def usual_collections() -> Iterator[None]:
    gc.collect()
    callbacks = list(gc.callbacks)
    yield
    gc.callbacks[:] = callbacks
    gc.unfreeze()


def kept_objects(count: int) -> list[list[int]]:
    return [[] for _ in range(count)]


@pytest.mark.parametrize(("count", "is_frozen"), [(2 * garbage.MANY_NEW, True), (10, False)])
def test_what_was_read_is_frozen_where_it_is_much(count: int, is_frozen: bool) -> None:
    before = gc.get_freeze_count()
    with garbage.without_collections():
        assert not gc.isenabled()
        kept = kept_objects(count)
    assert gc.isenabled()
    assert (gc.get_freeze_count() >= before + len(kept)) is is_frozen


def test_collections_go_on_after_an_error() -> None:
    with pytest.raises(ValueError, match="unread"), garbage.without_collections():
        raise ValueError("unread")
    assert gc.isenabled()


@pytest.mark.parametrize(("count", "is_frozen"), [(garbage.MANY_KEPT, True), (10, False)])
def test_a_growing_search_is_frozen_by_the_collection_that_looked_at_it(count: int, is_frozen: bool) -> None:
    garbage.shorten_collections()
    garbage.shorten_collections()
    assert gc.callbacks.count(garbage._freeze_many) == 1
    before = gc.get_freeze_count()
    kept = kept_objects(count)
    gc.collect()
    assert (gc.get_freeze_count() >= before + len(kept)) is is_frozen
