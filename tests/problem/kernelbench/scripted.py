import torch
from torch import nn

rows = 4
width = 8


class Model(nn.Module):
    """A layer that torch.jit has compiled."""

    def __init__(self, width):
        super().__init__()
        self.layer = torch.jit.script(nn.Linear(width, width))

    def forward(self, x):
        return torch.relu(self.layer(x))


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width]
