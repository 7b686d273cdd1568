# Grouped-query decoding in Triton: a program takes a group's queries and a part of the pages; a second launch merges parts.
import triton
import triton.language as tl

# @tune PARTS = 4, 1, 2, 8, 16
# @tune KEYS = 64, 128, 32
# @tune num_warps = 4, 2
# @tune num_stages = 3, 2
# @workspace 4 * BATCH_SIZE * KV_HEADS * PARTS * next_pow2(max(GROUP, 16)) * (next_pow2(HEAD_DIM) + 2)
# @launch attend(q, k_cache, v_cache, block_table, lengths, workspace, BG=next_pow2(max(GROUP, 16)), BD=next_pow2(HEAD_DIM)) grid(PARTS, KV_HEADS, BATCH_SIZE)
# @launch merge(workspace, out, BG=next_pow2(max(GROUP, 16)), BD=next_pow2(HEAD_DIM), BP=next_pow2(PARTS)) grid(GROUP, KV_HEADS, BATCH_SIZE)


@triton.jit
def attend(
    q, k_cache, v_cache, block_table, lengths, kept, BLOCK_TABLE_DIM1: tl.constexpr, PAGE_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PARTS: tl.constexpr, KEYS: tl.constexpr,
    BG: tl.constexpr, BD: tl.constexpr,
):
    part, kv, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    length = tl.load(lengths + sequence)
    share = (length + PARTS * KEYS - 1) // (PARTS * KEYS) * KEYS
    first = part * share
    last = tl.minimum(first + share, length)
    g, d, i = tl.arange(0, BG), tl.arange(0, BD), tl.arange(0, KEYS)
    wanted = (g[:, None] < GROUP) & (d[None, :] < HEAD_DIM)
    query = tl.load(q + ((sequence * KV_HEADS + kv) * GROUP + g[:, None]) * HEAD_DIM + d[None, :], mask=wanted, other=0.0)
    # Base-2 exponentials: log2(e) goes into the scale.
    scale = 1.4426950408889634 / tl.sqrt(float(HEAD_DIM) + tl.zeros((BG,), tl.float32))
    top = tl.full((BG,), -float("inf"), tl.float32)
    total = tl.zeros((BG,), tl.float32)
    acc = tl.zeros((BG, BD), tl.float32)
    for start in range(first, last, KEYS):
        key = start + i
        inside = key < last
        page = tl.load(block_table + sequence * BLOCK_TABLE_DIM1 + key // PAGE_SIZE, mask=inside, other=0).to(tl.int64)
        row = ((page * PAGE_SIZE + key % PAGE_SIZE) * KV_HEADS + kv) * HEAD_DIM
        keys = tl.load(k_cache + row[None, :] + d[:, None], mask=inside[None, :] & (d[:, None] < HEAD_DIM), other=0.0)
        score = tl.dot(query, keys) * scale[:, None]
        score = tl.where(inside[None, :], score, -float("inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(top - higher)
        values = tl.load(v_cache + row[:, None] + d[None, :], mask=inside[:, None] & (d[None, :] < HEAD_DIM), other=0.0)
        total = total * shrink + tl.sum(weight, 1)
        acc = tl.dot(weight.to(values.dtype), values, acc * shrink[:, None])
        top = higher
    place = kept + ((sequence * KV_HEADS + kv) * PARTS + part) * BG * (BD + 2)
    tl.store(place + g[:, None] * BD + d[None, :], acc)
    tl.store(place + BG * BD + g, top)
    tl.store(place + BG * BD + BG + g, total)


@triton.jit
def merge(
    kept, out, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PARTS: tl.constexpr, BG: tl.constexpr,
    BD: tl.constexpr, BP: tl.constexpr,
):
    g, kv, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    p, d = tl.arange(0, BP), tl.arange(0, BD)
    place = kept + ((sequence * KV_HEADS + kv) * PARTS + p) * BG * (BD + 2)
    top = tl.load(place + BG * BD + g, mask=p < PARTS, other=-float("inf"))
    total = tl.load(place + BG * BD + BG + g, mask=p < PARTS, other=0.0)
    keep = tl.where(total > 0, tl.exp2(top - tl.max(top, 0)), 0.0)
    acc = tl.load(place[:, None] + g * BD + d[None, :], mask=(p[:, None] < PARTS), other=0.0)
    value = tl.sum(acc * keep[:, None], 0) / tl.sum(total * keep, 0)
    at = out + ((sequence * KV_HEADS + kv) * GROUP + g) * HEAD_DIM + d
    tl.store(at, value.to(out.dtype.element_ty), mask=d < HEAD_DIM)
