import torch
from torch import nn

channels = 3
kernel_size = (3, 5)


class Model(nn.Module):
    """The list of initial arguments ends with a dictionary of named ones; the kernel's size is a tuple."""

    def __init__(self, channels, kernel_size, groups=1):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, kernel_size, groups=groups)

    def forward(self, x):
        return self.conv(x).amax(dim=(2, 3))


def get_inputs():
    return [torch.randn(2, channels, 9, 11)]


def get_init_inputs():
    return [channels, kernel_size, {"groups": channels}]
