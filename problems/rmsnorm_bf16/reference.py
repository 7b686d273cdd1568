"""Root-mean-square normalisation of each token's hidden vector in bfloat16, with a weight for every element."""

import torch
import torch.nn.functional as F
from torch import nn

tokens = 4096
hidden = 4096
eps = 1e-5


class Model(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        # The usual ones would let a kernel pass that leaves the weight out.
        self.weight = nn.Parameter(torch.empty(size, dtype=torch.bfloat16).uniform_(0.5, 1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (tokens, hidden), bfloat16 → the same shape."""
        return F.rms_norm(x, self.weight.shape, self.weight, eps)


def get_inputs():
    return [torch.randn(tokens, hidden, dtype=torch.bfloat16)]


def get_init_inputs():
    return [hidden]
