"""Gradients divided by a loss scale, and whether all are finite: what mixed-precision training does before each step."""

import torch
from torch import nn

rows = 256
width = 256


class Model(nn.Module):
    def forward(self, gradients: torch.Tensor, inverse_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """gradients: (rows, width), inverse_scale: (1)."""
        unscaled = gradients * inverse_scale
        return unscaled, torch.isfinite(unscaled).all()


def get_inputs():
    return [torch.randn(rows, width), torch.rand(1) + 0.5]


def get_init_inputs():
    return []
