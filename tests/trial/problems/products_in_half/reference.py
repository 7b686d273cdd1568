"""A product in half precision whose inputs and output are fp32."""

import torch
from torch import nn

rows = 64
depth = 256
width = 96


class Model(nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x: (rows, depth), weight: (depth, width)."""
        return (x.bfloat16() @ weight.bfloat16()).float()


def get_inputs():
    return [torch.randn(rows, depth), torch.randn(depth, width)]


def get_init_inputs():
    return []
