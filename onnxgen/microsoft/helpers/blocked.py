"""Weights of a few bits each, packed in bytes and scaled by block, as onnxruntime stores them."""

from __future__ import annotations

import torch
from torch import Tensor


def unpack_bits(packed: Tensor, bits: int) -> Tensor:
    """Unpack bytes into uint8 numbers of `bits` bits along the last axis, lowest first.

    If `bits` does not divide 8 (3, 5, ...), numbers continue in the next byte.
    """
    shifts = torch.arange(8, device=packed.device, dtype=torch.uint8)
    stream = ((packed.unsqueeze(-1) >> shifts) & 1).flatten(-2)
    whole = stream.shape[-1] // bits * bits
    weights = 2 ** torch.arange(bits, device=packed.device)
    numbers: Tensor = (
        (stream[..., :whole].reshape(*packed.shape[:-1], whole // bits, bits).long() * weights).sum(-1).to(torch.uint8)
    )
    return numbers


def dequantize_blocks(
    packed: Tensor, scales: Tensor, zeros: Tensor | None, size: int, bits: int, groups: Tensor | None = None
) -> Tensor:
    """Dequantise blocks to [rows, size] in the scales' type: `(number - zero) * scale`.

    Args:
        packed: [rows, blocks, bytes per block], uint8.
        scales: [rows * blocks].
        zeros: one per block, packed in the bytes of a row or one number each; default:
            2 ** (bits - 1).
        size: elements of a row; the last block may have more.
        bits: of one element.
        groups: [size or more], the block whose scale each element has, if it is not the
            block that it is in.
    """
    rows, blocks, _ = packed.shape
    scales = scales.reshape(rows, blocks)
    if zeros is None:
        zeros = torch.full_like(scales, 2 ** (bits - 1))
    elif zeros.dtype == torch.uint8:
        zeros = unpack_bits(zeros.reshape(rows, -1), bits)[:, :blocks]
    numbers = unpack_bits(packed, bits)
    if groups is None:
        groups = torch.arange(blocks, device=packed.device).repeat_interleave(numbers.shape[-1])
    groups = groups[:size].long()
    zeros, scales = zeros.reshape(rows, blocks)[:, groups], scales[:, groups]
    return (numbers.flatten(1)[:, :size].to(scales.dtype) - zeros.to(scales.dtype)) * scales


def gather_blocks(
    data: Tensor,
    indices: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    axis: int = 0,
    along: int = 1,
    block: int = 128,
    bits: int = 0,
) -> Tensor:
    """Gather slices of a block-quantised table: `(number - zero) * scale`.

    An index out of range gives zeros.

    Args:
        data: numbers, or bytes with several numbers of `bits` bits along the last axis
            (0: one number each).
        indices: of any shape, which replaces the axis; negative ones count from the
            end.
        scales, zeros: of the table's rank, with one number for each `block` elements of
            the axis `along`. Default of zeros: 0, for packed numbers 2 ** (bits - 1).
    """
    count, wanted = data.shape[axis], indices.flatten().long()
    wanted = torch.where(wanted < 0, wanted + count, wanted)
    there = (wanted >= 0) & (wanted < count)
    wanted = torch.where(there, wanted, 0)
    numbers, scales = data.index_select(axis, wanted), scales.index_select(axis, wanted)
    zeros = None if zeros is None else zeros.index_select(axis, wanted)
    if bits:
        numbers = unpack_bits(numbers, bits)
        zeros = torch.full_like(scales, 2 ** (bits - 1)) if zeros is None else unpack_bits(zeros, bits)
    groups = torch.arange(numbers.shape[along], device=data.device) // block
    made = numbers.to(scales.dtype)
    if zeros is not None:
        made = made - zeros.to(scales.dtype).index_select(along, groups)
    made = made * scales.index_select(along, groups)
    shape = [1] * made.ndim
    shape[axis] = -1
    made = torch.where(there.reshape(shape), made, 0.0)
    return made.reshape(*made.shape[:axis], *indices.shape, *made.shape[axis + 1 :])


def dequantize_table(packed: Tensor, scales: Tensor, table: Tensor, shape: tuple[int, int], block: int) -> Tensor:
    """Dequantise bitsandbytes' 4-bit weights to a matrix: `table[number] * scale`.

    Args:
        packed: two numbers per byte, the first in the high bits; uint8.
        scales: one per block.
        table: the 16 values that numbers stand for.
        shape: of the matrix.
        block: elements that share a scale, counted through all rows.
    """
    numbers = torch.stack([packed >> 4, packed & 15], -1).flatten()[: shape[0] * shape[1]]
    spread = scales.flatten().repeat_interleave(block)[: numbers.numel()]
    return (table.to(scales.dtype)[numbers.long()] * spread).reshape(shape)


def dequantize_blob(blob: Tensor, shape: tuple[int, int], has_zeros: bool) -> Tensor:
    """Dequantise onnxruntime's 4-bit blob to float32: `(number - zero) * scale`.

    Args:
        blob: uint8. Each block of 32 elements of a row has the four bytes of its scale,
            its zero point if there are any (default: 8), and 16 bytes: element i is in
            the low bits of byte i, element i + 16 in the high bits.
        shape: rows and columns; further elements of a row's last block are left out.
    """
    blocks = blob.reshape(shape[0], -1, 21 if has_zeros else 20)
    scales = blocks[..., :4].flatten().clone().view(torch.float32).reshape(*blocks.shape[:2], 1)
    zeros = blocks[..., 4:5].float() if has_zeros else 8.0
    packed = blocks[..., -16:]
    numbers = torch.cat([packed & 15, packed >> 4], -1).float()
    return ((numbers - zeros) * scales).flatten(1)[:, : shape[1]]
