"""Sizes that `verify` draws: what the graph says of its dims is followed, whatever it is said by."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

import onnxgen
from onnxgen import OnnxgenError, Options
from onnxgen.verify import answering, feeds
from onnxgen.verify.check import Check
from onnxgen.verify.graph import Graph, named
from onnxgen.verify.sizes import sizes

RELATED: dict[str, tuple[str, dict[str, tuple[int, ...]]]] = {  # a graph, and the shapes of its weights
    "a sum": ("(float[n, t] x, float[m, s] y) => (float[a, b] z) { z = Add (x, y) }", {}),
    "a product": ("(float[n, t] x, float[s, k] y) => (float[a, b] z) { z = MatMul (x, y) }", {}),
    "channels": ("(float[n, c, h, w] x) => (float[a, b, d, e] z) { z = Conv <pads = [1, 1, 1, 1]> (x, w0) }",
                 {"w0": (4, 3, 3, 3)}),
    "groups": ("(float[n, c, h, w] x) => (float[a, b, d, e] z) { z = Conv <group = 2> (x, w0) }", {"w0": (4, 3, 1, 1)}),
    "features": ("(float[n, c] x) => (float[a, b] z) { z = Gemm <transB = 1> (x, w0) }", {"w0": (4, 7)}),
    "a cache": ("""(float[b, 2, s, 4] q, float[c, 2, p, 4] past, float[d, 1, 1, t] mask) => (float[x, y, z, w] o) {
        k = Concat <axis = 2> (past, q)  r = Transpose <perm = [0, 1, 3, 2]> (k)  scores = MatMul (q, r)
        masked = Add (scores, mask)  weights = Softmax (masked)  o = MatMul (weights, k) }""", {}),
    "states": ("""(float[t, n, 3] x, float[1, m, 5] h, float[1, k, 5] c) => (float[a, b, d, e] y) {
        y = LSTM <hidden_size = 5> (x, w0, w1, , , h, c) }""", {"w0": (1, 20, 3), "w1": (1, 20, 5)}),
    "strides": ("""(float[n, 1, h, w] x) => (float[a, b, d, e] z) {
        u = Conv <strides = [4, 4], pads = [1, 1, 1, 1]> (x, w0)
        v = ConvTranspose <strides = [4, 4]> (u, w1)  z = Add (v, x) }""", {"w0": (1, 1, 3, 3), "w1": (1, 1, 4, 4)}),
    "windows": ("(float[n, 1, t] x) => (float[a, b, d] z) { u = Conv <strides = [5]> (x, w0)  z = Conv (u, w0) }",
                {"w0": (1, 1, 40)}),
    "heads": ("""(float[n, t, e] x) => (float[a, b, c, d] z) { r = Constant <value = int64[4] {0, 0, 4, 6}> ()
        z = Reshape (x, r) }""", {}),
    "rows of fours": ("""(float[n] x) => (float[a, b] z) { r = Constant <value = int64[2] {-1, 4}> ()
        z = Reshape (x, r) }""", {}),
    "parts of an axis": ("(float[n, t] x, int64[3] s) => (float[a, b] z) { z, u, v = Split <axis = 1> (x, s) }", {}),
    "parts in other integers": ("""(float[n, 8] x, int32[2] s) => (float[a, b] z) {
        l = Cast <to = 7> (s)  z, u = Split <axis = -1> (x, l) }""", {}),
    "parts of a sequence": ("""(float[n, 8] x, int64[3] s) => (float[a, b] z) { k = Constant <value_int = 1> ()
        l = SplitToSequence <axis = 1> (x, s)  z = SequenceAt (l, k) }""", {}),
    "updates": ("""(float[n, 3] x, int64[m, 3] i, float[k, 3] u) => (float[a, b] z) {
        z = ScatterElements <axis = 1> (x, i, u) }""", {}),
    "regions": ("""(float[n, 1, 8, 8] x, float[4, m] t, int64[k] i) => (float[a, b, c, d] z) {
        r = Transpose (t)  z = RoiAlign <output_height = 2, output_width = 2, sampling_ratio = 1> (x, r, i) }""", {}),
    "positions": ("""(float[n, t, 8] x, int64[m, s] p) => (float[a, b, c] z) {
        z = com.microsoft.RotaryEmbedding (x, p, w0, w1) }""", {"w0": (64, 4), "w1": (64, 4)}),
}  # fmt: skip


def graph(tmp_path: Path, text: str, weights: dict[str, tuple[int, ...]] | None = None) -> tuple[Path, Graph]:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g {text}')
    for name, shape in (weights or {}).items():
        drawn = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(drawn, name))
    onnx.save(model, path := tmp_path / "graph.onnx")
    return path, Check(path, Options(), rtol=0.0, atol=0.0).graph


@pytest.mark.parametrize("name", RELATED)
def test_the_first_sizes_run(name: str, tmp_path: Path) -> None:
    """onnxruntime takes the first sizes of each run: none is refused before one is found."""
    path, found = graph(tmp_path, *RELATED[name])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    tried: list[Any] = []
    for run in range(3):
        tried.append(next(iter(sizes(found, run))))
        session.run(None, feeds.draw(found, tried[-1], "plain", run))
    assert len({tuple(t.values()) for t in tried}) > 1


def test_names_that_are_expressions(tmp_path: Path) -> None:
    """The graph itself relates nothing here."""
    dims = "past + sequence", "2 * past", "sequence // 2", "floor((sequence - 1)/2) + 1", "Max(past, sequence)"
    given = ", ".join(f"float[d{i}] x{i}" for i in range(len(dims)))
    text = f"(float[past, sequence] x, {given}) => (float[a, b] z) {{ z = Neg (x) }}"
    path, _ = graph(tmp_path, text)
    model = onnx.load(path)
    for value, name in zip(model.graph.input[1:], dims):
        value.type.tensor_type.shape.dim[0].dim_param = name
    onnx.save(model, path)
    found = Check(path, Options(), rtol=0.0, atol=0.0).graph
    for drawn in islice(sizes(found, 0), 5):
        p, s = drawn["past"], drawn["sequence"]
        assert [drawn[name] for name in dims] == [p + s, 2 * p, s // 2, (s - 1) // 2 + 1, max(p, s)]


@pytest.mark.parametrize(
    "name", ["a +", "a()", "f(a)", "a.b", "a / b", "lambda: a", "[a]", "1e3", "a if b else c", "x + 1"]
)
def test_names_that_are_none(name: str) -> None:
    assert named(["a", "b", name]) == {}


def test_dims_that_may_be_one_are_tried_so(tmp_path: Path) -> None:
    """Where equal sizes do not run, others are tried: here the sum's second row must be 1."""
    path, found = graph(
        tmp_path,
        """(float[n, 3] x, float[m, 3] y) => (float[a, b] z) { s = Constant <value = int64[1] {3}> ()
        r = Reshape (y, s)  z = Add (x, r) }""",
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    drawn = next(iter(sizes(found, 0)))
    assert drawn["m"] == 1 and session.run(None, feeds.draw(found, drawn, "plain", 0))


def test_states_behind_a_branch_have_the_batch_of_the_input(tmp_path: Path) -> None:
    """Only with one branch does the LSTM get three axes; then its batch is that of the states."""
    text = """(float[n, 3, l] x, float[1, m, 5] h, float[1, k, 5] c) => (float[a, b, d, e] y) {
        s = Shape (x)  i = Constant <value = int64[1] {2}> ()  u = Gather (s, i)  o = Constant <value = int64[1] {1}> ()
        k1 = Equal (u, o)  z = Constant <value = int64[1] {0}> ()
        q = If (k1) < then_branch = t () => (float[n, 3] v) { v = Squeeze (x, i) },
                      else_branch = f () => (float[n, 3, l] w) { w = Identity (x) } >
        r = Unsqueeze (q, z)  y = LSTM <hidden_size = 5> (r, w0, w1, , , h, c) }"""
    _, found = graph(tmp_path, text, {"w0": (1, 20, 3), "w1": (1, 20, 5)})
    first = next(iter(sizes(found, 0)))
    assert first["n"] == first["m"] == first["k"] != 1


def test_inputs_of_unknown_rank_are_tried_with_several(tmp_path: Path) -> None:
    """The first shape, (2, 3), is not what a sum over two axes of four takes."""
    path, _ = graph(tmp_path, "(float[4] x, float y) => (float z) { z = Add (x, y) }")
    model = onnx.load(path)
    model.graph.input[1].type.tensor_type.ClearField("shape")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    report = onnxgen.verify(path)
    assert report.agrees
    assert {run.inputs["y"] for run in report.runs} <= {"float32 [4]", "float32 [2, 3, 4]", "float32 []"}


def test_sizes_of_two_images_are_unrelated(tmp_path: Path) -> None:
    """torch's own nearest points between two sizes are not onnxruntime's, which only some pairs of sizes show."""
    text = """(float[n, 1, h, w] x, float[n, 1, k, v] y) => (float[a, b, c, d] z) {
        s = Shape (x) e = Shape <start = 2> (y) f = Shape <end = 2> (x) t = Concat <axis = 0> (f, e)
        z = Resize <mode = "nearest", nearest_mode = "floor", coordinate_transformation_mode = "asymmetric"> (x, , , t)
    }"""
    path, found = graph(tmp_path, text)
    assert {"h": 26, "w": 30, "k": 64, "v": 100}.items() <= next(iter(sizes(found, 1))).items()
    module = tmp_path / "model.py"
    onnxgen.generate(path, module)
    assert onnxgen.verify(path, module).agrees
    written = module.read_text()
    assert "resize_floor(x, size=y.shape[2:])" in written
    module.write_text(written.replace("resize_floor(x,", "F.interpolate(x,"))
    assert not onnxgen.verify(path, module).agrees


HALVED = """(float[n, 1, h, w] x) => (float[a, 1, c, d] z) <float[4] back = {1, 1, 8, 8}> {
    u = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x)
    v = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (u)
    t = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (v)
    g = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric"> (t, , back)
    z = Add (g, x) }"""


def _blind(path: Path) -> Check:
    """A check that knows of no relation between sizes but those that the oracle shows."""
    check = Check(path, Options(), rtol=1e-3, atol=1e-5)
    check.graph.known, check.graph.equations, check.graph.windows = {}, [], []
    return check


def test_sizes_that_must_be_multiples_are_found_once(tmp_path: Path) -> None:
    path, _ = graph(tmp_path, HALVED)
    check = _blind(path)
    answers = list(check.answers(3, 0, None))
    assert check.steps == {"h": 8, "w": 8}
    assert check.notes == ["the sizes h, w must be multiples of 8: onnxruntime refused others"]
    assert all(a.sizes["h"] % 8 == a.sizes["w"] % 8 == 0 for a in answers)
    assert len({tuple(a.sizes.values()) for a in answers}) == 3


def test_a_refusal_is_one_line_and_is_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = graph(tmp_path, HALVED)
    check, tried, draw = _blind(path), list[Any](), feeds.draw
    monkeypatch.setattr(feeds, "draw", lambda graph, sizes, *more: (tried.append(sizes), draw(graph, sizes, *more))[1])
    monkeypatch.setattr(answering, "steps", lambda *_: {})
    assert len(list(check.answers(9, 0, None))) == 9
    assert check.refused and all(tried.count(sizes) == 1 for sizes in check.refused)
    (note,) = check.notes
    assert note.startswith("onnxruntime refused inputs with n=3, h=33, w=34: Add '', ") and len(note) < 250


STATE = """(float[n, t] x, float[2, m, 128] state) => (float[a, b, c] z) <int64[4] pads = {0, 100, 0, 0}> {
    long = Pad <mode = "reflect"> (x, pads)  one = Constant <value_ints = [1]> ()
    mean = ReduceMean <axes = [1]> (long)  wide = Unsqueeze (mean, one)
    two = Constant <value_ints = [-1, 1]> ()  zero = Constant <value_ints = [0]> ()
    first = Gather (state, zero)  flat = Squeeze (first, zero)  n = Shape (x)  rows = Gather (n, zero)
    size = Constant <value_ints = [128]> ()  whole = Concat <axis = 0> (rows, size)
    same = Reshape (flat, whole)  z = Add (wide, same) }"""


def test_a_state_whose_batch_the_file_does_not_relate(tmp_path: Path) -> None:
    path, _ = graph(tmp_path, STATE)
    check = _blind(path)
    (answer,) = check.answers(1, 0, None)
    assert answer.oracle.name == "onnxruntime" and answer.sizes["m"] == answer.sizes["n"] < answer.sizes["t"]


# ---- sizes that a module was generated for ---------------------------------------------------------------------------

EIGHTHS_IN_TWO = """(float[n, 3, h, 1] x) => (float[a, b, c] z) {
    small = MaxPool <kernel_shape = [8, 1], strides = [8, 1]> (x)  n = Shape <start = 0, end = 1> (small)
    rest = Constant <value_ints = [-1, 2]> ()  r = Concat <axis = 0> (n, rest)  z = Reshape (small, r) }"""
ALL: dict[str, Any] = {"runs": 2, "seed": 0, "feeds": None, "integrity": False, "locate": False, "partial": False}


def test_a_module_is_verified_at_its_own_sizes(tmp_path: Path) -> None:
    path, _ = graph(tmp_path, EIGHTHS_IN_TWO)
    onnxgen.generate(path, tmp_path / "z.py", Options(input_shapes={"x": (-1, -1, 48, -1)}))
    report = Check(path, Options(), rtol=1e-3, atol=1e-5).verify(tmp_path / "z.py", **ALL)
    assert report.agrees and [run.inputs["x"] for run in report.runs] == [f"float32 [{n}, 3, 48, 1]" for n in (2, 3)]


def test_sizes_at_which_the_file_itself_does_not_run(tmp_path: Path) -> None:
    """Three channels of three rows are cut in two: the shapes alone do not tell that this fails."""
    path, _ = graph(tmp_path, EIGHTHS_IN_TWO)
    onnxgen.generate(path, tmp_path / "z.py", Options(input_shapes={"x": (-1, -1, 24, -1)}))
    check = Check(path, Options(), rtol=1e-3, atol=1e-5)
    with pytest.raises(OnnxgenError, match=r"does not run at the module's sizes, x \[n, 3, 24, 1\].*Reshape"):
        check.verify(tmp_path / "z.py", **ALL)
    assert len(check.refusals) <= 6
