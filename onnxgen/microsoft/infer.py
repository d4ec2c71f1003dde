"""Infer dtypes and shapes of onnxruntime's own operators, its attention and layers with a state.

Operators that `passes/contrib` rewrites need them, too: it reads a node's inputs before their
producer is rewritten.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.shapes import infer_layout
from onnxgen.shapes.dims import Dim, floordiv
from onnxgen.shapes.infer_math import broadcast, same
from onnxgen.shapes.info import Info, NodeFacts, Rule, Shape, Unknown, info, tensor

FLOAT, INT32, INT64, UINT8 = ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT8
INT8 = ir.DataType.INT8


def skip_norm(n: NodeFacts) -> list[Info]:
    """Infer SkipLayerNormalization: the statistics have one number for each row."""
    shape = n.input(0).shape
    rows = None if shape is None else (*shape[:-1], 1)
    return [tensor(n.dtype(0), shape), tensor(FLOAT, rows), tensor(FLOAT, rows), tensor(n.dtype(0), shape)]


def layer_norm(n: NodeFacts) -> list[Info]:
    shape = n.input(0).shape
    if shape is None:
        return [tensor(n.dtype(1), None)]
    axis = n.axis(len(shape), -1)
    rows = [*shape[:axis], *(1 for _ in shape[axis:])]
    return [tensor(n.dtype(1), shape), tensor(FLOAT, rows), tensor(FLOAT, rows)]


def split_gelu(n: NodeFacts) -> list[Info]:
    shape = n.shape(0)
    return [tensor(n.dtype(0), [*shape[:-1], floordiv(shape[-1], 2)])]


def embed(n: NodeFacts) -> list[Info]:
    ids, table = n.shape(0), n.shape(2)
    dtype = FLOAT if n.op.startswith("Q") else n.dtype(2)
    embedded = tensor(dtype, [*ids, table[1]])
    return [embedded, tensor(INT32, ids[:1]), embedded]


def _turned(n: NodeFacts, i: int, last: str, batch: str) -> Shape:
    shape = n.shape(i)
    if n.int_(batch):
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if n.int_(last) and len(shape) > 1 else shape


def fused_matmul(n: NodeFacts) -> list[Info]:
    a, b = _turned(n, 0, "transA", "transBatchA"), _turned(n, 1, "transB", "transBatchB")
    if len(a) < 2 or len(b) < 2:
        raise Unknown("a product with a vector")
    return [tensor(n.dtype(0, 1), [*broadcast(n, [a[:-2], b[:-2]]), a[-2], b[-1]])]


def sparse_matmul(n: NodeFacts) -> list[Info]:
    rows, columns = n.shape(0)[-1 if n.int_("transA") else 0], n.shape(1)[0 if n.int_("transB") else -1]
    return [tensor(n.dtype(0, 1), [rows, columns])]


def float_product(n: NodeFacts) -> list[Info]:
    return [tensor(FLOAT, fused_matmul(n)[0].shape)]


def blocked_product(n: NodeFacts) -> list[Info]:
    last = n.int_("N") if n.int_("transB", 1) else n.int_("K")
    return [tensor(n.dtype(0), [*n.shape(0)[:-1], last])]


def qgemm(n: NodeFacts) -> list[Info]:
    a, b = n.shape(0), n.shape(3)
    rows, columns = a[1 if n.int_("transA") else 0], b[0 if n.int_("transB") else 1]
    return [tensor(n.dtype(8) if n.has(8) else FLOAT, [rows, columns])]


def nhwc(rule: Rule) -> Rule:
    """Adapt a rule for channels-first tensors to nodes that are marked as channels-last."""

    def found(n: NodeFacts) -> list[Info]:
        if not n.int_("channels_last", int(n.op.startswith("Nhwc"))):
            return rule(n)
        shape = n.shape(0)
        first = tensor(n.dtype(0), [shape[0], shape[-1], *shape[1:-1]])
        outputs = rule(NodeFacts(n.node, n.opset, [first, *n.inputs[1:]], n.symbols))
        return [Info(i.dtype, None if i.shape is None else (i.shape[0], *i.shape[2:], i.shape[1])) for i in outputs]

    return found


def qlinear_binary(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(0, 3), broadcast(n, [n.shape(0), n.shape(3)]))]


def qlinear_concat(n: NodeFacts) -> list[Info]:
    parts = NodeFacts(n.node, n.opset, n.inputs[2::3], n.symbols)
    return [tensor(n.dtype(1), infer_layout.concat(parts)[0].shape)]


def unique(n: NodeFacts) -> list[Info]:
    elements = [n.fresh(0)]
    return [tensor(n.dtype(0), elements), tensor(INT64, n.input(0).shape), tensor(INT64, elements)]


def rfft(n: NodeFacts) -> list[Info]:
    shape = n.shape(0)
    last = floordiv(shape[-1], 2) + 1 if n.int_("onesided", 1) else shape[-1]
    return [tensor(n.dtype(0), [*shape[:-1], last, 2])]


def irfft(n: NodeFacts) -> list[Info]:
    shape = n.shape(0)
    last = (shape[-2] - 1) * 2 if n.int_("onesided", 1) else shape[-2]
    return [tensor(n.dtype(0), [*shape[:-2], last])]


def reorder_input(n: NodeFacts) -> list[Info]:
    """Infer ReorderInput: channels are padded to whole blocks. The following nodes tell the number of blocks."""
    shape = n.shape(0)
    if n.int_("channels_last"):
        shape = (shape[0], shape[3], *shape[1:3])
    users = [u.node for u in n.node.outputs[0].uses() if u.node.op_type == "Conv" and u.idx == 0]
    weights = [info(u.inputs[1]).shape for u in users]
    channels = next((w[1] * u.attributes.get_int("group", 1) for u, w in zip(users, weights) if w), n.fresh(1))
    return [tensor(n.dtype(0), [shape[0], channels, *shape[2:]])]


def upsample(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(0), [d * f for d, f in zip(n.shape(0), n.ints("scales") or (), strict=True)])]


def reorder_output(n: NodeFacts) -> list[Info]:
    shape = (n.shape(0)[0], n.int_("channels"), *n.shape(0)[2:])
    return [tensor(n.dtype(0), (shape[0], *shape[2:], shape[1]) if n.int_("channels_last") else shape)]


def lstm(n: NodeFacts) -> list[Info]:
    x, w, hidden = n.shape(0), n.shape(1), n.int_("hidden_size")
    last = tensor(n.dtype(0), [w[0], x[1], hidden])
    return [tensor(n.dtype(0), [x[0], w[0], x[1], hidden]), last, last]


def pairs(n: NodeFacts) -> list[Info]:
    """Infer two outputs like the first input."""
    return same(n) * 2


def pre_mix(n: NodeFacts) -> list[Info]:
    """Infer the sum over the axis of branches, or over parts of the last axis."""
    shape, branches = n.shape(0), n.int_("num_branches")
    mixed = [*shape[:-1], floordiv(shape[-1], branches)] if branches else [*shape[:-2], shape[-1]]
    return [tensor(n.dtype(0), mixed)]


def gather_packed(n: NodeFacts) -> list[Info]:
    dtype = ir.DataType(n.int_("output_dtype", ir.DataType.BFLOAT16.value))
    return [tensor(dtype, [*n.shape(1), n.int_("K")])]


def unpadded(n: NodeFacts) -> list[Info]:
    """Infer RemovePadding: the tokens, and the tensors with their original positions."""
    batch, length, *rest = n.shape(0)
    sizes = [batch, length], [batch + 1], [1]
    return [tensor(n.dtype(0), [n.fresh(0), *rest]), *(tensor(INT32, size) for size in sizes)]


def gated_bias(n: NodeFacts) -> list[Info]:
    queries = n.shape(6) if n.has(6) else n.shape(0)[:2]
    return [tensor(n.dtype(0), [queries[0], *n.shape(2)[1:]])]


def router(n: NodeFacts) -> list[Info]:
    rows, columns, router = n.shape(0)[:-1], n.shape(1)[1], n.int_("router_size")
    return [tensor(n.dtype(0), [*rows, router]), tensor(n.dtype(0), [*rows, floordiv(columns - router, 2)])]


def blocked_qkv(n: NodeFacts) -> list[Info]:
    rows = n.shape(0)[:-1]
    projections = [tensor(n.dtype(0), [*rows, n.int_(name)]) for name in ("Nq", "Nkv", "Nkv")]
    return [*projections, tensor(n.dtype(0), n.shape(0))]


def ngram_hashes(n: NodeFacts) -> list[Info]:
    """Infer the hashes, the ids and segments that the next call takes, and the ids after the first tokens."""
    ids, before = n.shape(0), n.int_("max_ngram_size") - 1
    rows = n.shape(3)[0] - 1 if n.op.startswith("Varlen") else ids[0]
    hashes, past = [*ids, before * n.int_("n_head_per_ngram")], [rows, before]
    first = [rows, n.int_("state_update_capacity"), before]
    return [tensor(n.dtype(0), hashes), tensor(n.dtype(0), past), tensor(INT32, past), tensor(n.dtype(0), first)]


def routed(n: NodeFacts) -> list[Info]:
    """Infer routing of tokens to experts: the chosen scores in the input's type, all scores in float32."""
    shape = n.shape(0)
    rows = shape[0]
    for dim in shape[1:-1]:
        rows = rows * dim
    scores = [rows, n.shape(1)[0]]
    return [tensor(n.dtype(0), scores), tensor(FLOAT, scores), tensor(FLOAT, scores)]


def ordered(n: NodeFacts) -> list[Info]:
    """Infer `WithOrder` and the elementwise `QOrdered` operators: an order does not change the shape."""
    return [tensor(ir.DataType(n.int_("to", INT8.value)), n.input(0).shape)]


def ordered_product(n: NodeFacts) -> list[Info]:
    """Infer an ordered product or attention from the columns of the (first) weight."""
    weight = n.shape(5 if n.op == "QOrderedAttention" else 2)
    return [tensor(INT8, [*n.shape(0)[:-1], weight[-1]])]


def bifurcation(n: NodeFacts) -> list[Info]:
    return [tensor(INT64, [n.fresh(0)]), tensor(INT64, n.input(2).shape)]


def cdist(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(0, 1), [n.shape(0)[0], n.shape(1)[0]])]


def time_warping(n: NodeFacts) -> list[Info]:
    return [tensor(INT32, [2, n.fresh(1)])]


def is_all_finite(n: NodeFacts) -> list[Info]:
    return [tensor(ir.DataType.BOOL, [])]


def matmul_fp_q4(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(0), [*n.shape(0)[:-1], n.dims(2)[1]])]


def nbits_mlp(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(0), [*n.shape(0)[:-1], n.int_("N")]), tensor(n.dtype(0), n.shape(0))]


def murmur_hash(n: NodeFacts) -> list[Info]:
    return [tensor(ir.DataType.UINT32 if n.int_("positive", 1) == 1 else INT32, n.input(0).shape)]


def ngram_repeat_block(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(1), n.input(1).shape)]


def qlinear_where(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(1, 4), broadcast(n, [n.shape(0), n.shape(1), n.shape(4)]))]


def position_bias(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(0), [1, n.shape(0)[1], n.fresh(2), n.fresh(3)])]


def restore_padding(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(0), [*n.shape(1), *n.shape(0)[1:]])]


def swiglu(n: NodeFacts) -> list[Info]:
    return same(n) if n.has(1) else split_gelu(n)


def word_conv(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(3), [n.shape(0)[0], n.shape(1)[0]])]


FLOAT32, INT_32 = ir.DataType.FLOAT, ir.DataType.INT32


def attention(n: NodeFacts) -> list[Info]:
    x, weights = n.shape(0), n.shape(1)
    sizes, heads = n.ints("qkv_hidden_sizes"), n.int_("num_heads")
    size: Dim = sizes[2] if sizes else floordiv(weights[-1], 3)
    dtype = FLOAT32 if n.op.startswith("Q") else n.dtype(0)
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
    outputs = group_query_attention(n)[:3]
    dtype = ir.DataType.BFLOAT16 if n.int_("output_bf16") else n.dtype(0)
    return [tensor(dtype, outputs[0].shape), *outputs[1:]]


def merged_selections(n: NodeFacts) -> list[Info]:
    rows = n.shape(2)[0]
    return [tensor(INT_32, [rows, n.int_("max_output_entries")]), *[tensor(INT_32, [rows])] * 2]


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
    memory = [query[0], shared, floordiv(query[-1], heads), size]
    return [tensor(n.dtype(0), [*query[:2], size * max(heads, shared)]), tensor(state.dtype or n.dtype(0), memory)]


def gated_delta_net(n: NodeFacts) -> list[Info]:
    """Infer GatedDeltaNet: the state has the sizes of q, k and v. Without one, `cu_seqlens` counts the states."""
    state = n.input(6).shape
    if n.has(2):
        query, value = n.shape(0), n.shape(2)
        batch = state[0] if state else n.shape(3)[0] - 1 if n.has(3) else value[0]
        read, memory = [*query[:-2], *value[-2:]], [batch, *value[-2:], query[-1]]
        keys = query[-1] * query[-2]
    else:
        memory = [*n.shape(6)]
        read = [*n.shape(0)[:-1], *memory[1:3]]
        keys = floordiv(n.shape(0)[-1] - memory[1] * memory[2], 2)
    decays = memory[1] * (memory[3] if n.has(4) and len(n.shape(4)) == len(read) else 1)
    taken = [memory[0], (decays + keys + memory[1] * memory[2]) * n.int_("state_update_capacity")]
    return [tensor(n.dtype(0), read), tensor(FLOAT32, memory), tensor(FLOAT32, taken)]


def packed_conv(n: NodeFacts) -> list[Info]:
    """Infer VarlenCausalConvWithState: the state keeps its shape. The third output has each sequence's first inputs."""
    state = n.shape(4)
    first = [state[0], n.int_("state_update_capacity"), n.shape(0)[-1]]
    return [tensor(n.dtype(0), n.input(0).shape), tensor(n.dtype(0), state), tensor(n.dtype(0), first)]


def mamba(n: NodeFacts) -> list[Info]:
    """Infer Mamba: results, unchanged states, the convolution's result, and the values read from the states."""
    rows, channels, state = n.shape(0)[0], n.shape(1)[1], n.shape(2)
    hidden = [rows, state[1] * state[3]]
    inner = [tensor(n.dtype(0), hidden), tensor(n.dtype(0), n.shape(1)), tensor(FLOAT32, state)]
    return [*inner, tensor(n.dtype(0), [rows, channels]), tensor(FLOAT32, hidden)]
