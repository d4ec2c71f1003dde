"""onnxruntime's NCHWc layout (domain `com.microsoft.nchwc`), which holds the channels in blocks.

It has to be read, since onnxruntime writes it at its default level (ORT_ENABLE_ALL) when it saves an optimised model.

With blocks of b channels, images lie in memory as [batch, channels / b, height, width, b]. Weights are
[out / b, in / b, height, width, b of in, b of out], or [out / b, in, height, width, b] if the input is not in blocks or
each group has one channel. The file states the shapes of the plain layout, with channels padded to whole blocks. Here
images keep that padding, and weights become views of the stored tensors. The file does not state b, but its sizes may
leave only one possibility.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import NCHWC_BLOCK
from onnxgen.graph.nodes import all_nodes
from onnxgen.microsoft import infer
from onnxgen.microsoft.domain import body
from onnxgen.microsoft.layers import fused_conv
from onnxgen.passes.contrib.writer import Maybe, Refused, Value, Writer
from onnxgen.shapes import infer_math
from onnxgen.shapes.info import info

NCHWC = "com.microsoft.nchwc"
BLOCKS = (8, 16)  # 8 on AVX2 and SSE; 16 on AVX-512, ARM's NEON and others
UNKNOWN = (
    "the weights are in blocks of 8 or 16 channels, and the file does not say which",
    "give --nchwc-block 16 if the file was optimised on AVX-512 or ARM, else --nchwc-block 8; or optimise the model"
    " again with ORT_ENABLE_EXTENDED",
)


def _set_block(model: ir.Model, asked: int | None) -> None:
    """Record the channels of a block at each node, if they are `asked` or only one size fits."""
    nodes = [node for node in all_nodes(model.graph) if node.domain == NCHWC]
    fitting = [block for block in BLOCKS if asked in (None, block) and all(_fits(node, block) for node in nodes)]
    if len(fitting) == 1:
        for node in nodes:
            NCHWC_BLOCK.set(node, fitting[0])


def _fits(node: ir.Node, block: int) -> bool:
    """Return True if the sizes that a node states allow blocks of so many channels."""
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


def sizes(weight: Maybe) -> list[int]:
    """Return the shape of weights of four axes, or [] if it is unknown."""
    shape = info(weight).shape or ()
    known = [d for d in shape if isinstance(d, int)]
    return known if len(shape) == len(known) == 4 else []


def aligned(channels: int, block: int) -> int:
    """Return the number of channels, rounded up to whole blocks."""
    return -(-channels // block) * block


def _block(g: Writer) -> int:
    if NCHWC_BLOCK.get(g.node) is None:
        _set_block(g.model, g.options.nchwc_block)
    block = NCHWC_BLOCK.get(g.node)
    if block is None:
        raise Refused(*UNKNOWN)
    return block


@body("Conv", domain=NCHWC, infer=infer_math.conv)
def conv(
    g: Writer, X: Value, W: Value, B: Maybe = None, Sum: Maybe = None, *,
    activation: str = "", activation_params: list[float] | None = None, auto_pad: str = "NOTSET",
    dilations: list[int] | None = None, group: int = 1, kernel_shape: list[int] | None = None,
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> Value:  # fmt: skip
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


@body("ReorderInput", domain=NCHWC, infer=infer.reorder_input)
def reorder_input(g: Writer, X: Value, *, channels_last: int = 0) -> Value:
    """Pad the channels to whole blocks. With `channels_last`, move them to axis 1."""
    plain = g("Transpose", X, perm=[0, 3, 1, 2]) if channels_last else X
    shape = info(X).shape
    channels = None if shape is None else shape[3 if channels_last else 1]
    if not isinstance(channels, int):
        raise Refused("the number of channels is unknown", "optimise the model with ORT_ENABLE_EXTENDED")
    extra = aligned(channels, _block(g)) - channels
    return g("Pad", plain, g.ints(0, 0, 0, 0, 0, extra, 0, 0)) if extra else plain


@body("ReorderOutput", domain=NCHWC, infer=infer.reorder_output)
def reorder_output(g: Writer, X: Value, *, channels: int, channels_last: int = 0) -> Value:
    _block(g)
    shape = info(X).shape
    padded = shape is None or shape[1] != channels
    kept = g("Slice", X, g.ints(0), g.ints(channels), g.ints(1)) if padded else X
    return g("Transpose", kept, perm=[0, 2, 3, 1]) if channels_last else kept


@body("MaxPool", "AveragePool", domain=NCHWC, infer=infer_math.pool)
def pool(
    g: Writer, X: Value, *, kernel_shape: list[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    count_include_pad: int | None = None, dilations: list[int] | None = None, pads: list[int] | None = None,
    storage_order: int = 0, strides: list[int] | None = None,
) -> Value:  # fmt: skip
    return g(
        g.node.op_type, X, auto_pad=auto_pad, ceil_mode=ceil_mode, count_include_pad=count_include_pad,
        dilations=dilations, kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip


@body("GlobalMaxPool", "GlobalAveragePool", domain=NCHWC, infer=infer_math.global_pool)
def global_pool(g: Writer, X: Value) -> Value:
    return g(g.node.op_type, X)


@body("Upsample", domain=NCHWC, infer=infer.upsample)
def upsample(
    g: Writer, X: Value, *, scales: list[int], mode: str = "nearest", coordinate_transformation_mode: str = "asymmetric"
) -> Value:
    factors = g.constant(np.asarray(scales, np.float32))
    return g(
        "Resize", X, None, factors, mode=mode, coordinate_transformation_mode=coordinate_transformation_mode,
        nearest_mode="floor",
    )  # fmt: skip
