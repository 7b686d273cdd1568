"""Layers that start as copies of one, as those of ``nn.TransformerEncoder`` do: they differ after training."""

import copy

import torch
from torch import nn

rows = 32
width = 96


class Model(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        layer = nn.Linear(width, width)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, width)."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width]
