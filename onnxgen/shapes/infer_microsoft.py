"""Infer dtypes and shapes of onnxruntime's own operators.

Operators that `passes/contrib` rewrites need them, too: it reads a node's inputs before their producer is rewritten.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.shapes import infer_layout
from onnxgen.shapes.dims import floordiv
from onnxgen.shapes.infer_elementwise import broadcast, same
from onnxgen.shapes.info import Info, Shape, info
from onnxgen.shapes.node_facts import NodeFacts, Rule, Unknown, tensor

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
    made = tensor(dtype, [*ids, table[1]])
    return [made, tensor(INT32, ids[:1]), made]


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
        made = rule(NodeFacts(n.node, n.opset, [first, *n.inputs[1:]], n.symbols))
        return [Info(i.dtype, None if i.shape is None else (i.shape[0], *i.shape[2:], i.shape[1])) for i in made]

    return found


def qlinear_binary(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(0, 3), broadcast(n, [n.shape(0), n.shape(3)]))]


def qlinear_concat(n: NodeFacts) -> list[Info]:
    parts = NodeFacts(n.node, n.opset, n.inputs[2::3], n.symbols)
    return [tensor(n.dtype(1), infer_layout.concat(parts)[0].shape)]


def unique(n: NodeFacts) -> list[Info]:
    found = [n.fresh(0)]
    return [tensor(n.dtype(0), found), tensor(INT64, n.input(0).shape), tensor(INT64, found)]


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
    made = [*shape[:-1], floordiv(shape[-1], branches)] if branches else [*shape[:-2], shape[-1]]
    return [tensor(n.dtype(0), made)]


def tokens(n: NodeFacts) -> list[Info]:
    """Infer a tokenizer: it adds an axis, unless there are no strings."""
    shape = n.shape(0)
    return [tensor(ir.DataType.STRING, [*shape[:-1], 0] if 0 in shape else [*shape, n.fresh(len(shape))])]


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
    made = [tensor(n.dtype(0), [*rows, n.int_(name)]) for name in ("Nq", "Nkv", "Nkv")]
    return [*made, tensor(n.dtype(0), n.shape(0))]


def ngram_hashes(n: NodeFacts) -> list[Info]:
    """Infer the hashes, the ids and segments that the next call takes, and the ids after the first tokens."""
    ids, before = n.shape(0), n.int_("max_ngram_size") - 1
    rows = n.shape(3)[0] - 1 if n.op.startswith("Varlen") else ids[0]
    made, past = [*ids, before * n.int_("n_head_per_ngram")], [rows, before]
    first = [rows, n.int_("state_update_capacity"), before]
    return [tensor(n.dtype(0), made), tensor(n.dtype(0), past), tensor(INT32, past), tensor(n.dtype(0), first)]


def routed(n: NodeFacts) -> list[Info]:
    """Infer routing of tokens to experts: the chosen scores in the input's type, all scores in float32."""
    shape = n.shape(0)
    rows = shape[0]
    for dim in shape[1:-1]:
        rows = rows * dim
    made = [rows, n.shape(1)[0]]
    return [tensor(n.dtype(0), made), tensor(FLOAT, made), tensor(FLOAT, made)]


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
