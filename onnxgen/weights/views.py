"""How operators view stored tensors, by the names of their rules (`ops.rules`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import onnx_ir as ir

from onnxgen.shapes.info import info
from onnxgen.weights.provenance import Source

View = Callable[[ir.Node, Source], "Source | None"]  # None: of no tensor


def constant_ints(node: ir.Node, index: int, attribute: str) -> list[int] | None:
    """Return a list of ints that is an attribute or a constant input, depending on the opset."""
    if attribute in node.attributes:
        return [int(v) for v in node.attributes[attribute].value]
    if index < len(node.inputs) and node.inputs[index] is not None:
        constant = info(node.inputs[index]).constant
        return None if constant is None else [int(v) for v in constant.reshape(-1)]
    return None


def transpose(node: ir.Node, x: Source) -> Source | None:
    perm = constant_ints(node, 1, "perm")
    return x.transpose(tuple(perm if perm is not None else reversed(range(len(x.shape)))))


def unsqueeze(node: ir.Node, x: Source) -> Source | None:
    axes = constant_ints(node, 1, "axes")
    if axes is None:
        return None
    rank = len(x.shape) + len(axes)
    for axis in sorted(a % rank for a in axes):
        x = x.unsqueeze(axis)
    return x


def squeeze(node: ir.Node, x: Source) -> Source | None:
    axes = constant_ints(node, 1, "axes")
    if axes is None:
        axes = [i for i, d in enumerate(x.shape) if d == 1]
    for axis in sorted((a % len(x.shape) for a in axes), reverse=True):
        x = x.squeeze(axis)
    return x


def reshape(node: ir.Node, x: Source) -> Source | None:
    shape = info(node.outputs[0]).shape
    if shape is None or not all(isinstance(d, int) for d in shape):
        return None
    return x.reshape(tuple(int(d) for d in shape if isinstance(d, int)))


def slices(node: ir.Node, x: Source) -> Source | None:
    starts, ends = constant_ints(node, 1, "starts"), constant_ints(node, 2, "ends")
    if starts is None or ends is None:
        return None
    axes = constant_ints(node, 3, "axes")
    steps = constant_ints(node, 4, "steps") or [1] * len(starts)
    if any(s != 1 for s in steps):
        return None
    for axis, start, end in zip(axes if axes is not None else range(len(starts)), starts, ends):
        n = x.shape[axis]
        start, stop, _ = slice(start, end).indices(n)
        x = x.slice(axis % len(x.shape), start, max(start, stop))
    return x


def unchanged(node: ir.Node, x: Source) -> Source:
    return replace(x, label=node.outputs[0].name or "")


def flatten(node: ir.Node, x: Source) -> Source | None:
    return reshape(node, x)
