"""Which work may start: lanes, exclusion on a CPU, and no starvation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain import work as w
from engine.session.scheduler import Lane, Lanes, lane, work_to_start

CPUS = Lanes(builds=3, models=2, device_builds=True, workers=3)
GPUS = Lanes(builds=2, models=2, device_builds=False, workers=3)
PAIR = Lanes(builds=2, models=2, device_builds=False, workers=2)
CPU = Lanes(builds=2, models=2, device_builds=True)
GPU = Lanes(builds=2, models=2, device_builds=False)

WORKS = {
    "P": w.Prepare(), "m1": w.Measure("k1", 0), "m2": w.Measure("k2", 0), "v3": w.Verify("k3", 0), "b4": w.Build("k4", 0),
    "b5": w.Build("k5", 0), "b6": w.Build("k6", 0), "r7": w.Repair("k7", 0), "i1": w.Implement("i1"),
    "i2": w.Implement("i2"), "q1": w.Propose(1, (), 1), "x8": w.Race("k8", "k1"), "x9": w.Race("k9", "k1"),
    "xa": w.Race("ka", "kb"),
}  # fmt: skip
NAMES = {work.key: name for name, work in WORKS.items()}


def started(owed: str, in_hand: str = "", lanes: Lanes = GPU, shut: tuple[Lane, ...] = ()) -> str:
    works = [WORKS[name] for name in owed.split()]
    chosen = work_to_start(works, {WORKS[name].key for name in in_hand.split()}, lanes, shut)
    return " ".join(NAMES[work.key] for work in chosen)


@pytest.mark.parametrize(
    ("owed", "in_hand", "lanes", "expected"),
    [
        ("", "", GPU, ""),
        ("P", "", CPU, "P"),
        ("P", "P", CPU, ""),
        ("m1 m2 v3", "", GPU, "m1"),
        ("m1 m2 v3", "m1", GPU, ""),
        ("v3 b4 b5 b6", "", GPU, "v3 b4 b5"),
        ("b4 b5 b6", "b4", GPU, "b5"),
        ("b5 b6", "m1", GPU, "b5 b6"),
        ("v3 b4 b5 b6", "", CPU, "b4 b5"),
        ("v3 b4 b5 b6", "b4 b5", CPU, ""),
        ("v3 b6", "b5", CPU, "b6"),
        ("v3", "b6", CPU, ""),
        ("v3", "", CPU, "v3"),
        ("b4 b5", "v3", CPU, ""),
        ("r7 i1 i2 q1", "", CPU, "r7 i1"),
        ("i1 i2 q1", "m1 i1", CPU, "i2"),
        ("m1 m2 v3 b4 b5 b6", "", GPUS, "m1 m2 v3 b4 b5"),
        ("m2 v3", "m1", GPUS, "m2 v3"),
        ("m1 v3 b4 b5", "", CPUS, "m1 b4 b5"),
        ("m1 v3 b4", "b5 b6", CPUS, "b4"),
        ("x8 x9 xa", "", GPUS, "x8 xa"),
        ("x9 xa", "x8", GPUS, "xa"),
        ("m1 m2 v3 x9", "x8", GPUS, "m1 m2 v3"),
        ("m1 m2 v3 xa", "", PAIR, "m1 m2"),
        ("v3 xa", "m1 m2", PAIR, ""),
        ("v3 xa", "m1", PAIR, "v3 xa"),
    ],
)
def test_owed_work_starts_where_its_lane_has_room(owed: str, in_hand: str, lanes: Lanes, expected: str) -> None:
    assert started(owed, in_hand, lanes) == expected


def test_a_closed_lane_starts_nothing_and_blocks_no_other() -> None:
    assert started("v3 b4 i1", lanes=CPU, shut=(Lane.BUILD,)) == "v3 i1"
    assert started("v3 b4 i1", lanes=GPU, shut=(Lane.DEVICE, Lane.MODEL)) == "b4"


@given(
    owed=st.lists(st.sampled_from(sorted(WORKS)), unique=True),
    lanes=st.builds(Lanes, st.integers(1, 4), st.integers(1, 4), st.booleans(), st.integers(1, 4)),
)
def test_all_owed_work_ends_within_the_lanes(owed: list[str], lanes: Lanes) -> None:
    """Everything starts once; device work never overlaps, nor do builds and device work on a CPU."""
    waiting = [WORKS[name] for name in owed]
    in_hand: list[w.WorkKey] = []
    seen: list[w.WorkKey] = []
    while waiting or in_hand:
        for work in work_to_start(waiting, in_hand, lanes):
            assert work.key not in seen
            seen.append(work.key)
            in_hand.append(work.key)
        busy = [lane(key) for key in in_hand]
        assert busy, "nothing starts although something is owed"
        assert busy.count(Lane.DEVICE) - sum(key.kind == w.WorkKind.RACE for key in in_hand) <= lanes.workers
        assert lanes.workers > 1 or busy.count(Lane.DEVICE) <= 1
        assert busy.count(Lane.BUILD) <= lanes.builds
        assert busy.count(Lane.MODEL) <= lanes.models
        assert not (lanes.device_builds and lanes.workers == 1 and Lane.DEVICE in busy and Lane.BUILD in busy)
        done = in_hand.pop(0)
        waiting = [work for work in waiting if work.key != done]
    assert sorted(NAMES[key] for key in seen) == sorted(owed)
