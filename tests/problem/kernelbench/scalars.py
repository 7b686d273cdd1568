import torch
from torch import nn

M = 6
N = 9
s = 2.5


class Model(nn.Module):
    """Numbers among forward's arguments, one of them a flag."""

    def forward(self, A, s, axis, keep):
        return torch.sum(A * s, dim=axis, keepdim=keep)


def get_inputs():
    return [torch.rand(M, N), s, 1, True]


def get_init_inputs():
    return []
