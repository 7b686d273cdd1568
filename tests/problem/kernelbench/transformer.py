import math

import torch
from torch import nn

batch_size = 2
max_seqlen = 16
seq_len = 12
n_embd = 24
n_head = 3
dropout = 0.0


class Attention(nn.Module):
    def __init__(self, n_embd, n_head, max_seqlen):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.register_buffer("bias", torch.tril(torch.ones(max_seqlen, max_seqlen)).view(1, 1, max_seqlen, max_seqlen))
        self.n_head = n_head

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        return (torch.softmax(att, dim=-1) @ v).transpose(1, 2).contiguous().view(B, T, C)


class Model(nn.Module):
    """A block of level 3: attention with a mask buffer, tied weights, a cast to float32 inside."""

    def __init__(self, n_embd, n_head, max_seqlen, dropout):
        super().__init__()
        self.ln = nn.LayerNorm(n_embd)
        self.attn = Attention(n_embd, n_head, max_seqlen)
        self.up = nn.Linear(n_embd, n_embd, bias=False)
        self.down = nn.Linear(n_embd, n_embd, bias=False)
        self.down.weight = self.up.weight
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.attn(self.ln(x))
        gate = x.float().pow(2).mean(-1, keepdim=True)
        return x + self.drop(self.down(torch.tanh(self.up(x)))) * torch.rsqrt(gate).type_as(x)


def get_inputs():
    return [torch.rand(batch_size, seq_len, n_embd)]


def get_init_inputs():
    return [n_embd, n_head, max_seqlen, dropout]
