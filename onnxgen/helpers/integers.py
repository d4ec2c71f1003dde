"""Integer arithmetic of ONNX that torch has no kernel for, or that Python defines differently."""

from __future__ import annotations

import torch
from torch import Tensor


def ordered(x: Tensor) -> Tensor:
    """Map uint64 to int64 in the same order: the lowest, 0, becomes -2**63."""
    return x.to(torch.int64) ^ torch.iinfo(torch.int64).min


def unordered(x: Tensor) -> Tensor:
    """Undo `ordered`: map int64 back to uint64."""
    return (x ^ torch.iinfo(torch.int64).min).to(torch.uint64)


def uint64_div(a: Tensor, b: Tensor) -> Tensor:
    """a // b for uint64 (ONNX Div), by signed division of the halved dividend.

    See Hacker's Delight, section 9-3.
    """
    n, d = a.to(torch.int64), b.to(torch.int64)
    half = (n >> 1) & torch.iinfo(torch.int64).max
    positive = d.clamp(min=1)
    quotient = torch.div(half, positive, rounding_mode="trunc") << 1
    quotient = quotient + (ordered(n - quotient * positive) >= ordered(positive)).long()
    return torch.where(d < 0, (ordered(n) >= ordered(d)).long(), quotient).to(torch.uint64)


def uint64_mod(a: Tensor, b: Tensor) -> Tensor:
    """a % b for uint64 (ONNX Mod)."""
    quotient = uint64_div(a, b).to(torch.int64)
    return (a.to(torch.int64) - quotient * b.to(torch.int64)).to(torch.uint64)


def uint64_shift_right(a: Tensor, b: Tensor) -> Tensor:
    """a >> b for uint64 (ONNX BitShift), zeros coming in from the left."""
    n, bits = a.to(torch.int64), b.to(torch.int64)
    once = ((n >> 1) & torch.iinfo(torch.int64).max) >> (bits - 1).clamp(min=0)
    return torch.where(bits == 0, n, once).to(torch.uint64)


def int_div(a: int, b: int) -> int:
    """Division of sizes, truncated toward zero as ONNX Div; `a // b` rounds down."""
    quotient = a // b
    return quotient + 1 if quotient < 0 and quotient * b != a else quotient
