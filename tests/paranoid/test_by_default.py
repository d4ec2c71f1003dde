"""What each generation checks without an option: decisions, types, text, and what hides differences."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import onnxgen.passes
from onnxgen.errors import STRICT, OnnxgenError, WrongRewrite, WrongTranslation
from onnxgen.graph.annotations import TRAINABLE
from onnxgen.options import Options
from onnxgen.paranoid.claims import Broken
from onnxgen.paranoid.draws import FILLED, QUICK, STYLES, drawn
from onnxgen.paranoid.picture import take
from onnxgen.paranoid.quick import PARANOID
from onnxgen.paranoid.single import Single
from onnxgen.passes import PASSES
from onnxgen.passes.rewrite import constant
from onnxgen.pipeline import build
from onnxgen.reader import read
from onnxgen.shapes import propagate
from onnxgen.shapes.info import Info
from tests.conftest import SHARED

trainable, retype, dynamic, text = (
    importlib.import_module(f"onnxgen.passes.{name}") for name in ("trainable", "retype", "dynamic", "text")
)
LAYER = (
    '<ir_version: 8, opset_import: ["": 17]> net (float[n,4] x) => (float[n,4] y) '
    "<float[4,4] w = {1,-2,3,-4,5,6,-7,8,9,-1,2,3,4,5,6,8}, float[4] b = {0.1,-0.7,0.3,0.25}> "
    "{ a = MatMul(x, w) s = Add(a, b) y = Tanh(s) }"
)
MASKED = (
    '<ir_version: 8, opset_import: ["": 17]> net (float[n,4,8] q, float[n,8,4] k, float[n,4,8] v, float[n,1,4] m) '
    "=> (float[n,4,8] y) <float one = {1}, float low = {-10000}, float root = {2.5}> "
    "{ h = Sub(one, m) a = Mul(h, low) s = MatMul(q, k) d = Div(s, root) c = Add(d, a) "
    "p = Softmax<axis=-1>(c) y = MatMul(p, v) }"
)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Generate a model without `--paranoid`."""
    monkeypatch.delenv(PARANOID, raising=False)

    def generated(model: onnx.ModelProto | str, **options: Any) -> Any:
        model = onnx.parser.parse_model(model) if isinstance(model, str) else model
        onnx.save(model, tmp_path / "m.onnx")
        return build(tmp_path / "m.onnx", Options(**options), tmp_path / "m.py")

    return generated


def after(monkeypatch: pytest.MonkeyPatch, name: str, harm: Callable[[ir.Model], None]) -> None:
    """Do something more at the end of the pass of a name."""

    def wrapped(step: Any) -> Any:
        def wrong(model: ir.Model, options: Options) -> None:
            step(model, options)
            harm(model)

        wrong.__name__ = name
        return wrong if step.__name__ == name else step

    monkeypatch.setattr(onnxgen.passes, "PASSES", [*map(wrapped, PASSES)])


def test_a_wrong_decision_is_refused(made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(model: ir.Model) -> None:
        TRAINABLE.set(model.graph.initializers["w"], (False, "of course"))

    assert made(LAYER)
    after(monkeypatch, "trainable", forgets)
    with pytest.raises(WrongRewrite, match="trainable is wrong: 'w' is not trained: of course"):
        made(LAYER)


FOUR = "float[4] w = {0.5,-0.5,0.25,1}"
RECORDED = {"pkg.torch.export.graph_signature.InputSpec.kind": "PARAMETER"}


@pytest.mark.parametrize(
    ("stored", "nodes", "record", "is_trained"),
    [
        (FOUR, "y = Mul(x, w)", RECORDED, True),
        (FOUR, "a = Greater(x, w) y = Where(a, x, x)", {}, False),
        ("float[4,4] w = {1,-2,3,-4,5,6,-7,8,9,-1,2,3,4,5,6,8}", "y = Gemm(x, w)", {}, True),
        ("float[4] w = {1,2,3,4}", "a = Tanh(x) y = Add(a, w)", {}, False),
    ],
    ids=["the exporter says so", "no gradient flows", "a layer's weight", "even numbers"],
)
def test_the_second_decision_is_followed(
    stored: str,
    nodes: str,
    record: dict[str, str],
    is_trained: bool,
    made: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without `ONNXGEN_STRICT=1` a wrong decision of the pass makes no other module."""

    def wrong(model: ir.Model) -> None:
        TRAINABLE.set(model.graph.initializers["w"], (not is_trained, "of course"))

    net = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 17]> net (float[n,4] x) => (float[n,4] y) <{stored}> {{ {nodes} }}'
    )
    for key, value in record.items():
        net.graph.value_info.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [4]))
        net.graph.value_info[0].metadata_props.add(key=key, value=value)
    right = made(net)
    assert not any("in doubt" in note for note in right.report.notes)
    after(monkeypatch, "trainable", wrong)
    monkeypatch.setenv(STRICT, "")
    generated = made(net)
    assert generated.source == right.source
    assert any("of course; a second set of rules says otherwise" in note for note in generated.report.notes)


@pytest.mark.parametrize(
    "why",
    [
        "the exporter computed it, and not from a parameter",
        "no gradient reaches it from an output",
        "a tensor of one number that forward made",
        "the mean or standard deviation of the input",
        "a statistic of a BatchNorm, by its place",
    ],
)
def test_a_reason_that_does_not_apply(why: str, made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers at equal distances may be trained or not, but not for any reason."""

    def decides(model: ir.Model) -> None:
        TRAINABLE.set(model.graph.initializers["b"], (False, why))

    text = LAYER.replace("MatMul(x, w)", "Neg(x)").replace("{0.1,-0.7,0.3,0.25}", "{0.1,0.2,0.3,0.4}")
    assert made(text)
    after(monkeypatch, "trainable", decides)
    with pytest.raises(WrongRewrite, match=f"'b' is not trained: {why}, which is not so"):
        made(text)


@pytest.mark.parametrize(
    ("bias", "is_undone"), [("{0.1,0.2,0.3,0.4,0.1,0.2,0.3,0.4}", True), ("{1,0,1,0,1,0,1,0}", False)]
)
def test_a_decision_without_a_reason_is_undone(
    bias: str, is_undone: bool, made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a gradient reaches is trained without a reason why not. A mask is one, whatever else was said."""
    why = "a tensor of one number that forward made"

    def decides(model: ir.Model) -> None:
        TRAINABLE.set(model.graph.initializers["b"], (False, why))

    text = LAYER.replace("MatMul(x, w)", "Neg(x)").replace("{0.1,-0.7,0.3,0.25}", bias)
    text = text.replace("float[4] b", "float[8] b").replace("float[n,4]", "float[n,8]")
    right = made(text)
    after(monkeypatch, "trainable", decides)
    monkeypatch.setenv(STRICT, "")
    generated = made(text)
    assert generated.source == right.source
    (note,) = (note for note in generated.report.notes if "in doubt" in note)
    assert note.endswith("was followed" if is_undone else "which is not so")


HEAD = '<ir_version: 8, opset_import: ["": 17]> net (float[4,4] x) => (float[4,4] y) '
W = "float[4,4] w = {0.1,-0.72,0.33,-4.1,0.5,0.61,-0.07,0.8,0.99,-0.15,0.2,0.31,-0.4,0.53,0.6,0.88}"
ROW = "float[4] w = {0.1,-0.72,0.33,-4.1}"
ROWS = "float[4,4] w = {1,2,3,4,1,2,3,4,1,2,3,4,1,2,3,4}"
PLACES = "float[4,4] w = {0,0,2,0,2,0,0,0,0,0,0,2,0,2,0,0}"
CHANNELS = "float[4,1,1] w = {0,0,0,0}, float[4,1,1,1] k = {0.31,-0.7,0.2,0.11}, int64[4] four = {4,1,2,2}, "
CHANNELS += "int64[2] two = {4,4}"
SMALL = ", ".join(
    f"float[{shape}] {name} = {{{', '.join(f'{n * size:.6f}' for n in np.random.default_rng(0).normal(size=32))}}}"
    for name, shape, size in (("v", "4,8", 1), ("w", "8,4", 0.02))
)
TURNS = "int64 turns = {3}, bool going = {1}"
BODY = "(int64 i, bool c, float[4,4] s) => (bool d, float[4,4] t) { d = Identity(c) t = MatMul(s, w) }"


@pytest.mark.parametrize(
    ("stored", "nodes", "is_trained"),
    [
        (f"{W}, {TURNS}", f"y = Loop<body = once {BODY}>(turns, going, x)", True),
        (ROW, "y = Mul(x, w)", True),
        (
            CHANNELS,
            "r = Reshape(x, four) c = Conv(r, k) a = Add(c, w) p = GlobalAveragePool(a) y = Reshape(p, two)",
            True,
        ),
        (SMALL, "a = MatMul(x, v) y = MatMul(a, w)", True),
        (ROWS, "a = Tanh(x) y = Add(a, w)", False),
        (PLACES, "a = Tanh(x) y = Add(a, w)", False),
    ],
    ids=[
        "in a loop",
        "a row that no layer follows",
        "zeros that channels are given",
        "small numbers",
        "rows of even numbers",
        "a number in each row",
    ],
)
def test_the_second_decision(
    stored: str, nodes: str, is_trained: bool, made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def decides_otherwise(model: ir.Model) -> None:
        TRAINABLE.set(model.graph.initializers["w"], (not is_trained, "of course"))

    text = f"{HEAD} <{stored}> {{ {nodes} }}"
    assert made(text)
    after(monkeypatch, "trainable", decides_otherwise)
    with pytest.raises(WrongRewrite, match="trainable is wrong: 'w' is .*trained: of course"):
        made(text)


def test_what_is_trained_is_decided_and_nothing_else(made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def other_numbers(model: ir.Model) -> None:
        model.graph.initializers["w"].const_value = ir.tensor(np.ones((4, 4), np.float32), name="w")

    after(monkeypatch, "trainable", other_numbers)
    with pytest.raises(WrongRewrite, match="the pass trainable is wrong: it changed the graph"):
        made(LAYER)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("tensors", "'[wb]' is stored as FLOAT"),
        ("facts", "is FLOAT|of several types"),
        ("numbers", "has other numbers"),
    ],
)
def test_another_type_of_some_is_refused(
    dtype: str, what: str, said: str, made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made(LAYER, dtype=dtype)
    given = retype._retype_value

    def wrong(value: ir.Value, to: ir.DataType) -> None:
        tensor = value.const_value
        if what != "facts" or value.name != "y":
            given(value, to)
        if tensor is not None and what == "tensors":
            value.const_value = tensor
        if tensor is not None and what == "numbers":
            value.const_value = retype.RetypedTensor(ir.tensor(tensor.numpy() * 1.5, name=value.name), to)

    monkeypatch.setattr(retype, "_retype_value", wrong)
    with pytest.raises(WrongRewrite, match=f"the pass retype is wrong: .*({said})"):
        made(LAYER, dtype=dtype)


def test_no_other_type_is_refused(made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxgen.passes, "_retype", lambda model, options: None)
    with pytest.raises(WrongTranslation, match=r"is trained, and is FLOAT$"):
        made(LAYER, dtype="float16")


def test_a_tensor_that_hides_a_difference_is_taken_away(
    made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn masks of large numbers decide the softmax alone, so that no factor of the scores shows."""

    def doubled(model: ir.Model) -> None:
        for node in list(model.graph):
            if node.op_type == "Attention":
                node.attributes["scale"] = ir.AttrFloat32("scale", 2 * node.attributes["scale"].as_float())

    assert "Attention" in str(made(MASKED).source) or "attention" in made(MASKED).source
    after(monkeypatch, "attention", doubled)
    with pytest.raises(WrongRewrite, match="the pass attention changed 'y'"):
        made(MASKED)


def test_a_size_that_the_file_states_is_not_drawn(made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The third name would be drawn as 4, as the last axis of x is stated."""
    network = (
        '<ir_version: 8, opset_import: ["": 17]> net (float[i,j,k,4] x) => (int64[1] y) '
        "<int64[1] one = {1}> { n = Shape<start=2, end=3>(x) y = Div(n, one) }"
    )

    def other_axis(model: ir.Model) -> None:
        for node in list(model.graph):
            if node.op_type == "Shape":
                node.attributes["start"], node.attributes["end"] = ir.AttrInt64("start", 3), ir.AttrInt64("end", 4)

    after(monkeypatch, "axes", other_axis)
    with pytest.raises(WrongRewrite, match="the pass axes changed"):
        made(network)


CORNER = (  # of a stored mask: the region draws nothing that has the size of x
    '<ir_version: 8, opset_import: ["": 17]> net (float[n,s] x) => (float[a,b] y) '
    "<float[4,4] mask = {1,0,0,0,1,1,0,0,1,1,1,0,1,1,1,1}, int64[1] zero = {0}, int64[1] one = {1}> "
    "{ s = Shape<start=1>(x) r = Slice(mask, zero, s, zero) c = Slice(r, zero, s, one) y = Exp(c) }"
)


def test_a_size_of_which_nothing_is_drawn(made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def harm(model: ir.Model) -> None:
        (node,) = (node for node in model.graph if node.op_type == "Slice")
        node.replace_input_with(2, node.inputs[3])  # up to the number of the axis

    assert made(CORNER)
    after(monkeypatch, "slices", harm)
    with pytest.raises(WrongRewrite, match="the pass slices changed 'y'"):
        made(CORNER)


def test_what_onnxruntime_refuses_is_refused_however_large(made: Callable[..., Any], tmp_path: Path) -> None:
    """Onnx's evaluator would take long; it need not be asked."""
    pytest.importorskip("onnxruntime")
    made(
        '<ir_version: 8, opset_import: ["": 17]> net (float[1,2,6,6] x, float[3,2,3,3] w) => (float[1,3,4,4] y) '
        "{ y = Conv(x, w) }"
    )
    (step,) = take(read(tmp_path / "m.onnx", Options())).nodes.values()
    with pytest.raises(Broken, match="onnxruntime"):
        Single(quick=True, most=10).run(step, [np.zeros(8, np.float32), np.zeros((3, 2, 3, 3), np.float32)], False)


CHOOSES = (  # x.squeeze(-1), which has another rank with one column; most networks fail behind one of the branches
    '<ir_version: 8, opset_import: ["": 17]> net (float[n,m] x) => (float[a,b] y) '
    "<int64[1] one = {{1}}> {{ s = Shape<start=1>(x) c = Equal(s, one) z = If(c) "
    "<then_branch = t () => (p) {{ p = Squeeze(x, one) }}, else_branch = e () => (q) {{ q = Neg(x) }}> {} }}"
)


@pytest.mark.parametrize(
    ("behind", "choice", "size", "is_wrong"),
    [
        ("y = Transpose<perm=[1, 0]>(z)", False, 1, False),
        ("y = Transpose<perm=[1, 0]>(z)", True, 1, True),
        ("y = Transpose<perm=[1, 0]>(z)", False, 2, True),
        ("y = Relu(z)", False, 1, True),
        ("y = Relu(z)", True, 1, True),
    ],
    ids=["the only one that runs", "the one that fails", "two conditions", "never squeezed", "always squeezed"],
)
@pytest.mark.parametrize("paranoid", [True, False])
def test_a_wrong_choice_of_a_branch_is_refused(
    behind: str, choice: bool, size: int, is_wrong: bool, paranoid: bool, made: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Sizes with which the file fails do not count; with any other one the branch must be the file's."""

    def chooses(model: ir.Model) -> None:
        node = next(node for node in model.graph if node.op_type == "If")
        node.replace_input_with(0, constant(node, np.full(size, choice), "chosen", ir.DataType.BOOL))
        propagate(model.graph, Options())

    after(monkeypatch, "decide", chooses)
    if is_wrong:
        with pytest.raises(WrongRewrite, match="the pass decide (changed 'y'|is wrong: z is not given one condition)"):
            made(CHOOSES.format(behind), paranoid=paranoid)
    else:
        assert not any("decide" in note for note in made(CHOOSES.format(behind), paranoid=paranoid).report.notes)


def test_what_is_rewritten_before_types_are_known_is_compared_then(
    made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.quantized.test_dynamic import old

    model = old()
    del model.graph.value_info[:]
    assert "of 0 nothing is said" in made(model).report.checked

    def padded(model: ir.Model) -> None:
        for node in list(model.graph):
            if node.op_type == "DynamicConv":
                node.attributes["pads"] = ir.AttrInt64s("pads", [0, 0, 0, 0])

    after(monkeypatch, "dynamic", padded)
    with pytest.raises(WrongRewrite, match="the pass dynamic changed"):
        made(model)


def test_text_that_is_not_made_numbers_is_refused(made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    words = np.array([["a", "b"], ["c", "d"]], object)
    graph = helper.make_graph(
        [helper.make_node("GatherND", ["table", "x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", 7, [2, 2])], [helper.make_tensor_value_info("y", 8, [2])],
        [numpy_helper.from_array(words, "table")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert made(model)
    monkeypatch.setattr(text, "_by_codes", lambda *_: None)
    with pytest.raises(WrongRewrite, match="the pass text is wrong: GatherND y is given text"):
        made(model)


@pytest.mark.parametrize("paranoid", [True, False])
def test_a_branch_of_what_nothing_computes_is_refused_in_words(paranoid: bool, tmp_path: Path) -> None:
    path = SHARED / "models" / "burn" / "ops" / "nested_if.onnx"
    if not path.exists():
        pytest.skip("the collection is not there")
    with pytest.raises(OnnxgenError, match="input cond2 was never computed"):
        build(path, Options(quantized="qat", paranoid=paranoid), tmp_path / "m.py")


def test_a_draw_is_the_same_whenever_it_is_made() -> None:
    """Arrays that are kept between regions are copied before anyone writes into them."""
    facts = Info(ir.DataType.FLOAT, (4, 3))
    for style in (*STYLES, *QUICK, *FILLED):
        first = drawn(facts, {}, style, wide=False, seed=1)
        kept = first.copy()
        first[:] = 9
        np.testing.assert_array_equal(drawn(facts, {}, style, wide=False, seed=1), kept)
        filled = style.filled is not None and style.filled[0] == 1
        assert first.dtype == np.float32 and (np.unique(kept).size == 1) == filled
