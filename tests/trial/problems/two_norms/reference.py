"""Two norms with an activation between them: their weights start as the same constants, and differ after training."""

import torch
from torch import nn

rows = 32
width = 96


class Model(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.first = nn.LayerNorm(width)
        self.second = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, width)."""
        return self.second(torch.tanh(self.first(x)))


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width]
