"""Infer dtypes and shapes of onnxruntime's attention, and of the stateful layers that replace it."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.shapes.dims import Dim, floordiv
from onnxgen.shapes.info import Info
from onnxgen.shapes.node_facts import NodeFacts, tensor

FLOAT, INT32 = ir.DataType.FLOAT, ir.DataType.INT32


def attention(n: NodeFacts) -> list[Info]:
    x, weights = n.shape(0), n.shape(1)
    sizes, heads = n.ints("qkv_hidden_sizes"), n.int_("num_heads")
    size: Dim = sizes[2] if sizes else floordiv(weights[-1], 3)
    dtype = FLOAT if n.op.startswith("Q") else n.dtype(0)
    past = n.input(8 if n.op.startswith("Q") else 4).shape
    length = x[1] if past is None else x[1] + past[3]
    return [tensor(dtype, [*x[:2], size]), tensor(dtype, [2, x[0], heads, length, floordiv(size, heads)])]


def multi_head_attention(n: NodeFacts) -> list[Info]:
    query, heads = n.shape(0), n.int_("num_heads")
    values = n.shape(2 if n.has(2) else 1 if n.has(1) else 0)
    size = values[2] if len(values) == 3 else values[1] * values[3] if len(values) == 4 else values[2] * values[4]
    length = values[2] if len(values) == 4 else values[1]
    past = n.input(6).shape
    total = length if past is None else length + past[2]
    cache = [query[0], heads, total if past is None or not n.has(8) else past[2]]
    key = floordiv(query[2], heads) if len(query) == 3 else query[-1]
    caches = [tensor(n.dtype(0), [*cache, last]) for last in (key, floordiv(size, heads))]
    scores = [query[0], heads, query[1], n.fresh(3, 3) if len(n.node.outputs) > 3 else total]
    return [tensor(n.dtype(0), [*query[:2], size]), *caches, tensor(n.dtype(0), scores)]


def packed_attention(n: NodeFacts) -> list[Info]:
    query = n.shape(0)
    size = n.shape(2)[1] if n.has(2) else query[1] * query[3]
    return [tensor(n.dtype(0), [query[0], size])]


def attention_without_padding(n: NodeFacts) -> list[Info]:
    sizes = n.ints("qkv_hidden_sizes")
    return [tensor(n.dtype(0), [n.shape(0)[0], sizes[2] if sizes else floordiv(n.shape(1)[1], 3)])]


def decoder_masked_attention(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(0), n.shape(0)), *[tensor(n.dtype(0), n.input(5).shape)] * 2]


def group_query_attention(n: NodeFacts) -> list[Info]:
    x, heads, shared = n.shape(0), n.int_("num_heads"), n.int_("kv_num_heads")
    size = floordiv(x[2], heads) if n.has(1) else floordiv(x[2], heads + 2 * shared)
    past, several = n.input(3), len(n.node.outputs) > 1
    size_stored = size if past.shape is None else past.shape[3]  # two numbers of 4 bits share a byte
    length = past.shape[2] if past.shape is not None and n.int_("sliding_window_cache") else None
    cache = [x[0], shared, length or n.fresh(2, 1), size_stored] if several else None
    stored = tensor(past.dtype or n.dtype(0), cache)
    scores = [x[0], heads, x[1], n.fresh(3, 3)] if len(n.node.outputs) > 3 else None
    return [tensor(n.dtype(0), [*x[:2], size * heads]), stored, stored, tensor(n.dtype(0), scores)]


def sparse_attention(n: NodeFacts) -> list[Info]:
    """Infer SparseAttention: the cache keeps its size."""
    x, size = n.shape(0), n.shape(3)[3]
    return [tensor(n.dtype(0), [*x[:2], size * n.int_("num_heads")]), *(tensor(n.dtype(0), n.shape(i)) for i in (3, 4))]


def paged_attention(n: NodeFacts) -> list[Info]:
    """Infer PagedAttention: the pages keep their sizes. Values may be the first elements of keys."""
    q, heads = n.shape(0), n.int_("num_heads")
    size = floordiv(q[1], heads if n.has(1) else heads + 2 * n.int_("kv_num_heads"))
    size = n.int_("v_head_size") or size
    caches = [tensor(n.dtype(i), n.shape(i)) for i in (3, 4) if n.has(i)]
    return [tensor(n.dtype(0), [q[0], size * heads]), *caches]


def dynamic_sparse_attention(n: NodeFacts) -> list[Info]:
    found = group_query_attention(n)[:3]
    dtype = ir.DataType.BFLOAT16 if n.int_("output_bf16") else n.dtype(0)
    return [tensor(dtype, found[0].shape), *found[1:]]


def merged_selections(n: NodeFacts) -> list[Info]:
    rows = n.shape(2)[0]
    return [tensor(INT32, [rows, n.int_("max_output_entries")]), *[tensor(INT32, [rows])] * 2]


def causal_conv(n: NodeFacts) -> list[Info]:
    """Infer CausalConvWithState: the state is as long as the convolution looks back."""
    shape, before = n.shape(0), (n.shape(1)[-1] - 1) * n.int_("dilation", 1)
    axis = 1 if n.int_("channels_last") else -1
    state = [before if i == axis % len(shape) else d for i, d in enumerate(shape)]
    return [tensor(n.dtype(0), shape), tensor(n.dtype(0), state)]


def linear_attention(n: NodeFacts) -> list[Info]:
    """Infer LinearAttention: each head has a state of keys by values."""
    query, value, heads, shared = n.shape(0), n.shape(2), n.int_("q_num_heads"), n.int_("kv_num_heads")
    size = floordiv(value[-1], shared)
    state = n.input(3)
    found = [query[0], shared, floordiv(query[-1], heads), size]
    return [tensor(n.dtype(0), [*query[:2], size * max(heads, shared)]), tensor(state.dtype or n.dtype(0), found)]


def gated_delta_net(n: NodeFacts) -> list[Info]:
    """Infer GatedDeltaNet: the state has the sizes of q, k and v. Without one, `cu_seqlens` counts the states."""
    state = n.input(6).shape
    if n.has(2):
        query, value = n.shape(0), n.shape(2)
        batch = state[0] if state else n.shape(3)[0] - 1 if n.has(3) else value[0]
        made, found = [*query[:-2], *value[-2:]], [batch, *value[-2:], query[-1]]
        keys = query[-1] * query[-2]
    else:
        found = [*n.shape(6)]
        made = [*n.shape(0)[:-1], *found[1:3]]
        keys = floordiv(n.shape(0)[-1] - found[1] * found[2], 2)
    decays = found[1] * (found[3] if n.has(4) and len(n.shape(4)) == len(made) else 1)
    taken = [found[0], (decays + keys + found[1] * found[2]) * n.int_("state_update_capacity")]
    return [tensor(n.dtype(0), made), tensor(FLOAT, found), tensor(FLOAT, taken)]


def packed_conv(n: NodeFacts) -> list[Info]:
    """Infer VarlenCausalConvWithState: the state keeps its shape. The third output has each sequence's first inputs."""
    state = n.shape(4)
    first = [state[0], n.int_("state_update_capacity"), n.shape(0)[-1]]
    return [tensor(n.dtype(0), n.input(0).shape), tensor(n.dtype(0), state), tensor(n.dtype(0), first)]


def mamba(n: NodeFacts) -> list[Info]:
    """Infer Mamba: results, unchanged states, the convolution's result, and the values read from the states."""
    rows, channels, state = n.shape(0)[0], n.shape(1)[1], n.shape(2)
    made = [rows, state[1] * state[3]]
    inner = [tensor(n.dtype(0), made), tensor(n.dtype(0), n.shape(1)), tensor(FLOAT, state)]
    return [*inner, tensor(n.dtype(0), [rows, channels]), tensor(FLOAT, made)]
