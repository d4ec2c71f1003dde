"""Causal convolutions with a state against the kernels of onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.fuzz import floats
from tests.ops.harness import Ran, refusal, run_node
from tests.ops.kernels import needs

MICROSOFT = "com.microsoft"
F, H = np.float32, np.float16


def inputs_of(
    batch: int, channels: tuple[int, ...], length: int, kernel: int, dilation: int, bias: bool, past: bool, last: bool
) -> list[Any]:
    """The convolution's, of channels that are one axis, or the last ones."""
    count, before = 1, (kernel - 1) * dilation
    for size in channels:
        count *= size
    data, state = [(batch, n, *channels) if last else (batch, *channels, n) for n in (length, before)]
    return [
        floats(*data), floats(count, 1, kernel, seed=1), floats(count, seed=2) if bias else None,
        floats(*state, seed=3) if past else None,
    ]  # fmt: skip


def run(inputs: list[Any], attrs: dict[str, Any] | None = None, **kwargs: Any) -> Ran:
    return run_node("CausalConvWithState", inputs, attrs, domain=MICROSOFT, outputs=2, **kwargs)


@needs("CausalConvWithState")
@pytest.mark.parametrize("batch, length, kernel, dilation", [
    (2, 7, 3, 1), (1, 1, 1, 1), (2, 7, 3, 2), (2, 1, 4, 1), (2, 2, 4, 3), (2, 0, 3, 1), (0, 5, 3, 1), (2, 5, 1, 1),
])  # fmt: skip
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("activation", [None, "none", "silu", "swish"])
def test_channels_first(
    batch: int, length: int, kernel: int, dilation: int, bias: bool, past: bool, activation: str | None
) -> None:
    inputs = inputs_of(batch, (4,), length, kernel, dilation, bias, past, last=False)
    attrs: dict[str, Any] = {"dilation": dilation} | ({"activation": activation} if activation else {})
    ran = run(inputs, attrs, initializers={1, 2} if bias else {1})
    assert ("F.silu(" in ran.source) == (activation in ("silu", "swish"))
    assert length == 0 or f"nn.Conv1d(4, 4, kernel_size={kernel}" in ran.source
    ran = run(inputs, attrs)
    assert length == 0 or "F.conv1d(" in ran.source


@needs("CausalConvWithState")
@pytest.mark.parametrize("channels, length, kernel, dilation", [
    ((4,), 7, 3, 1), ((2, 3), 7, 3, 2), ((2, 3, 2), 1, 4, 1), ((1,), 1, 1, 1), ((4,), 0, 3, 1),
])  # fmt: skip
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_channels_last(
    channels: tuple[int, ...], length: int, kernel: int, dilation: int, past: bool, activation: str
) -> None:
    """They may be several axes, which are one to the weights."""
    inputs = inputs_of(2, channels, length, kernel, dilation, True, past, last=True)
    run(inputs, {"channels_last": 1, "dilation": dilation, "activation": activation}, initializers={1, 2})


@needs("CausalConvWithState")
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("past", [False, True])
def test_named_sizes(last: bool, past: bool) -> None:
    """Only the sizes of the weights have to be known."""
    inputs = inputs_of(2, (4,), 7, 3, 2, True, past, last)
    run(inputs, {"channels_last": int(last), "dilation": 2}, initializers={1, 2}, dynamic=True)


def test_text() -> None:
    """It reads as one would write it."""
    inputs = inputs_of(2, (4,), 7, 3, 1, True, True, last=False)
    node: dict[str, Any] = {"domain": MICROSOFT, "outputs": 2, "initializers": {1, 2}, "compare": False}
    source = run_node("CausalConvWithState", inputs, {"activation": "silu"}, **node).source
    assert "nn.Conv1d(4, 4, kernel_size=3, groups=4)" in source
    assert "x = torch.cat([i3, i0], dim=2)" in source and "F.silu(self.conv(x))" in source and "x[..., -2:]" in source


@pytest.mark.parametrize("attrs, why", [
    ({"ndim": 2}, "several axes runs on GPUs only"), ({"state_window": 2}, "window of states runs on GPUs only"),
    ({"channels_last": 1, "state_length": 5}, "slice of channels runs on GPUs only"),
    ({"channels_last": 1, "input_channels": 2}, "slice of channels runs on GPUs only"),
    ({"activation": "gelu"}, "'gelu' must be none, silu or swish"), ({"dilation": 0}, "dilation 0 at least 1"),
])  # fmt: skip
def test_what_the_kernel_refuses_is_refused(attrs: dict[str, Any], why: str) -> None:
    inputs = inputs_of(2, (4,), 7, 3, 1, True, True, last=False)
    assert why in refusal("CausalConvWithState", inputs, attrs, outputs=2, domain=MICROSOFT)


# ---- sequences of several lengths ------------------------------------------------------------------------------------


def packed(
    starts: list[int], kernel: int = 3, dilation: int = 1, channels: int = 4, bias: bool = True, dtype: Any = F
) -> list[Any]:
    """One behind the other."""
    state = floats(len(starts) - 1, channels, (kernel - 1) * dilation, seed=3)
    given = [floats(starts[-1], channels), floats(channels, 1, kernel, seed=1), None, floats(channels, seed=2), state]
    inputs: list[Any] = [None if x is None else x.astype(dtype) for x in given]
    inputs[2] = np.array(starts, np.int32)
    return inputs if bias else [*inputs[:3], None, inputs[4]]


def run_packed(inputs: list[Any], attrs: dict[str, Any] | None = None, **kwargs: Any) -> Ran:
    return run_node("VarlenCausalConvWithState", inputs, attrs, **{"domain": MICROSOFT, "outputs": 2, **kwargs})


@needs("VarlenCausalConvWithState")
@pytest.mark.parametrize("starts, kernel, dilation", [
    ([0, 3, 10], 3, 1), ([0, 1, 10], 3, 2), ([0, 3, 10], 1, 1), ([0, 1], 1, 1), ([0, 1, 2, 4], 4, 2), ([0, 0, 5], 3, 1),
    ([0, 5, 5, 6], 2, 1),
])  # fmt: skip
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", [None, "none", "silu", "swish"])
@pytest.mark.parametrize("dtype", [F, H])
def test_sequences(
    starts: list[int], kernel: int, dilation: int, bias: bool, activation: str | None, dtype: Any
) -> None:
    """Short ones keep what they do not push out of their state."""
    attrs: dict[str, Any] = {"dilation": dilation} | ({"activation": activation} if activation else {})
    inputs = packed(starts, kernel, dilation, 4, bias, dtype)
    ran = run_packed(inputs, attrs, initializers={1, 3} if bias else {1})
    assert len(list(ran.model.parameters())) == 1 + bias
    run_packed(inputs, attrs)


@needs("VarlenCausalConvWithState")
@pytest.mark.parametrize("counts", [[2, 9], [-1, 0], [4, 4]])
@pytest.mark.parametrize("capacity", [1, 4, 8])
@pytest.mark.parametrize("dtype", [F, H])
def test_first_inputs(counts: list[int], capacity: int, dtype: Any) -> None:
    """No more than a sequence has, than asked for, or than there is room."""
    inputs = [*packed([0, 3, 10], dtype=dtype), np.array(counts, np.int32)]
    run_packed(inputs, {"state_update_capacity": capacity}, outputs=3)
    run_packed(inputs, {"state_update_capacity": capacity})


@needs("VarlenCausalConvWithState")
def test_sequences_of_named_sizes() -> None:
    run_packed(packed([0, 3, 10]), {"activation": "silu"}, initializers={1, 3}, dynamic=True)


def test_sequences_that_the_kernel_refuses_are_refused() -> None:
    def why(inputs: list[Any], attrs: dict[str, Any]) -> str:
        return refusal("VarlenCausalConvWithState", inputs, attrs, outputs=2, domain=MICROSOFT)

    inputs = packed([0, 3, 10], kernel=2)
    assert "kernel_delta, previous_mask, group_size and delta_offset run on GPUs only" in why(
        [*inputs, None, floats(10, 2, 4), floats(10, 1)], {}
    )
    assert "capture_count must be given exactly if" in why(inputs, {"state_update_capacity": 2})
    assert "capture_count must be given exactly if" in why([*inputs, np.ones(2, np.int32)], {})
    assert "'gelu' must be none, silu or swish" in why(inputs, {"activation": "gelu"})
