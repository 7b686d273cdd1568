"""How long the judge waits for a runner to enqueue a gated call."""

from __future__ import annotations

import pytest

from engine.trial.judge.runners.gate import ArmingLimit


@pytest.mark.parametrize(
    ("calls", "seconds"),
    {
        "unknown: the first call may compile": ([], 0.005),
        "then it may take long": ([(0.005, False)], 0.1),
        "whatever the first took": ([(0.004, True)], 0.1),
        "short calls": ([(0.005, False), (0.0002, True)], 0.005),
        "a model of many operators": ([(0.005, False), (0.004, True)], 0.016),
        "the longest counts": ([(0.005, False), (0.004, True), (0.002, True)], 0.016),
        "never longer": ([(0.005, False), (0.04, True)], 0.1),
        "one that waits for the device, tried again": ([(0.005, False), (0.1, False)], 0.1),
        "and given up": ([(0.005, False), (0.1, False), (0.1, False)], 0.005),
        "it may be enqueued later": ([(0.005, False), (0.1, False), (0.1, False), (0.003, True)], 0.012),
    }.values(),
)
def test_the_limit_is_learnt_from_the_first_calls(calls: list[tuple[float, bool]], seconds: float) -> None:
    limit = ArmingLimit()
    for took, armed in calls:
        limit.ended(took, armed=armed)
    assert limit.seconds == pytest.approx(seconds)
