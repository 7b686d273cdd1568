import torch
from torch import nn

seq_len = 4
batch_size = 3
input_size = 5
hidden_size = 7


class Model(nn.Module):
    """A bidirectional GRU whose hidden state is made in forward, and which keeps the last one for the next call."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.gru = nn.GRU(input_size, hidden_size, bidirectional=True)
        self.last = torch.zeros(1)

    def forward(self, x):
        h0 = torch.zeros(2, x.size(1), self.gru.hidden_size, device=x.device)
        out, h = self.gru(x, h0)
        self.last = h
        return out, h


def get_inputs():
    return [torch.rand(seq_len, batch_size, input_size)]


def get_init_inputs():
    return [input_size, hidden_size]
