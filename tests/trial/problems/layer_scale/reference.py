"""Channels scaled by a small number, as layer scale does, then the maximum over tokens."""

import torch
from torch import nn

batch = 8
tokens = 64
channels = 48


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, tokens, channels)."""
        return (x * self.weight).amax(dim=1)


def get_inputs():
    return [torch.randn(batch, tokens, channels)]


def get_init_inputs():
    return [channels]
