import torch
from torch import nn

dim = 4
hidden = dim * 4
heads = 2
head_dim = hidden // heads
wide = hidden > 100
pair = (dim, hidden)
dim2 = dim
dim2 += 1


def width(size=hidden):
    return size


class Model(nn.Module):
    """Module-level numbers derived from one another, in assignments and in defaults."""

    size = head_dim

    def forward(self, x):
        return x.reshape(-1, heads, self.size)


def get_inputs():
    return [torch.randn(3, width())]


def get_init_inputs():
    return []
