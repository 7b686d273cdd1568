"""Rows of length one; a row of zeros stays as it is."""

import torch
from torch import nn

rows = 64
width = 512


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, width)."""
        return torch.nn.functional.normalize(x, dim=1)


def get_inputs():
    return [torch.rand(rows, width)]


def get_init_inputs():
    return []
