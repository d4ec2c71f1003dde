"""Every operator of onnxruntime that is written out is computed before and after, and a wrong spelling is caught."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxgen.errors import WrongRewrite
from onnxgen.graph.nodes import all_nodes
from onnxgen.options import Options
from onnxgen.paranoid.check import Checker, Counts
from onnxgen.passes.contrib import contrib
from onnxgen.reader import read
from tests.ops.fuzz import floats
from tests.ops.harness import node_model
from tests.paranoid.test_wrong_rewrites import Harm, another, put, swap, without

F, U8, I32 = np.float32, np.uint8, np.int32
X, SKIP, SIDE = floats(2, 3, 8), floats(2, 3, 8, seed=1), floats(8, seed=2)
IMAGE, LAST = floats(2, 4, 6, 5), floats(2, 6, 5, 4)
KERNEL, BIAS = floats(4, 4, 3, 3, seed=1), floats(4, seed=2)
Q, K, V = (floats(2, n, 8, seed=n) for n in (3, 5, 5))
PAST = [floats(2, 2, 8, 4, seed=s) for s in (3, 4)]
TABLE, ANGLES = floats(20, 8), [floats(16, 4, seed=s) for s in (1, 2)]
HALVES = [x.astype(np.float16) for x in (floats(2, 3, 5, 8, seed=s) for s in range(4))]
STARTS, OFFSETS = np.array([0, 4, 5, 8], I32), np.zeros((3, 4), I32)
BYTES = np.arange(48, dtype=U8).reshape(2, 4, 6)
HEADS = {"num_heads": 2}
Given = list[Any]
Case = tuple[str, Given, dict[str, Any], str, Harm]


def side(scale: float, zero: int, dtype: Any = U8) -> Given:
    return [np.array(scale, F), np.array(zero, dtype)]


SIDES = [*side(0.1, 3), *side(0.2, 5)]
PIXELS = np.arange(2 * 4 * 6 * 5).reshape(2, 4, 6, 5).astype(U8)
POOL = {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}
OUTPUTS = dict.fromkeys(("GemmaRotaryEmbedding", "EmbedLayerNormalization", "QEmbedLayerNormalization"), 2)
OUTPUTS |= dict.fromkeys(("MultiHeadAttention", "DecoderMaskedMultiHeadAttention", "Unique"), 3)
# operator, inputs, attributes, the operator that is written wrong, and how
CASES: list[Case] = [
    ("Attention", [X, floats(8, 24), floats(24), np.array([3, 2], I32)], HEADS, "Less", swap(0, 1)),
    ("Attention", [X, floats(8, 24)], HEADS | {"unidirectional": 1}, "Attention", put(is_causal=0)),
    ("MultiHeadAttention", [Q, K, V], HEADS, "Attention", put(scale=0.3)),
    ("MultiHeadAttention", [floats(2, 5, 2, 3, 4)], HEADS, "Attention", swap(0, 1)),
    ("MultiHeadAttention", [Q, floats(2, 5, 2, 2, 4)], HEADS, "Attention", swap(1, 2)),
    ("MultiHeadAttention", [Q, Q, Q, floats(24), np.ones((2, 5), I32), None, *PAST, np.array([2], I32)],
     HEADS | {"unidirectional": 1}, "GreaterOrEqual", swap(0, 1)),
    ("DecoderMaskedMultiHeadAttention", [*[Q[:, :1]] * 3, None, None, *PAST, np.array([3], I32)],
     HEADS | {"past_present_share_buffer": 1}, "Attention", swap(1, 2)),
    ("PackedAttention", [floats(8, 8), floats(8, 24), floats(24), OFFSETS, STARTS], HEADS, "GreaterOrEqual",
     another("Greater", "")),
    ("PackedMultiHeadAttention", [*[floats(8, 8, seed=s) for s in range(3)], None, OFFSETS, STARTS], HEADS,
     "Attention", swap(0, 1)),
    ("RotaryEmbedding", [floats(2, 5, 24), np.zeros((2, 5), np.int64), *ANGLES], {}, "Concat", swap(0, 1)),
    ("MRotaryEmbedding", [floats(2, 5, 24), np.zeros((3, 2, 5), np.int64), *ANGLES],
     {"mrope_section": [2, 1, 1], "num_heads": 3}, "Where", swap(1, 2)),
    ("GemmaRotaryEmbedding", [floats(2, 5, 8), *HALVES], {}, "Sin", another("Cos", "")),
    ("BiasAdd", [X, SIDE, SKIP], {}, "Add", another("Sub", "")),
    ("BiasDropout", [X, SIDE, SKIP, np.array(0.25, F)], {}, "Add", another("Sub", "")),
    ("BitmaskBiasDropout", [X, SIDE, SKIP, np.array(0.25, F)], {}, "Add", another("Sub", "")),
    ("BiasGelu", [X, SIDE], {}, "Gelu", put(approximate="tanh")),
    ("BiasSoftmax", [X, SIDE.reshape(1, 1, 8)], {"axis": 2, "is_inner_broadcast": 1}, "Softmax", put(axis=1)),
    ("BiasSplitGelu", [X, SIDE], {}, "Gelu", put(approximate="tanh")),
    ("Gelu", [X], {}, "Gelu", put(approximate="tanh")),
    ("FastGelu", [X, SIDE], {}, "Gelu", put(approximate="none")),
    ("QuickGelu", [X], {}, "Sigmoid", another("Tanh", "")),
    ("GemmFastGelu", [X, floats(8, 6), floats(6)], {}, "Gelu", put(approximate="none")),
    ("ComplexMul", [floats(3, 2), floats(3, 2, seed=1)], {}, "Sub", swap(0, 1)),
    ("ComplexMulConj", [floats(3, 2), floats(3, 2, seed=1)], {}, "Sub", swap(0, 1)),
    ("FusedConv", [IMAGE, KERNEL, BIAS, floats(2, 4, 4, 3)], {"activation": "Relu"}, "Relu", another("Abs", "")),
    ("NhwcConv", [LAST, KERNEL, BIAS], {}, "Conv", put(strides=[2, 1])),
    ("NhwcFusedConv", [LAST, KERNEL, BIAS], {"activation": "Relu"}, "Relu", another("Abs", "")),
    ("ConvTransposeWithDynamicPads", [IMAGE, KERNEL, np.array([1, 0, 1, 1]), BIAS], {}, "Sub", another("Add", "")),
    ("FusedGemm", [SKIP[0], floats(8, 5), floats(5)], {"activation": "Relu"}, "Gemm", put(alpha=2.0)),
    ("FusedMatMul", [X, floats(6, 8)], {"transB": 1, "alpha": 0.5}, "Mul", another("Add", "")),
    ("TransposeMatMul", [floats(4, 4), floats(4, 4, seed=1)], {"transA": 1}, "MatMul", swap(0, 1)),
    ("FusedMatMulActivation", [X, floats(8, 6)], {"activation": "Tanh"}, "Tanh", another("Sigmoid", "")),
    ("LayerNormalization", [X, SIDE, SIDE], {}, "LayerNormalization", put(epsilon=0.1)),
    ("SkipLayerNormalization", [X, SKIP, SIDE, SIDE], {}, "Add", another("Sub", "")),
    ("SimplifiedLayerNormalization", [X, SIDE], {}, "RMSNormalization", put(epsilon=0.1)),
    ("SkipSimplifiedLayerNormalization", [X, SKIP, SIDE], {}, "Add", another("Sub", "")),
    ("GroupNorm", [LAST, BIAS, BIAS], {"groups": 2, "activation": 1}, "GroupNormalization", put(num_groups=4)),
    ("SkipGroupNorm", [LAST, BIAS, BIAS, LAST, BIAS], {"groups": 2, "activation": 0}, "Add", another("Sub", "")),
    ("EmbedLayerNormalization",
     [np.ones((2, 5), I32), np.ones((2, 5), I32), TABLE, TABLE, TABLE[:2], SIDE, SIDE, np.ones((2, 5), I32)],
     {}, "Slice", swap(1, 2)),
    ("TorchEmbedding", [TABLE, np.ones((2, 5), np.int64)], {}, "Gather", put(axis=1)),
    ("MatMulInteger16", [np.ones((4, 4), np.int16), np.ones((4, 4), np.int16)], {}, "MatMul", swap(0, 1)),
    ("MulInteger", [BYTES, np.array(7, U8), BYTES], {}, "Sub", swap(0, 1)),
    ("ReduceSumInteger", [BYTES], {"axes": [1], "keepdims": 0}, "ReduceSum", another("ReduceMax", "", keepdims=0)),
    ("QLinearReduceMean", [BYTES, *SIDES], {"axes": [1], "keepdims": 0}, "ReduceMean", another("ReduceMax", "",
                                                                                                keepdims=0)),
    ("MatMulIntegerToFloat", [BYTES, BYTES[0].T, *[np.array(s, F) for s in (0.1, 0.2)], np.array(3, U8)], {},
     "MatMulInteger", swap(2, 3)),
    ("DynamicQuantizeMatMul", [floats(4, 6), BYTES[0].T, np.array(0.2, F)], {}, "Mul", another("Add", "")),
    ("QAttention", [np.ones((2, 5, 8), U8), np.ones((8, 24), U8), floats(24), np.array(0.1, F), np.array(0.2, F),
                    np.array([3, 2], I32), np.array(3, U8), np.array(4, U8)], HEADS, "Attention", swap(0, 1)),
    ("QEmbedLayerNormalization",
     [np.ones((2, 5), I32), np.ones((2, 5), I32), *[np.ones((20, 8), U8)] * 3, np.ones(8, U8), np.ones(8, U8),
      np.ones((2, 5), I32), *[np.array(0.1, F)] * 5, *[np.array(3, U8)] * 5], {}, "Slice", swap(1, 2)),
    ("QGemm", [BYTES[0], *side(0.1, 3), BYTES[0].T, *side(0.2, 4), None, *side(0.3, 5)], {}, "Div", swap(0, 1)),
    ("QLinearMul", [BYTES, *SIDES[:2], BYTES, *SIDES], {}, "Mul", another("Add", "")),
    ("QLinearConcat", [*side(0.1, 3), BYTES, *SIDES[:2], BYTES, *SIDES[2:]], {"axis": 1}, "Concat", put(axis=2)),
    ("QLinearWhere", [BYTES > 9, BYTES, *SIDES[:2], BYTES, *SIDES], {}, "Where", swap(1, 2)),
    ("QLinearSigmoid", [BYTES, *SIDES], {}, "Sigmoid", another("Tanh", "")),
    ("QLinearLeakyRelu", [BYTES, *SIDES], {"alpha": 0.1}, "LeakyRelu", put(alpha=0.6)),
    ("QLinearAveragePool", [PIXELS, *SIDES], POOL, "SummedPool", put(strides=[1, 2])),
    ("QLinearGlobalAveragePool", [PIXELS, *SIDES], {}, "Div", swap(0, 1)),
    ("QLinearConv", [PIXELS, *SIDES[:2], np.ones((4, 4, 3, 3), np.int8), *side(0.2, 0, np.int8), *side(0.3, 5)], {},
     "QLinearConv", put(strides=[2, 1])),
    ("QuantizeLinear", [X, *side(0.1, 3)], {}, "QuantizeLinear", without(2)),
    ("DequantizeLinear", [BYTES, *side(0.1, 3)], {}, "DequantizeLinear", without(2)),
    ("NhwcMaxPool", [PIXELS], POOL, "MaxPool", put(strides=[1, 2])),
    ("ExpandDims", [X, np.array(-1, I32)], {}, "Unsqueeze", another("Squeeze", "")),
    ("GatherND", [floats(4, 4), np.array([[0, 1], [1, 2]])], {}, "GatherND", put(batch_dims=1)),
    ("GridSample", [IMAGE, floats(2, 3, 3, 2)], {}, "GridSample", put(align_corners=1)),
    ("Pad", [SKIP[0], np.array([1, 0, 0, 2])], {}, "Pad", put(mode="edge")),
    ("Range", [np.array(1, F), np.array(7, F), np.array(2, F)], {}, "Range", swap(0, 1)),
    ("WordConvEmbedding", [np.ones((3, 6), I32), floats(4, 1, 3, 8), BIAS, TABLE], {}, "LessOrEqual",
     another("Less", "")),
    ("Trilu", [floats(4, 4), np.array(0)], {}, "Trilu", put(upper=0)),
    ("Unique", [np.array([3, 1, 1, 7], F)], {}, "Unique", put(sorted=1)),
]  # fmt: skip


def counted(model: onnx.ModelProto, folder: Path, op: str = "", harm: Harm | None = None) -> Counts:
    """What is checked of the pass alone, perhaps after its first node of an operator was harmed."""
    onnx.save(model, folder / "m.onnx")
    made, checker = read(folder / "m.onnx", Options()), Checker()

    def step(model: ir.Model, options: Options) -> None:
        contrib(model, options)
        if harm is not None:
            harm(next(node for node in all_nodes(model.graph) if node.op_type == op))

    step.__name__ = "contrib"
    checker.run(step, made, Options())
    return checker.counts


@pytest.mark.parametrize(("name", "inputs", "attrs", "op", "harm"), CASES, ids=[case[0] for case in CASES])
def test_what_is_written_out_is_computed(
    name: str, inputs: Given, attrs: dict[str, Any], op: str, harm: Harm, tmp_path: Path
) -> None:
    model = node_model(name, inputs, attrs, domain="com.microsoft", outputs=OUTPUTS.get(name, 1))
    counts = counted(model, tmp_path)
    assert counts.untold == {} and counts.regions > 0
    with pytest.raises(WrongRewrite, match="the pass contrib changed"):
        counted(model, tmp_path, op, harm)
