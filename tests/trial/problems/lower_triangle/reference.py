"""Half of its output is zero: fresh memory that is zero would be right there."""

import torch
from torch import nn

rows = 512


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, rows)."""
        return torch.tril(x * 2.0)


def get_inputs():
    return [torch.randn(rows, rows)]


def get_init_inputs():
    return []
