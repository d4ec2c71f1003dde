"""Fake quantisation: floats are rounded to what integers can hold, with gradients as if they were not rounded."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def fake_quantize(x: Tensor, scale: Tensor, zero: Tensor | float, low: int, high: int) -> Tensor:
    """Quantise and dequantise `x`: round `x / scale`, saturate, multiply by `scale`.

    The rounding is half to even, the range `low` ... `high`. The gradient of `x` is
    that of a clamp. A trained scale gets the gradient of LSQ (Esser et al. 2020, arXiv
    1902.08153).
    """
    if scale.requires_grad:
        share = (x.numel() / scale.numel() * max(-low, high)) ** -0.5
        scale = scale.detach() + share * (scale - scale.detach())
    # float16 has too few digits for 255 steps; with a scale of 0, everything is 0
    wide = torch.promote_types(x.dtype, torch.float32)
    steps = x.to(wide) / scale.where(scale != 0, 1)
    steps = torch.clamp(steps, low - zero, high - zero)  # type: ignore[arg-type]
    return ((steps.round().detach() + (steps - steps.detach())) * scale).to(x.dtype)


def fake_quantize_dynamic(x: Tensor) -> Tensor:
    """Quantise and dequantise `x` over its range, as ONNX's DynamicQuantizeLinear."""
    low, high = x.detach().amin().clamp(max=0), x.detach().amax().clamp(min=0)
    scale = torch.where(low == high, 1.0, (high - low) / 255)
    return fake_quantize(x, scale, (-low / scale).round().clamp(0, 255), 0, 255)


def fake_quantize_float(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Round `x / scale` to a narrow float type, saturated, and multiply by `scale`."""
    limit = torch.finfo(dtype).max
    steps = (x / scale).clamp(-limit, limit)
    return (steps + (steps.to(dtype).to(steps.dtype) - steps).detach()) * scale


class FakeQuantize(nn.Module):
    """Rounds a float tensor to the integers from `low` to `high`, times `scale`.

    Args:
        shape: of the scale, which broadcasts to the tensor.
        block: how many elements of `axis` share a scale, if it is not 0.
        shifted: there is a zero point, the buffer `zero`; otherwise it is 0.
        learned: the scale is a parameter, otherwise a buffer.
    """

    scale: Tensor
    zero: Tensor

    def __init__(
        self,
        *shape: int,
        low: int = -128,
        high: int = 127,
        axis: int = -1,
        block: int = 0,
        shifted: bool = False,
        learned: bool = False,
    ) -> None:
        super().__init__()
        self.low, self.high, self.axis, self.block, self.shifted = low, high, axis, block, shifted
        scale = torch.full(shape, 1 / 64)
        if learned:
            self.scale = nn.Parameter(scale)
        else:
            self.register_buffer("scale", scale)
        if shifted:
            self.register_buffer("zero", torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        zero = self.spread(self.zero, x) if self.shifted else 0
        return fake_quantize(x, self.spread(self.scale, x), zero, self.low, self.high)

    def spread(self, values: Tensor, x: Tensor) -> Tensor:
        if not self.block:
            return values
        return values.repeat_interleave(self.block, self.axis).narrow(self.axis, 0, x.shape[self.axis])


class FakeQuantizeFloat(nn.Module):
    """Rounds a float tensor to the numbers of a narrow float type, times `scale`."""

    scale: Tensor

    def __init__(self, *shape: int, dtype: torch.dtype, learned: bool = False) -> None:
        super().__init__()
        self.dtype = dtype
        scale = torch.full(shape, 1 / 64)
        if learned:
            self.scale = nn.Parameter(scale)
        else:
            self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        return fake_quantize_float(x, self.scale, self.dtype)


class QuantizedLinear(nn.Linear):
    """An `nn.Linear` that computes with its weight as `quantize` rounds it."""

    def __init__(self, *sizes: Any, quantize: nn.Module, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.quantize = quantize

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.quantize(self.weight), self.bias)


class QuantizedEmbedding(nn.Embedding):
    """An `nn.Embedding` that looks up its weight as `quantize` rounds it."""

    def __init__(self, *sizes: Any, quantize: nn.Module, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.quantize = quantize

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(input, self.quantize(self.weight), self.padding_idx)


class QuantizedConv1d(nn.Conv1d):
    """An `nn.Conv1d` that computes with its weight as `quantize` rounds it."""

    def __init__(self, *sizes: Any, quantize: nn.Module, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.quantize = quantize

    def forward(self, input: Tensor) -> Tensor:
        made: Tensor = self._conv_forward(input, self.quantize(self.weight), self.bias)
        return made


class QuantizedConv2d(nn.Conv2d):
    """An `nn.Conv2d` that computes with its weight as `quantize` rounds it."""

    def __init__(self, *sizes: Any, quantize: nn.Module, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.quantize = quantize

    def forward(self, input: Tensor) -> Tensor:
        made: Tensor = self._conv_forward(input, self.quantize(self.weight), self.bias)
        return made


class QuantizedConv3d(nn.Conv3d):
    """An `nn.Conv3d` that computes with its weight as `quantize` rounds it."""

    def __init__(self, *sizes: Any, quantize: nn.Module, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.quantize = quantize

    def forward(self, input: Tensor) -> Tensor:
        made: Tensor = self._conv_forward(input, self.quantize(self.weight), self.bias)
        return made
