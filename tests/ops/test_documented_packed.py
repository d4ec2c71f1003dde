"""Products by packed weights, for which onnxruntime has no kernel on CPUs, against their documentation in numpy.

What the weights are, onnxruntime's GatherPacked says, whose formats they share.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ops.fuzz import floats
from tests.ops.harness import Ran, node_model, refusal, run_node, run_onnxruntime
from tests.ops.kernels import needs
from tests.ops.test_packed import BLOCKS, PLAIN

F, F16, B16 = np.float32, np.float16, ml_dtypes.bfloat16
MICROSOFT = "com.microsoft"
pytestmark = needs("GatherPacked")


def run(op: str, inputs: list[Any], attrs: dict[str, Any], expected: Any, **kwargs: Any) -> Ran:
    return run_node(op, inputs, attrs, domain=MICROSOFT, expected=[expected], **kwargs)


def weights(packed_type: int, blocks: int, *rows: int, seed: int = 0) -> tuple[Any, Any]:
    """Any bytes whose scales are small numbers; and what they stand for, by GatherPacked."""
    size, count, scales = BLOCKS[packed_type]
    data = np.random.default_rng([packed_type, seed]).integers(0, 256, (*rows, blocks, count)).astype(np.uint8)
    for start in scales:
        drawn = floats(*rows, blocks, 1, seed=start + seed) / {13: 400, 14: 4000, 23: 4000}.get(packed_type, 80)
        data[..., start : start + 2] = drawn.astype(F16).view(np.uint8)
    data = data.reshape(*rows, -1)
    flat = data.reshape(-1, data.shape[-1])
    attrs = {"packed_type": packed_type, "K": blocks * size, "output_dtype": 1}
    every = np.arange(len(flat))
    model = node_model("GatherPacked", [flat, every], attrs, domain=MICROSOFT)
    (made,) = run_onnxruntime(model, {"i0": flat, "i1": every})
    return data, made.reshape(*rows, -1)


# ---- one product -----------------------------------------------------------------------------------------------------


def activated(y: Any, kind: str) -> Any:
    wide = y.astype(F)
    made = {"silu": wide / (1 + np.exp(-wide)), "relu2": np.maximum(wide, 0) ** 2}.get(kind.replace("_squared", "2"))
    return y if made is None else made.astype(y.dtype)


@pytest.mark.parametrize("packed_type", BLOCKS)
@pytest.mark.parametrize("dtype", [F16, B16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_matmul(packed_type: int, dtype: Any, dynamic: bool) -> None:
    """Weights are rounded to the input's type."""
    data, full = weights(packed_type, 256 // BLOCKS[packed_type][0], 5)
    x = floats(2, 3, 256).astype(dtype)
    expected = (x.astype(np.float64) @ full.astype(dtype).astype(np.float64).T).astype(F).astype(dtype)
    attrs = {"packed_type": packed_type, "N": 5, "K": 256}
    run("MatMulPacked", [x, data], attrs, expected, dynamic=dynamic, initializers=set() if dynamic else {1})


@pytest.mark.parametrize("packed_type", PLAIN)
def test_plain_weights(packed_type: int) -> None:
    full = floats(5, 32).astype(PLAIN[packed_type])
    x = floats(3, 32).astype(F16)
    expected = (x.astype(F) @ full.astype(F16).astype(F).T).astype(F16)
    run("MatMulPacked", [x, full.view(np.uint8)], {"packed_type": packed_type, "N": 5, "K": 32}, expected)


@pytest.mark.parametrize("kind", ["none", "relu2", "relu_squared", "silu"])
def test_activations(kind: str) -> None:
    """They see what is rounded."""
    data, full = weights(8, 2, 6)
    x = floats(4, 64).astype(F16)
    expected = activated((x.astype(F) @ full.astype(F16).astype(F).T).astype(F16), kind)
    run("MatMulPacked", [x, data], {"packed_type": 8, "N": 6, "K": 64, "activation_type": kind}, expected)


@pytest.mark.parametrize("attrs, why", [
    ({"packed_type": 16}, "packed as IQ2_XXS"), ({"packed_type": 40}, "packed_type 40 has no CPU kernel"),
    ({"activation_type": "gelu"}, "must be none, relu2 or silu, not 'gelu'"),
    ({"K": 32}, "bytes do not hold 32 numbers"),
    ({"K": 63}, "bytes do not hold 63 numbers"), ({"N": 7}, "6 rows, but attribute 'N' is 7"),
])  # fmt: skip
def test_refused_products(attrs: dict[str, Any], why: str) -> None:
    inputs = [floats(4, 64).astype(F16), weights(8, 2, 6)[0]]
    given = {"packed_type": 8, "N": 6, "K": 64, **attrs}
    text = refusal("MatMulPacked", inputs, given, domain=MICROSOFT)
    assert why in text and "node node (com.microsoft.MatMulPacked" in text


def test_a_global_scale_is_refused() -> None:
    inputs = [floats(4, 64).astype(F16), weights(8, 2, 6)[0], np.array(2, F)]
    text = refusal("MatMulPacked", inputs, {"packed_type": 8, "N": 6, "K": 64}, domain=MICROSOFT)
    assert "NVFP4" in text and "-> pack the weights as" in text


# ---- experts ---------------------------------------------------------------------------------------------------------


def route(scores: Any, mixing: Any, k: int, normalize: bool, epsilon: float, factor: float) -> list[dict[int, Any]]:
    """The weight of each expert that a token is sent to, in the order of their ranks."""
    if mixing is None:
        mixing = np.exp(scores - scores.max(-1, keepdims=True))
        mixing = mixing / mixing.sum(-1, keepdims=True)
    found = []
    for row, own in zip(scores, mixing):
        ranked = sorted(range(len(row)), key=lambda e: (np.isnan(row[e]), -row[e] if row[e] == row[e] else 0, e))[:k]
        total = sum(own[e] for e in ranked) + F(epsilon)
        scale = (1 / total if total else 0) if normalize else 1
        found.append({e: F(own[e] * scale * factor) for e in ranked})
    return found


def mixed(x: Any, layers: list[Any], routes: list[dict[int, Any]]) -> Any:
    """Each layer's result is rounded to the input's type; the sum once."""
    gate, up, down = (w.astype(x.dtype).astype(F) for w in layers)
    made = []
    for row, sent in zip(x.astype(F), routes):
        total = np.zeros(x.shape[-1], F)
        for expert, share in sent.items():
            g, u = (np.asarray(w[expert] @ row).astype(x.dtype).astype(F) for w in (gate, up))
            hidden = ((g / (1 + np.exp(-g))).astype(x.dtype).astype(F) * u).astype(x.dtype).astype(F)
            total += share * (down[expert] @ hidden).astype(x.dtype).astype(F)
        made.append(total)
    return np.array(made).astype(x.dtype)


TYPES = {"gate_type": 8, "up_type": 2, "down_type": 20}


def drawn(dtype: Any = F16) -> tuple[list[Any], list[Any]]:
    """4 experts of 64 numbers, 32 inside; what goes in, and what the weights are."""
    packed = [weights(8, 2, 4, 32), weights(2, 2, 4, 32, seed=1), weights(20, 1, 4, 64, seed=2)]
    return [floats(5, 64).astype(dtype), floats(5, 4, seed=1), *(p[0] for p in packed)], [p[1] for p in packed]


@pytest.mark.parametrize("dtype", [F16, B16])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("normalize", [0, 1])
@pytest.mark.parametrize("stored", [False, True])
def test_experts(dtype: Any, k: int, normalize: int, stored: bool) -> None:
    inputs, full = drawn(dtype)
    attrs = {**TYPES, "k": k, "normalize_routing_weights": normalize}
    expected = mixed(inputs[0], full, route(inputs[1], None, k, bool(normalize), 0, 1))
    run("MoEPacked", inputs, attrs, expected, initializers={2, 3, 4} if stored else set())
    inputs[0], expected = inputs[0].reshape(1, 5, 64), expected.reshape(1, 5, 64)
    run("MoEPacked", inputs, attrs, expected)


@pytest.mark.parametrize("epsilon", [0.0, 0.25])
@pytest.mark.parametrize("normalize", [0, 1])
def test_weights_of_their_own(epsilon: float, normalize: int) -> None:
    """Equal scores, scores that are no numbers, and weights whose sum is 0."""
    inputs, full = drawn()
    scores, mixing = inputs[1], np.abs(floats(5, 4, seed=9))
    scores[0] = [1, 2, 2, 2]
    scores[1] = [np.nan, -np.inf, np.nan, np.nan]
    scores[2] = [np.inf, -np.inf, 3, np.nan]
    mixing[3] = 0
    attrs = {**TYPES, "k": 2, "normalize_routing_weights": normalize, "routed_scaling_factor": 1.5}
    expected = mixed(inputs[0], full, route(scores, mixing, 2, bool(normalize), epsilon * normalize, 1.5))
    assert np.isfinite(expected).all() and not expected[3].any()
    run("MoEPacked", [*inputs, mixing], attrs | {"routing_epsilon": epsilon * normalize}, expected)


def test_a_bad_weight_spoils_its_token() -> None:
    inputs, full = drawn()
    mixing = np.abs(floats(5, 4, seed=9))
    mixing[1] = np.nan
    made = run_node("MoEPacked", [*inputs, mixing], TYPES, domain=MICROSOFT, compare=False).outputs[0]
    assert np.isnan(made[1]).all() and np.isfinite(np.delete(made, 1, 0)).all()
    assert len(full) == 3


@pytest.mark.parametrize("attrs, why", [
    ({"activation_type": "relu2"}, "packed as IQ2_XXS"), ({"up_type": 18}, "packed as IQ3_XXS"),
    ({"routing_epsilon": 0.1}, "need the input router_weights"), ({"k": 5}, "'k' is 5, but there are 4 experts"),
    ({"down_type": 13}, "do not hold whole blocks"),
])  # fmt: skip
def test_refused_experts(attrs: dict[str, Any], why: str) -> None:
    text = refusal("MoEPacked", drawn()[0], TYPES | attrs, domain=MICROSOFT)
    assert why in text and "node node (com.microsoft.MoEPacked" in text
