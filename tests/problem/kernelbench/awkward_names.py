import torch
from torch import nn

key = 3
sms = 7
out = 2.5
_hidden = 9
EOF = -1
null = float("inf")


class Model(nn.Module):
    """Arguments whose names are words of C++, types of the system, or the ABI's own."""

    def forward(self, key, time, default, out, Out, workspace, größe):
        return key + time + default + out + Out + workspace + größe


def get_inputs():
    return [torch.randn(4) for _ in range(7)]


def get_init_inputs():
    return []
