import torch
from torch import nn

dim = 256


class Model(nn.Module):
    """Draws random numbers in forward."""

    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.5)


def get_inputs():
    return [torch.randn(4, dim)]


def get_init_inputs():
    return []
