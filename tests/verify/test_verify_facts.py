"""What decides a comparison: ranges that operators take, sizes, other answers of the oracle, and what may differ."""

from __future__ import annotations

import json
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto as T
from onnx import helper, numpy_helper, parser
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

import onnxgen
from onnxgen.options import Options
from onnxgen.record.sidecar import read_header
from onnxgen.runtime.load import imported
from onnxgen.verify import feeds
from onnxgen.verify.answering import _mute
from onnxgen.verify.check import Check
from onnxgen.verify.compare import MAX_ATOL_PART, Tolerance, compare
from onnxgen.verify.gradients import excuse_idle, expected_keys
from onnxgen.verify.integrity import compare_recorded
from onnxgen.verify.oracle import EXACT, FOLDER, Onnxruntime, Reference, _session_options
from onnxgen.verify.rounding import NOISE, Freedom, _in_full, _key
from onnxgen.verify.sizes import described, kinds_of, sizes
from onnxgen.verify.torch_side import Backward, cast_numpy
from onnxgen.verify.trace import Event, Results, _of_module, _Trace, _user, traced

F = np.float32


def saved(folder: Path, text: str, opset: int = 17) -> Path:
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}, "ai.onnx.ml" : 3, "com.microsoft" : 1]> g {text}'
    )
    onnx.save(model, path := folder / "net.onnx")
    return path


def check_of(folder: Path, text: str, opset: int = 17) -> Check:
    return Check(saved(folder, text, opset), Options(), rtol=0.0, atol=0.0)


COS = "<float[5, 2] c = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, float[5, 2] s = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0}>"
TABLES = """<float[5, 2] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 0}, float[6, 2] p = {1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2},
    float[3, 2] g = {1, 2, 3, 4, 5, 6}, float[2] one = {1, 1}, float[2] none = {0, 0}>"""
LAYER = "l, m = com.microsoft.EmbedLayerNormalization"
TAKEN = {  # the input `i` is what is drawn; onnxruntime takes the largest number of the range, and no larger one
    "first positions": f"(float[2, 3, 8] x, int64[1] i) => (float[2, 3, 8] y) {COS} {{ "
    "y = com.microsoft.RotaryEmbedding (x, i, c, s) }",
    "positions": f"(float[2, 3, 8] x, int64[2, 3] i) => (float[2, 3, 8] y) {COS} {{ "
    "y = com.microsoft.RotaryEmbedding (x, i, c, s) }",
    "first positions of heads": f"(float[2, 2, 3, 4] x, int64[1] i) => (float[2, 2, 3, 4] y) {COS} {{ "
    "y = com.microsoft.RotaryEmbedding (x, i, c, s) }",
    "positions of the standard's operator": f"(float[2, 2, 3, 4] x, int64[2, 3] i) => (float[2, 2, 3, 4] y) {COS} {{ "
    "y = RotaryEmbedding (x, c, s, i) }",
    "a cache": """(float[2, 1, 8] q, float[2, 2, 7, 4] k, float[2, 2, 7, 4] v, int32[1] i) => (float[2, 1, 8] y) {
        y, a, b = com.microsoft.DecoderMaskedMultiHeadAttention <num_heads = 2, past_present_share_buffer = 1>
            (q, q, q, , , k, v, i) }""",
    "words": f"(int32[2, 3] i) => (float[2, 3, 2] l) {TABLES} {{ {LAYER} (i, , w, p, , one, none) }}",
    "segments": f"(int32[2, 3] x, int32[2, 3] i) => (float[2, 3, 2] l) {TABLES} {{ "
    f"{LAYER} (x, i, w, p, g, one, none) }}",
    "lengths": """(float[4, 2, 3] x, int32[2] i, float[1, 8, 3] w, float[1, 8, 2] r) => (float[4, 1, 2, 2] y) {
        y = LSTM <hidden_size = 2> (x, w, r, , i) }""",
    "lengths of rows": """(float[2, 4, 3] x, int32[2] i, float[1, 8, 3] w, float[1, 8, 2] r) => (float[4, 2] y) {
        z = Transpose <perm = [1, 0, 2]> (x)  u = LSTM <hidden_size = 2> (z, w, r, , i)
        t = Constant <value_ints = [4, 4]> ()  y = Reshape (u, t) }""",
    "reversed": "(float[4, 2] x, int64[2] i) => (float[4, 2] y) { y = ReverseSequence (x, i) }",
    "reversed rows": """(float[2, 4] x, int64[2] i) => (float[2, 4] y) {
        y = ReverseSequence <time_axis = 1, batch_axis = 0> (x, i) }""",
    "an axis": "(float[2, 4, 3] x, int64 i) => (float[2, 4, 3] y) { y = CumSum (x, i) }",
    "regions": """(float[3, 2, 8, 8] x, float[4, 4] r, int64[4] i) => (float[4, 2, 2, 2] y) {
        y = RoiAlign <output_height = 2, output_width = 2> (x, r, i) }""",
    "rows and a divisor": """(float[5, 4] x, int64[2] i) => (float[2, 4] y, int64[2] z) {
        y = Gather (x, i)  seven = Constant <value_ints = [7]> ()  z = Div (seven, i) }""",
    "regions and a divisor": """(float[3, 2, 8, 8] x, float[4, 4] r, int64[4] i) => (float[4, 2, 2, 2] y, int64[4] z) {
        y = RoiAlign <output_height = 2, output_width = 2> (x, r, i)
        seven = Constant <value_ints = [7]> ()  z = Div (seven, i) }""",
    "rows": "(float[5, 4] x, int64[2] i) => (float[2, 4] y) { y = Gather (x, i) }",
    "columns": "(float[5, 4] x, int64[2] i) => (float[5, 2] y) { y = Gather <axis = -1> (x, i) }",
    "elements": "(float[5, 4] x, int64[5, 1] i) => (float[5, 1] y) { y = GatherElements <axis = 1> (x, i) }",
    "corners": "(float[5, 4] x, int64[3, 2] i) => (float[3] y) { y = GatherND (x, i) }",
    "rows of rows": "(float[5, 7] x, int64[3, 1] i) => (float[3, 7] y) { y = GatherND (x, i) }",
    "scattered": """(float[5, 4] x, int64[5, 1] i, float[5, 1] u) => (float[5, 4] y) {
        y = ScatterElements <axis = 1> (x, i, u) }""",
    "scattered rows": "(float[5, 4] x, int64[3, 1] i, float[3, 4] u) => (float[5, 4] y) { y = ScatterND (x, i, u) }",
    "scattered points": "(float[5, 4] x, int64[3, 2] i, float[3] u) => (float[5, 4] y) { y = ScatterND (x, i, u) }",
}


def test_the_largest_number_of_a_range_is_the_largest_that_onnxruntime_takes(tmp_path: Path) -> None:
    for case, text in TAKEN.items():
        check = check_of(tmp_path, text, opset=23 if "standard" in case else 17)
        role, drawn = check.graph.roles["i"], feeds.draw(check.graph, {}, "plain", 0)
        assert role.indexes and role.bounds, case
        session, below = onnxruntime.InferenceSession(check.path), min(role.bounds)
        assert isinstance(below, int)
        for number in (max(role.least, default=0), below - 1):
            session.run(None, {**drawn, "i": np.full_like(drawn["i"], number)})
        with pytest.raises(Exception, match="INVALID_ARGUMENT|FAIL|RUNTIME_EXCEPTION"):
            session.run(None, {**drawn, "i": np.full_like(drawn["i"], below)})
            pytest.fail(f"{case}: onnxruntime takes {below}, which is not drawn")


def test_a_count_of_keys_is_drawn_by_its_mask_alone(tmp_path: Path) -> None:
    """What is summed into the number of keys of a row is ones: no range of that number is one of the mask's."""
    check = check_of(
        tmp_path,
        """(float[2, 1, 16] q, float[2, 2, 6, 8] k, int32[2, 7] mask) => (float[2, 1, 16] y) {
        one = Constant <value_ints = [1]> ()  all = Constant <value = int32 {7}> ()
        i = Constant <value = int32 {1}> ()
        n = ReduceSum <keepdims = 0> (mask, one)  last = Sub (n, i)
        y, a, b = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 2> (q, q, q, k, k, last, all) }""",
    )
    role = check.graph.roles["mask"]
    assert role.counted and not role.indexes and role.bounds == role.least == []
    drawn = feeds.draw(check.graph, {}, "plain", 0)
    assert (drawn["mask"] == 1).all()
    onnxruntime.InferenceSession(check.path).run(None, drawn)


def test_maps_have_keys_and_values_of_their_types(tmp_path: Path) -> None:
    """An oracle takes what is drawn, and another draw is another map. onnxruntime's binding has no maps to strings."""
    for kind, oracle in ((T.STRING, Reference), (T.FLOAT, Onnxruntime)):
        given = onnx.ValueInfoProto(name="x")
        given.type.map_type.key_type = T.INT64
        given.type.map_type.value_type.tensor_type.elem_type = kind
        node = helper.make_node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", int64_vocabulary=[4, 2, 3])
        graph = helper.make_graph([node], "g", [given], [helper.make_tensor_value_info("y", kind, [None, 3])])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path := tmp_path / "map.onnx")
        found = Check(path, Options(), rtol=0.0, atol=0.0).graph
        drawn = [feeds.draw(found, {}, "plain", seed)["x"] for seed in range(4)]
        assert len({json.dumps(x, sort_keys=True) for x in drawn}) == 4
        for x in drawn:
            assert 99 in x and all(isinstance(v, str if kind == T.STRING else float) for v in x.values())
            (got,) = oracle(path, None, ()).run({"x": x})
            assert all(x.get(key, value) == value for key, value in zip((4, 2, 3), np.asarray(got).reshape(-1)))


def test_sizes_that_only_a_search_finds(tmp_path: Path) -> None:
    """Two inputs of one number of elements, in rows of 6 and of 4: equal sizes do not fit, nor do those of the list."""
    text = """(float[n, 6] x, float[m, 4] y) => (float[a] z) {
        flat = Constant <value_ints = [-1]> ()  u = Reshape (x, flat)  v = Reshape (y, flat)  z = Add (u, v) }"""
    check = check_of(tmp_path, text)
    check.graph.known = {name: dim for name, dim in check.graph.known.items() if name not in ("n", "m")}
    assert set(kinds_of(check.graph)) == {"n", "m"}
    first = next(iter(sizes(check.graph, 0)))
    assert 6 * first["n"] == 4 * first["m"]
    drawn = feeds.draw(check.graph, first, "plain", 0)
    onnxruntime.InferenceSession(check.path).run(None, drawn)


def test_steps_of_sizes_in_words() -> None:
    said = {
        "": {},
        "the size h must be a multiple of 8": {"h": 8},
        "the sizes h, w must be multiples of 8": {"h": 8, "w": 8},
        "the size t must be a multiple of 2; the sizes h, w must be multiples of 32": {"h": 32, "t": 2, "w": 32},
    }
    assert {text: described(found) for text, found in said.items()} == {text: text for text in said}


REAL = {  # real numbers at the places where an operator of the same name has indices, or a mask of zeros and ones
    "a table of cosines": """(float[2, 3, 5, 8] x, float[10, 4] i, float[10, 4] s, int64[2, 5] p)
        => (float[2, 3, 5, 8] y) { y = RotaryEmbedding (x, i, s, p) }""",
    "a table of sines": """(float[2, 3, 8] x, int64[2, 3] p, float[5, 4] c, float[5, 4] i) => (float[2, 3, 8] y) {
        y = com.microsoft.RotaryEmbedding (x, p, c, i) }""",
    "a mask to add": """(float[2, 3, 5, 8] q, float[2, 3, 5, 8] k, float[5, 5] i) => (float[2, 3, 5, 8] y) {
        y = Attention (q, k, k, i) }""",
}


def test_real_numbers_are_no_indices(tmp_path: Path) -> None:
    for name, text in REAL.items():
        check = check_of(tmp_path, text, opset=23)
        for spread in feeds.SPREADS:
            drawn = feeds.draw(check.graph, {}, spread, 0)["i"]
            assert drawn.dtype == F and len(np.unique(drawn)) == drawn.size, (name, spread)


def test_integers_are_drawn_from_a_range_of_their_type(tmp_path: Path) -> None:
    ports = "int32[300] i, uint32[300] u, int4[300] a, uint4[300] b, int8[3000] c"
    check = check_of(tmp_path, f"({ports}) => (float[300] y) {{ y = Cast <to = 1> (i) }}", opset=21)
    plain = {"i": (0, 3), "u": (0, 3), "a": (-8, 7), "b": (0, 15), "c": (-128, 127)}
    for spread, ranges in {"plain": plain, "wide": {**plain, "i": (-8, 8)}}.items():
        drawn = feeds.draw(check.graph, {}, spread, 0)
        assert {name: (int(v.min()), int(v.max())) for name, v in drawn.items()} == ranges, spread


def test_only_floats_are_nudged() -> None:
    """By less than the precision that is given; whatever else an input may be stays."""
    given = {"x": np.linspace(1, 2, 9, dtype=F), "i": np.arange(3), "s": np.array(["a"], object), "l": [1.5], "n": None}
    found = feeds.nudged(given, 1e-4, 0)
    assert (found["x"] != given["x"]).all() and np.allclose(found["x"], given["x"], rtol=1e-2)
    assert all(found[name] is given[name] for name in "isln")


def test_what_is_told_of_every_run_is_one_note(tmp_path: Path) -> None:
    text = """(float[n, 4] x) => (float[n, 4] y) <float scale = {0.1}, int8 zero = {0}> {
        q = QuantizeLinear (x, scale, zero)  y = DequantizeLinear (q, scale, zero) }"""
    found = onnxgen.verify(saved(tmp_path, text), runs=2)
    assert found.agrees and sum("pass straight through" in note for note in found.notes) == 1


def test_an_output_is_named_by_printable_text(tmp_path: Path) -> None:
    path = saved(tmp_path, "(float[4] x) => (float[4] y) { y = Neg (x) }")
    model = onnx.load(path)
    model.graph.output[0].name = model.graph.node[0].output[0] = "y\n"
    onnx.save(model, path)
    (run,) = onnxgen.verify(path, runs=1).runs
    assert [output.name for output in run.outputs] == ["y?"]


def test_keys_are_found_in_every_form_of_a_record(tmp_path: Path) -> None:
    path = saved(tmp_path, "(float[n, 2] x) => (float[n, 2] y) <float[2, 2] w = {1, 2, 3, 4}> { y = MatMul (x, w) }")
    part = {"parts": [{"key": "b.weight"}]}
    for entry, keys in (
        ("a.weight", {"a.weight"}),
        (part, {"b.weight"}),
        (["a.weight", part], {"a.weight", "b.weight"}),
    ):
        assert expected_keys(path, Options(), {"w": entry}) == keys


class _Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("no")


def test_a_weight_of_a_module_that_fails_is_not_idle() -> None:
    backward = Backward()
    excuse_idle(_Fails(), {"x": np.ones(2, F)}, backward)
    assert not backward.idle


def test_a_result_of_a_function_is_taken_once_for_equal_numbers() -> None:
    one, other = np.linspace(1, 2, 8), np.linspace(2, 3, 8)
    results = Results([Event("relu", 1, [], [one])])
    assert not results.takes("relu", other, 1e-4) and not results.takes("tanh", one, 1e-4)
    assert results.takes("relu", one * (1 + 1e-6), 1e-4) and not results.takes("relu", one, 1e-4)


def test_a_trace_keeps_a_gibibyte() -> None:
    assert _Trace("").room == 2**30


def test_the_first_layer_that_takes_a_weight_is_located_behind_what_copies_it() -> None:
    text = "(float[n, 2] x) => (float[n, 2] y) { a = Cast <to = 1> (w)  b = Transpose (a)  y = MatMul (x, b) }"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    found = _user(model, "w")
    assert found is not None and found.node == "y"


def test_weights_that_are_no_floats_have_no_noise(tmp_path: Path) -> None:
    """If the module computes in half precision, weights are rounded, but not sizes or single numbers."""
    text = """(float[2, 3] x) => (float[3, 2] y) <float[3] w = {1, 2, 3}, int64[2] shape = {3, 2}, float one = {1}> {
        a = Mul (x, w)  b = Add (a, one)  y = Reshape (b, shape) }"""
    check = check_of(tmp_path, text)
    free = Freedom(check.path, onnx.load(check.path), check.graph.types, "float16")
    x = np.ones((2, 3), F)
    noisy = np.array([a[0] for name, a in free.answers({"x": x}) if name == NOISE])
    wanted = np.array([[2, 3], [4, 2], [3, 4]], F)
    off = np.abs(noisy - wanted) / wanted
    assert len(noisy) == 4 and 1e-5 < off.max() < 4e-3


def test_the_absolute_tolerance_is_a_part_of_the_largest_element_of_either_sign() -> None:
    for expected in ([1e-4, -1e-6], [-1e-4, 1e-6], [-1e-4, -1e-6], [-1e-4, np.nan, np.inf, -np.inf]):
        assert Tolerance(atol=1e-5).below(np.array(expected, F)) == pytest.approx(MAX_ATOL_PART * 1e-4)
    for expected in ([0.0], [], [np.nan, -np.inf], [-50.0, 1.0]):
        assert Tolerance(atol=1e-5).below(np.array(expected, F)) == 1e-5


def test_half_precision_is_compared_with_the_larger_of_two_tolerances() -> None:
    got, expected = np.array([2000 * 1.004], F), np.array([2000], F)
    for given, dtype, equal in (
        (Tolerance(), "float32", False),
        (Tolerance(), "float16", True),
        (Tolerance(rtol=0.3), "float16", True),
        (Tolerance(rtol=0.3), "float32", True),
    ):
        assert (not compare(expected, got, given.at_least(dtype)).why) == equal, (given, dtype)
    assert not compare(expected, np.array([2500], F), Tolerance(rtol=0.3).at_least("float16")).why


def test_a_difference_says_what_was_got_instead_of_what() -> None:
    for expected, got in (
        ([1, 2, 3], [1, 5, 3]),
        ([0.5, 2.0], [0.5, 7.25]),
        ([True], [False]),
        (["a", "b"], ["a", "c"]),
    ):
        e, g = (np.array(v, object if isinstance(v[0], str) else None) for v in (expected, got))
        at = next(i for i in range(len(e)) if e[i] != g[i])
        shown = [repr(v[at]) if isinstance(v[at], str) else str(v[at]) for v in (g, e)]
        assert f"[{at}]: {shown[0]} instead of {shown[1]}" in compare(e, g, Tolerance()).why


def test_outputs_that_are_nearly_the_same_everywhere_are_mute() -> None:
    varied = np.linspace(-1, 1, 9, dtype=F)
    told = [
        varied,
        varied[:2],
        varied[:1],
        np.array([0.3, np.nan, np.inf], F),
        np.array(7.0, F),
        varied.astype(np.float16),
    ]
    mute = [
        varied * F(1e-5),
        500 + varied * F(1e-2),
        np.zeros(1, F),
        np.array([np.nan], F),
        np.full(4, 7.0, F),
        np.full(2, 7.0, F),
    ]
    neither = [np.zeros(4, np.int64), np.zeros((0, 3), F), None, [varied * F(0)]]
    for output in told + neither:
        assert _mute([output]) == 0, output
    for output in mute:
        assert _mute([output]) == 1, output
    assert _mute([*told, *mute, *neither]) == len(mute)


def test_only_floats_are_cast_to_the_type_of_the_module() -> None:
    x = np.array([1.0, 0.1, 1e5], F)
    for dtype, like in ((torch.float16, np.float16), (torch.bfloat16, ml_dtypes.bfloat16), (torch.float64, np.float64)):
        with np.errstate(all="ignore"):
            wanted = x.astype(like)
        for value in (x, x.astype(np.float64)):
            got = cast_numpy(value, dtype)
            assert got.dtype == wanted.dtype and (got == wanted).all()
        strings = np.array(["a", "b"], object)
        for kept in (np.array([1, 70000]), np.array([True]), np.array([3], np.uint8), strings, None):
            assert cast_numpy(kept, dtype) is kept
        inner = cast_numpy([x, [x, strings]], dtype)
        assert inner[0].dtype == inner[1][0].dtype == wanted.dtype and inner[1][1] is strings
    assert cast_numpy(x, None) is x


def test_the_oracle_is_asked_for_exact_products_and_for_as_many_cores_as_it_is_told(tmp_path: Path) -> None:
    """Which of these shows in a result depends on the processor."""
    for optimised, alone, exact in product((False, True), repeat=3):
        options = _session_options(tmp_path / "net.onnx", optimised=optimised, alone=alone, exact=exact)
        assert options.intra_op_num_threads == (1 if alone else 0), "0: all cores"
        assert options.get_session_config_entry(FOLDER) == str(tmp_path.resolve())
        if exact:
            assert options.get_session_config_entry(EXACT[0]) == EXACT[1]
        else:
            with pytest.raises(RuntimeError):
                options.get_session_config_entry(EXACT[0])


def test_the_oracle_takes_and_returns_types_that_numpy_lacks(tmp_path: Path) -> None:
    x = np.array([[1.5, -2.0, 0.375], [np.inf, -0.0, 448.0]], F)
    for kind, like in ((T.BFLOAT16, ml_dtypes.bfloat16), (T.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn)):
        ports = [helper.make_tensor_value_info(name, kind, [2, 3]) for name in "xz"]
        ports.insert(1, helper.make_tensor_value_info("y", T.FLOAT, [2, 3]))
        nodes = [helper.make_node("Cast", ["x"], ["y"], to=T.FLOAT), helper.make_node("Identity", ["x"], ["z"])]
        graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
        onnx.save(model, path := tmp_path / "net.onnx")
        given = np.nan_to_num(x, posinf=1.0).astype(like)
        y, z = Onnxruntime(path, None, ()).run({"x": given})
        assert z.dtype == given.dtype and (z == given).all() and (y == given.astype(F)).all()


def test_both_oracles_answer_in_one_form(tmp_path: Path) -> None:
    """Arrays also where the one returns numpy's numbers, and lists of them for sequences."""
    path = saved(
        tmp_path,
        """(float[2, 3] x) => (seq(float[2, 3]) s, float t, int64 n, float[2] m, bool b, seq(float[2, 3]) e) {
        y = Neg (x)  s = SequenceConstruct (x, y)  n = SequenceLength (s)  t = ReduceSum <keepdims = 0> (x)
        m = ReduceMax <axes = [1], keepdims = 0> (x)  z = Constant <value = float {0}> ()  b = Less (t, z)
        e = SequenceEmpty () }""",
    )
    x = {"x": np.arange(6, dtype=F).reshape(2, 3)}

    def form(value: Any) -> Any:
        return [form(v) for v in value] if isinstance(value, list) else (str(value.dtype), value.tolist())

    found = [form(oracle(path, None, ()).run(x)) for oracle in (Onnxruntime, Reference)]
    assert found[0] == found[1] and len(found[0][0]) == 2


def test_in_full_precision_no_node_quantises_what_it_takes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    b, scale = rng.integers(0, 256, (8, 4, 16), np.uint8), rng.uniform(0.5, 1.5, 32).astype(F)
    node = helper.make_node(
        "MatMulNBits",
        ["x", "b", "s"],
        ["y"],
        domain="com.microsoft",
        K=128,
        N=8,
        bits=4,
        block_size=32,
        accuracy_level=4,
    )
    ports = [helper.make_tensor_value_info(name, T.FLOAT, [3, size]) for name, size in (("x", 128), ("y", 8))]
    stored = [numpy_helper.from_array(b, "b"), numpy_helper.from_array(scale, "s")]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    low, high = b & 15, b >> 4
    codes = np.stack([low, high], -1).reshape(8, 4, 32).astype(np.float64) - 8
    weight = (codes * scale.reshape(8, 4, 1)).reshape(8, 128)
    x = rng.standard_normal((3, 128)).astype(F)
    off = [
        np.abs(Onnxruntime(tmp_path, made, ()).run({"x": x})[0] - x @ weight.T).max()
        for made in (model, _in_full(model))
    ]
    assert off[0] > 0.01 > 1e-3 > off[1], off
    assert model.graph.node[0].attribute[-1] == node.attribute[-1], "the copy alone is changed"


class _Complex(nn.Module):
    def __init__(self, exact: Tensor) -> None:
        super().__init__()
        self.far = exact + 3, torch.full_like(exact, 3.0)  # (3 + 3i) squared has no real part

    def forward(self, x: Tensor) -> Tensor:
        torch.complex(*self.far)
        return (x * (1 + 1e-5)).abs() * 2


def test_only_real_results_are_taken_for_a_value_of_the_file(tmp_path: Path) -> None:
    check = check_of(tmp_path, "(float[4] x) => (float[4] y) { z = Abs (x)  y = Add (z, z) }")
    given = {"x": np.array([3, -1, 2, 0.5], F)}
    network = _Complex(torch.from_numpy(np.abs(given["x"])))
    found = _of_module({"z": np.abs(given["x"])}, network, check.graph, given)
    assert found["z"].dtype.kind == "f" and np.allclose(found["z"], np.abs(given["x"]), rtol=1e-4)


class _Gone(nn.Module):
    """Its file can't be found by its module, which was removed after an import."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


_Gone.__module__ = "gone"


class _Wrapped(nn.Module):
    """Its forward is no function: its file is that of its class."""

    def __init__(self) -> None:
        super().__init__()
        self.forward = partial(self.compute, 1.0)

    def compute(self, more: float, x: Tensor) -> Tensor:
        return x + more


def test_lines_of_a_module_are_known_however_it_was_made(tmp_path: Path) -> None:
    graph = check_of(tmp_path, "(float[4] x) => (float[4] y) { y = Neg (x) }").graph
    for network in (_Gone(), _Wrapped()):
        (event,) = traced(network, graph, {"x": np.ones(4, F)})
        line = Path(__file__).read_text(encoding="utf-8").splitlines()[event.line - 1]
        assert event.line and line.strip().startswith("return x + ")


def test_optional_inputs_are_drawn_with_and_without_a_value(tmp_path: Path) -> None:
    text = """(optional(float[2]) maybe, seq(float[2]) some, float[2] x) => (bool has, int64 n, float[2] y) {
        has = OptionalHasElement (maybe)  n = SequenceLength (some)  y = Neg (x) }"""
    check = check_of(tmp_path, text)
    drawn = [feeds.draw(check.graph, {}, "plain", seed) for seed in range(4)]
    assert [d["maybe"] is None for d in drawn] == [False, True, False, True]
    assert all(d["x"].shape == (2,) and [s.shape for s in d["some"]] == [(2,)] * 3 for d in drawn)
    for d in drawn:
        has, n, _ = Onnxruntime(check.path, None, ()).run(d)
        assert (bool(has), int(n)) == (d["maybe"] is not None, 3)


SATURATED = """(float[n, 4] x) => (float[n, 4] y) <float scale = {0.0078125}, int8 zero = {0}> {
    w = DequantizeLinear (codes, scale, zero)  sums = MatMul (x, w)
    q = QuantizeLinear (sums, scale, zero)  y = DequantizeLinear (q, scale, zero) }"""


def test_a_file_exported_anew_has_no_saturation_of_the_original(tmp_path: Path) -> None:
    """The original's outputs end at 1; those of the module and of a file of floats do not."""
    codes = np.random.default_rng(0).integers(-128, 128, (4, 4), np.int8)
    original = onnx.load(saved(tmp_path, SATURATED))
    original.graph.initializer.append(numpy_helper.from_array(codes, "codes"))
    onnx.save(original, path := tmp_path / "net.onnx")
    onnxgen.generate(path, tmp_path / "model.py", Options(quantized="float"))
    plain = onnx.load(saved(tmp_path, "(float[n, 4] x) => (float[n, 4] y) { y = MatMul (x, w) }"))
    plain.graph.initializer.append(numpy_helper.from_array(codes.astype(F) / 128, "w"))
    onnx.save(plain, tmp_path / "anew.onnx")
    with imported(tmp_path / "model.py") as file:
        network, space = file.Model.from_pretrained().eval(), vars(file)
        for factor, agrees in ((1.0, True), (1.5, False)):
            for parameter in network.parameters():
                parameter.data *= factor
            check = Check(tmp_path / "anew.onnx", Options(), rtol=1e-3, atol=1e-5)
            report = check.forward(network, space, runs=1, seed=0, is_rounded=True, is_anew=True)
            assert report.agrees is agrees


def test_nodes_that_differ_in_names_alone_have_one_kernel() -> None:
    kinds = {"a": T.FLOAT, "b": T.FLOAT, "c": T.FLOAT, "n": T.INT64}
    key = _key(helper.make_node("Add", ["a", "a"], ["b"], name="one"), kinds)
    assert key is not None and key == _key(helper.make_node("Add", ["c", "b"], ["a"], name="other"), kinds)
    assert key != _key(helper.make_node("Sub", ["a", "a"], ["b"]), kinds)
    assert key != _key(helper.make_node("Add", ["a", ""], ["b"]), kinds)
    for node in (
        helper.make_node("Add", ["n", "n"], ["n"]),
        helper.make_node("Cast", ["n"], ["a"], to=T.FLOAT),
        helper.make_node("Cast", ["a"], ["n"], to=T.INT64),
        helper.make_node("Add", ["a", "unknown"], ["b"]),
    ):
        assert _key(node, kinds) is None


def test_a_tensor_that_the_weights_file_lacks_is_told(tmp_path: Path) -> None:
    """It is told by name, as one that differs is; the others are compared all the same."""
    w = np.arange(12, dtype=F).reshape(3, 4)
    path = saved(tmp_path, "(float[n, 4] x) => (float[n, 3] y) { z = Gemm <transB = 1> (x, w, b)  y = Relu (z) }")
    model = onnx.load(path)
    model.graph.initializer.extend([numpy_helper.from_array(w, "w"), numpy_helper.from_array(w[:, 0].copy(), "b")])
    onnx.save(model, path)
    onnxgen.generate(path, tmp_path / "model.py")
    sidecar = tmp_path / "model.safetensors"
    whole, (metadata, _) = load_file(sidecar), read_header(sidecar)

    def told() -> list[str]:
        with imported(tmp_path / "model.py") as file:
            return compare_recorded(path, vars(file), Options())

    assert told() == [] and len(whole) == 2
    w[0, 0] = -0.0
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w"))
    onnx.save(model, path)
    assert told() == ["w"], "a weight of another sign is another one, also if it is 0"
    w[0, 0] = 0.0
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w"))
    onnx.save(model, path)
    for key, array in whole.items():
        name = "w" if array.ndim == 2 else "b"
        for other in ({}, {key: array[..., :1].copy()}, {key: array + 1}, {key: np.nextafter(array, F(99))}):
            save_file({**{k: v for k, v in whole.items() if k != key}, **other}, sidecar, metadata)
            assert told() == [name], (key, other)
