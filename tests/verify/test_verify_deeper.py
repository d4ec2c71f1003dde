"""What `verify` compares beyond outputs: gradients by differences, weights by their record, and where things part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from click.testing import CliRunner
from onnx import numpy_helper, parser
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from onnxgen.cli.app import app
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.pipeline import generate
from onnxgen.reader import read
from onnxgen.record.sidecar import read_header
from onnxgen.runtime.load import load
from onnxgen.verify import feeds, verify
from onnxgen.verify.compare import MAX_SLACK_PART, Tolerance
from onnxgen.verify.gradients import hold
from onnxgen.verify.graph import examine
from onnxgen.verify.report import Gradients
from onnxgen.verify.rounding import NOISE, Freedom, explained
from onnxgen.verify.sizes import sizes

NET = """<ir_version: 8, opset_import: ["" : 17]> net (float[n, 6] x) => (float[n, 4] y) {
    a = Gemm <transB = 1> (x, w0, b0)  r = Relu (a)  s = Sub (r, a)  y = Gemm <transB = 1> (s, w1, b1) }"""


def _net(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    model = parser.parse_model(NET)
    for name, shape in {"w0": (8, 6), "b0": (8,), "w1": (4, 8), "b1": (4,)}.items():
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    for i, node in enumerate(model.graph.node):
        node.name = f"node{i}"
    onnx.save(model, folder / "net.onnx")
    return folder / "net.onnx"


@pytest.fixture
def generated(tmp_path: Path) -> tuple[Path, Path]:
    path = _net(tmp_path)
    generate(path, tmp_path / "net.py")
    return path, tmp_path / "net.py"


def test_gradients_of_a_right_module_agree_with_differences(generated: tuple[Path, Path]) -> None:
    found = verify(*generated).gradients
    assert (found.held, found.groups, found.wrong, found.unclear) == (5, 5, [], [])


def test_a_gradient_that_is_cut_off_is_told(generated: tuple[Path, Path]) -> None:
    path, out = generated
    source = out.read_text()
    text = source.splitlines()
    forward = next(i for i, line in enumerate(text) if "def forward(" in line)
    last = next(i for i, line in enumerate(text) if i > forward and line.strip().startswith("return "))
    value = text[last].strip().removeprefix("return ")
    text[last : last + 1] = [f"        y = {value}", "        return 0.5 * y + 0.5 * y.detach()"]
    out.write_text("\n".join(text) + "\n")
    report = verify(path, out)
    assert all(run.agrees for run in report.runs)
    assert report.gradients.wrong and not report.agrees


class _Corners(nn.Module):
    """Loss functions with a corner where the parameters are: their differences to either side are apart."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(16)])

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, *(w.abs() for w in self.weights)])


def test_a_gradient_between_the_slopes_of_a_corner_is_right() -> None:
    """Whichever of the slopes is larger: the fixed weights of the outputs have either sign."""
    found = Gradients()
    assert not hold(_Corners(), {"x": np.ones(3, np.float32)}, set(), found)
    assert (found.held, found.groups, found.wrong, found.unclear) == (17, 17, [], [])


class _Valley(nn.Module):
    """Beside each weight at 0 are kinks on both sides, as a large picture has between its many ReLUs.

    `slope`: a factor that only backward sees, of which 1 is right.
    """

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(4)])
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, *(self._curve(w) for w in self.weights)])

    def _curve(self, w: Tensor) -> Tensor:
        lines = w + 1000 * (torch.relu(w - 2e-8) - torch.relu(-w - 2e-8))
        return lines.detach() + self.slope * (w - w.detach())


def test_kinks_on_both_sides_are_no_slope() -> None:
    found = Gradients()
    assert not hold(_Valley(1.0), {"x": np.ones(3, np.float32)}, set(), found)
    assert found.held == 5 and not found.wrong


def test_a_wrong_slope_between_kinks_is_found() -> None:
    found = Gradients()
    assert not hold(_Valley(1.5), {"x": np.ones(3, np.float32)}, set(), found)
    assert found.held == 1 and len(found.wrong) == 4


class _Narrow(nn.Module):
    """Asks for single precision, and does nothing with one of its inputs."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (x * x).float() + x.to(torch.float32)


def test_differences_are_those_of_64_bits_whatever_type_the_module_asks_for() -> None:
    """An input that nothing is computed from has the gradient 0."""
    found = Gradients()
    assert not hold(_Narrow(), {"x": np.ones(3, np.float32), "y": np.ones(2, np.float32)}, set(), found)
    assert (found.held, found.groups, found.wrong, found.unclear) == (2, 2, [], [])


def test_what_differs_on_some_inputs_is_located_with_these(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> net (float[4] x) => (float[4] y) {{
        a = Sin (x)  b = {operator} (a)  y = Exp (b) }}"""
    for name, operator in (("net", "Abs"), ("other", "Relu")):
        model = parser.parse_model(text.format(operator=operator))
        for node in model.graph.node:
            node.name = node.output[0]
        onnx.save(model, tmp_path / f"{name}.onnx")
    generate(tmp_path / "other.onnx", tmp_path / "other.py")
    same = np.float32([0.5, 1, 1.5, 2])
    for inputs in ([-same, same], [same, -same]):
        given = [{"x": x} for x in inputs]
        report = verify(tmp_path / "net.onnx", tmp_path / "other.py", feeds=given, locate=True)
        assert [run.agrees for run in report.runs] == [x is same for x in inputs]
        assert report.located is not None and report.located.node == "b"


def test_a_weight_that_hardly_shows_is_told_and_located(generated: tuple[Path, Path]) -> None:
    path, out = generated
    sidecar = out.with_suffix(".safetensors")
    tensors, metadata = load_file(sidecar), read_header(sidecar)[0]
    key = next(key for key, value in tensors.items() if value.shape == (4, 8))
    tensors[key] = tensors[key].copy()
    tensors[key][0, 0] = np.nextafter(tensors[key][0, 0], np.float32(9))
    save_file(tensors, sidecar, metadata)
    report = verify(path, out, locate=True)
    assert all(run.agrees for run in report.runs)
    assert report.moved == ["w1"] and not report.agrees
    assert report.located is not None and report.located.node == "node3"


def test_sizes_can_be_said(tmp_path: Path) -> None:
    path = _net(tmp_path)
    assert [run.sizes for run in verify(path, sizes={"n": 9}).runs] == [{"n": 9}] * 3
    with pytest.raises(OnnxgenError, match="has no dynamic dim m .it has: n."):
        verify(path, sizes={"m": 9})
    generate(path, tmp_path / "net.py", Options(input_shapes={"x": (2, 6)}))  # sizes are those of the file all the same
    assert [run.sizes for run in verify(path, tmp_path / "net.py", sizes={"n": 9}).runs] == [{"n": 9}] * 3
    assert len({run.sizes["n"] for run in verify(path, tmp_path / "net.py").runs}) > 1


@pytest.mark.parametrize("text", ["n", "n=0", "=3", "n=-1", "n=two"])
def test_sizes_that_are_none_are_refused(text: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["verify", str(_net(tmp_path)), "--sizes", text])
    assert result.exit_code != 0
    assert result.exception is None or "NAME=N" in str(result.exception) or "NAME=N" in result.output


ANSWERS: dict[str, tuple[Any, Any, list[Any], bool]] = {
    "rounding": (np.float32([1, 2]), np.float32([1.01, 2]), [np.float32([1, 2.01])], True),
    "more than rounding": (np.float32([1, 2]), np.float32([1.2, 2]), [np.float32([1, 2.01])], False),
    "hidden": (np.float32([1, 2]), np.float32([1.2, 2]), [np.float32([1, 3])], False),
    "a tie": (np.int64([3, 1]), np.int64([1, 3]), [np.int64([1, 3])], True),
    "an index nobody gave": (np.int64([3, 1]), np.int64([2, 3]), [np.int64([1, 3])], False),
    "no answer": (np.float32([1]), np.float32([1.01]), [], False),
    "infinite": (np.float32([1, 2]), np.float32([np.inf, 2]), [np.float32([1, 2.01])], False),
    "equal but for the last bit": (
        np.float32([1, 0, 2]),
        np.float32([1, 1e-9, 2.01]),
        [np.float32([1, 0, 2.01])],
        True,
    ),
    "more of them than moved": (np.float32([1, 0, 2]), np.float32([1, 1e-4, 2.01]), [np.float32([1, 0, 2.01])], False),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_what_other_answers_explain(case: str) -> None:
    expected, got, others, is_explained = ANSWERS[case]
    moved = explained(expected, got, others, Tolerance())
    assert (moved is not None and moved <= MAX_SLACK_PART) is is_explained


def test_the_oracle_has_other_answers(tmp_path: Path) -> None:
    path = _net(tmp_path)
    graph = examine(read(path, Options()), Options())
    freedom = Freedom(path, onnx.load(path), graph.types)
    answers = [a for _, a in freedom.answers(feeds.draw(graph, next(sizes(graph, 0)), "plain", 0))]
    assert len(answers) == 8
    assert any(not np.array_equal(answer[0], answers[1][0]) for answer in answers[3:])


TINY = """<ir_version: 8, opset_import: ["" : 17]> net (float[n, 64] x) => (float[n, 64] y)
    <float far = {{-17.5}}, float[1] step = {{{step}}}> {{
    narrow = Mul (x, step)  low = Add (narrow, far)  y = Sigmoid (low) }}"""


def test_tiny_probabilities_are_compared_without_the_error_of_a_float32_kernel(tmp_path: Path) -> None:
    """onnxruntime's Sigmoid is wrong by as much as these results are; its float64 tells right from wrong."""
    path, other = tmp_path / "net.onnx", tmp_path / "other.onnx"
    onnx.save(parser.parse_model(TINY.format(step=0.2)), path)
    onnx.save(parser.parse_model(TINY.format(step=0.4)), other)
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    exact = 1 / (1 + np.exp(17.5 - 0.2 * x.astype(np.float64)))
    (rough,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    assert np.abs(rough / exact - 1).max() > 0.05, "the kernel is exact now"
    right = verify(path, load(path), feeds=[{"x": x}])
    assert right.agrees and any("onnxruntime in float64 computes the same" in note for note in right.notes)
    assert not verify(path, load(other), feeds=[{"x": x}]).agrees


def test_noise_of_one_unit_in_16_bits(tmp_path: Path) -> None:
    """Of numbers of 16 bits it is a step of theirs, either way or none."""
    text = """<ir_version: 8, opset_import: ["" : 17]> net (float[500] x) => (float16[500] y) {
        half = Cast <to = 10> (x)  y = Neg (half) }"""
    onnx.save(parser.parse_model(text), tmp_path / "net.onnx")
    graph = examine(read(tmp_path / "net.onnx", Options()), Options())
    freedom = Freedom(tmp_path / "net.onnx", onnx.load(tmp_path / "net.onnx"), graph.types)
    x = np.random.default_rng(0).uniform(1.1, 1.9, 500).astype(np.float32)
    noisy = [a[0] for name, a in freedom.answers({"x": x}) if name == NOISE]
    steps = np.array([a.astype(np.float64) + x.astype(np.float16).astype(np.float64) for a in noisy]) / 2.0**-10
    assert len(noisy) == 4 and set(steps.flatten()) <= set(range(-4, 5)) and {-1.0, 0.0, 1.0} <= set(steps.flatten())


def test_a_near_tie_may_be_decided_either_way(tmp_path: Path) -> None:
    """Rows in the order of scores that rounding decides; in one that it does not they are wrong."""
    text = """<ir_version: 8, opset_import: ["" : 17]> net (float[4, 3] rows, float[4, 1] far) => (float[2, 3] y)
        <int64[1] two = {2}, float[4, 1] scores = {2.0, 1.0, 1.0, 0.5}> {
        off = Mul (far, zero)  zeros = Tanh (off)  ranks = Add (scores, zeros)
        best, places = TopK <axis = 0> (ranks, two)  y = GatherND (rows, places) }"""
    model = parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.array(1e-9, np.float32), "zero"))
    onnx.save(model, tmp_path / "net.onnx")
    assert verify(tmp_path / "net.onnx", _Rows([0, 1])).agrees
    report = verify(tmp_path / "net.onnx", _Rows([0, 2]))
    assert report.agrees and any("one unit in the last place" in note for note in report.notes)
    assert not verify(tmp_path / "net.onnx", _Rows([1, 0])).agrees
    assert not verify(tmp_path / "net.onnx", _Rows([0, 3])).agrees


class _Rows(nn.Module):
    def __init__(self, places: list[int]) -> None:
        super().__init__()
        self.places = places

    def forward(self, rows: Tensor, far: Tensor) -> Tensor:
        return rows[self.places]


ROLES = {  # a graph; how many inputs of its random ones onnxruntime takes is what is tested
    "lengths": """(float[t, n, 3] x, int32[n] lengths, float[1, 8, 3] w, float[1, 8, 2] r) => (float[a, b, c, d] y) {
        y = LSTM <hidden_size = 2> (x, w, r, , lengths) }""",
    "an axis": "(float[n, t] x, int64 axis) => (float[a, b] y) { y = CumSum (x, axis) }",
    "divisors": "(int64[n] x, int64[n] y) => (int64[m] z) { z = Div (x, y) }",
    "regions": """(float[n, 2, 8, 8] x, float[k, 4] rois, int64[k] batch) => (float[a, b, c, d] y) {
        y = RoiAlign <output_height = 2, output_width = 2> (x, rois, batch) }""",
}


@pytest.mark.parametrize("case", ROLES)
def test_integers_are_what_operators_take(case: str, tmp_path: Path) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]> net {ROLES[case]}'
    onnx.save(parser.parse_model(text), tmp_path / "net.onnx")
    report = verify(tmp_path / "net.onnx")
    assert report.agrees, report.problems()
    assert not any("refused" in note for note in report.notes)


def test_places_of_scatters_are_distinct(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> net
        (float[n, 9] x, int64[n, 5] at, float[n, 5] u) => (float[a, b] y) {
        y = ScatterElements <axis = 1> (x, at, u) }"""
    onnx.save(parser.parse_model(text), tmp_path / "net.onnx")
    graph = examine(read(tmp_path / "net.onnx", Options()), Options())
    drawn = feeds.draw(graph, next(sizes(graph, 0)), "plain", 3)["at"]
    assert all(len(set(row)) == 5 for row in drawn.tolist())


def test_an_input_that_places_are_computed_from_has_another_rank(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> net
        (float[n, 9] x, int64[n] last, float[n, 1] u) => (float[a, b] y) <int64[1] one = {1}> {
        at = Unsqueeze (last, one)  y = ScatterElements <axis = 1> (x, at, u) }"""
    onnx.save(parser.parse_model(text), tmp_path / "net.onnx")
    graph = examine(read(tmp_path / "net.onnx", Options()), Options())
    drawn = feeds.draw(graph, next(sizes(graph, 0)), "plain", 3)["last"]
    assert drawn.ndim == 1 and drawn.min() >= 0 and drawn.max() < 9


def test_they_are_distinct_also_where_another_operator_takes_them(tmp_path: Path) -> None:
    scatter, regions = "y = ScatterElements (x, at, u)", "z = RoiAlign (images, rois, at)"
    for nodes in ((scatter, regions), (regions, scatter)):
        text = f"""<ir_version: 8, opset_import: ["" : 17]> net (float[6] x, int64[5] at, float[5] u,
            float[5, 1, 4, 4] images, float[5, 4] rois) => (float[a] y, float[b, c, d, e] z) {{ {"  ".join(nodes)} }}"""
        onnx.save(parser.parse_model(text), tmp_path / "net.onnx")
        graph = examine(read(tmp_path / "net.onnx", Options()), Options())
        for seed in range(4):
            assert sorted(feeds.draw(graph, {}, "plain", seed)["at"]) == [0, 1, 2, 3, 4]


# ---- what the file itself makes of inputs ----------------------------------------------------------------------------


def test_a_nan_that_the_file_leaves_out_is_noted(tmp_path: Path) -> None:
    """0 times NaN is NaN in a gradient, whoever wrote the module."""
    text = """<ir_version: 8, opset_import: ["" : 17]> net (float[n, 6] x) => (float[n, 6] z)
        <float[6] w = {0.5, 1.5, 0.3, 0.7, 1.1, 0.9}> {
        u = Pow (x, w)  c = Constant <value = float {0.0}> ()  p = Greater (x, c)  z = Where (p, u, x) }"""
    onnx.save(parser.parse_model(text), tmp_path / "net.onnx")
    options = Options(trainable="^w$")  # an exponent is not trained by default
    generate(tmp_path / "net.onnx", tmp_path / "net.py", options)
    report = verify(tmp_path / "net.onnx", tmp_path / "net.py", options=options)
    assert report.agrees
    assert any("computes NaN at u (Pow)" in note and "no gradient of w" in note for note in report.notes)


def test_a_gradient_that_only_the_module_makes_nan_is_told(generated: tuple[Path, Path]) -> None:
    path, out = generated
    text = out.read_text()
    line = next(line for line in text.splitlines() if line.strip().startswith("return ") and "head" not in line)
    value = line.strip().removeprefix("return ")
    spoilt = f"        y = {value}\n        return torch.where(y > 1e9, y.detach().sub(1e9).log() * y, y)"
    out.write_text(text.replace(line, spoilt) if "import torch\n" in text else f"import torch\n{text}")
    out.write_text(out.read_text().replace(line, spoilt))
    report = verify(path, out)
    assert not report.agrees and any("is not finite" in problem for problem in report.problems())


@pytest.mark.parametrize("zeros", [0, 1])
def test_words_are_those_that_an_encoder_knows(zeros: int, tmp_path: Path) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]> net (string[n, 1] x) => (float[a, b, c] y) {{
        r = Identity (x)  y = ai.onnx.ml.OneHotEncoder <cats_strings = ["red", "green"], zeros = {zeros}> (r) }}"""
    onnx.save(parser.parse_model(text), tmp_path / "net.onnx")
    generate(tmp_path / "net.onnx", tmp_path / "net.py")
    assert verify(tmp_path / "net.onnx", tmp_path / "net.py").agrees
    drawn = _drawn_words(tmp_path / "net.onnx")
    assert {"red", "green"} <= drawn and ("?" in drawn) == bool(zeros)


def _drawn_words(path: Path) -> set[str]:
    graph = examine(read(path, Options()), Options())
    candidate = next(iter(sizes(graph, 0)))
    return {w for seed in range(20) for w in feeds.draw(graph, candidate, "plain", seed)["x"].ravel()}


def test_a_mask_that_swallows_scores_does_not_count(tmp_path: Path) -> None:
    """Where it hides a whole row, backward sees the scores behind it, and no difference does."""
    text = """<ir_version: 8, opset_import: ["" : 17]> net (float[n, 4] x) => (float[n, 4] y)
        <float lowest = {-3.4e38}> {
        s = Mul (x, w)  m = Add (s, lowest)  y = Softmax (m) }"""
    model = parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.arange(1, 5, dtype=np.float32), "w"))
    onnx.save(model, tmp_path / "net.onnx")
    generate(tmp_path / "net.onnx", tmp_path / "net.py")
    report = verify(tmp_path / "net.onnx", tmp_path / "net.py")
    assert report.agrees and report.gradients.held == report.gradients.groups == 1


def test_a_cut_that_leaves_a_new_shape_to_be_given(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> net (float[n, 4, 3] x, int64[2] shape) => (float[a, b] y) {
        y = Reshape (x, shape) }"""
    onnx.save(parser.parse_model(text), tmp_path / "net.onnx")
    report = verify(tmp_path / "net.onnx")
    assert report.agrees and not any("refused" in note for note in report.notes)


def test_a_weight_on_which_nothing_depends_needs_no_gradient(tmp_path: Path) -> None:
    """Attention whose output nobody takes, but the cache that it fills."""
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> net
        (float[n, t, 16] x, float[n, 1, p, 8] k, float[n, 1, p, 8] v, int64[n, total] mask)
        => (float[a, b, c, d] present, float[a1, b1, c1, d1] values) {
        one = Constant <value = int64[1] {1}> ()  place = Constant <value = int64 {1}> ()
        count = ReduceSum <keepdims = 0> (mask, one)  rest = Sub (count, one)  lengths = Cast <to = 6> (rest)
        sizes = Shape (mask)  size = Gather (sizes, place)  total_length = Cast <to = 6> (size)
        q = MatMul (x, w0)  key = MatMul (x, w1)
        y, present, values = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1>
            (q, key, key, k, v, lengths, total_length) }"""
    model = parser.parse_model(text)
    for name, shape in {"w0": (16, 16), "w1": (16, 8)}.items():
        array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "net.onnx")
    report = verify(tmp_path / "net.onnx")
    assert report.agrees, report.problems()
    assert report.gradients.missing == [] and report.gradients.reached >= 1


def test_a_score_that_only_chooses_is_not_trained(tmp_path: Path) -> None:
    """TopK's places are integers: no gradient reaches what ranks the rows that are taken, unless its values count."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> net (float[n, 6, 4] x) => (float[a, b, c] y, float[n, 3, 1] z)
        <int64[1] three = {3}> {
            seen = MatMul (x, body)  ranks = MatMul (seen, ranks_by)  weights = MatMul (seen, weigh)
            best, places = TopK <axis = 1> (ranks, three)  y = GatherND <batch_dims = 1> (seen, places)
            z, others = TopK <axis = 1> (weights, three) }"""
    )
    for name, shape in {"body": (4, 8), "ranks_by": (8, 1), "weigh": (8, 1)}.items():
        array = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "net.onnx")
    report = verify(tmp_path / "net.onnx")
    assert report.agrees, report.problems()
    assert (report.gradients.parameters, report.gradients.reached) == (2, 2)
    trained = [sorted(p.flatten().tolist()) for p in load(tmp_path / "net.onnx").parameters() if p.requires_grad]
    held = {t.name: sorted(numpy_helper.to_array(t).flatten().tolist()) for t in model.graph.initializer}
    assert held["body"] in trained and held["weigh"] in trained and held["ranks_by"] not in trained


CHUNK = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> net
    (float[n, t, 16] x, float[n, 1, room, 8] k, float[n, 1, room, 8] v, %s)
    => (float[a, b, c] y, float[a1, b1, c1, d1] present, float[a2, b2, c2, d2] values) {
    place = Constant <value = int64 {1}> ()  one = Constant <value = int64[1] {1}> ()
    two = Constant <value = int64 {2}> ()  %s
    q = MatMul (x, w0)  key = MatMul (x, w1)
    y, present, values = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1 %s>
        (q, key, key, k, v, lengths, most) }"""
GIVEN = "int32[n] lengths, int32[m] tokens"
ROOM = "sizes = Shape (k)  size = Gather (sizes, two)  most = Cast <to = 6> (size)"
MASKS = "int64[n, total] mask, int64[n, t] own"
SUMS = """count = ReduceSum <keepdims = 0> (mask, one)  rest = Sub (count, one)  lengths = Cast <to = 6> (rest)
    number = ReduceSum <keepdims = 0> (own, one)  tokens = Cast <to = 6> (number)
    sizes = Shape (mask)  size = Gather (sizes, place)  most = Cast <to = 6> (size)"""
SLIDING = ", local_window_size = 3, sliding_window_cache = 1"
CHUNKS = {
    "all are inputs": (f"{GIVEN}, int32 most", "", ""),
    "a cache that has room": (GIVEN, ROOM, ""),
    "masks": (MASKS, SUMS, ""),
    "a cache of the last keys": (f"{GIVEN}, int32 most", "", SLIDING),
    "masks, and a cache of the last keys": (MASKS, SUMS, SLIDING),
}


@pytest.mark.parametrize("case", CHUNKS)
def test_right_padded_chunks(case: str, tmp_path: Path) -> None:
    """Inputs are found, none of them padding: of that, onnxruntime hands out whatever lay in memory."""
    model = parser.parse_model(CHUNK % CHUNKS[case])
    model.graph.node[-1].input.extend([*[""] * 9, "tokens"])
    for name, shape in {"w0": (16, 16), "w1": (16, 8)}.items():
        array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "net.onnx")
    report = verify(tmp_path / "net.onnx")
    assert report.agrees, report.problems()
    assert not any("refused" in note for note in report.notes)
    assert report.gradients.missing == [] and report.gradients.held == report.gradients.groups == 5


def test_products_of_signed_bytes_are_exact(tmp_path: Path) -> None:
    """Where AVX2 has no VNNI, onnxruntime saturates sums of two of them at 16 bits, unless it may rewrite the graph."""
    weight = np.where(np.random.default_rng(0).random((64, 8)) < 0.5, -127, 127).astype(np.int8)
    nodes = [
        onnx.helper.make_node("DynamicQuantizeLinear", ["x"], ["a", "scale", "zero"]),
        onnx.helper.make_node("MatMulInteger", ["a", "w", "zero"], ["y"]),
    ]
    ports = [("x", onnx.TensorProto.FLOAT, ["n", 64]), ("y", onnx.TensorProto.INT32, ["n", 8])]
    values = [onnx.helper.make_tensor_value_info(*port) for port in ports]
    stored = [onnx.numpy_helper.from_array(weight, "w")]
    graph = onnx.helper.make_graph(nodes, "g", values[:1], values[1:], stored)
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "m.onnx")
    assert not verify(tmp_path / "m.onnx").differs


def test_a_module_of_another_file_is_one_error(tmp_path: Path) -> None:
    path = _net(tmp_path)
    model = onnx.load(path)
    for node in model.graph.node:
        node.input[:] = ["z" if name == model.graph.input[0].name else name for name in node.input]
    model.graph.input[0].name = "z"
    onnx.save(model, tmp_path / "second.onnx")
    generate(tmp_path / "second.onnx", tmp_path / "second.py")
    with pytest.raises(OnnxgenError, match="was generated from second.onnx, not from"):
        verify(path, tmp_path / "second.py")


def test_an_absolute_tolerance_does_not_hide_a_small_output(tmp_path: Path) -> None:
    """All elements are below 1e-6: with `atol` 1e-5 any answer of that size would do."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> '
        "m (float[5, 4] x) => (float[5, 4] y) <float tiny = {1e-7}> { s = Tanh (x) y = Mul (s, tiny) }"
    )
    onnx.save(model, tmp_path / "m.onnx")
    generate(tmp_path / "m.onnx", tmp_path / "m.py")
    assert verify(tmp_path / "m.onnx", tmp_path / "m.py").agrees
    text = (tmp_path / "m.py").read_text()
    (tmp_path / "m.py").write_text(text.replace("torch.tanh(x)", "torch.tanh(2 * x)"))
    assert verify(tmp_path / "m.onnx", tmp_path / "m.py").differs
