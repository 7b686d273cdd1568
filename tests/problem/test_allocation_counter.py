"""What a forward pass is counted to take, beside what it takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile

from engine.problem.counting.allocation_counter import AllocationCounter

ONE, OTHER = torch.rand(300, 400), torch.rand(300, 400)
SMALL = 40_000
"""Bytes of results that are not counted alike: a tenth of an operand."""


def taken_by(call: Callable[..., object]) -> int:
    """The most bytes that the allocator of the CPU had given at a time."""
    call(ONE, OTHER)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        kept = call(ONE, OTHER)
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    taken = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        taken += event.nbytes()
        most = max(most, taken)
    assert kept is not None
    return most


CALLS: tuple[Callable[..., object], ...] = (
    F.mse_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.l1_loss,
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
    F.soft_margin_loss,
    torch.dist,
    lambda x, _: x.logsumexp(1),
    lambda x, _: x.median(),
    lambda x, _: x.nanmedian(),
    lambda x, _: x.kthvalue(5, dim=1),
    lambda x, _: x.median(1),
    lambda x, _: x.softmax(1),
    lambda x, y: F.mse_loss(x, y, reduction="none"),
    lambda x, y: F.huber_loss(x, y, reduction="none"),
    lambda x, y: F.kl_div(x.log(), y, reduction="batchmean"),
    lambda x, y: x @ y.T,
    lambda x, y: (x - y).abs().mean(),
)


@pytest.mark.parametrize("call", CALLS)
def test_what_operators_take_inside_is_counted(call: Callable[..., object]) -> None:
    """Nothing was planned for the result of a Huber loss before its mean: judging 8 GiB of operands took 96 of an H200."""
    taken = taken_by(call)
    with FakeTensorMode() as mode:
        operands = mode.from_tensor(ONE), mode.from_tensor(OTHER)
        with AllocationCounter() as counted:
            call(*operands)
    assert taken - SMALL <= counted.peak <= taken + SMALL
