import torch
from torch import nn

limit = 5


class Model(nn.Module):
    """Looks at its input's values to decide; several dtypes come out."""

    def forward(self, x, weights):
        if x.sum() > limit:
            x = -x
        return [x.argmax(dim=1), x.double() @ weights, x.half()]


def get_inputs():
    return [torch.randn(4, 6), torch.randn(6, 2, dtype=torch.float64)]


def get_init_inputs():
    return []
