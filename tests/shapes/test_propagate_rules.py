"""Rules of propagation on small models with symbolic dims: the expression they give, and its truth in onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch

from onnxgen.graph.annotations import TRAINABLE
from onnxgen.options import Options
from onnxgen.shapes import propagate
from onnxgen.shapes.infer import is_operator
from onnxgen.shapes.info import Info, info
from tests.shapes.agreeing import Bindings, agree, check, free_dims, outputs_of_all_nodes

# name, opset, inputs, body (its last value is `y`), the expected shape of y as text
CASES: list[tuple[str, int, str, str, str]] = [
    ("to the end", 13, "float[n, 4] x", "y = Slice(x, {1}, {9223372036854775807}, {0})", "max(0, n - 1), 4"),
    ("all but one", 13, "float[n, 4] x", "y = Slice(x, {0}, {-1}, {0})", "max(0, n - 1), 4"),
    ("the last two", 13, "float[n, 4] x", "y = Slice(x, {-2}, {9223372036854775807}, {0})", "min(2, n), 4"),
    ("every third", 13, "float[n] x", "y = Slice(x, {1}, {2147483647}, {0}, {3})", "(max(0, n - 1) + 2)//3"),
    ("reversed", 13, "float[n] x", "y = Slice(x, {-1}, {-9223372036854775807}, {0}, {-1})", "n"),
    ("some in reverse", 13, "float[n] x", "y = Slice(x, {-2}, {-9223372036854775807}, {0}, {-2})", "y.0"),
    ("old", 9, "float[n, 4] x", "y = Slice<starts=[0, 1], ends=[3, 3]>(x)", "min(3, n), 2"),
    (
        "cut to another's length",
        13,
        "float[n] x, float[m] z",
        "e = Shape(z) y = Slice(x, {0}, e)",
        "min(m, n)",
    ),
    (
        "cut to its own length less one",
        13,
        "float[n] x",
        "s = Shape(x) e = Sub(s, {1}) y = Slice(x, {0}, e)",
        "max(0, n - 1)",
    ),
    ("heads", 13, "float[n, m, 12] x", "y = Reshape(x, {0, -1, 3, 4})", "n, m, 3, 4"),
    ("rows", 13, "float[n, m, 12] x", "y = Reshape(x, {-1, 12})", "m*n, 12"),
    ("halves", 13, "float[n, 4] x", "y = Reshape(x, {2, -1})", "2, 2*n"),
    (
        "flat by arithmetic",
        13,
        "float[n, 3, 4] x",
        "s = Shape(x) b = Gather(s, {0}) t = Concat<axis=0>(b, {-1}) y = Reshape(x, t)",
        "n, 12",
    ),
    (
        "heads by arithmetic",
        15,
        "float[n, m, 12] x",
        "s = Shape<start=0, end=2>(x) d = Shape<start=-1>(x) h = Div(d, {4}) t = Concat<axis=0>(s, h, {4})"
        " r = Reshape(x, t) y = Transpose<perm=[0, 2, 1, 3]>(r)",
        "n, 3, m, 4",
    ),
    (
        "middle by int division",
        13,
        "float[n] x",
        "s = Shape(x) h = Div(s, {2}) y = Slice(x, h, {9223372036854775807})",
        "max(0, n - n//2)",
    ),
    ("expanded", 13, "float[1, n] x, float[m] z", "s = Shape(z) t = Concat<axis=0>(s, {1}) y = Expand(x, t)", "m, n"),
    ("tiled", 13, "float[n, 2] x", "y = Tile(x, {2, 3})", "2*n, 6"),
    ("padded", 13, "float[n, 2] x", "y = Pad(x, {1, 0, 2, 3})", "n + 3, 5"),
    ("padded along one axis", 18, "float[n, 2] x", "y = Pad(x, {1, 2}, , {-2})", "n + 3, 2"),
    ("joined", 13, "float[n, 2] x, float[m, 2] z", "y = Concat<axis=0>(x, z, x)", "m + 2*n, 2"),
    ("split in two", 18, "float[2, h] x", "a, y = Split<axis=1, num_outputs=2>(x)", "2, h - (h + 1)//2"),
    ("split by sizes", 13, "float[n, 7] x", "a, y = Split<axis=1>(x, {3, 4})", "n, 4"),
    ("broadcast", 13, "float[n, 1, 4] x, float[m, 1] z", "y = Add(x, z)", "n, m, 4"),
    ("broadcast of two unknowns", 13, "float[n] x, float[k] z", "y = Add(x, z)", "y.0"),
    ("matrix product", 13, "float[n, 1, m, 3] x, float[5, 3, 2] z", "y = MatMul(x, z)", "n, 5, m, 2"),
    ("vector product", 13, "float[n, 3] x, float[3] z", "y = MatMul(x, z)", "n"),
    ("einsum", 13, "float[n, m, 3] x, float[3, 2] z", 'y = Einsum<equation="...i, ij -> ...j">(x, z)', "n, m, 2"),
    (
        "einsum of letters that occur once",
        13,
        "float[n, m] x, float[n, 2] z",
        'y = Einsum<equation="ba, bc">(x, z)',
        "m, 2",
    ),
    ("einsum of dots and letters", 13, "float[n, 3] x, float[n, 3] z", 'y = Einsum<equation="...i, ...i">(x, z)', "n"),
    ("einsum of a scalar", 13, "float[n] x, float z", 'y = Einsum<equation="i, ">(x, z)', "n"),
    (
        "convolution",
        13,
        "float[n, 1, h, h] x, float[2, 1, 3, 3] z",
        "y = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(x, z)",
        "n, 2, (h + 1)//2, (h + 1)//2",
    ),
    (
        "pooling that rounds up",
        13,
        "float[n, 1, h] x",
        "y = MaxPool<kernel_shape=[3], strides=[2], pads=[1, 1], ceil_mode=1>(x)",
        "n, 1, (h + 2)//2",
    ),
    (
        "a window that rounding up lets reach further than its input",
        13,
        "float[n, 1, 1] x",
        "y = AveragePool<kernel_shape=[2], strides=[2], ceil_mode=1>(x)",
        "n, 1, 1",
    ),
    ("means", 18, "float[n, m, 3] x", "y = ReduceMean<keepdims=0>(x, {1, -1})", "n"),
    ("places", 13, "float[n, m, 4] x", "y = ArgMax<axis=1, keepdims=0>(x)", "n, 4"),
    ("places in rows", 13, "float[n, m, 4] x", "y = ArgMin<axis=-1>(x)", "n, m, 1"),
    ("all means", 13, "float[n, m] x", "y = ReduceMean(x)", "1, 1"),
    ("old sums", 11, "float[n, m] x", "y = ReduceSum<axes=[-1], keepdims=0>(x)", "n"),
    ("count", 13, "float[n, m] x", "s = Size(x) r = Reshape(s, {1}) y = ConstantOfShape(r)", "m*n"),
    (
        "positions",
        13,
        "float[n, m] x",
        "s = Shape(x) z = Gather(s, one) y = Range(zero, z, one)",
        "m",
    ),
    ("lookup", 13, "float[7, 3] x, int64[n, m] z", "y = Gather(x, z)", "n, m, 3"),
    ("best", 13, "float[n, 7] x", "v, y = TopK(x, {3})", "n, 3"),
    ("twice as large", 13, "float[n, 1, h] x", "y = Resize(x, , scales)", "n, 1, 2*h"),
    ("squeezed", 11, "float[n, 1, m] x", "y = Squeeze<axes=[-2]>(x)", "n, m"),
    ("unsqueezed", 13, "float[n] x", "y = Unsqueeze(x, {0, -1})", "1, n, 1"),
    ("one hot", 13, "int64[n] x", "d = Constant<value_int=5>() y = OneHot(x, d, {0, 1})", "n, 5"),
    ("mask", 13, "float[n, n] x", "y = NonZero(x)", "2, y.1"),
    (
        "scaled in float32",
        13,
        "float[n, 1, h] x",
        "s = Shape(x) i = Constant<value_int=2>() z = Gather(s, i) f = Cast<to=1>(z) c = Constant<value_float=0.7>()"
        " p = Mul(c, f) q = Floor(p) t = Cast<to=7>(q) u = Unsqueeze(t, {0}) y = ConstantOfShape(u)",
        "scale_size(h, 0.699999988079071)",
    ),
    (
        "minimum in arithmetic",
        13,
        "float[n] x, float[m] z",
        "s = Shape(x) t = Shape(z) u = Min(s, t) y = ConstantOfShape(u)",
        "min(m, n)",
    ),
    (
        "a decided choice",
        13,
        "float[n, 4] x",
        "s = Shape(x) o = ConstantOfShape<value = int64[1] {-1}>({2}) e = Equal(s, o) t = Where(e, {9, 9}, s)"
        " y = ConstantOfShape(t)",
        "n, 4",
    ),
    ("repeated sizes", 15, "float[n, m] x", "s = Shape<end=1>(x) e = Expand(s, {2}) y = ConstantOfShape(e)", "n, n"),
    (
        "as many as floats in a range",
        13,
        "float[n] x",
        "s = Shape(x) f = Cast<to=1>(s) z = Constant<value_float=0.>() o = Constant<value_float=1.>()"
        " i = Squeeze(f) y = Range(z, i, o)",
        "n",
    ),
    (
        "sums from behind",
        14,
        "float[n, m] x",
        "s = Shape(x) z = Constant<value_int=0>() c = CumSum<reverse=1>(s, z) y = ConstantOfShape(c)",
        "m + n, m",
    ),
    (
        "sums of those before",
        14,
        "float[n, m] x",
        "s = Shape(x) z = Constant<value_int=0>() c = CumSum<exclusive=1>(s, z) y = ConstantOfShape(c)",
        "0, n",
    ),
    (
        "the larger size",
        13,
        "float[n] x",
        "s = Shape(x) t = Add(s, {1}) l = Less(t, s) u = Where(l, s, t) y = ConstantOfShape(u)",
        "n + 1",
    ),
    ("old enlargement", 7, "float[n, 1, h, h] x", "y = Upsample<scales=[1., 1., 2., 4.]>(x)", "n, 1, 2*h, 4*h"),
    (
        "the smaller size",
        13,
        "float[n] x",
        "s = Shape(x) t = Add(s, {1}) l = Less(s, t) u = Where(l, s, t) y = ConstantOfShape(u)",
        "n",
    ),
    (
        "undecided sizes",
        13,
        "float[n] x, float[m] z",
        "s = Shape(x) t = Shape(z) l = Less(s, t) u = Where(l, s, t) y = ConstantOfShape(u)",
        "y.0",
    ),
    ("einsum of unknowns", 13, "float[n, m] x, float[k, l] z", 'y = Einsum<equation="ij, ij -> ij">(x, z)', "y.0, y.1"),
    (
        "einsum of unknowns behind",
        13,
        "float[2, n, m] x, float[2, k, l] z",
        'y = Einsum<equation="...ij, ...ij -> ...ij">(x, z)',
        "2, y.1, y.2",
    ),
    ("a norm that onnxruntime had before ONNX", 13, "float[n, 3] x", "y = LayerNormalization(x, scales)", "n, 3"),
    ("quantised to an attribute", 21, "float[n] x", "y = QuantizeLinear<output_dtype=3>(x, scale)", "n"),
    (
        "back from a quantised one",
        21,
        "float[n] x",
        "q = QuantizeLinear<output_dtype=5>(x, scale) y = DequantizeLinear(q, scale)",
        "n",
    ),
]

# The same of sizes (n, m) that operators arrange and compute with: opset, what makes t of s, and the sizes t.
OF_SIZES: list[tuple[int, str, str]] = [
    (13, "i = Gather(s, zero) e = Add(i, three) t = Range(i, e, one)", "n, n + 1, n + 2"),
    (13, "t = ScatterElements({4, 5, 6}, {2, 0}, s)", "m, 5, n"),
    (13, "i = Unsqueeze({2, 0}, {1}) t = ScatterND({4, 5, 6}, i, s)", "m, 5, n"),
    (13, "t = GatherElements(s, {1, 0, -1})", "m, n, m"),
    (13, "i = Unsqueeze({1}, {1}) t = GatherND(s, i)", "m"),
    (13, "b = Tile(s, {2}) q = Reshape(b, {2, 2}) p = Transpose(q) t = Reshape(p, {-1})", "n, n, m, m"),
    (13, "b = Tile(s, {2}) q = Reshape(b, {2, 2}) r = ReduceSum<keepdims=0>(q, {0, 1}) t = Reshape(r, {1})",
     "2*m + 2*n"),
    (13, "b = Tile(s, {2}) q = Reshape(b, {2, 2}) t = ReduceProd<axes=[0], keepdims=0>(q)", "n**2, m**2"),
    (13, "b, t = Split(s, {1, 1})", "m"),
    (13, "t = Slice(s, {-1}, {-3}, {0}, {-1})", "m, n"),
    (13, "t = Mod<fmod=1>(s, {4})", "n % 4, m % 4"),
    (13, "t = Pow(s, {2})", "n**2, m**2"),
    (13, "t = Clip(s, three)", "max(3, n), max(3, m)"),
    (13, "t = Clip(s, , three)", "min(3, n), min(3, m)"),
    (13, "d = Neg(s) t = Abs(d)", "n, m"),
    (13, "d = Add(s, {1}) t = Sign(d)", "1, 1"),
    (13, "d = Add(s, {1}) l = Greater(d, s) t = Where(l, s, d)", "n, m"),
    (13, "d = Add(s, {1}) l = Greater(d, s) a = And(l, l) t = Where(a, s, d)", "n, m"),
    (13, "d = Add(s, {1}) l = LessOrEqual(d, s) t = Where(l, s, d)", "n + 1, m + 1"),
    (13, "l = GreaterOrEqual(s, s) t = Where(l, s, {1, 1})", "n, m"),
]  # fmt: skip

CONSTANTS = "int64 zero = {0}, int64 three = {3}, int64 one = {1}, float[3] scales = {1., 1., 2.}, float scale = {0.5}"


def parse(opset: int, inputs: str, body: str) -> onnx.ModelProto:
    """A model from text; `{1, 2}` in the body is an int64 constant."""
    made: list[str] = []
    text = ""
    for i, part in enumerate(body.split("{")):
        if i == 0 or text.rstrip().endswith("]"):  # the value of a tensor attribute
            text += part if i == 0 else "{" + part
            continue
        numbers, _, rest = part.partition("}")
        made.append(f"int64[{len(numbers.split(','))}] c{i} = {{{numbers}}}")
        text += f"c{i}{rest}"
    domain = f'<ir_version: 7, opset_import: ["" : {opset}]>'
    initializers = ", ".join([CONSTANTS, *made])
    lines = text.replace(") ", ")\n ")
    return onnx.parser.parse_model(f"{domain} g ({inputs}) => (y) <{initializers}> {{ {lines} }}")


def infos(proto: onnx.ModelProto) -> dict[str, Info]:
    model = ir.serde.deserialize_model(proto)
    propagate(model.graph, Options())
    return {v.name or "": info(v) for v in (*model.graph.inputs, *(o for n in model.graph for o in n.outputs))}


def ready(proto: onnx.ModelProto) -> ort.InferenceSession:
    exposed = onnx.ModelProto()
    exposed.CopyFrom(proto)
    del exposed.graph.output[:]
    exposed.graph.output.extend(onnx.ValueInfoProto(name=o) for n in proto.graph.node for o in n.output)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(exposed.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(proto: onnx.ModelProto, sizes: dict[str, int], session: ort.InferenceSession | None = None) -> dict[str, Any]:
    feeds = {}
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in dims]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        feeds[value.name] = (np.arange(np.prod(shape)) % 3).reshape(shape).astype(dtype)
    session = session or ready(proto)
    return {**feeds, **dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))}


def test_rules() -> None:
    wrong = []
    for name, opset, inputs, body, expected in CASES:
        try:
            hold(parse(opset, inputs, body), expected)
        except Exception as error:
            wrong.append(f"{name}: {error!r}")
    assert wrong == []


def test_rules_of_elements_that_are_sizes() -> None:
    wrong = []
    for opset, body, expected in OF_SIZES:
        try:
            hold(parse(opset, "float[n, m] x", f"s = Shape(x) {body} y = ConstantOfShape(t)"), expected)
        except Exception as error:
            wrong.append(f"{body}: {error!r}")
    assert wrong == []


def hold(proto: onnx.ModelProto, expected: str) -> None:
    facts = infos(proto)
    shape = facts["y"].shape
    assert shape is not None and ", ".join(map(str, shape)) == expected, shape
    session = ready(proto)
    for n, m, h in ((5, 3, 9), (1, 1, 3), (8, 2, 4), (2, 7, 5)):
        actual = run(proto, {"n": n, "m": m, "h": h, "k": n, "l": m}, session)
        bindings = Bindings()
        for value in (*(i.name for i in proto.graph.input), *(o for node in proto.graph.node for o in node.output)):
            agree(value, facts[value], actual[value], bindings)


def test_integer_arithmetic_is_that_of_onnx() -> None:
    """Division truncates, Mod follows the divisor or (fmod) the dividend, int32 wraps: all folded, all as computed."""
    body = """
        a = Constant<value_ints=[-7, 7, -7, 7]>()
        b = Constant<value_ints=[2, -2, -2, 2]>()
        q = Div(a, b)
        r = Mod(a, b)
        f = Mod<fmod=1>(a, b)
        big = Constant<value = int32[2] {2147483647, 2}>()
        w = Add(big, big)
        x2 = Constant<value_floats=[0.1, 0.7, 10.0]>()
        t = Mul(x2, x2)
        u = Cast<to=7>(x2)
        y = Add(x, x)
    """
    proto = onnx.parser.parse_model(f'<ir_version: 7, opset_import: ["" : 13]> g (float[n] x) => (y) {{ {body} }}')
    facts = infos(proto)
    actual = run(proto, {"n": 2})
    for name in ("q", "r", "f", "w", "t", "u"):
        assert facts[name].data is not None and facts[name].data.dtype == actual[name].dtype
        np.testing.assert_array_equal(facts[name].data, actual[name])


def test_a_cut_that_must_fit_is_the_whole() -> None:
    """Where `n` is added to `min(n, 3)`, both are equal or the node fails."""
    proto = parse(13, "float[n] x", "e = Slice(x, {0}, {3}, {0}) y = Add(x, e)")
    facts = infos(proto)
    assert [str(d) for d in facts["y"].shape or ()] == ["n"]
    for n in (1, 2, 3):
        agree("y", facts["y"], run(proto, {"n": n})["y"], Bindings())
    swapped = infos(parse(13, "float[n] x", "e = Slice(x, {0}, {3}, {0}) y = Add(e, x)"))
    assert [str(d) for d in swapped["y"].shape or ()] == ["n"]


def test_operators_of_the_standard_are_those_of_onnx() -> None:
    every = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain}
    for opset in (7, 13, 21):
        for name in (*every, "Nonsense", ""):
            try:
                known = bool(onnx.defs.get_schema(name, opset, "").name)
            except onnx.defs.SchemaError:
                known = False
            assert is_operator("", name, opset) == is_operator("ai.onnx", name, opset) == known, (name, opset)


def test_types_of_dequantised_numbers_are_those_of_onnx() -> None:
    for attributes in ("", "<output_dtype=1>", "<output_dtype=10>", "<output_dtype=16>"):
        proto = parse(23, "uint8[n] x, float16 s", f"y = DequantizeLinear{attributes}(x, s)")
        (want,) = onnx.shape_inference.infer_shapes(proto).graph.output
        assert infos(proto)["y"].dtype == ir.DataType(want.type.tensor_type.elem_type), attributes


def test_an_optional_value_is_known_to_be_one() -> None:
    facts = infos(parse(16, "float[n] x", "y = Optional(x)"))["y"]
    assert (facts.kind, facts.dtype, [str(d) for d in facts.shape or ()]) == ("optional", ir.DataType.FLOAT, ["n"])


def test_undecidable_comparisons_stay_unknown() -> None:
    facts = infos(parse(13, "float[n] x", "s = Shape(x) y = Equal(s, {3})"))
    assert facts["s"].data is not None and facts["y"].data is None
    facts = infos(parse(13, "float[n] x", "s = Shape(x) y = Equal(s, {-1})"))
    assert facts["y"].data is not None and not facts["y"].data.any()


def test_contradictions_are_not_recorded() -> None:
    """Nothing is known of the result of a node that onnxruntime refuses too."""
    for inputs, body in (
        ("float[3] x, float[4] z", "y = Add(x, z)"),
        ("float[2, 4] x", 'y = Einsum<equation="i...jk->ijk">(x)'),
        ("float[2, 4] x", 'y = Einsum<equation="ijk->ijk">(x)'),
        ("float[2, 4] x", 'y = Einsum<equation="i->i">(x)'),
        ("float[2, 4] x, float[5, 2] z", "y = MatMul(x, z)"),
        ("float[2, 4] x", "y = Reshape(x, {3, 2})"),
        ("float[2, 4] x", "y = Reshape(x, {3, -1})"),
        ("float[2, 4] x", "y = ArgMax<axis=2>(x)"),
    ):
        proto = parse(13, inputs, body)
        assert infos(proto)["y"].shape is None, body
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            run(proto, {})


# opset, inputs, body, shapes of the inputs (those of whole numbers are ones), the expected shape of y as text
WITHOUT_RANK: list[tuple[int, str, str, list[tuple[int, ...]], str]] = [
    (13, "float[n, 3, h] x, float[] z", "y = Conv(x, z)", [(2, 3, 9), (4, 3, 3)], "n, y.1, y.2"),
    (13, "float[] x, float[4, 3, 3] z", "y = Conv(x, z)", [(2, 3, 9), (4, 3, 3)], "y.0, 4, y.2"),
    (13, "float[n, 3, h] x, float[] z", "y = ConvTranspose(x, z)", [(2, 3, 9), (3, 4, 3)], "y.0, y.1, y.2"),
    (13, "float[] x, float[3, k] z", "y = Gemm(x, z)", [(2, 3), (3, 4)], "y.0, k"),
    (13, "float[] x", "y = ReduceSum<keepdims=0>(x)", [(2, 3)], ""),
    (13, "float[] x", "y = ReduceMax<keepdims=0>(x)", [(2, 3)], ""),
    (13, "float[n, m] x, int64[] z", "y = ReduceSum(x, z)", [(2, 3), (1,)], "y.0, y.1"),
    (13, "float[] x", "y = Flatten(x)", [(2, 3, 4)], "y.0, y.1"),
    (13, "float[] x, int64[3] z", "y = Reshape(x, z)", [(1, 1), (3,)], "y.0, y.1, y.2"),
    (14, "float[] x, float[1, 4, 3] z, float[1, 4, 4] w", "y = RNN<hidden_size=4>(x, z, w)",
     [(5, 2, 3), (1, 4, 3), (1, 4, 4)], "y.0, 1, y.2, 4"),
]  # fmt: skip


def test_what_is_known_where_ranks_are_not() -> None:
    for opset, inputs, body, shapes, expected in WITHOUT_RANK:
        proto = parse(opset, inputs, body)
        kinds = [np.int64 if value.type.tensor_type.elem_type == 7 else np.float32 for value in proto.graph.input]
        facts, feeds = infos(proto), {v.name: np.ones(s, t) for v, s, t in zip(proto.graph.input, shapes, kinds)}
        shape = facts["y"].shape
        assert shape is not None and ", ".join(map(str, shape)) == expected, (body, shape)
        agree("y", facts["y"], ready(proto).run(["y"], feeds)[0], Bindings())


def test_as_many_axes_as_torch_adds_up_are_known() -> None:
    for rank in (1, 64, 65):
        facts = infos(parse(13, f"float[1] x, int64[{rank}] z", "y = Reshape(x, z)"))["y"]
        try:
            torch.zeros((1,) * rank).sum(-1)
        except RuntimeError:
            assert facts.rank is None
        else:
            assert facts.rank == rank


def test_first_schemas_have_the_sizes_of_later_ones() -> None:
    """onnxruntime runs the later ones alone."""
    for inputs, first, opset, later, expected in (
        ("float[n, m, 12] x", "y = Reshape<shape=[0, -1, 3, 4]>(x)", 13, "y = Reshape(x, {0, -1, 3, 4})", "n, m, 3, 4"),
        ("float[n, 7] x", "v, y = TopK<k=3>(x)", 13, "v, y = TopK(x, {3})", "n, 3"),
        ("float[n, 2] x", "y = Pad<paddings=[1, 0, 2, 3]>(x)", 13, "y = Pad(x, {1, 0, 2, 3})", "n + 3, 5"),
        ("float[n, 2] x", "y = Concat(x, x)", 13, "y = Concat<axis=1>(x, x)", "n, 4"),
    ):
        assert infos(parse(1, inputs, first))["y"].shape == infos(parse(opset, inputs, later))["y"].shape, first
        hold(parse(opset, inputs, later), expected)


def test_slices_have_the_sizes_and_elements_of_onnxruntime() -> None:
    """Of five elements: as numbers, of a length that is known, and of one that is free."""
    ends = [*range(-7, 8), -(2**31), 2**31 - 1]
    rows = [(a, b, step) for a in ends for b in ends for step in (1, 2, -1, -2)]
    stored = {"c": np.arange(5), **{f"k{k}": np.array([k]) for k in {0, *(k for row in rows for k in row)}}}
    nodes = [
        onnx.helper.make_node("Slice", [x, f"k{a}", f"k{b}", "k0", f"k{step}"], [f"{x}{i}"])
        for x in "xc"
        for i, (a, b, step) in enumerate(rows)
    ]
    value = onnx.helper.make_tensor_value_info
    kept = [onnx.numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = onnx.helper.make_graph(nodes, "g", [value("x", 7, [5])], [value("x0", 7, None)], kept)
    opsets = [onnx.helper.make_opsetid("", 13)]
    proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    feeds = {"x": np.arange(5)}
    actual = outputs_of_all_nodes(proto, feeds)
    check(proto, feeds, actual)
    check(free_dims(proto), feeds, actual)


def test_trainable_values_have_no_elements() -> None:
    model = ir.serde.deserialize_model(parse(13, "float[3] x", "y = Mul(x, scales)"))
    scales = model.graph.initializers["scales"]
    propagate(model.graph, Options())
    assert info(scales).data is not None
    TRAINABLE.set(scales, (True, "a test says so"))
    propagate(model.graph, Options())
    assert info(scales).data is None and info(scales).shape == (3,)


def test_names_of_symbols_do_not_collide() -> None:
    facts = infos(parse(13, "float[n] x, float[k] z", "y = NonZero(x) "))
    proto = parse(13, "float[n] x", "y = NonZero(x)")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "y.1"
    clash = infos(proto)
    assert str(facts["y"].shape and facts["y"].shape[1]) == "y.1"
    assert clash["x"].shape is not None and clash["y"].shape is not None
    assert clash["x"].shape[0] != clash["y"].shape[1]


LOOP = """
    <ir_version: 8, opset_import: ["" : 16]>
    g (float[n, 2] x, int64 count) => (last, sums) <bool go = {1}> {
        start = Constant<value = float[1, 2] {0., 0.}>()
        last, seen, sums = Loop<body = step (int64 i, bool c, float[a, 2] state, float[b, 2] all) =>
            (c2, next, longer, sum) {
            c2 = Identity(c)
            next = Add(state, state)
            longer = Concat<axis=0>(all, x)
            sum = ReduceSum<keepdims=0>(all)
        }>(count, go, x, start)
    }
"""


def test_loops_keep_what_never_changes() -> None:
    proto = onnx.parser.parse_model(LOOP)
    model = ir.serde.deserialize_model(proto)
    propagate(model.graph, Options())
    last, seen, sums = (info(v) for v in model.graph.node(1).outputs)
    assert [str(d) for d in last.shape or ()] == ["n", "2"]
    assert [str(d) for d in seen.shape or ()] == ["seen.0", "2"]
    assert [str(d) for d in sums.shape or ()] == ["sums.0"]


def test_branches_agree_on_what_both_say() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 16]>
        g (bool c, float[n, 4] x) => (y) {
            y = If(c) <then_branch = t () => (a) { a = Concat<axis=1>(x, x) },
                       else_branch = e () => (b) { z = Relu(x) b = Concat<axis=1>(x, z, z) }>
        }
    """
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    propagate(model.graph, Options())
    assert [str(d) for d in info(model.graph.outputs[0]).shape or ()] == ["n", "y.1"]


def test_a_chain_of_ten_thousand_nodes() -> None:
    nodes = [onnx.helper.make_node("Conv", ["x", "w"], ["v0"], pads=[1, 1, 1, 1])]
    for i in range(10_000):
        op, count = (("Relu", 1), ("Add", 2), ("Sigmoid", 1))[i % 3]
        nodes.append(onnx.helper.make_node(op, [f"v{i}"] * count, [f"v{i + 1}"]))
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [value("x", 1, ["n", 3, "h", "w"])],
        [value("v10000", 1, None)],
        [onnx.helper.make_tensor("w", 1, [3, 3, 3, 3], np.zeros(81, np.float32))],
    )
    model = ir.serde.deserialize_model(onnx.helper.make_model(graph))
    propagate(model.graph, Options())
    assert [str(d) for d in info(model.graph.outputs[0]).shape or ()] == ["n", "3", "h", "w"]


@pytest.mark.parametrize(
    "body",
    [
        'y = Einsum<equation="ij->k">(x)',
        "y = Transpose<perm=[0, 5]>(x)",
        "y = Reshape(x, {-1, -1})",
        "y = If(x)",
        "y = Slice(x, {0}, {1}, {9})",
        "y = Add(x)",
        "y = Cast<to=999>(x)",
        "y = Expand(x, {4611686018427387904, 4611686018427387904})",
        "y = Conv<strides=[0]>(x, x)",
        "y = Clip({1}, {1, 2, 3})",
    ],
)
def test_nonsense_is_not_recorded_and_does_not_fail(body: str) -> None:
    assert infos(parse(16, "float[n, 4] x", body))["y"].data is None


@pytest.mark.parametrize(
    "node",
    [
        "y = Scan<num_scan_inputs=1000000000000, body = b (float p) => (q) { q = Identity(p) }>(x)",
        "y = Loop<body = b () => (q) { q = Identity(x) }>(x, , x)",
        "y = Loop<body = b () => () { q = Identity(x) }>(x, , x)",
    ],
)
def test_subgraphs_of_the_wrong_arity_do_not_fail(node: str) -> None:
    proto = onnx.parser.parse_model(f'<ir_version: 7, opset_import: ["" : 16]> g (float[n] x) => (y) {{ {node} }}')
    assert infos(proto)["y"].shape is None
