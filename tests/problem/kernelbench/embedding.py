import torch
from torch import nn

vocabulary = 32
width = 8
batch_size, length = 3, 5


class Model(nn.Module):
    """Integer input alone, a half-precision table."""

    def __init__(self, vocabulary, width):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width).to(torch.bfloat16)

    def forward(self, tokens):
        return self.table(tokens).mean(dim=1)


def get_inputs():
    return [torch.randint(0, vocabulary, (batch_size, length))]


def get_init_inputs():
    return [vocabulary, width]
