import torch
from torch import nn

rows = 4
width = 8


class Model(nn.Module):
    """Layers that are converted when they are made, two with the same weight, and one in every call."""

    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(width).eval()
        self.first.bfloat16()
        self.norm.to(torch.bfloat16)

    def forward(self, x):
        scale = nn.Identity().to(x.device)
        scale.weight = nn.Parameter(torch.ones(1, dtype=torch.float32))
        scale = scale.to(torch.float64)
        return self.norm(self.second(self.first(x))), scale.weight * x.double()


def get_inputs():
    return [torch.rand(rows, width).bfloat16()]


def get_init_inputs():
    return [width]
