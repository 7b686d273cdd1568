"""A convolution with 3x3 weights and ReLU."""

import torch
from torch import nn

batch = 4
size = 32


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 32, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, 16, size, size)."""
        return torch.relu(self.conv(x))


def get_inputs():
    return [torch.randn(batch, 16, size, size)]


def get_init_inputs():
    return []
