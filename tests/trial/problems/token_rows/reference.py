"""Rows of a large table, of which one draw of tokens reads few."""

import torch
from torch import nn

tokens = 256
vocabulary = 500000
width = 8


class Model(nn.Module):
    """An embedding, each of its rows times a weight."""

    def __init__(self, vocabulary: int, width: int):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)

    def forward(self, x: torch.Tensor, weights: torch.Tensor):
        """x, weights: (tokens,)."""
        return self.table(x) * weights[:, None]


def get_inputs():
    return [torch.randint(vocabulary, (tokens,)), torch.rand(tokens)]


def get_init_inputs():
    return [vocabulary, width]
