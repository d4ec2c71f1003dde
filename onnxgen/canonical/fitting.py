"""Solve for the parameters of a layer whose inputs are known. Exporters store what it makes, such as of positions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from onnxgen.canonical.terms import Term
from onnxgen.canonical.values import Values, labelled, viewed

Fitted = tuple[Tensor, Tensor | None]


class Unfit(Exception):
    """It is no such layer, or nothing fits."""


def fitted(values: Values, layer: Term, weight: Term, made: Tensor, has_bias: bool) -> Fitted:
    """Return the weight with which a layer makes certain values, and what is added to the layer: of all, the smallest.

    Args:
        layer: a term that is made of known values, and of the weight.
        weight: an operand of a view, a convolution or a contraction.
        made: what the layer and its bias are together.
        has_bias: whether something is added for each channel.

    Raises:
        Unfit: there is none.
    """
    if bool(made.isnan().any()):
        raise Unfit
    if layer.op == "view":
        pattern = layer.args[1]
        base = viewed(made, pattern.inverse()).reshape(layer.args[0].shape)
        found, bias = fitted(values, layer.args[0], weight, base, has_bias)
        return found, None if bias is None else viewed(bias.expand(layer.args[0].shape), pattern)
    if layer.op == "call" and layer.args[0] == "conv":
        return _of_convolution(values, layer, weight, made, has_bias)
    if layer.op == "contract" and len(layer.args[0]) == 2:
        return _of_contraction(values, layer, weight, made, has_bias)
    raise Unfit


def quotient(product: Tensor, by: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor | None]:
    """Return what of a shape is multiplied by `by` to make a product, and the product that this makes.

    Where all of an axis say it, it is what fits best; else there is nothing to compare.
    """
    product, by = torch.broadcast_tensors(product, by)  # type: ignore[no-untyped-call]
    shape = (1,) * (product.dim() - len(shape)) + tuple(shape)
    axes = [n for n, (size, wanted) in enumerate(zip(product.shape, shape)) if size != wanted == 1]
    if not axes or len(shape) != product.dim():
        return product / torch.where(by == 0, torch.nan, by), None
    stated = ~product.isnan()
    weight = torch.where(stated, by * by, 0.0).sum(axes, keepdim=True)
    best = torch.where(stated, product * by, 0.0).sum(axes, keepdim=True) / weight
    return best, best * by


def _of_convolution(values: Values, layer: Term, weight: Term, made: Tensor, has_bias: bool) -> Fitted:
    _, x, mine, stride, padding, dilation, groups = layer.args
    if mine is not weight or groups != 1:
        raise Unfit
    convolve = (F.conv1d, F.conv2d, F.conv3d)[len(weight.shape) - 3]
    inner = math.prod(weight.shape[1:])
    each = torch.eye(inner, dtype=torch.float64).reshape(inner, *weight.shape[1:])
    rows = convolve(values.of(x).double(), each, None, stride, padding, dilation).movedim(1, -1)
    found, bias = _solved(rows.reshape(-1, inner), made.movedim(1, -1).flatten(0, -2), has_bias)
    by_channel = None if bias is None else bias.reshape(-1, *[1] * (len(weight.shape) - 2))
    return found.T.reshape(weight.shape), by_channel


def _of_contraction(values: Values, layer: Term, weight: Term, made: Tensor, has_bias: bool) -> Fitted:
    operands, out, sizes = layer.args
    (wanted,) = [n for n, (t, _) in enumerate(operands) if t is weight] or [-1]
    if wanted < 0 or operands[0][0] is operands[1][0]:
        raise Unfit
    x, labels = labelled(values.of(operands[1 - wanted][0]).double(), operands[1 - wanted][1], sizes)
    mine = [n for group in operands[wanted][1] for n in group]
    summed, channels = [n for n in mine if n not in out], [n for n in mine if n in out]
    rows = [n for n in out if n not in channels]
    if sorted(labels) != sorted([*rows, *summed]) or not summed:
        raise Unfit
    inner = math.prod(sizes[n] for n in summed)
    x = x.permute([labels.index(n) for n in (*rows, *summed)]).reshape(-1, inner)
    aside = made.permute([out.index(n) for n in (*rows, *channels)]).reshape(len(x), -1)
    found, bias = _solved(x, aside, has_bias)
    order = [*summed, *channels]
    whole = found.reshape([sizes[n] for n in order]).permute([order.index(n) for n in mine])
    if bias is not None:
        bias = bias.reshape([sizes[n] for n in channels]).permute([channels.index(n) for n in out if n in channels])
        bias = bias.reshape([sizes[n] if n in channels else 1 for n in out])
    return whole.reshape(weight.shape), bias


def _solved(rows: Tensor, wanted: Tensor, has_bias: bool) -> Fitted:
    if has_bias:
        rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], 1)
    if not rows.numel():
        raise Unfit
    found = torch.linalg.lstsq(rows, wanted, driver="gelsd").solution
    if float((rows @ found - wanted).abs().max()) > 1e-5 * float(wanted.abs().max()):
        raise Unfit
    return (found[:-1], found[-1]) if has_bias else (found, None)
