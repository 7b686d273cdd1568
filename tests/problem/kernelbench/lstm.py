import torch
from torch import nn

batch_size = 2
sequence_length = 5
input_size = 4
hidden_size = 6
num_layers = 2


class Model(nn.Module):
    """An LSTM whose first hidden state is an ordinary attribute; returns (out, (h, c))."""

    def __init__(self, input_size, hidden_size, num_layers):
        super().__init__()
        self.h0 = torch.randn((num_layers, batch_size, hidden_size))
        self.c0 = torch.randn((num_layers, batch_size, hidden_size))
        self.lstm = nn.LSTM(input_size, hidden_size, num_layers, batch_first=True)

    def forward(self, x):
        self.h0 = self.h0.to(x.device)
        self.c0 = self.c0.to(x.device)
        out, state = self.lstm(x, (self.h0, self.c0))
        return out, state


def get_inputs():
    return [torch.randn(batch_size, sequence_length, input_size)]


def get_init_inputs():
    return [input_size, hidden_size, num_layers]
