"""Mixtures of experts against the kernels of onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.fuzz import floats
from tests.ops.harness import Ran, node_model, refusal, run_node, run_onnxruntime
from tests.ops.kernels import needs

MICROSOFT = "com.microsoft"
TOKENS, WIDTH, INNER, EXPERTS = 7, 6, 5, 4


def run(inputs: list[Any], attrs: dict[str, Any] | None = None, **kwargs: Any) -> Ran:
    return run_node("MoE", inputs, attrs, domain=MICROSOFT, **kwargs)


def layers(fused: int = 1, biased: bool = True, seed: int = 10) -> list[Any]:
    """Weights and biases of the first layer (of `fused` parts) and of the second."""
    shapes = [(EXPERTS, fused * INNER, WIDTH), (EXPERTS, fused * INNER), (EXPERTS, WIDTH, INNER), (EXPERTS, WIDTH)]
    made = [floats(*shape, seed=seed + i) for i, shape in enumerate(shapes)]
    return made if biased else [made[0], None, made[2], None]


X, ROUTER = floats(TOKENS, WIDTH), floats(TOKENS, EXPERTS, seed=1)


@needs("MoE")
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu", "identity"])
@pytest.mark.parametrize("k, normalize", [(1, 0), (2, 0), (2, 1), (4, 1)])
@pytest.mark.parametrize("biased", [True, False])
def test_experts(activation: str | None, k: int, normalize: int, biased: bool) -> None:
    attrs = {"k": k, "normalize_routing_weights": normalize} | ({"activation_type": activation} if activation else {})
    ran = run([X, ROUTER, *layers(biased=biased)], attrs, initializers={2, 3, 4, 5} if biased else {2, 4})
    assert len(list(ran.model.parameters())) == (4 if biased else 2)
    assert f"for expert in range({EXPERTS}):" in ran.source


@needs("MoE")
@pytest.mark.parametrize(
    "alpha, beta, limit", [(None, None, None), (1.702, 1.0, 7.0), (1.5, 0.0, 0.3), (1.0, 0.5, None)]
)
def test_gates_of_experts(alpha: float | None, beta: float | None, limit: float | None) -> None:
    given = {"activation_alpha": alpha, "activation_beta": beta, "swiglu_limit": limit}
    attrs = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1}
    attrs |= {name: value for name, value in given.items() if value is not None}
    run([X, ROUTER, *layers(fused=2)], attrs, initializers={2, 3, 4, 5})


@needs("MoE")
@pytest.mark.parametrize("shape", [(1, 7, WIDTH), (7, 1, WIDTH), (0, 3, WIDTH), (0, WIDTH)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_batches_of_tokens(shape: tuple[int, ...], dynamic: bool) -> None:
    tokens = int(np.prod(shape[:-1]))
    inputs = [floats(*shape), ROUTER[:tokens], *layers()]
    run(inputs, {"k": 2}, initializers={2, 3, 4, 5}, dynamic=dynamic)


@needs("MoE")
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("scores", [[0, 0, 0, 0], [0, 1, 1, 0], [1, 1, 0, 1]])
def test_equal_scores(k: int, scores: list[int]) -> None:
    """The kernel sends a token to the last of equals."""
    router = np.repeat(np.asarray([scores], np.float32), TOKENS, 0)
    run([X, router, *layers()], {"k": k, "normalize_routing_weights": 1}, initializers={2, 3, 4, 5})


def test_wrong_mixtures_are_refused() -> None:
    def why(attrs: dict[str, Any], *more: Any) -> str:
        return refusal("MoE", [X, ROUTER, *layers(), *more], attrs, domain=MICROSOFT)

    assert "attribute 'k' is 5, but there are 4 experts" in why({"k": 5})
    assert "GPUs" in why({"activation_type": "relu2"}) and "GPUs" in why({"use_sparse_mixer": 1})
    assert "do not fit the layers that are given" in why({"activation_type": "swiglu"})
    assert "do not fit the layers that are given" in why({"activation_type": "silu"}, floats(EXPERTS, INNER, WIDTH))


# ---- of few bits -----------------------------------------------------------------------------------------------------

WIDE, ROWS = 32, 64  # of a token, and of an expert's first layer


def packed(numbers: Any, bits: int) -> Any:
    """Numbers of a few bits in the bytes of a row, lowest bits first."""
    stream = (numbers[..., None] >> np.arange(bits)) & 1
    stream = stream.reshape(*numbers.shape[:-1], -1).astype(np.uint8)
    return np.packbits(stream, axis=-1, bitorder="little")


def few(rows: int, columns: int, bits: int, block: int, zeros: bool, seed: int) -> list[Any]:
    """Weights of a layer, their scales, their zero points or None, and the floats that they stand for."""
    drawn = np.random.default_rng(seed)
    blocks = columns // block if block else 1
    weights = drawn.integers(0, 2**bits, (EXPERTS, rows, columns))
    scales = ((drawn.random((EXPERTS, rows, blocks)) + 0.5) * 2.0**-bits / 4).astype(np.float32)
    points = drawn.integers(0, 2**bits, scales.shape) if zeros else np.full(scales.shape, 2 ** (bits - 1))
    full = (weights.reshape(*scales.shape, -1) - points[..., None]) * scales[..., None]
    if not block:
        scales, points = scales[..., 0], points[..., 0]
    full = full.reshape(weights.shape).astype(np.float32)
    return [packed(weights, bits), scales, packed(points, bits) if zeros else None, full]


def run_packed(
    bits: int, block: int, zeros: bool, attrs: dict[str, Any], weights: Any = None, biased: bool = True
) -> Ran:
    fused = 2 if attrs.get("swiglu_fusion") else 1
    one, two = few(ROWS, WIDE, bits, block, zeros, 1), few(WIDE, ROWS // fused, bits, block, zeros, 2)
    bias = [floats(EXPERTS, n, seed=n) if biased else None for n in (ROWS, WIDE)]
    inputs = [
        floats(TOKENS, WIDE),
        ROUTER,
        *one[:2],
        bias[0],
        *two[:2],
        bias[1],
        None,
        None,
        None,
        one[2],
        two[2],
        None,
    ]
    inputs.append(weights)
    while inputs[-1] is None:
        inputs.pop()
    attrs = {"expert_weight_bits": bits, "k": 2, **attrs} | ({"block_size": block} if block else {})
    stored = {i for i, x in enumerate(inputs) if x is not None and 2 <= i < 14}
    expected = None
    if bits == 8:  # the kernel rounds activations to 8 bits, too: the one for floats does not
        full = [*inputs[:2], one[3], bias[0], two[3], bias[1]]
        floating = node_model("MoE", full, {"k": 2, "normalize_routing_weights": 1}, domain=MICROSOFT)
        expected = run_onnxruntime(floating, {f"i{i}": x for i, x in enumerate(full)})
    return run_node("QMoE", inputs, attrs, domain=MICROSOFT, initializers=stored, expected=expected)


@needs("QMoE")
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", [0, 16, 32])
@pytest.mark.parametrize("zeros", [False, True])
def test_experts_of_few_bits(bits: int, block: int, zeros: bool) -> None:
    run_packed(bits, block, zeros, {"normalize_routing_weights": bits == 4})


@needs("QMoE")
@pytest.mark.parametrize("activation", ["silu", "gelu", "identity", "swiglu"])
@pytest.mark.parametrize("biased", [False, True])
def test_activations_of_few_bits(activation: str, biased: bool) -> None:
    attrs: dict[str, Any] = {"activation_type": activation}
    if activation == "swiglu":
        attrs |= {"swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 7.0}
    run_packed(4, 32, False, attrs, biased=biased)


@needs("QMoE")
@pytest.mark.parametrize("normalize", [0, 1])
def test_weights_of_experts_of_their_own(normalize: int) -> None:
    """The router says who is asked, other numbers how much each counts."""
    weights = np.random.default_rng(3).random((TOKENS, EXPERTS)).astype(np.float32)
    run_packed(4, 16, True, {"normalize_routing_weights": normalize}, weights)


@needs("MoE")
def test_layers_of_different_bits() -> None:
    """As the kernel for floats computes with what they stand for."""
    one, two = few(ROWS, WIDE, 4, 16, True, 1), few(WIDE, ROWS, 2, 16, True, 2)
    tokens = floats(TOKENS, WIDE)
    full = [tokens, ROUTER, one[3], None, two[3]]
    floating = node_model("MoE", full, {"k": 2, "normalize_routing_weights": 1}, domain=MICROSOFT)
    expected = run_onnxruntime(floating, {f"i{i}": x for i, x in enumerate(full) if x is not None})
    inputs = [tokens, ROUTER, *one[:2], None, *two[:2], None, None, None, None, one[2], two[2]]
    attrs = {"k": 2, "block_size": 16, "expert_weight_bits": 4, "fc2_expert_weight_bits": 2}
    stored = {2, 3, 5, 6, 11, 12}
    run_node("QMoE", inputs, attrs, domain=MICROSOFT, initializers=stored, expected=expected)


def test_wrong_mixtures_of_few_bits_are_refused() -> None:
    def why(attrs: dict[str, Any]) -> str:
        one, two = few(ROWS, WIDE, 4, 16, False, 1), few(WIDE, ROWS, 4, 16, False, 2)
        inputs = [floats(TOKENS, WIDE), ROUTER, *one[:2], None, *two[:2]]
        return refusal("QMoE", inputs, {"block_size": 16} | attrs, domain=MICROSOFT)

    assert "GPUs" in why({"quant_type": "fp4"})
    assert "one kind of device" in why({"weights_prepacked": 1})
    assert "bits" in why({"expert_weight_bits": 5})
    assert "block_size 24 does not divide rows of 32" in why({"block_size": 24})


# ---- routers ---------------------------------------------------------------------------------------------------------

ROUTES: list[dict[str, Any]] = [
    {"top_k": 2},
    {"top_k": 2, "n_group": 4, "topk_group": 2},
    {"top_k": 3, "n_group": 2, "group_topk": 1},
    {"top_k": 4, "n_group": 4, "topk_group": 2, "group_topk": 9},
    {"top_k": 3, "n_group": 4, "topk_group": 3, "router_sentinel": -5.0},
]


@needs("MoEGroupRouter")
@pytest.mark.parametrize("attrs", ROUTES)
@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 8), (0, 8)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_routes_by_groups(attrs: dict[str, Any], shape: tuple[int, ...], dtype: Any, dynamic: bool) -> None:
    inputs = [floats(*shape).astype(dtype), floats(8, seed=1)]
    run_node("MoEGroupRouter", inputs, attrs, domain=MICROSOFT, initializers={1}, dynamic=dynamic)


@needs("MoEGroupRouter")
@pytest.mark.parametrize("attrs", ROUTES)
def test_equal_routes(attrs: dict[str, Any]) -> None:
    """The kernel prefers the first of equals, and lets no score be below 1e-20."""
    for logits in (np.zeros((2, 8), np.float32), np.asarray([[-200, -100, -90, 100, 0, 1, 2, 3]], np.float32)):
        run_node("MoEGroupRouter", [logits, np.zeros(8, np.float32)], attrs, domain=MICROSOFT)


@needs("MoEGroupRouter")
@pytest.mark.parametrize("projected", [False, True])
def test_all_scores(projected: bool) -> None:
    inputs = [floats(5, 256 if projected else 8), floats(8, seed=1)]
    inputs += [floats(8, 256, seed=2) / 16] if projected else []
    outputs = ["", "o1", "o2"]
    run_node(
        "MoEGroupRouter", inputs, {"top_k": 2}, domain=MICROSOFT, outputs=outputs, initializers={*range(1, len(inputs))}
    )


def test_wrong_routers_are_refused() -> None:
    def why(**attrs: int) -> str:
        return refusal("MoEGroupRouter", [floats(5, 8), floats(8)], attrs, domain=MICROSOFT)

    assert "top_k is 9, but the chosen groups have 8 experts" in why(top_k=9)
    assert "top_k is 5, but the chosen groups have 4 experts" in why(top_k=5, n_group=4, topk_group=2)
    assert "topk_group 1 and n_group 3 do not divide 8 experts" in why(top_k=2, n_group=3)
    assert "topk_group 5 and n_group 4 do not divide 8 experts" in why(top_k=2, n_group=4, topk_group=5)
