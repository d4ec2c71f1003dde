"""What onnxruntime writes for one kind of processor (`com.microsoft.nchwc`): channels in blocks, innermost.

With a block of b channels, images lie in memory as [batch, channels / b, height, width, b], and weights as
[out / b, in / b, height, width, b of in, b of out], or, where the input is in no blocks or there is one channel a
group, as [out / b, in, height, width, b]; the shapes that the file states are those before. Channels are padded with
zeros to whole blocks. Here images are as they were, still padded, and weights are views of what is stored. The file
does not say how large a block is; what it says otherwise may leave one possibility.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import NCHWC_BLOCK
from onnxgen.graph.nodes import all_nodes
from onnxgen.passes.contrib.layers import fused_conv
from onnxgen.passes.contrib.writer import Refused, Writer, body
from onnxgen.shapes.info import info

NCHWC = "com.microsoft.nchwc"
BLOCKS = (8, 16)  # of AVX2 and SSE; of AVX-512, ARM's NEON and the others
UNKNOWN = (
    "the weights are in blocks of 8 or 16 channels, and the file does not say which",
    "give --nchwc-block 16 if the file was optimised on AVX-512 or ARM, else --nchwc-block 8; or optimise the model"
    " again with ORT_ENABLE_EXTENDED",
)


def set_block(graph: ir.Graph, given: int | None) -> None:
    """Note at each node how many channels are a block, where that is known or `given`."""
    nodes = [n for n in all_nodes(graph) if n.domain == NCHWC]
    left = [block for block in BLOCKS if all(_fits(node, block) for node in nodes)]
    found = given if given is not None else left[0] if len(left) == 1 else None
    for node in nodes:
        if found is not None and found in left:
            NCHWC_BLOCK.set(node, found)


def _fits(node: ir.Node, block: int) -> bool:
    """Whether what a node states can be of blocks of so many channels."""
    if node.op_type == "Conv":
        weight = sizes(node.inputs[1])
        return not weight or (weight[0] % block == 0 and (weight[1] < block or weight[1] % block == 0))
    if node.op_type in ("ReorderInput", "ReorderOutput"):
        shapes = info(node.inputs[0]).shape, info(node.outputs[0]).shape
        if shapes[0] is None or shapes[1] is None:
            return True
        axis = 3 if node.attributes.get_int("channels_last", 0) else 1
        inside, outside = (
            (shapes[1][1], shapes[0][axis]) if node.op_type == "ReorderInput" else (shapes[0][1], shapes[1][axis])
        )
        return not isinstance(inside, int) or not isinstance(outside, int) or inside == aligned(outside, block)
    return True


def sizes(weight: ir.Value | None) -> list[int]:
    """The shape of weights of four axes; empty where it is unknown."""
    shape = info(weight).shape or ()
    found = [d for d in shape if isinstance(d, int)]
    return found if len(shape) == len(found) == 4 else []


def aligned(channels: int, block: int) -> int:
    return -(-channels // block) * block


def _block(g: Writer) -> int:
    block = NCHWC_BLOCK.get(g.node)
    if block is None:
        raise Refused(*UNKNOWN)
    return block


@body("Conv", domain=NCHWC)
def conv(
    g: Writer, X: ir.Value, W: ir.Value, B: ir.Value | None = None, Sum: ir.Value | None = None, *,
    activation: str = "", activation_params: list[float] | None = None,
    auto_pad: str = "NOTSET", dilations: list[int] | None = None, group: int = 1,
    kernel_shape: list[int] | None = None, pads: list[int] | None = None, strides: list[int] | None = None,
) -> ir.Value:  # fmt: skip
    block = _block(g)
    if not sizes(W):
        raise Refused("the shape of the weights is unknown", "optimise the model with ORT_ENABLE_EXTENDED")
    out, channels, *kernel = sizes(W)
    if channels % block or channels == 1:  # [out / b, in, *kernel, b]
        split = g("Reshape", W, g.ints(out // block, channels, *kernel, block))
        plain = g("Transpose", split, perm=[0, 4, 1, 2, 3])
    else:
        split = g("Reshape", W, g.ints(out // block, channels // block, *kernel, block, block))
        plain = g("Transpose", split, perm=[0, 5, 1, 4, 2, 3])
    weight = g("Reshape", plain, g.ints(out, channels, *kernel))
    return fused_conv(
        g, X, weight, B, Sum, activation=activation, activation_params=activation_params, auto_pad=auto_pad,
        dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip


@body("ReorderInput", domain=NCHWC)
def reorder_input(g: Writer, X: ir.Value, *, channels_last: int = 0) -> ir.Value:
    """Channels padded to whole blocks, and first if they were last."""
    made = g("Transpose", X, perm=[0, 3, 1, 2]) if channels_last else X
    shape = info(X).shape
    channels = None if shape is None else shape[3 if channels_last else 1]
    if not isinstance(channels, int):
        raise Refused("the number of channels is unknown", "optimise the model with ORT_ENABLE_EXTENDED")
    extra = aligned(channels, _block(g)) - channels
    return g("Pad", made, g.ints(0, 0, 0, 0, 0, extra, 0, 0)) if extra else made


@body("ReorderOutput", domain=NCHWC)
def reorder_output(g: Writer, X: ir.Value, *, channels: int, channels_last: int = 0) -> ir.Value:
    _block(g)
    shape = info(X).shape
    padded = shape is None or shape[1] != channels
    made = g("Slice", X, g.ints(0), g.ints(channels), g.ints(1)) if padded else X
    return g("Transpose", made, perm=[0, 2, 3, 1]) if channels_last else made


@body("MaxPool", domain=NCHWC)
def max_pool(
    g: Writer, X: ir.Value, *, kernel_shape: list[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    dilations: list[int] | None = None, pads: list[int] | None = None, storage_order: int = 0,
    strides: list[int] | None = None,
) -> ir.Value:  # fmt: skip
    return g(
        "MaxPool", X, auto_pad=auto_pad, ceil_mode=ceil_mode, dilations=dilations, kernel_shape=kernel_shape,
        pads=None if auto_pad != "NOTSET" else pads, strides=strides,
    )  # fmt: skip


@body("AveragePool", domain=NCHWC)
def average_pool(
    g: Writer, X: ir.Value, *, kernel_shape: list[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    count_include_pad: int = 0, dilations: list[int] | None = None, pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> ir.Value:  # fmt: skip
    return g(
        "AveragePool", X, auto_pad=auto_pad, ceil_mode=ceil_mode, count_include_pad=count_include_pad,
        dilations=dilations, kernel_shape=kernel_shape, pads=None if auto_pad != "NOTSET" else pads, strides=strides,
    )  # fmt: skip


@body("GlobalMaxPool", domain=NCHWC)
def global_max_pool(g: Writer, X: ir.Value) -> ir.Value:
    return g("GlobalMaxPool", X)


@body("GlobalAveragePool", domain=NCHWC)
def global_average_pool(g: Writer, X: ir.Value) -> ir.Value:
    return g("GlobalAveragePool", X)


@body("Upsample", domain=NCHWC)
def upsample(
    g: Writer, X: ir.Value, *, scales: list[int], mode: str = "nearest",
    coordinate_transformation_mode: str = "asymmetric",
) -> ir.Value:  # fmt: skip
    factors = g.constant(np.asarray(scales, np.float32))
    return g(
        "Resize", X, None, factors, mode=mode, coordinate_transformation_mode=coordinate_transformation_mode,
        nearest_mode="floor" if mode == "nearest" else None,
    )  # fmt: skip
