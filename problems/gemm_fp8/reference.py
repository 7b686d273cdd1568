"""The product of two matrices of eight-bit floats (e4m3) with a scale for every block, in bfloat16.

A scale of ``a`` belongs to 128 elements of a row, one of ``b`` to 128 × 128 elements: the scaling of DeepSeek-V3.
"""

import torch
import torch.nn.functional as F
from torch import nn

m = 4096
n = 4096
k = 7168
scale_block = 128


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
        """a: (m, k), b: (n, k), float8_e4m3fn; scale_a: (k / 128, m), scale_b: (n / 128, k / 128), float32 → (m, n)."""
        if has_scaled_product(a):
            kinds = F.ScalingType.BlockWise1x128, F.ScalingType.BlockWise128x128
            return F.scaled_mm(a, b.t(), scale_a.t(), kinds[0], scale_b.t(), kinds[1], output_dtype=torch.bfloat16)
        (rows, depth), columns, step = a.shape, b.shape[0], scale_block
        left = a.float().view(rows, depth // step, step) * scale_a.t()[:, :, None]
        right = b.float().view(columns // step, step, depth // step, step) * scale_b[:, None, :, None]
        return (left.view(rows, depth) @ right.view(columns, depth).t()).to(torch.bfloat16)


def has_scaled_product(a: torch.Tensor) -> bool:
    """Whether torch multiplies such operands itself: on Hopper, from torch 2.10 on."""
    hopper = a.is_cuda and torch.cuda.get_device_capability(a.device) == (9, 0)
    return hopper and scale_block == 128 and a.dtype == torch.float8_e4m3fn and hasattr(F, "scaled_mm")


def get_inputs():
    step = scale_block
    # Blocks of different magnitude: a kernel that takes one block's scale for another's is wrong.
    left = torch.randn(m, k // step, step) * (0.25 + torch.rand(m, k // step, 1))
    right = torch.randn(n // step, step, k // step, step) * (0.25 + torch.rand(n // step, 1, k // step, 1))
    scale_a = left.abs().amax(2) / 448
    scale_b = right.abs().amax((1, 3)) / 448
    a = (left / scale_a[:, :, None]).view(m, k).to(torch.float8_e4m3fn)
    b = (right / scale_b[:, None, :, None]).view(n, k).to(torch.float8_e4m3fn)
    return [a, b, scale_a.t().contiguous(), scale_b]


def get_init_inputs():
    return []
