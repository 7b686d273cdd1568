"""Convolutions of many samples as matrix products equal torch's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.problem import precision
from engine.problem.torch_modes import batched_convolution


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, object]:
    dims = draw(st.integers(1, 3))
    groups, within, outputs = (draw(st.integers(1, 3)) for _ in range(3))
    kernel, stride, padding, dilation = ([draw(st.integers(low, 3)) for _ in range(dims)] for low in (1, 1, 0, 1))
    sizes = [hole * (k - 1) + 1 + draw(st.integers(0, 5)) for k, hole in zip(kernel, dilation, strict=True)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    bias = drawn(groups * outputs) if draw(st.booleans()) else None
    x = drawn(draw(st.integers(1, 5)), groups * within, *sizes)
    if draw(st.booleans()):
        x = x.transpose(1, -1).contiguous().transpose(1, -1)
    weight = drawn(groups * outputs, within, *kernel)
    return {
        "x": x, "weight": weight, "bias": bias, "stride": stride, "padding": padding, "dilation": dilation, "groups": groups
    }  # fmt: skip


@pytest.mark.slow
@given(convolutions(), st.sampled_from([1, 40, 1 << 25]))
def test_equals_torch_s_convolution(case: dict[str, object], at_a_time: int) -> None:
    x, weight, bias = case.pop("x"), case.pop("weight"), case.pop("bias")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batched_convolution, "_AT_A_TIME", at_a_time)
        found = batched_convolution.convolution(x, weight, bias, **case)  # type: ignore[arg-type]
    output_padding = [0] * len(case["stride"])  # type: ignore[arg-type]
    right = torch.convolution(
        x, weight, bias, case["stride"], case["padding"], case["dilation"], False, output_padding, case["groups"]  # type: ignore[arg-type]
    )  # fmt: skip
    torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("samples", "channels", "side", "suits"),
    [(4096, 1, 32, True), (64, 6, 14, True), (63, 6, 14, False), (128, 64, 128, False)],
)
def test_many_small_samples_suit(samples: int, channels: int, side: int, suits: bool) -> None:
    x, weight = torch.empty(samples, channels, side, side, device="meta"), torch.empty(8, channels, 3, 3, device="meta")
    assert batched_convolution.suits(x, weight, (1, 1), (1, 1), (1, 1)) is suits


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_bias_is_added_at_last(dims: int, transposed: bool) -> None:
    """In float64 on a GPU, whatever torch would do with it: also without a batch dimension."""
    x, bias = torch.randn(2, 4, *[6] * dims, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    weight = torch.randn(4, 2, *[3] * dims, dtype=torch.float64)
    settings = [1] * dims, [1] * dims, [1] * dims, transposed, [0] * dims, 2
    asked: list[object] = []

    def func(*given: object) -> torch.Tensor:
        asked.append(given[2])
        return torch.ops.aten.convolution.default(*given)  # type: ignore[no-any-return]

    for added in (bias, None):
        found = precision._convolution(func, (x, weight, added, *settings), {})
        torch.testing.assert_close(found, torch.convolution(x, weight, added, *settings), rtol=1e-12, atol=1e-12)
    assert asked == [None, None]
