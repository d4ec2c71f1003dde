"""What is scaled by gates, and hyper-connections, against the kernels of onnxruntime (1.31 is the first with them)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.fuzz import floats
from tests.ops.harness import Ran, refusal, run_node
from tests.ops.kernels import needs

MICROSOFT = "com.microsoft"
F, H = np.float32, np.float16


def run(op_type: str, inputs: list[Any], attrs: dict[str, Any] | None = None, **kwargs: Any) -> Ran:
    return run_node(op_type, inputs, attrs, domain=MICROSOFT, **kwargs)


def drawn(*shape: int, seed: int = 0, dtype: Any = F) -> Any:
    return floats(*shape, seed=seed).astype(dtype)


# ---- norms -----------------------------------------------------------------------------------------------------------

SHAPES = [((2, 3, 8), 8), ((2, 3, 8), 4), ((8,), 4), ((0, 8), 8), ((2, 1), 1), ((1, 1, 1, 6), 2)]


@needs("GatedRMSNorm")
@pytest.mark.parametrize("shape, size", SHAPES)
@pytest.mark.parametrize("activation", [None, "silu", "swish", "sigmoid"])
@pytest.mark.parametrize("dtype", [F, H])
def test_gated_rms_norm(shape: tuple[int, ...], size: int, activation: str | None, dtype: Any) -> None:
    """A group is as long as the scale."""
    inputs = [drawn(*shape, dtype=dtype), drawn(size, seed=1, dtype=dtype), drawn(*shape, seed=2, dtype=dtype)]
    attrs = {"activation": activation, "epsilon": 1e-3} if activation else {}
    ran = run("GatedRMSNorm", inputs, attrs, initializers={1})
    assert ("F.silu" in ran.source) == (activation != "sigmoid")
    if dtype == F:
        assert f"nn.RMSNorm({size}" in ran.source
    run("GatedRMSNorm", inputs, attrs)


@needs("GatedRMSNorm")
@pytest.mark.parametrize("size", [4, 8])
def test_gated_rms_norm_of_named_sizes(size: int) -> None:
    inputs = [drawn(2, 3, 8), drawn(size, seed=1), drawn(2, 3, 8, seed=2)]
    run("GatedRMSNorm", inputs, initializers={1}, dynamic=True)


def test_wrong_gated_rms_norms_are_refused() -> None:
    x = floats(2, 8)
    attrs = {"activation": "gelu"}
    assert "must be silu, swish or sigmoid, not 'gelu'" in refusal(
        "GatedRMSNorm", [x, floats(8), x], attrs, domain=MICROSOFT
    )
    assert "3 elements" in refusal("GatedRMSNorm", [x, floats(3), x], domain=MICROSOFT)
    assert "sizes" in refusal("GatedRMSNorm", [x, floats(8), x], domain=MICROSOFT, dynamic=True)


@needs("BranchwiseRMSNorm")
@pytest.mark.parametrize(
    "shape, branches", [((2, 3, 4, 8), 0), ((2, 3, 32), 4), ((32,), 4), ((4, 8), 0), ((0, 4, 8), 0)]
)
@pytest.mark.parametrize("scale", [None, (32,), (4, 8), (8,)])
@pytest.mark.parametrize("dtype, weights", [(F, F), (H, H), (H, F), (F, H)])
def test_branchwise_rms_norm(
    shape: tuple[int, ...], branches: int, scale: tuple[int, ...] | None, dtype: Any, weights: Any
) -> None:
    """A scale for each branch, or one for all."""
    attrs = {"epsilon": 1e-3} | ({"num_branches": branches} if branches else {})
    inputs = [drawn(*shape, dtype=dtype), None if scale is None else drawn(*scale, seed=1, dtype=weights)]
    ran = run("BranchwiseRMSNorm", inputs, attrs, initializers={1} if scale else frozenset())
    assert len(list(ran.model.parameters())) == (scale is not None)
    run("BranchwiseRMSNorm", inputs, attrs)


@needs("BranchwiseRMSNorm")
@pytest.mark.parametrize("shape, branches", [((3, 4, 1), 0), ((3, 4), 4), ((3, 1, 6), 0), ((3, 6), 1)])
def test_branches_of_one(shape: tuple[int, ...], branches: int) -> None:
    for size in {shape[-1] // (branches or 1), shape[-1] * (1 if branches else shape[-2])}:
        run("BranchwiseRMSNorm", [drawn(*shape), drawn(size, seed=1)], {"num_branches": branches} if branches else {})


def test_wrong_branches_are_refused() -> None:
    x = floats(2, 4, 8)
    assert "fits neither" in refusal("BranchwiseRMSNorm", [x, floats(4)], domain=MICROSOFT)
    assert "3 branches" in refusal("BranchwiseRMSNorm", [x], {"num_branches": 3}, domain=MICROSOFT)
    assert "no axis" in refusal("BranchwiseRMSNorm", [floats(8)], domain=MICROSOFT)
    assert "fits neither" in refusal("HyperConnectionPreMix", [x, floats(2, 8)], domain=MICROSOFT)


# ---- sums and activations --------------------------------------------------------------------------------------------


@needs("GatedAdd")
@pytest.mark.parametrize("shape", [(2, 3, 8), (3, 8), (8,), (0, 8), (2, 3, 1)])
@pytest.mark.parametrize("dtype", [F, H])
def test_gated_add(shape: tuple[int, ...], dtype: Any) -> None:
    inputs = [drawn(*s, seed=i, dtype=dtype) for i, s in enumerate((shape, shape, (*shape[:-1], 1)))]
    assert "i0 + i1 * i2" in run("GatedAdd", inputs, dynamic=True).source


def test_a_projected_gate_is_refused() -> None:
    x = floats(2, 8)
    assert "GPUs only" in refusal("GatedAdd", [x, x, floats(2, 4), floats(4, 1)], domain=MICROSOFT)


@needs("ScaledSiLU")
@pytest.mark.parametrize("alpha", [None, 1.0, 1.7, -0.3])
@pytest.mark.parametrize("scale", [None, F, H])
@pytest.mark.parametrize("dtype", [F, H])
def test_scaled_silu(alpha: float | None, scale: Any, dtype: Any) -> None:
    """The input comes before the attribute."""
    inputs = [drawn(2, 3, 8, dtype=dtype), None if scale is None else np.asarray(0.7, scale)]
    attrs = {} if alpha is None else {"alpha": alpha}
    assert "F.silu" in run("ScaledSiLU", inputs, attrs, dynamic=True).source
    run("ScaledSiLU", [drawn(0, 1, dtype=dtype), *inputs[1:]], attrs, initializers={1} if scale else frozenset())


@needs("LinearAttentionGate")
@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 4), (4,), (2, 0, 4), (1, 1, 1)])
@pytest.mark.parametrize("dtype", [F, H])
@pytest.mark.parametrize("outputs", [1, 2])
def test_linear_attention_gate(shape: tuple[int, ...], dtype: Any, outputs: int) -> None:
    a, b = drawn(*shape, dtype=dtype) * dtype(8), drawn(*shape, seed=1, dtype=dtype)
    inputs = [a, drawn(shape[-1], seed=2), drawn(shape[-1], seed=3), b if outputs == 2 else None]
    ran = run("LinearAttentionGate", inputs, outputs=outputs, initializers={1, 2})
    assert "F.softplus(" in ran.source and ("torch.sigmoid(i3)" in ran.source) == (outputs == 2)
    run("LinearAttentionGate", inputs, outputs=outputs, dynamic=True)


def test_an_update_rate_of_nothing_is_refused() -> None:
    inputs = [floats(2, 3, 4), floats(4), floats(4)]
    assert "needs the input b, which is missing" in refusal("LinearAttentionGate", inputs, outputs=2, domain=MICROSOFT)


@needs("EngramGate")
@pytest.mark.parametrize("sizes", [(2, 3, 4, 8), (1, 1, 1, 1), (2, 0, 4, 8), (1, 5, 2, 6)])
@pytest.mark.parametrize("dtype", [F, H])
@pytest.mark.parametrize("normed", [0, 1, 2])
def test_engram_gate(sizes: tuple[int, ...], dtype: Any, normed: int) -> None:
    """With its norm's scale, and with what that makes."""
    batch, length, streams, size = sizes
    shapes = [sizes, sizes, (batch, length, size), *[(streams, size)] * (3 if normed else 2)]
    inputs = [drawn(*s, seed=i, dtype=dtype) for i, s in enumerate(shapes)]
    run(
        "EngramGate", inputs, {"epsilon": 1e-3}, outputs=1 + (normed == 2), initializers={3, 4, 5} if normed else {3, 4}
    )
    run("EngramGate", inputs, outputs=1 + (normed == 2))


@needs("EngramGate")
@pytest.mark.parametrize("factor", [0, 1, -1])
def test_engram_gate_near_zero(factor: int) -> None:
    """Roots are of no smaller number than 1e-6, and a product of nothing has no sign."""
    ones = np.ones((1, 4), F)
    inputs = [np.full((1, 1, 1, 4), factor * 1e-5, F), np.full((1, 1, 1, 4), 1e-3, F), ones[None], ones, ones]
    run("EngramGate", inputs, {"epsilon": 1.0})


def test_normed_values_without_a_scale_are_refused() -> None:
    x = floats(1, 2, 3, 4)
    inputs = [x, x, floats(1, 2, 4), floats(3, 4), floats(3, 4)]
    assert "conv_norm_scale" in refusal("EngramGate", inputs, outputs=2, domain=MICROSOFT)


# ---- hyper-connections -----------------------------------------------------------------------------------------------

GATES = [
    ((2, 3, 4, 8), 0, (2, 3, 4)), ((2, 3, 4, 8), 0, (2, 3, 4, 1)), ((2, 3, 4, 8), 0, (2, 3, 4, 8)),
    ((2, 3, 32), 4, (2, 3, 4)), ((2, 3, 32), 4, (2, 3, 4, 1)), ((2, 3, 32), 4, (2, 3, 4, 8)),
    ((4, 8), 0, (4,)), ((32,), 4, (4,)), ((0, 4, 8), 0, (0, 4)), ((2, 1, 1), 0, (2, 1)),
]  # fmt: skip
TYPES = [(F, F), (H, H), (F, H), (H, F)]


@needs("HyperConnectionPreMix")
@pytest.mark.parametrize("shape, branches, gate", [*(g for g in GATES if 0 not in g[0]), ((2, 3, 32), 4, (2, 3, 32))])
@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("dtype, gates", TYPES)
def test_hyper_connection_pre_mix(
    shape: tuple[int, ...], branches: int, gate: tuple[int, ...], scale: float | None, dtype: Any, gates: Any
) -> None:
    attrs = ({"num_branches": branches} if branches else {}) | ({"reduction_scale": scale} if scale else {})
    run("HyperConnectionPreMix", [drawn(*shape, dtype=dtype), drawn(*gate, seed=1, dtype=gates)], attrs)


@needs("HyperConnectionPreMix", since=(1, 32))
def test_hyper_connection_pre_mix_of_nothing() -> None:
    """onnxruntime 1.31 hands out a wrong shape."""
    run("HyperConnectionPreMix", [drawn(0, 4, 8), drawn(0, 4)])


@needs("HyperConnectionPostMix")
@pytest.mark.parametrize("shape, branches, gate", GATES)
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("dtype, gates", TYPES)
def test_hyper_connection_post_mix(
    shape: tuple[int, ...], branches: int, gate: tuple[int, ...], mixed: bool, dtype: Any, gates: Any
) -> None:
    """Row i of the mix says where stream i goes."""
    *lead, size = shape if branches else (*shape[:-2], shape[-1])
    count, size = branches or shape[-2], size // (branches or 1)
    inputs = [drawn(*shape, dtype=dtype), drawn(*lead, size, seed=1, dtype=dtype), drawn(*gate, seed=2, dtype=gates)]
    inputs += [drawn(*lead, count, count, seed=3, dtype=gates)] if mixed else []
    run("HyperConnectionPostMix", inputs, {"num_branches": branches} if branches else {})
