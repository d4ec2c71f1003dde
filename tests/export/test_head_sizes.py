"""Where a graph stores the number of classes: layouts of the head's tensors, constants of shapes, declarations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from safetensors.torch import save_file

import onnxgen
from onnxgen.errors import OnnxgenError
from onnxgen.export.report import ANEW, BACK
from onnxgen.options import Options
from onnxgen.pipeline import generate
from tests.export.swapped import assert_computes_the_same, assert_only_the_head_differs, swapped
from tests.export.test_options import CASES as OPTIONS
from tests.export.test_options import IMAGE, Net
from tests.support.exported import exported

RANDOM = np.random.default_rng(0)


def floats(*shape: int, kind: Any = np.float32) -> Any:
    return RANDOM.standard_normal(shape).astype(kind)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def graph(text: str, opset: int = 17, ir_version: int = 8, **stored: Any) -> onnx.ModelProto:
    """A model of a graph in onnx's text form, with these initializers; before IR version 4 they are inputs, too."""
    model = onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}]> g {text}')
    model.metadata_props.add(key="author", value="somebody")
    for name, value in stored.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
        if ir_version < 4:
            kind = model.graph.initializer[-1].data_type
            model.graph.input.append(helper.make_tensor_value_info(name, kind, value.shape))
    return model


IMAGES = "(float[n,6,4,4] x) => (float[n,10] y)"
ROWS = "(float[n,6] x) => (float[n,10] y)"
POOLED = "{a = Conv(x, w, b) p = GlobalAveragePool(a) "
LINEAR = "{a = Gemm<transB=1>(x, w, b) "
KERNEL: dict[str, Any] = {"w": floats(10, 6, 1, 1), "b": floats(10)}
MATRIX: dict[str, Any] = {"w": floats(10, 6), "b": floats(10)}
READ = "h = Shape(p) zero = Constant<value=int64{0}>() ax = Constant<value=int64[1]{0}>() n = Gather(h, zero) "
READ += "n1 = Unsqueeze(n, ax) ten = Constant<value=int64{10}>() t1 = Unsqueeze(ten, ax) "

# a graph, and the names of what has another size afterwards
KEPT: dict[str, tuple[onnx.ModelProto, set[str]]] = {
    "reshape": (
        graph(IMAGES + POOLED + "r = Reshape(p, s) y = Softmax<axis=1>(r)}", **KERNEL, s=ints(-1, 10)),
        {"w", "b", "s"},
    ),
    "computed": (
        graph(IMAGES + POOLED + READ + "c = Concat<axis=0>(n1, t1) y = Reshape(p, c)}", **KERNEL),
        {"w", "b", "ten"},
    ),
    "fixed": (
        graph("(float[2,6,4,4] x) => (float[2,10] y)" + POOLED + "y = Reshape(p, s)}", **KERNEL, s=ints(2, 10)),
        {"w", "b", "s"},
    ),
    "reshaped weight": (
        graph(
            ROWS + "{v = Reshape(w, s) m = MatMul(x, v) y = Add(m, b)}",
            w=floats(2, 3, 10),
            b=floats(1, 10),
            s=ints(6, 10),
        ),
        {"w", "b", "s"},
    ),
    "transposed": (
        graph(ROWS + "{v = Transpose<perm=[1,0]>(w) m = MatMul(x, v) y = Add(m, b)}", **MATRIX),
        {"w", "b"},
    ),
    "scaled": (graph(ROWS + "{y = Gemm<alpha=0.5, beta=2.0>(x, w, b)}", w=floats(6, 10), b=floats(10)), {"w", "b"}),
    "square": (
        graph("(float[n,10] x) => (float[n,10] y){y = Gemm(x, w, b)}", w=floats(10, 10), b=floats(10)),
        {"w", "b"},
    ),
    "slice": (
        graph(ROWS + LINEAR + "y = Slice(a, zero, s, one)}", **MATRIX, zero=ints(0), s=ints(10), one=ints(-1)),
        {"w", "b", "s"},
    ),
    "expand": (graph(ROWS + LINEAR + "y = Expand(a, s)}", **MATRIX, s=ints(10)), {"w", "b", "s"}),
    "split": (graph(ROWS + LINEAR + "y = Split<axis=1>(a, s)}", **MATRIX, s=ints(10)), {"w", "b", "s"}),
    "constants": (
        graph(
            "(float[n,2] x) => (float[n,3] y){w = Constant<value=float[3,2]{1,2,3,4,5,6}>() "
            "b = Constant<value_floats=[1.0,2.0,3.0]>() y = Gemm<transB=1>(x, w, b)}"
        ),
        {"w", "b"},
    ),
    "inputs of old files": (graph(ROWS + LINEAR + "y = Softmax(a)}", 8, 3, **MATRIX), {"w", "b"}),
    "half": (
        graph(
            "(float16[n,6] x) => (float16[n,10] y)" + LINEAR + "y = Identity(a)}",
            w=floats(10, 6, kind=np.float16),
            b=floats(10, kind=np.float16),
        ),
        {"w", "b"},
    ),
    "a scale of each class": (
        graph(ROWS + LINEAR + "y = Div(a, c)}", **MATRIX, c=np.full((1, 10), 2, np.float32)),
        {"w", "b", "c"},
    ),
    "rows": (
        graph(
            "(float[n,6,2] x) => (float[m,10] y){t = Transpose<perm=[0,2,1]>(x) a = MatMul(t, w) y = Reshape(a, s)}",
            w=floats(6, 10),
            s=ints(-1, 10),
        ),
        {"w", "s"},
    ),
}


@pytest.mark.parametrize("classes", [4, 13])
@pytest.mark.parametrize("name", KEPT)
def test_a_stored_size_follows(name: str, classes: int, tmp_path: Path) -> None:
    model, resized = KEPT[name]
    onnx.save(onnx.shape_inference.infer_shapes(model), tmp_path / "m.onnx")  # declares inner values
    module = f"sizes_{name.replace(' ', '_')}_{classes}"
    generate(tmp_path / "m.onnx", tmp_path / f"{module}.py")
    trained, report = swapped(tmp_path, classes, module)
    assert_only_the_head_differs(tmp_path, report)
    assert set(report.resized) == resized and not report.notes
    assert_computes_the_same(tmp_path, trained, classes)


def test_a_map_of_scores(tmp_path: Path) -> None:
    """The head is named. It is found again in a file of weights, which only says what has another size."""
    text = '(float[1,6,4,4] x) => (float[1,10,8,8] y){a = Conv(x, w, b) y = Resize<mode="nearest">(a, , , s)}'
    onnx.save(graph(text, **KERNEL, s=ints(1, 10, 8, 8)), tmp_path / "m.onnx")
    generate(tmp_path / "m.onnx", tmp_path / "map_of_scores.py")
    model, report = swapped(tmp_path, 3, "map_of_scores", head="conv")
    assert_only_the_head_differs(tmp_path, report)
    assert report.resized == ["w", "b", "s"] and not report.notes
    assert_computes_the_same(tmp_path, model, 3)
    save_file(model.state_dict(), tmp_path / "best.safetensors")
    whole = (tmp_path / "out.onnx").read_bytes()
    onnxgen.export(tmp_path / "map_of_scores.py", weights=tmp_path / "best.safetensors", out=tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").read_bytes() == whole


def test_a_constant_that_others_use_stays(tmp_path: Path) -> None:
    """Another Reshape has the same shape; it is no part of the head."""
    text = "(float[n,10,4,4] x) => (float[n,10] y){q = GlobalAveragePool(x) z = Reshape(q, s) v = Relu(z)"
    text += "u = Reshape(v, t) a = Conv(u, w, b) y = Reshape(a, s)}"
    onnx.save(
        graph(text, w=floats(10, 10, 1, 1), b=floats(10), s=ints(-1, 10), t=ints(-1, 10, 1, 1)), tmp_path / "m.onnx"
    )
    generate(tmp_path / "m.onnx", tmp_path / "shared_shape.py")
    model, report = swapped(tmp_path, 5, "shared_shape")
    assert_only_the_head_differs(tmp_path, report, rewired=["y"])
    assert report.resized == ["w", "b", "s_2"]
    assert list(onnx.load(tmp_path / "out.onnx").graph.node[-1].input) == ["a", "s_2"]
    assert_computes_the_same(tmp_path, model, 5)


@pytest.mark.parametrize("case", OPTIONS)
def test_with_options_of_the_generation(case: str, tmp_path: Path) -> None:
    """The file has what the options changed in the network, and the new head."""
    axes = {"restored": {0: "n"}, "fixed": {0: "n", 2: "h", 3: "w"}}.get(case)
    proto = exported(Net().eval(), [torch.randn(IMAGE)], "legacy-13", {0: axes} if axes else None)
    onnx.save(proto, tmp_path / "m.onnx")
    generate(tmp_path / "m.onnx", tmp_path / f"swapped_{case}.py", Options(**OPTIONS[case]))
    model, report = swapped(tmp_path, 3, f"swapped_{case}")
    assert report.method == BACK and report.verified is not None and report.verified.agrees
    assert {"head.weight", "head.bias"} <= set(report.resized)
    out = onnx.load(tmp_path / "out.onnx")
    assert out.graph.output[0].type.tensor_type.shape.dim[1].dim_value == 3
    norms = [n for n in out.graph.node if n.op_type == "BatchNormalization"]
    assert len(norms) == (2 if "restored" in case else 0)
    is_free = bool(out.graph.input[0].type.tensor_type.shape.dim[0].dim_param)
    assert is_free == ("dynamic_batch" in case or case == "restored")
    if "dtype" not in OPTIONS[case]:
        assert_computes_the_same(tmp_path, model, 3)


@pytest.mark.parametrize("free", [False, True])
def test_as_many_samples_as_classes(free: bool, tmp_path: Path) -> None:
    """A Reshape to [10, 10] has the classes last. With a free batch it has another shape already."""
    text = "(float[10,6,4,4] x) => (float[10,10] y)" + POOLED + "r = Reshape(p, s) y = Softmax<axis=1>(r)}"
    onnx.save(graph(text, **KERNEL, s=ints(10, 10)), tmp_path / "m.onnx")
    generate(tmp_path / "m.onnx", tmp_path / f"as_many_{free}.py", Options(dynamic_batch=free))
    model, report = swapped(tmp_path, 5, f"as_many_{free}")
    assert report.method == BACK and report.resized == ["w", "b", "r.shape" if free else "s"]
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert stored[report.resized[2]].tolist() == ([-1, 5] if free else [10, 5])
    assert_computes_the_same(tmp_path, model, 5)


def test_a_norm_that_was_restored_after_the_head(tmp_path: Path) -> None:
    """Its tensors have a value for each class, and are in no file."""
    text = IMAGES + "{a = Conv(x, w, b) r = Relu(a) p = GlobalAveragePool(r) y = Flatten(p)}"
    onnx.save(graph(text, **KERNEL), tmp_path / "m.onnx")
    generate(tmp_path / "m.onnx", tmp_path / "normed_head.py", Options(restore_batchnorm=True))
    model, report = swapped(tmp_path, 4, "normed_head")
    assert report.method == BACK and len(report.added) == 4
    assert_computes_the_same(tmp_path, model, 4)


def test_an_edited_file(tmp_path: Path) -> None:
    """The number stands in the code, so that the head can't be replaced; the user changes it."""
    text = "(float[n,2,6] x) => (float[n,20] y){a = MatMul(x, w) y = Reshape(a, s)}"
    onnx.save(graph(text, w=floats(6, 10), s=ints(-1, 20)), tmp_path / "m.onnx")
    generate(tmp_path / "m.onnx", tmp_path / "model.py")
    code = (tmp_path / "model.py").read_text()
    assert "nn.Linear(6, 10, " in code
    (tmp_path / "model.py").write_text(code.replace("nn.Linear(6, 10, ", "nn.Linear(6, 7, "))
    save_file({"fc.weight": torch.randn(7, 6)}, tmp_path / "best.safetensors")
    report = onnxgen.export(tmp_path / "model.py", weights=tmp_path / "best.safetensors", out=tmp_path / "out.onnx")
    assert report.method == BACK and report.resized == ["w", "s"]
    assert report.why == "only one size was changed, from 10 to 7: fc.weight"
    assert onnx.load(tmp_path / "out.onnx").graph.output[0].type.tensor_type.shape.dim[1].dim_value == 14


# ---- what the graph can't hold ---------------------------------------------------------------------------------------

CALLED = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]> g (float[n,6] x) => (float[n,3] y) {y = own.head(x)}
<domain: "own", opset_import: ["" : 17]> head (x) => (y) {
  w = Constant<value=float[6,3]{1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18}>() y = MatMul(x, w)}"""
ANEW_CASES: dict[str, tuple[onnx.ModelProto, str]] = {
    "stored once for two layers": (
        graph(
            "(float[n,10] x) => (float[n,10] y){a = Gemm<transB=1>(x, v, b) r = Relu(a) y = Gemm<transB=1>(r, w, b)}",
            w=floats(10, 10), v=floats(10, 10), b=floats(10),
        ),
        "the file stores b once for the head and for something else",
    ),
    "a number that the graph computes": (
        graph(
            IMAGES + POOLED + "h = Shape(p) zero = Constant<value=int64[1]{0}>() n = Gather(h, zero) "
            "c = Concat<axis=0>(n, five) d = Mul(c, twice) y = Reshape(p, d)}",
            **KERNEL, five=ints(5), twice=ints(1, 2),
        ),
        "Reshape y computes a shape from the 10 classes",
    ),
    "integers": (
        graph(
            ROWS + "{f = DequantizeLinear<axis=0>(w, q, z) y = Gemm<transB=1>(x, f, b)}",
            w=RANDOM.integers(-90, 90, (10, 6)).astype(np.int8), q=np.abs(floats(10)), z=np.zeros(10, np.int8),
            b=floats(10),
        ),
        "w holds the head's weights as integers, and new classes have no scale",
    ),
    "a table": (
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]> g (float[n,2] x) => (int64[n] k, float[n,3] y) '
            '{k, y = ai.onnx.ml.LinearClassifier<coefficients=[1.0,2.0,3.0,4.0,5.0,6.0], intercepts=[0.1,0.2,0.3], '
            'classlabels_ints=[0,1,2], post_transform="SOFTMAX">(x)}'
        ),
        "the 3 classes are no axis of k:coefficients",
    ),
    "another layer behind a cut": (
        graph(ROWS.replace("10", "4") + LINEAR + "r = Softmax<axis=1>(a) y = MatMul(r, v)}", **MATRIX, v=floats(10, 4)),
        "MatMul y can't take another number than 10",
    ),
    "a local function": (onnx.parser.parse_model(CALLED), "is in a local function"),
}  # fmt: skip


@pytest.mark.parametrize("name", ANEW_CASES)
def test_what_the_graph_cant_hold_is_exported_anew(name: str, tmp_path: Path) -> None:
    """The report has the reason."""
    model, why = ANEW_CASES[name]
    onnx.save(model, tmp_path / "m.onnx")
    module = f"anew_{name.replace(' ', '_')}"
    options: dict[str, dict[str, Any]] = {
        "integers": {"quantized": "float"},
        "another layer behind a cut": {"outputs": ["a"]},
        "stored once for two layers": {"untied": "^b$"},
    }
    given = options.get(name, {})
    generate(tmp_path / "m.onnx", tmp_path / f"{module}.py", Options(**given))
    trained, report = swapped(tmp_path, 5, module)
    assert report.method == ANEW and report.verified is not None and report.verified.agrees
    assert why in report.why and not report.resized
    assert_computes_the_same(tmp_path, trained, 5, output=1 if name == "a table" else 0)


def test_a_branch_is_neither_resized_nor_recorded(tmp_path: Path) -> None:
    """The file is refused: PyTorch's older exporter would record the branch of its example, its newer one refuses."""
    text = ROWS + LINEAR + "s = ReduceSum<keepdims=0>(x) z = Constant<value=float{0.0}>() c = Greater(s, z) "
    text += (
        "y = If(c) <then_branch = t () => (u) {u = Softmax<axis=1>(a)}, else_branch = e () => (v) {v = Identity(a)}>}"
    )
    onnx.save(graph(text, **MATRIX), tmp_path / "m.onnx")
    generate(tmp_path / "m.onnx", tmp_path / "branching_head.py")
    what = "can't be exported .*one branch of an if.*because .*a subgraph of If uses the 10 classes"
    with pytest.raises(OnnxgenError, match=what):
        swapped(tmp_path, 5, "branching_head")
    assert not (tmp_path / "out.onnx").exists()
