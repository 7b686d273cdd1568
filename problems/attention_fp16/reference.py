"""Scaled dot-product attention in half precision, without a mask."""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 4
heads = 16
sequence = 4096
head_dim = 128


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q, k, v: (batch_size, heads, sequence, head_dim), float16 → the same shape."""
        return F.scaled_dot_product_attention(q, k, v)


def get_inputs():
    shape = (batch_size, heads, sequence, head_dim)
    return [torch.randn(shape, dtype=torch.float16) for _ in range(3)]


def get_init_inputs():
    return []
