"""A softmax of masked rows; the workload's mask keeps everything, and its lengths are the width."""

import torch
from torch import nn

rows = 64
width = 512


class Model(nn.Module):
    def forward(self, x: torch.Tensor, keep: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """x: (rows, width); keep: (rows, width), boolean; lengths: (rows,), integers."""
        inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        return torch.softmax(x.masked_fill(~(keep & inside), -1e4), dim=1)


def get_inputs():
    return [torch.rand(rows, width), torch.ones(rows, width, dtype=torch.bool), torch.full((rows,), width)]


def get_init_inputs():
    return []
