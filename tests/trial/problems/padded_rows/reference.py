"""Rows with padding behind them, as a batch of short sequences has."""

import torch
import torch.nn.functional as F
from torch import nn

rows = 64
width = 32


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, width); returns (rows, 8 × width)."""
        return F.pad(torch.tanh(x), (0, 7 * x.shape[1]))


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return []
