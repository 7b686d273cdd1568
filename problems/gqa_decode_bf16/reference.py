"""One decoding step of grouped-query attention over a paged cache in bfloat16.

Each sequence has one new query for every head; ``group`` query heads share a head of keys and values. A sequence's keys and
values lie in pages anywhere in the cache: row i of ``block_table`` lists the pages of sequence i in order.
"""

import torch
import torch.nn.functional as F
from torch import nn

batch_size = 16
length = 4096
kv_heads = 8
group = 8
head_dim = 128
page_size = 16


class Model(nn.Module):
    def forward(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_table: torch.Tensor,
        lengths: torch.Tensor,
    ) -> torch.Tensor:
        """q: (batch_size, kv_heads · group, head_dim); caches: (pages, page_size, kv_heads, head_dim); all bfloat16.

        block_table: (batch_size, pages of a sequence), lengths: (batch_size), both int32. Returns the shape of q.
        """
        sequences, heads, size = q.shape
        keys = k_cache[block_table].flatten(1, 2).transpose(1, 2)
        values = v_cache[block_table].flatten(1, 2).transpose(1, 2)
        seen = torch.arange(keys.shape[2], device=q.device) < lengths[:, None]
        # The query heads of a group are rows of one product: no key or value is repeated.
        grouped = q.view(sequences, keys.shape[1], -1, size)
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=seen[:, None, None, :])
        return out.reshape(sequences, heads, size)


def get_inputs():
    pages = -(-length // page_size)
    cache = (batch_size * pages, page_size, kv_heads, head_dim)
    q = torch.randn(batch_size, kv_heads * group, head_dim, dtype=torch.bfloat16)
    k_cache, v_cache = (torch.randn(cache, dtype=torch.bfloat16) for _ in range(2))
    block_table = torch.randperm(batch_size * pages).view(batch_size, pages).to(torch.int32)
    # Every page is in use, and the last one of a sequence is filled in part.
    lengths = length - torch.randint(0, page_size, (batch_size,)).to(torch.int32)
    return [q, k_cache, v_cache, block_table, lengths]


def get_init_inputs():
    return []
