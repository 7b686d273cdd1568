"""A softmax of the magnitudes of complex scores, turned by a complex buffer."""

import torch
from torch import nn

rows = 64
width = 512


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        angles = torch.arange(width) / width
        self.register_buffer("turn", torch.polar(torch.rand(width) + 0.5, angles))

    def forward(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """z: (rows, width), complex."""
        turned = z * self.turn
        return torch.softmax(turned.abs(), dim=1), turned


def get_inputs():
    return [torch.randn(rows, width, dtype=torch.complex64)]


def get_init_inputs():
    return [width]
