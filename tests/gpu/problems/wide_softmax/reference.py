"""Softmax over the rows of a scaled matrix: an input, a weight, a maximum, an exponential and a sum, 16 MiB in and out."""

import torch
from torch import nn

rows = 512
width = 8192


class Model(nn.Module):
    """``softmax(x * weight)`` over the last dimension."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * self.weight, dim=1)


def get_inputs():
    return [torch.rand(rows, width)]


def get_init_inputs():
    return [width]
