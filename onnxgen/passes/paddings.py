"""A Pad before a convolution or pool becomes that layer's own padding if the total is the same on both sides.

    conv(F.pad(x, (1, 1, 1, 1)))   is   nn.Conv2d(..., padding=1)

This holds for zeros before a convolution or before an average pool that counts them, and for -inf before a max pool.
Unequal sides stay a Pad: torch's layers pad both sides alike.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxgen.graph.catalogue import is_a
from onnxgen.graph.nodes import made_by
from onnxgen.graph.traits import PICKS
from onnxgen.options import Options
from onnxgen.passes.match import ints, scalar, standard_nodes
from onnxgen.passes.rewrite import drop, only_user
from onnxgen.passes.steps import input_at
from onnxgen.shapes.info import info


def paddings(model: ir.Model, options: Options) -> None:
    """Move the padding of every Pad that only one layer uses into the layer."""
    for node in standard_nodes(model, "Conv", "AveragePool", "MaxPool"):
        pad = made_by(node.inputs[0], "Pad")
        if pad is None or only_user(pad.outputs[0]) is not node or pad.inputs[0] is None:
            continue
        pads = _total(node, pad)
        if pads is None or _number(pad) != (-math.inf if is_a(node, PICKS) else 0.0):
            continue
        node.replace_input_with(0, pad.inputs[0])
        node.attributes.add(ir.AttrInt64s("pads", pads))
        node.attributes.pop("auto_pad", None)
        if node.op_type == "AveragePool":
            node.attributes.add(ir.AttrInt64("count_include_pad", 1))
        drop(pad)


def _total(node: ir.Node, pad: ir.Node) -> list[int] | None:
    """Return the sum of both paddings as the layer's attribute `pads`; None if one layer cannot apply it."""
    rank, sides = info(pad.inputs[0]).rank, _sides(pad)
    if not rank or sides is None or len(sides) != 2 * rank or any(sides[:2]) or any(sides[rank : rank + 2]):
        return None
    outer, auto_pad = [*sides[2:rank], *sides[rank + 2 :]], node.attributes.get_string("auto_pad", "NOTSET")
    if auto_pad not in ("NOTSET", "VALID"):
        return None
    given = node.attributes.get_ints("pads", None) if auto_pad == "NOTSET" else None
    own = [0] * len(outer) if given is None else list(given)
    half = len(outer) // 2
    total = [a + b for a, b in zip(outer, own)]
    if min(outer) < 0 or len(own) != len(outer) or total[:half] != total[half:]:
        return None
    return total if node.op_type == "Conv" or _can_pool(node, own, total) else None


def _can_pool(node: ir.Node, own: list[int], total: list[int]) -> bool:
    """True if torch's pool allows so much padding, and the pool's own padding, if any, is of the same kind."""
    kernel, has = node.attributes.get_ints("kernel_shape", ()), node.attributes.get_int
    if node.op_type == "AveragePool" and any(own) and not has("count_include_pad", 0):
        return False
    if has("ceil_mode", 0) or len(node.outputs) > 1:
        return False
    return len(kernel) * 2 == len(total) and all(2 * p <= k for p, k in zip(total, kernel))


def _sides(pad: ir.Node) -> list[int] | None:
    """Return the padding of a constant Pad for each axis, all beginnings first; None if unknown or of other mode."""
    rank = info(pad.inputs[0]).rank
    if pad.attributes.get_string("mode", "constant") != "constant" or not rank:
        return None
    given = ints(pad, "paddings" if "paddings" in pad.attributes else "pads", 1)
    axes = list(range(rank)) if input_at(pad, 3) is None else [a % rank for a in ints(pad, "axes", 3) or ()]
    if given is None or len(given) != 2 * len(axes) or not axes:
        return None
    sides = [0] * 2 * rank
    for axis, begin, end in zip(axes, given, given[len(axes) :]):
        sides[axis], sides[rank + axis] = begin, end
    return sides


def _number(pad: ir.Node) -> float | None:
    given = input_at(pad, 2)
    return pad.attributes.get_float("value", 0.0) if given is None else scalar(given)
