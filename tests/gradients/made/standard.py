"""ai.onnx, and what it dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.gradients.cases import Case
from tests.gradients.made.nodes import between, floats, graph, ints, node

X = floats(1, 2, 5, 4)


def cases() -> Iterator[Case]:
    yield from _layers()
    yield from _sequences()
    yield from _dropped()
    yield node("GlobalLpPool", floats(1, 2, 3, 4), p=2)
    yield node("GlobalLpPool", floats(1, 2, 3, 4), p=3)
    rois = np.array([[0, 0.3, 0.2, 3.1, 2.4], [0, 1.2, 0.6, 4.3, 3.2]], np.float32)
    yield node("MaxRoiPool", floats(1, 2, 6, 6), rois, pooled_shape=[2, 2], spatial_scale=1.0)
    yield node("Trilu", floats(2, 3, 4), ints(1).reshape(()), upper=0)
    yield node("Trilu", floats(3, 4))
    yield node("Pad", floats(2, 3), ints(0, 1, 2, 0), np.array(0.7, np.float32))
    yield node("Pad", floats(2, 3), ints(0, -1, 2, 0), np.array(0.7, np.float32), stored=[1])
    for mode in ("reflect", "edge", "wrap"):
        yield node("Pad", floats(3, 4), ints(1, 2, 0, 1), mode=mode, stored=[1])
    yield node("Multinomial", floats(2, 4), sample_size=3, seed=1.0)
    yield node("RandomNormalLike", floats(2, 4), seed=1.0)
    yield node("RandomUniformLike", floats(2, 4), seed=1.0)
    text = """
    g (float[3] a, float[3] b) => (float[3] da, float[3] db) {
      c = Mul (a, b)
      y = Sin (c)
      da, db = ai.onnx.preview.training.Gradient <xs = ["a", "b"], y = "y"> (a, b)
    }"""
    yield graph(text, "ai.onnx.preview.training", a=floats(3), b=floats(3, seed=1))
    for mode in ("nearest", "linear", "cubic"):
        for rule in ("half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"):
            roi = np.array([0.1, 0.2, 0.7, 0.9], np.float32)
            scales = np.array([1.6, 0.7], np.float32)
            attrs: Any = {"mode": mode, "coordinate_transformation_mode": rule, "axes": [2, 3]}
            yield node("Resize", floats(1, 1, 4, 5), roi, scales, stored=[2], **attrs)


def _layers() -> Iterator[Case]:
    """With a bias, and with weights that the file stores."""
    for stored in ([], [1, 2]):
        weight, bias = floats(4, 1, 3, 2), floats(4)
        yield node("Conv", X, weight, bias, group=2, strides=[2, 1], pads=[1, 0, 1, 1], dilations=[1, 2], stored=stored)
        yield node("Conv", floats(1, 2, 6), floats(3, 2, 3), floats(3), auto_pad="SAME_UPPER", stored=stored)
        yield node("Conv", floats(1, 1, 3, 3, 3), floats(2, 1, 2, 2, 2), floats(2), stored=stored)
        weight = floats(2, 2, 3, 2)
        attrs: Any = {"strides": [2, 1], "output_padding": [1, 0], "pads": [1, 0, 0, 1], "group": 2}
        yield node("ConvTranspose", X, weight, floats(4), stored=stored, **attrs)
        yield node("Gemm", floats(3, 4), floats(5, 4), floats(5), transB=1, alpha=0.5, stored=stored)
        yield node("InstanceNormalization", X, floats(2), floats(2, seed=1), stored=stored)
        yield node("LayerNormalization", floats(2, 3, 4), floats(4), floats(4, seed=1), version=17, stored=stored)
        yield node("GroupNormalization", floats(2, 4, 3), floats(4), floats(4, seed=1), num_groups=2, stored=stored)
        for opset in (9, 15):
            norm = [floats(3, 2, 4), floats(2), floats(2, seed=1), floats(2, seed=2), between(0.5, 2, 2)]
            yield node("BatchNormalization", *norm, version=opset, stored=[1, 2, 3, 4] if stored else [])
        yield node("BatchNormalization", *norm, training_mode=1, outputs=3, momentum=0.7, version=15, stored=stored)
    yield node("PRelu", floats(2, 3, 4), floats(3, 1), stored=[1])
    yield node("RMSNormalization", floats(2, 3, 4), floats(4), version=23, stored=[1])


def _sequences() -> Iterator[Case]:
    rows = [floats(2, 3), floats(2, 3, seed=1), floats(2, 3, seed=2)]
    yield node("ConcatFromSequence", rows, axis=1, version=17)
    yield node("ConcatFromSequence", rows, axis=0, new_axis=1, version=17)
    yield node("SequenceAt", rows, ints(1).reshape(()), version=17)
    yield node("SequenceErase", rows, ints(1).reshape(()), version=17)
    yield node("SequenceInsert", rows, floats(2, 3, seed=3), ints(1).reshape(()), version=17)
    text = "g (float[2] a, float[2] b) => (seq(float[2]) y) { y = SequenceConstruct (a, b) }"
    yield graph(text, a=floats(2), b=floats(2, seed=1))
    yield graph("g (float[2] a) => (optional(float[2]) y) { y = Optional (a) }", a=floats(2))


def _dropped() -> Iterator[Case]:
    old: Any = {"version": 7}
    yield node("Affine", X, alpha=2.0, beta=-0.5, **old)
    yield node("Scale", X, scale=0.25, **old)
    yield node("ScaledTanh", X, alpha=1.7, beta=0.6, **old)
    yield node("ParametricSoftplus", X, alpha=0.5, beta=2.0, **old)
    yield node("ImageScaler", X, scale=2.0, bias=[0.1, 0.2], **old)
    yield node("Crop", X, border=[1, 2, 1, 1], **old)
    yield node("DynamicSlice", X, ints(1, 0), ints(4, 3), ints(2, 3), **old)
    yield node("GivenTensorFill", floats(2, 3), values=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], **old)
    for opset in (11, 21):
        yield node("SimplifiedLayerNormalization", floats(2, 3, 4), floats(4), version=opset)
    yield node("Upsample", floats(1, 1, 3, 4), mode="linear", scales=[1.0, 1.0, 2.0, 3.0], **old)
    yield node("Upsample", floats(1, 1, 3, 4), np.array([1, 1, 2, 1.5], np.float32), mode="nearest", version=9)
