"""The product of two matrices in single precision."""

import torch
from torch import nn

m = 4096
n = 4096
k = 4096


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a: (m, k), b: (k, n), both float32 → (m, n)."""
        return a @ b


def get_inputs():
    return [torch.randn(m, k), torch.randn(k, n)]


def get_init_inputs():
    return []
