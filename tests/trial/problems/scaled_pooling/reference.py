"""Channels scaled and shifted, then pooled: the maximum of scaled numbers is the scaled maximum of positive factors only."""

import torch
import torch.nn.functional as F
from torch import nn

batch = 4
size = 32
channels = 16


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, size, size)."""
        return F.max_pool2d(x * self.weight[:, None, None] + self.bias[:, None, None], 2)


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [channels]
