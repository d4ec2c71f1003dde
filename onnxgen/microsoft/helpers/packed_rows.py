"""Rows of tables whose numbers are packed by blocks, in the formats of GGML: bytes [..., row] to numbers [..., size].

A block has a scale in half precision, or scales of scales, and a few bits for each number.
"""

from __future__ import annotations

import torch
from torch import Tensor


def packed_rows(data: Tensor, indices: Tensor) -> Tensor:
    """Return the rows at the indices; the first row for an index out of range."""
    return data[torch.where((indices >= 0) & (indices < data.shape[0]), indices, 0)]


def bytes_as(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Reinterpret bytes as numbers of another type, and return them in float32."""
    return rows.contiguous().view(dtype).float()


def as_halves(rows: Tensor) -> Tensor:
    """Reinterpret bytes as float16 numbers, and return them in float32."""
    return rows.contiguous().view(torch.float16).float()


def bit_fields(packed: Tensor, bits: int) -> Tensor:
    """Split bytes [..., n] into [..., n * 8 / bits]: all first fields come first."""
    return torch.cat([packed >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)], -1)


def unpack_q4_0(rows: Tensor) -> Tensor:
    """Dequantise Q4_0: blocks of 32 numbers of 4 bits."""
    blocks = torch.unflatten(rows, -1, (-1, 18))
    return (as_halves(blocks[..., :2]) * (bit_fields(blocks[..., 2:], 4).float() - 8)).flatten(-2)


def unpack_q5_0(rows: Tensor) -> Tensor:
    """Dequantise Q5_0: blocks of 32 numbers of 5 bits, of which one is stored apart."""
    blocks = torch.unflatten(rows, -1, (-1, 22))
    high = (blocks[..., 2:6].unsqueeze(-1) >> torch.arange(8, device=rows.device) & 1).flatten(-2)
    codes = bit_fields(blocks[..., 6:], 4) + 16 * high
    return (as_halves(blocks[..., :2]) * (codes.float() - 16)).flatten(-2)


def unpack_q8_0(rows: Tensor) -> Tensor:
    """Dequantise Q8_0: blocks of 32 numbers of 8 bits."""
    blocks = torch.unflatten(rows, -1, (-1, 34))
    return (as_halves(blocks[..., :2]) * bytes_as(blocks[..., 2:], torch.int8)).flatten(-2)


def unpack_q2_0(rows: Tensor) -> Tensor:
    """Dequantise Q2_0: blocks of 64 numbers of 2 bits, -1, 0, 1 or 2."""
    blocks = torch.unflatten(rows, -1, (-1, 18))
    codes = (blocks[..., 2:].unsqueeze(-1) >> torch.arange(0, 8, 2, device=rows.device) & 3).flatten(-2)
    return (as_halves(blocks[..., :2]) * (codes.float() - 1)).flatten(-2)


def unpack_q5_k(rows: Tensor) -> Tensor:
    """Dequantise Q5_K: blocks of 8 times 32 numbers of 5 bits.

    Each 32 numbers have a scale and an offset of 6 bits.
    """
    blocks = torch.unflatten(rows, -1, (-1, 176))
    factors = as_halves(blocks[..., :4])
    low, middle, last = torch.unflatten(blocks[..., 4:16], -1, (3, 4)).unbind(-2)
    scales = torch.cat([low & 63, last & 15 | low >> 6 << 4], -1).float() * factors[..., :1]
    offsets = torch.cat([middle & 63, last >> 4 | middle >> 6 << 4], -1).float() * factors[..., 1:]
    high = bit_fields(blocks[..., 16:48], 1)
    codes = bit_fields(torch.unflatten(blocks[..., 48:], -1, (4, 32)), 4).flatten(-2) + 16 * high
    return (torch.unflatten(codes.float(), -1, (8, 32)) * scales.unsqueeze(-1) - offsets.unsqueeze(-1)).flatten(-3)


def unpack_q6_k(rows: Tensor) -> Tensor:
    """Dequantise Q6_K: blocks of 16 times 16 numbers of 6 bits with an 8-bit scale."""
    blocks = torch.unflatten(rows, -1, (-1, 210))
    low = bit_fields(torch.unflatten(blocks[..., :128], -1, (2, 64)), 4)
    high = bit_fields(torch.unflatten(blocks[..., 128:192], -1, (2, 32)), 2)
    scales = bytes_as(blocks[..., 192:208], torch.int8) * as_halves(blocks[..., 208:])
    codes = (low + 16 * high).float().flatten(-2) - 32
    return (torch.unflatten(codes, -1, (16, 16)) * scales.unsqueeze(-1)).flatten(-3)


def codebook_values(codes: Tensor) -> Tensor:
    """Look up the values of the 16 codes of IQ4."""
    values = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
    return torch.tensor(values, dtype=torch.float32, device=codes.device)[codes.long()]


def unpack_iq4_nl(rows: Tensor) -> Tensor:
    """Dequantise IQ4_NL: blocks of 32 codes of a codebook of 16."""
    blocks = torch.unflatten(rows, -1, (-1, 18))
    return (as_halves(blocks[..., :2]) * codebook_values(bit_fields(blocks[..., 2:], 4))).flatten(-2)


def unpack_iq4_xs(rows: Tensor) -> Tensor:
    """Dequantise IQ4_XS: blocks of 8 times 32 codes of a codebook with 6-bit scales."""
    blocks = torch.unflatten(rows, -1, (-1, 136))
    high = (blocks[..., 2:4].unsqueeze(-1) >> torch.arange(0, 8, 2, device=rows.device) & 3).flatten(-2)
    low = (blocks[..., 4:8].unsqueeze(-1) >> torch.arange(0, 8, 4, device=rows.device) & 15).flatten(-2)
    scales = as_halves(blocks[..., :2]) * ((low + 16 * high).float() - 32)
    values = codebook_values(bit_fields(torch.unflatten(blocks[..., 8:], -1, (8, 16)), 4))
    return (values * scales.unsqueeze(-1)).flatten(-3)
