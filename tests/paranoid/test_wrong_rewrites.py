"""Passes that go wrong, one way each, are caught: after the real pass something of what it wrote is changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onnxgen.passes
from onnxgen.errors import WrongRewrite
from onnxgen.graph.annotations import CHECKED
from onnxgen.graph.nodes import all_nodes
from onnxgen.options import Options
from onnxgen.paranoid import comparison
from onnxgen.paranoid.check import Counts
from onnxgen.paranoid.claims import Broken
from onnxgen.paranoid.comparison import Comparison
from onnxgen.paranoid.quick import PARANOID
from onnxgen.passes import PASSES, simplify
from onnxgen.reader import read
from onnxgen.shapes.info import Info, info, set_info

Harm = Callable[[ir.Node], None]
W = "float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,8}, float[4] b = {1,2,3,4}, float[4] c = {4,3,1,2}"
RECURRENT = (
    "float[1,16,3] w = {" + ",".join(str(i % 7 / 10) for i in range(48)) + "}, "
    "float[1,16,4] r = {" + ",".join(str(i % 5 / 10) for i in range(64)) + "}, "
    "float[1,32] b = {" + ",".join(str(i % 3 / 10) for i in range(32)) + "}, "
    "int64[1] zero = {0}, int64[1] three = {3}, int64[1] last = {2}, int64[1] one = {1}"
)


def put(**attributes: Any) -> Harm:
    """The node has these attributes, and of others no more."""

    def harm(node: ir.Node) -> None:
        for name, value in attributes.items():
            node.attributes[name] = ir.convenience.convert_attribute(name, value)

    return harm


def without(index: int) -> Harm:
    return lambda node: node.replace_input_with(index, None)


def swap(first: int, second: int) -> Harm:
    def harm(node: ir.Node) -> None:
        a, b = node.inputs[first], node.inputs[second]
        node.replace_input_with(first, b)
        node.replace_input_with(second, a)

    return harm


def known(index: int, *numbers: int) -> Harm:
    """An input whose elements are known has others."""

    def harm(node: ir.Node) -> None:
        value = ir.Value(name="wrong", type=ir.TensorType(ir.DataType.INT64))
        set_info(value, Info(ir.DataType.INT64, (len(numbers),), np.array(numbers, np.int64)))
        node.replace_input_with(index, value)

    return harm


def another(
    op_type: str, domain: str | None = None, version: int | None = None, plain: bool = False, **attributes: Any
) -> Harm:
    """The node is of another operator, with the same inputs and attributes; `plain`: without those."""

    def harm(node: ir.Node) -> None:
        given = list(node.attributes.values()) if not attributes else ir.convenience.convert_attributes(attributes)
        given = [] if plain else given
        new = ir.Node(
            node.domain if domain is None else domain, op_type, node.inputs, given,
            num_outputs=len(node.outputs), version=version or node.version,
        )  # fmt: skip
        assert node.graph is not None
        node.graph.insert_before(node, new)
        for old, fresh in zip(node.outputs, new.outputs):
            fresh.name, fresh.shape, fresh.type = old.name, old.shape, old.type
            set_info(fresh, info(old))
            ir.convenience.replace_all_uses_with(old, fresh, replace_graph_outputs=True)
        node.graph.remove(node, safe=True)

    return harm


def passed_on(node: ir.Node) -> None:
    """The node is nothing at all: what it is given is what it makes."""
    another("Identity", "", 13, plain=True)(node)


def first_alone(node: ir.Node) -> None:
    """The node is its first input."""
    first, *_ = node.inputs
    assert first is not None
    ir.convenience.replace_all_uses_with(node.outputs[0], first)


def ratio_of(share: float) -> Harm:
    """A Dropout of another share."""

    def harm(node: ir.Node) -> None:
        value = ir.Value(name="share", type=ir.TensorType(ir.DataType.FLOAT))
        set_info(value, Info(ir.DataType.FLOAT, (), np.asarray(share, np.float32)))
        node.replace_input_with(1, value)

    return harm


def turned_outputs(node: ir.Node) -> None:
    """The first two results stand for each other."""
    a, b = node.outputs[:2]
    uses = [(use.node, use.idx) for use in a.uses()], [(use.node, use.idx) for use in b.uses()]
    for users, value in zip(uses, (b, a)):
        for user, index in users:
            user.replace_input_with(index, value)


# (what is wrong, the pass, the operator that it wrote, what is changed, the graph of `x` and `y`, what is stored)
ATTENTION = (
    "t = Transpose<perm=[0,2,1]>(x) s = MatMul(x, t) d = Mul(s, half) {mask} p = Softmax<axis=-1>({scores}) "
    "y = MatMul(p, x)"
)
HALF = "float half = {0.5}"
MASK = "float[4,4] m = {0,-1e38,-1e38,-1e38,0,0,-1e38,-1e38,0,0,0,-1e38,0,0,0,0}"
GELU = "a = Div(x, root2) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half)"
GELU_NUMBERS = "float root2 = {1.41421354}, float one = {1}, float half = {0.5}"
NORM = (
    "m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) s = Sqrt(e) "
    "z = Div(d, s) h = Mul(z, b) y = Add(h, c)"
)
RMS = "q = Mul(x, x) v = ReduceMean<axes=[-1]>(q) e = Add(v, eps) s = Sqrt(e) z = Div(x, s) y = Mul(z, b)"
EPS = W + ", float eps = {1e-5}"
HALVES = "int64[1] zero = {0}, int64[1] two = {2}, int64[1] end = {9223372036854775807}, int64[1] last = {2}"
CUT = "a = Slice(x, two, end, last) b = Slice(x, zero, two, last) "
GROUPS = (
    "int64[3] grouped = {0,2,-1}, int64[4] back = {2,4,4,4}, float[2] ones = {1,1}, float[2] zeros = {0,0}, "
    "float[4,1,1] g = {1,2,3,4}, float[4,1,1] h = {4,3,2,1}"
)
GROUP_NORM = (
    "a = Reshape(x, grouped) n = InstanceNormalization(a, ones, zeros) r = Reshape(n, back) k = Mul(r, g) y = Add(k, h)"
)
Case = tuple[str, str, str, Harm, str, str]
CASES: list[Case] = [
    ("erf's GELU by tanh", "activations", "Gelu", put(approximate="tanh"), GELU, GELU_NUMBERS),
    ("GELU as another function", "activations", "Gelu", another("Mish", version=18), GELU, GELU_NUMBERS),
    ("SiLU with a factor", "activations", "Swish", put(alpha=1.0078125), "s = Sigmoid(x) y = Mul(x, s)", ""),
    ("leaky ReLU's slope", "activations", "LeakyRelu", put(alpha=0.125),
     "a = Mul(x, n) y = Max(x, a)", "float n = {0.12}"),
    ("hard sigmoid's slope", "activations", "HardSigmoid", put(alpha=0.2),
     "a = Add(x, n) c = Clip(a, o, s) y = Div(c, s)", "float n = {3}, float o = {0}, float s = {6}"),
    ("clamp's bound", "activations", "Clip", put(max=1.0625),
     "a = Max(x, o) y = Min(a, s)", "float o = {0}, float s = {1}"),
    ("logsigmoid without the logarithm", "activations", "LogSigmoid", another("Sigmoid", "", 13),
     "s = Sigmoid(x) y = Log(s)", ""),
    ("softplus's beta", "activations", "Softplus", put(beta=2.5),
     "m = Mul(x, two) s = Softplus(m) y = Mul(s, half)", "float two = {2}, float half = {0.5}"),
    ("GLU's axis", "activations", "Glu", put(axis=1), "a, b = Split<axis=2>(x) s = Sigmoid(b) y = Mul(a, s)", ""),
    ("elu's alpha", "activations", "Elu", put(alpha=1.5),
     "e = Exp(x) o = Sub(e, one) p = Greater(x, n) y = Where(p, x, o)", "float one = {1}, float n = {0}"),
    ("layer norm's epsilon lost", "norms", "LayerNormalization", put(epsilon=1e-12), NORM, EPS),
    ("layer norm's axis", "norms", "LayerNormalization", put(axis=-2), NORM, EPS),
    ("layer norm's bias lost", "norms", "LayerNormalization", without(2), NORM, EPS),
    ("layer norm's scale for its bias", "norms", "LayerNormalization", swap(1, 2), NORM, EPS),
    ("RMS norm as a layer norm", "norms", "RMSNormalization", another("LayerNormalization", version=17), RMS, EPS),
    ("RMS norm's epsilon", "norms", "RMSNormalization", put(epsilon=2e-5), RMS, EPS),
    ("group norm's groups", "group_norm", "GroupNormalization", put(num_groups=4), GROUP_NORM, GROUPS),
    ("group norm's bias", "group_norm", "GroupNormalization", swap(1, 2), GROUP_NORM, GROUPS),
    ("softmax's axis", "softmax", "Softmax", put(axis=1),
     "e = Exp(x) s = ReduceSum<keepdims=1>(e, last) y = Div(e, s)", "int64[1] last = {-1}"),
    ("softmax's logarithm", "softmax", "Softmax", another("LogSoftmax"),
     "e = Exp(x) s = ReduceSum<keepdims=1>(e, last) y = Div(e, s)", "int64[1] last = {-1}"),
    ("norm of another order", "normalise", "Normalize", put(p=1),
     "n = ReduceL2<axes=[-1]>(x) c = Clip(n, eps) y = Div(x, c)", "float eps = {1e-12}"),
    ("normalise's epsilon", "normalise", "Normalize", put(epsilon=1e-3),
     "n = ReduceL2<axes=[-1]>(x) c = Clip(n, eps) y = Div(x, c)", "float eps = {1e-12}"),
    ("a root forgotten", "reciprocal_roots", "Rsqrt", another("Reciprocal", "", 13),
     "r = Sqrt(x) y = Reciprocal(r)", ""),
    ("deviation's square", "deviation", "Deviation", another("Variance"),
     "m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) q = Mul(d, d) v = ReduceMean<axes=[-1],keepdims=0>(q) "
     "k = Mul(v, n) y = Sqrt(k)", "float n = {1.33333337}"),
    ("causal without a mask", "attention", "Attention", put(is_causal=1),
     ATTENTION.format(mask="", scores="d"), HALF),
    ("a mask that is lost", "attention", "Attention", put(is_causal=0),
     ATTENTION.format(mask="k = Add(d, m)", scores="k"), f"{HALF}, {MASK}"),
    ("attention's scale", "attention", "Attention", put(scale=0.25), ATTENTION.format(mask="", scores="d"), HALF),
    ("a bias that is lost", "linear", "Linear", without(2), "p = MatMul(x, w) y = Add(p, b)", W),
    ("another layer's bias", "linear", "Linear",
     lambda node: node.replace_input_with(2, node.graph.initializers["c"]),  # type: ignore[union-attr]
     "p = MatMul(x, w) z = Add(p, b) r = Relu(z) y = Add(r, c)", W),
    ("a convolution's bias that is lost", "added_bias", "Conv", without(2),
     "p = Conv(x, k) y = Add(p, g)",
     "float[4,4,1,1] k = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,8}, float[1,4,1,1] g = {1,2,3,4}"),
    ("padding on the other side", "paddings", "Conv", put(pads=[2, 1, 0, 1]),
     "p = Pad(x, n) y = Conv(p, k)",
     "int64[8] n = {0,0,1,1,0,0,1,1}, float[1,4,2,2] k = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,8}"),
    ("maximum for mean", "pooling", "GlobalAveragePool", another("GlobalMaxPool", version=1),
     "y = ReduceMean<axes=[2,3]>(x)", ""),
    ("one element too far", "roll", "Roll", put(shifts=[-1]), CUT + "y = Concat<axis=2>(a, b)", HALVES),
    ("rolled along another axis", "roll", "Roll", put(axes=[1]), CUT + "y = Concat<axis=2>(a, b)", HALVES),
    ("halves not negated", "roll", "RotateHalf", another("Roll", shifts=[2], axes=[2]),
     CUT + "m = Neg(a) y = Concat<axis=2>(m, b)", HALVES),
    ("pairs for halves", "roll", "RotateHalf", another("RotatePairs"),
     CUT + "m = Neg(a) y = Concat<axis=2>(m, b)", HALVES),
    ("parts exchanged", "unbind", "Unbind", turned_outputs,
     "s, t = Split<axis=1>(x) a = Squeeze(s, one) b = Squeeze(t, one) y = Sub(a, b)", "int64[1] one = {1}"),
    ("stacked in another order", "stack", "Stack", swap(0, 1),
     "a = Neg(x) u = Unsqueeze(x, one) v = Unsqueeze(a, one) y = Concat<axis=1>(u, v)", "int64[1] one = {1}"),
    ("stacked along another axis", "stack", "Stack", put(axis=2),
     "a = Neg(x) u = Unsqueeze(x, one) v = Unsqueeze(a, one) y = Concat<axis=1>(u, v)", "int64[1] one = {1}"),
    ("repeated as a whole", "repeats", "RepeatInterleave",
     lambda node: (known(1, 1, 2, 1)(extended(node)), another("Tile", "", 13, plain=True)(node))[0],
     "u = Unsqueeze(x, two) t = Expand(u, wide) y = Reshape(t, flat)",
     "int64[1] two = {2}, int64[4] wide = {2,4,2,4}, int64[3] flat = {2,8,4}"),
    ("another order of axes", "views", "Transpose", put(perm=[1, 0, 2]),
     "a = Reshape(x, four) t = Transpose<perm=[0,2,1,3]>(a) r = Reshape(t, three) y = Relu(r)",
     "int64[4] four = {2,4,4,1}, int64[3] three = {2,4,4}"),
    ("a slice that begins too late", "slices", "Slice", known(1, 1, 0),
     "a = Slice(x, zero, two, last) y = Slice(a, zero, two, one)", HALVES + ", int64[1] one = {1}"),
    ("a cast that is not nothing", "known", "Cast", passed_on, "i = Cast<to=6>(x) y = Cast<to=1>(i)", ""),
    ("a sum for a difference", "no_ops", "Sub", another("Add"), "a = Identity(x) n = Neg(a) y = Sub(n, x)", ""),
    ("a size that is one too many", "known", "Reshape", known(1, 4, 8),
     "s = Shape(x) z = Gather(s, i) u = Unsqueeze(z, o) r = Concat<axis=0>(rest, u) y = Reshape(x, r)",
     "int64 i = {1}, int64[1] o = {0}, int64[1] rest = {8}"),
    ("batch and time exchanged", "recurrent", "LSTM", put(batch_first=1),
     "t = Transpose<perm=[1,0,2]>(x) a = Slice(t, zero, three, last) h, n, m = LSTM<hidden_size=4>(a, w, r, b) "
     "y = Squeeze(h, one)", RECURRENT),
    ("a layer without its bias", "recurrent", "LSTM", without(5),
     "a = Slice(x, zero, three, last) h, n, m = LSTM<hidden_size=4>(a, w, r, b) y = Squeeze(h, one)",
     RECURRENT),
    ("a node of a body", "expand", "Tanh", another("Sigmoid"),
     "y = Attention<softcap=2.0,q_num_heads=1,kv_num_heads=1>(x, x, x)", ""),
    ("a list's items exchanged", "sequences", "Split", turned_outputs,
     "s = SplitToSequence<axis=1>(x, two) a = SequenceAt(s, i) b = SequenceAt(s, j) y = Sub(a, b)",
     "int64 two = {2}, int64 i = {0}, int64 j = {1}"),
    ("a bias that onnxruntime fused, lost", "contrib", "Add", first_alone,
     "y = com.microsoft.BiasGelu(x, b)", W),
    ("a fused norm's epsilon", "contrib", "LayerNormalization", put(epsilon=1e-3),
     "y = com.microsoft.SkipLayerNormalization<epsilon=0.00001>(x, x, b, c)", W),
    ("rows that are empty, filled otherwise", "empty_rows", "Where", swap(1, 2),
     "n = IsNaN(x) e = ReduceMax<axes=[-1]>(x) l = Less(e, zero) s = Softmax<axis=-1>(x) y = Where(l, zero, s)",
     "float zero = {0}"),
    ("a broadcast that is lost", "broadcasts", "Mul", another("Add", plain=True),
     "s = ReduceSum(x, last) e = Expand(s, shape) y = Mul(x, e)", "int64[1] last = {-1}, int64[3] shape = {2,4,4}"),
    ("noise that drops another share", "dropout", "Dropout", ratio_of(0.25),
     "n = RandomUniformLike<low=0.0,high=1.0>(x) l = Less(n, half) m = Cast<to=1>(l) k = Mul(x, m) y = Mul(k, two)",
     "float half = {0.5}, float two = {2}"),
    ("a list that grew otherwise", "growing", "Concat", swap(0, 1),
     "n = Neg(x) a = Concat<axis=1>(x, n) r = Relu(a) b = Concat<axis=1>(x, n, r) s = Relu(b) "
     "y = Concat<axis=1>(x, n, r, s)", ""),
]  # fmt: skip


def extended(node: ir.Node) -> ir.Node:
    """The node with one more input."""
    node.resize_inputs(2)
    return node


def model_of(text: str, stored: str, folder: Path) -> Path:
    images = any(op in text for op in ("Conv(", "InstanceNorm", "axes=[2,3]"))
    shape = "2, 4, 4, 4" if images else "2, 2, 4" if "Split<axis=1>" in text else "2, 4, 4"
    head = f'<ir_version: 10, opset_import: ["": {23 if "Attention" in text else 17}, "com.microsoft": 1]>\n'
    tensors = f"<{stored}>" if stored else ""
    model = onnx.parser.parse_model(f"{head}wrong (float[{shape}] x) => (float[] y) {tensors} {{ {text} }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def checked(
    path: Path, monkeypatch: pytest.MonkeyPatch, paranoid: bool, name: str = "", op: str = "", harm: Harm | None = None
) -> Counts:
    """Run all passes, checked; after the pass of that name, its first node of an operator is harmed."""
    monkeypatch.setenv(PARANOID, str(int(paranoid)))
    harmed = []

    def wrapped(step: Any) -> Any:
        def wrong(model: ir.Model, options: Options) -> None:
            step(model, options)
            found = [node for node in all_nodes(model.graph) if node.op_type == op]
            if found and harm is not None and not harmed:
                harmed.append(found[-1 if name == "growing" else 0])
                harm(harmed[0])

        wrong.__name__ = step.__name__
        return wrong if step.__name__ == name else step

    monkeypatch.setattr(onnxgen.passes, "PASSES", [wrapped(step) for step in PASSES])
    options = Options()
    model = read(path, options)
    simplify(model, options)
    assert harm is None or harmed, f"{name} wrote no {op}: {[n.op_type for n in model.graph]}"
    counts = CHECKED.get(model)
    assert isinstance(counts, Counts)
    return counts


@pytest.mark.parametrize("paranoid", [True, False], ids=["paranoid", "by default"])
@pytest.mark.parametrize(("what", "name", "op", "harm", "text", "stored"), CASES, ids=[case[0] for case in CASES])
def test_a_wrong_rewrite_is_caught(
    what: str,
    name: str,
    op: str,
    harm: Harm,
    text: str,
    stored: str,
    paranoid: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = model_of(text, stored, tmp_path)
    with monkeypatch.context() as patched:
        counts = checked(path, patched, paranoid)
        assert counts.untold == {}
    with pytest.raises(WrongRewrite, match=f"the pass {name} "):
        checked(path, monkeypatch, paranoid, name, op, harm)


@pytest.mark.parametrize(("taken", "wrong"), [((3, 2, 1), False), ((4,), True), ((), True)])
def test_sizes_that_the_second_side_refuses(
    taken: tuple[int, ...], wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A side that takes fewer sizes than it refuses is wrong, even if what it computes is the same."""

    def on(self: Comparison, numbers: dict[str, int]) -> str:
        if numbers["n"] not in taken:
            raise Broken("another size")
        return ""

    monkeypatch.setattr(comparison, "sizes", lambda region: [{"n": n} for n in (5, 3, 2, 1, 4)])
    monkeypatch.setattr(Comparison, "_on", on)
    compared = object.__new__(Comparison)
    compared.region, compared.fits = None, False  # type: ignore[assignment]
    assert compared.verdict() == ("it no longer runs: another size" if wrong else "")
