import torch
from torch import nn

N = 48


class Model(nn.Module):
    """A plain product; arguments and constants are upper case, as level 1 writes them."""

    def __init__(self):
        super().__init__()

    def forward(self, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return torch.matmul(A, B.T).T


def get_inputs():
    A = torch.rand(N, 2 * N)
    B = torch.rand(N, 2 * N)
    return [A, B]


def get_init_inputs():
    return []  # nothing to initialise
