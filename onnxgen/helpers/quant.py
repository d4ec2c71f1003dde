"""Integer arithmetic of quantised networks, exact on every device, and layers that compute with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def dynamic_quantize(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """ONNX's DynamicQuantizeLinear: float32 to uint8 over the range of `x` and 0.

    Returns the quantised tensor, its scale (float32) and its zero point (uint8), both
    of rank 0. A range of one point has the scale 1, as in onnxruntime.
    """
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = torch.where(low == high, 1.0, (high - low) / 255)
    zero = (-low / scale).round().clamp(0, 255)
    return ((x / scale).round() + zero).clamp(0, 255).to(torch.uint8), scale, zero.to(torch.uint8)


def integer_matmul(a: Tensor, b: Tensor, a_zero: Tensor | int = 0, b_zero: Tensor | int = 0) -> Tensor:
    """`(a - a_zero) @ (b - b_zero)` of 8-bit integers as int32.

    It is computed in float64, where every sum is exact; torch has integer products on
    the CPU only.
    """
    return ((a.double() - a_zero) @ (b.double() - b_zero)).long().int()


def requantize(total: Tensor, scale: Tensor | float, zero: Tensor | int, dtype: torch.dtype) -> Tensor:
    """Scale integer sums, round half to even, add `zero`, saturate to int8 or uint8."""
    limits = torch.iinfo(dtype)
    return ((total.float() * scale).round() + zero).clamp(limits.min, limits.max).to(dtype)


# ---- layers whose input is quantised at each call -------------------------------------------------------------------


def dynamic_linear(
    x: Tensor, weight: Tensor, scale: Tensor, zero: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """`x @ weight + bias`, multiplied in integers.

    Args:
        weight: 8-bit integers [in, out].
        scale, zero: of the weight, one number or one for each column.
    """
    whole, step, middle = dynamic_quantize(x)
    total = integer_matmul(whole, weight, middle.double(), 0 if zero is None else zero.double())
    y = total.float() * (step * scale)
    return (y if bias is None else y + bias).to(x.dtype)


class DynamicLinear(nn.Module):
    """A linear layer in integers: its input is quantised to 8 bits over its range.

    Args:
        dtype: of the weight [in_features, out_features].
        shifted: the weight has a zero point.
        by_column: each column of the weight has a scale, and a zero point, of its own.
        learned: the bias is a parameter, otherwise a buffer.
    """

    weight: Tensor
    scale: Tensor
    zero: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        dtype: torch.dtype = torch.int8,
        shifted: bool = False,
        by_column: bool = False,
        learned: bool = False,
    ) -> None:
        super().__init__()
        shape = (out_features,) if by_column else ()
        self.register_buffer("weight", torch.zeros(in_features, out_features, dtype=dtype))
        self.register_buffer("scale", torch.ones(shape))
        self.register_buffer("zero", torch.zeros(shape, dtype=dtype) if shifted else None)
        if learned:
            self.bias = nn.Parameter(torch.zeros(out_features))
        else:
            self.register_buffer("bias", torch.zeros(out_features) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        return dynamic_linear(x, self.weight, self.scale, self.zero, self.bias)


def dynamic_conv(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    bias: Tensor | None = None,
    rounded: bool = False,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """A convolution in integers; its sums are exact in float64.

    Args:
        weight: 8-bit integers [out, in / groups, kernel...].
        scale, zero: of the weight, one number each.
        rounded: the bias is added to the integers, in their scale, rounded down.
    """
    whole, step, middle = dynamic_quantize(x)
    convolve: Callable[..., Tensor] = [F.conv1d, F.conv2d, F.conv3d][weight.dim() - 3]
    kernel = weight.double() if zero is None else weight.double() - zero.double()
    data, step = whole.double() - middle.double(), step * scale
    total = convolve(data, kernel, None, stride, padding, dilation, groups).long().int()
    shape = (-1, *[1] * (weight.dim() - 2))
    if bias is not None and rounded:
        total = total + torch.floor(bias / step).int().reshape(shape)
    y = total.float() * step
    return (y if bias is None or rounded else y + bias.reshape(shape)).to(x.dtype)


class DynamicConv(nn.Module):
    """A convolution in integers: its input is quantised to 8 bits over its range.

    Args:
        kernel_size: one size for each axis.
        dtype: of the weight.
        shifted: the weight has a zero point.
        rounded: the bias is added to the integers, in their scale, rounded down.
        learned: the bias is a parameter, otherwise a buffer.
    """

    weight: Tensor
    scale: Tensor
    zero: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        dtype: torch.dtype = torch.int8,
        shifted: bool = False,
        rounded: bool = False,
        learned: bool = False,
    ) -> None:
        super().__init__()
        self.options = (rounded, stride, padding, dilation, groups)
        weight = torch.zeros(out_channels, in_channels // groups, *kernel_size, dtype=dtype)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("zero", torch.zeros((), dtype=dtype) if shifted else None)
        if learned:
            self.bias = nn.Parameter(torch.zeros(out_channels))
        else:
            self.register_buffer("bias", torch.zeros(out_channels) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        return dynamic_conv(x, self.weight, self.scale, self.zero, self.bias, *self.options)
