"""Operators of the standard that our own bodies write out, against ONNX's cases and onnxruntime."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxgen.graph.operators import own
from onnxgen.passes.standard import STANDARD_BODIES
from tests.conftest import ROOT
from tests.ops.fuzz import floats
from tests.ops.harness import all_cases, refusal, run_case, run_model, run_node

HALF = {"fp16": 2e-3, "bf16": 2e-2}  # relative tolerance: the reference rounds after every step


def cases() -> list[Any]:
    """ONNX's cases of the operators that have a body here."""
    named = {(n.domain, n.op_type): c for c in all_cases() for n in c.model.graph.node}
    wanted = [c for c in all_cases() if len(c.model.graph.node) == 1]
    assert named.keys() >= STANDARD_BODIES.keys()
    return [c for c in wanted if (c.model.graph.node[0].domain, c.model.graph.node[0].op_type) in STANDARD_BODIES]


@pytest.mark.parametrize("case", [c for c in cases() if "test_attention" not in c.name], ids=lambda c: c.name)
def test_onnx_cases(case: Any) -> None:
    """Those of Attention and RotaryEmbedding are in tests/ops/test_attention.py."""
    tolerance = next((t for kind, t in HALF.items() if kind in case.name), None)
    run_case(case, rtol=tolerance, atol=tolerance)


def test_onnx_is_asked_for_no_body() -> None:
    sources = (p.read_text(encoding="utf-8") for p in (ROOT / "onnxgen").rglob("*.py"))
    assert not [s[:80] for s in sources if re.search(r"function_body|function_with_opset_version|has_function", s)]


def test_an_operator_has_a_function_or_a_body() -> None:
    """Every operator of the installed standard that is defined by a function body, in every version."""
    found = [s for s in onnx.defs.get_all_schemas_with_history() if s.has_function or s.has_context_dependent_function]
    assert len(found) > 50
    missing = [
        s.name
        for s in found
        if own(s.domain, s.name, s.since_version) is None and (s.domain, s.name) not in STANDARD_BODIES
    ]
    assert missing == []


def test_without_a_body_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(STANDARD_BODIES, ("", "Shrink"))
    assert "(Shrink-21): the operator is not supported" in refusal("Shrink", [floats(2, 2)])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int64, np.uint8])
def test_shrink(dtype: type) -> None:
    x = np.array([0, 1, 2, 3, 4, 100], dtype)
    x = x if dtype == np.uint8 else np.concatenate([x, -x])
    for attrs in ({}, {"lambd": 1.5, "bias": 0.5}, {"bias": 1.75, "lambd": 2.0}):
        run_node("Shrink", [x], attrs, opset=11)


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("size", [np.int32(9), np.int64(2)])
def test_windows(op: str, periodic: int, size: np.generic) -> None:
    for stored in (frozenset[int](), {0}):
        run_node(op, [np.asarray(size)], {"periodic": periodic, "output_datatype": TensorProto.FLOAT}, 17, 1, stored)


ATTENTION: dict[str, dict[str, Any]] = {
    "causal and a mask": {"mask": (5, 5), "is_causal": 1},
    "a boolean mask": {"mask": (2, 1, 5, 5), "is_causal": 1, "boolean": True},
    "a cache": {"past": 3},
    "a causal cache": {"past": 3, "is_causal": 1},
    "a causal cache and a mask": {"past": 3, "is_causal": 1, "mask": (5, 8)},
    "grouped heads and a cache": {"past": 3, "shared": 2, "is_causal": 1},
    "softcap": {"softcap": 2.0},
    "softcap and a mask": {"softcap": 2.0, "mask": (2, 4, 5, 5), "boolean": True},
    "causal softcap of grouped heads": {"softcap": 0.5, "is_causal": 1, "shared": 2, "scale": 0.3},
    "softcap and a cache": {"softcap": 2.0, "past": 3, "is_causal": 1, "shared": 1},
}


@pytest.mark.parametrize("form", ATTENTION.values(), ids=ATTENTION)
@pytest.mark.parametrize("is_split", [True, False], ids=["4d", "3d"])
def test_attention(form: dict[str, Any], is_split: bool) -> None:
    """Against onnxruntime's own kernel."""
    options = dict(form)
    past, shared, boolean = options.pop("past", 0), options.pop("shared", 4), options.pop("boolean", False)
    mask = options.pop("mask", None)
    shapes = [(2, 4, 5, 8), (2, shared, 5, 8), (2, shared, 5, 6)]
    q, k, v = (floats(*shape, seed=i) for i, shape in enumerate(shapes))
    if not is_split:
        q, k, v = (x.transpose(0, 2, 1, 3).reshape(2, 5, -1) for x in (q, k, v))
        options.update(q_num_heads=4, kv_num_heads=shared)
    given = None if mask is None else floats(*mask, seed=3)
    if boolean and given is not None:
        given = (given > -0.3) | np.eye(*given.shape[-2:], dtype=bool)  # no row without a key
    caches = [floats(2, shared, past, n, seed=5) for n in (8, 6)] if past else [None, None]
    outputs = ["y", "key", "value"] if past else ["y"]
    run_node("Attention", [q, k, v, given, *caches], options, 23, outputs)


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"is_causal": 1}])
def test_scores(mode: int, options: dict[str, Any]) -> None:
    """The fourth output, with a mask, against numpy."""
    q, k, v, mask = floats(1, 2, 3, 8), floats(1, 2, 4, 8, seed=1), floats(1, 2, 4, 8, seed=2), floats(3, 4, seed=3)
    model = one_node(["q", "k", "v", "m"], ["y", "", "", "s"], qk_matmul_output_mode=mode, **options)
    y, s = run_model(model, {"q": q, "k": k, "v": v, "m": mask}).outputs
    raw = q @ k.transpose(0, 1, 3, 2) / np.sqrt(8)
    capped = 2 * np.tanh(raw / 2) if "softcap" in options else raw
    biased = capped + mask + (np.triu(np.full((3, 4), -np.inf), 1) if "is_causal" in options else 0)
    probs = np.exp(biased - biased.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    np.testing.assert_allclose(s, (raw, capped, biased, probs)[mode], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(y, probs @ v, rtol=1e-4, atol=1e-6)


def one_node(inputs: list[str], outputs: list[str], op: str = "Attention", **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node(op, inputs, outputs, **attributes)
    shapes = {"q": ["B", 2, "L", 8], "k": ["B", 2, "S", 8], "v": ["B", 2, "S", 8], "m": ["L", "M"]}
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shapes[n]) for n in inputs]
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs if n]
    graph = helper.make_graph([node], "graph", given, made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)


def test_the_number_of_heads_may_be_open() -> None:
    """Then it stands in the tensors, and keys are repeated by the ratio at run time."""
    model = one_node(["q", "k", "v"], ["y"])
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[1].dim_param = f"heads_{value.name != 'q'}"
    q, k, v = floats(1, 4, 3, 8), floats(1, 2, 5, 8, seed=1), floats(1, 2, 5, 8, seed=2)
    (y,) = run_model(model, {"q": q, "k": k, "v": v}).outputs
    k, v = (np.repeat(x, 2, axis=1) for x in (k, v))
    scores = np.exp(q @ k.transpose(0, 1, 3, 2) / np.sqrt(8))
    np.testing.assert_allclose(y, scores / scores.sum(-1, keepdims=True) @ v, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("width", [1, 3])
def test_a_mask_that_is_shorter_than_the_keys_hides_the_rest(width: int) -> None:
    """onnxruntime has no kernel of Attention-25, and then runs the standard's body."""
    q, k, v, m = floats(2, 2, 3, 8), floats(2, 2, 4, 8, seed=1), floats(2, 2, 4, 8, seed=2), floats(3, width, seed=3)
    run_node("Attention", [q, k, v, m], {}, 25)


@pytest.mark.parametrize(
    "inputs, attributes, message",
    [
        (["q", "k", "v", "", "k"], {}, "past_key and past_value must be given together"),
        (["q", "k", "v"], {"qk_matmul_output_mode": 4, "softcap": 1.0}, "must be 0, 1, 2 or 3, not 4"),
    ],
)
def test_contradictions(inputs: list[str], attributes: dict[str, Any], message: str) -> None:
    values = [{"q": floats(1, 2, 3, 8), "k": floats(1, 2, 3, 8), "v": floats(1, 2, 3, 8)}.get(n) for n in inputs]
    assert message in refusal("Attention", values, attributes, 23)
