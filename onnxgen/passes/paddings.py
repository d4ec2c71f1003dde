"""A Pad before a convolution or pool becomes that layer's own padding, where both sides of every axis are then alike.

    conv(F.pad(x, (1, 1, 1, 1)))   is   nn.Conv2d(..., padding=1)

Zeros before a convolution, or an average pool that counts them; -inf before a max pool. What stays unequal stays a Pad:
torch's layers pad both sides alike.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxgen.graph.nodes import all_nodes, made_by
from onnxgen.options import Options
from onnxgen.passes.match import scalar
from onnxgen.passes.rewrite import drop, only_user
from onnxgen.passes.steps import input_at
from onnxgen.shapes.info import info

FILL = {"Conv": 0.0, "AveragePool": 0.0, "MaxPool": -math.inf}


def paddings(model: ir.Model, options: Options) -> None:
    """Move the padding of every Pad that serves one layer alone into the layer."""
    for node in all_nodes(model.graph):
        pad = made_by(node.inputs[0], "Pad") if node.inputs and node.domain == "" and node.op_type in FILL else None
        if pad is not None and only_user(pad.outputs[0]) is node and pad.inputs[0] is not None:
            pads = _sum(node, pad)
            if pads is None or _value(pad) != FILL[node.op_type]:
                continue
            node.replace_input_with(0, pad.inputs[0])
            node.attributes.add(ir.AttrInt64s("pads", pads))
            node.attributes.pop("auto_pad", None)
            if node.op_type == "AveragePool":
                node.attributes.add(ir.AttrInt64("count_include_pad", 1))
            drop(pad)


def _sum(node: ir.Node, pad: ir.Node) -> list[int] | None:
    """Both paddings in one, as the layer's attribute has it; None if that is not the same, or unlike on both sides."""
    rank, sides = info(pad.inputs[0]).rank, _sides(pad)
    if not rank or sides is None or len(sides) != 2 * rank or any(sides[:2]) or any(sides[rank : rank + 2]):
        return None
    outer = [*sides[2:rank], *sides[rank + 2 :]]
    own = [0] * len(outer)
    if "auto_pad" in node.attributes and node.attributes["auto_pad"].value not in ("NOTSET", "VALID"):
        return None
    if "pads" in node.attributes and (
        "auto_pad" not in node.attributes or node.attributes["auto_pad"].value != "VALID"
    ):
        own = [int(p) for p in node.attributes["pads"].value]
    half = len(outer) // 2
    total = [a + b for a, b in zip(outer, own)]
    if min(outer) < 0 or len(own) != len(outer) or total[:half] != total[half:]:
        return None
    if node.op_type != "Conv" and not _pools(node, own, total):
        return None
    return total


def _pools(node: ir.Node, own: list[int], total: list[int]) -> bool:
    """Whether torch's pools can pad so much, and nothing was padded in another way before."""
    kernel = [int(k) for k in node.attributes["kernel_shape"].value] if "kernel_shape" in node.attributes else []
    rounded = "ceil_mode" in node.attributes and node.attributes["ceil_mode"].value
    counted = "count_include_pad" in node.attributes and node.attributes["count_include_pad"].value
    if node.op_type == "AveragePool" and any(own) and not counted or rounded or len(node.outputs) > 1:
        return False
    return len(kernel) * 2 == len(total) and all(2 * p <= k for p, k in zip(total, kernel))


def _sides(pad: ir.Node) -> list[int] | None:
    """What a Pad with a constant adds to each axis, begins first; None if it is another or not known."""
    rank = info(pad.inputs[0]).rank
    if "mode" in pad.attributes and pad.attributes["mode"].value != "constant" or not rank:
        return None
    for name in ("pads", "paddings"):  # an attribute up to opset 10
        if name in pad.attributes:
            return [int(p) for p in pad.attributes[name].value]
    given, axes = _ints(input_at(pad, 1)), list(range(rank))
    if input_at(pad, 3) is not None:
        axes = [a % rank for a in _ints(input_at(pad, 3)) or []]
    if given is None or len(given) != 2 * len(axes) or not axes:
        return None
    sides = [0] * 2 * rank
    for i, axis in enumerate(axes):
        sides[axis], sides[rank + axis] = given[i], given[len(axes) + i]
    return sides


def _ints(value: ir.Value | None) -> list[int] | None:
    constant = info(value).constant
    return None if constant is None else [int(p) for p in constant.reshape(-1)]


def _value(pad: ir.Node) -> float | None:
    if "value" in pad.attributes:
        return float(pad.attributes["value"].value)
    given = input_at(pad, 2)
    return 0.0 if given is None else scalar(given)
