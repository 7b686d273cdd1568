"""Weight normalisation: the magnitudes start as the norms of the directions, and differ after training."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

rows = 32
width = 96


class Model(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.layer = weight_norm(nn.Linear(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, width)."""
        return torch.tanh(self.layer(x))


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width]
