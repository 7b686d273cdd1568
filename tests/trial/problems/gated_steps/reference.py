"""The last state of a recurrence whose gates forget half of it at each step."""

import torch
from torch import nn

rows = 8
steps = 128
width = 32


class Model(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.gate = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, steps, width)."""
        keep = torch.sigmoid(self.gate(x))
        state = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            state = keep[:, step] * state + (1 - keep[:, step]) * x[:, step]
        return state


def get_inputs():
    return [torch.randn(rows, steps, width)]


def get_init_inputs():
    return [width]
