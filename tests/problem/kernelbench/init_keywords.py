import torch
from torch import nn

in_features: int = 6
out_features: int = 4


class Model(nn.Module):
    """get_init_inputs gives positional and named arguments apart."""

    def __init__(self, in_features, out_features, bias: bool = True, scale=1.0):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.scale = scale

    def forward(self, x):
        return self.linear(x) * self.scale


def get_inputs():
    return [torch.randn(2, in_features)]


def get_init_inputs():
    return [[in_features], {"out_features": out_features, "bias": False, "scale": 0.5}]
