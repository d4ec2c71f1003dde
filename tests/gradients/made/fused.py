"""com.microsoft: what onnxruntime's optimisers write, in floating point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.gradients.cases import Case
from tests.gradients.made.nodes import between, floats, fused, integers, ints, node

NCHWC = "com.microsoft.nchwc"


def cases() -> Iterator[Case]:
    yield from _activations()
    yield from _norms()
    yield from _layers()
    yield from _attention()
    yield from _grouped()
    yield from _blocks()
    yield from _dropouts()
    yield from _others()


def _activations() -> Iterator[Case]:
    x, bias = floats(2, 3, 4), floats(4)
    yield fused("Gelu", x)
    yield fused("BiasGelu", x, bias)
    yield fused("FastGelu", x, bias)
    yield fused("FastGelu", x)
    yield fused("QuickGelu", x, alpha=0.5)
    yield fused("QuickGelu", x, alpha=1.0)
    yield fused("BiasSplitGelu", x, bias)
    yield fused("BiasSoftmax", floats(2, 3, 4), floats(1, 3, 4), axis=2, is_inner_broadcast=0)


def _norms() -> Iterator[Case]:
    x, skip, weights = floats(2, 3, 4), floats(2, 3, 4, seed=1), [floats(4, seed=s) for s in range(3)]
    for stored in ([], [2, 3, 4]):
        yield fused("SkipLayerNormalization", x, skip, *weights, outputs=["o0", "", "", "o3"], stored=stored)
    yield fused("SkipSimplifiedLayerNormalization", x, skip, *weights[:2], outputs=["o0", "", "", "o3"])
    yield fused("LayerNormalization", x, *weights[:2])
    yield fused("SimplifiedLayerNormalization", x, weights[0])
    image, added = floats(2, 3, 2, 4), floats(2, 3, 2, 4, seed=1)
    for activation in (0, 1):
        attrs = {"activation": activation, "groups": 2, "channels_last": 1}
        yield fused("GroupNorm", image, *weights[:2], **attrs)
        yield fused("SkipGroupNorm", image, *weights[:2], added, weights[2], outputs=2, **attrs)
    ids = np.array([[1, 3, 0], [4, 2, 2]], np.int32)
    tables = [floats(5, 4), floats(6, 4), floats(2, 4)]
    for stored in ([], [2, 3, 4, 5, 6]):
        yield fused(
            "EmbedLayerNormalization", ids, ids % 2, *tables, *weights[:2], outputs=["o0", "", "o2"], stored=stored
        )


def _layers() -> Iterator[Case]:
    x, weight, bias, added = floats(1, 2, 4, 3), floats(2, 2, 3, 2), floats(2), floats(1, 2, 4, 2)
    activations: list[tuple[str, list[float]]] = [
        ("Relu", []), ("LeakyRelu", [0.2]), ("HardSigmoid", [0.3, 0.4]),
    ]  # fmt: skip
    for activation, numbers in activations:
        attrs: Any = {"activation": activation, "pads": [1, 0, 1, 0]}
        attrs |= {"activation_params": numbers} if numbers else {}
        yield fused("FusedConv", x, weight, bias, added, **attrs)
    yield fused(
        "NhwcFusedConv", floats(1, 4, 3, 2), weight, bias, floats(1, 4, 2, 2), pads=[1, 0, 1, 0], activation="Tanh"
    )
    yield fused("NhwcConv", floats(1, 4, 3, 2), weight, bias, stored=[1, 2])
    yield fused("NhwcConv", floats(1, 4, 3, 2), weight, bias)
    yield fused("ConvTransposeWithDynamicPads", x, weight, ints(1, 0, 1, 1), bias, strides=[2, 2])
    for activation in ("Relu", "Sigmoid", "LeakyRelu"):
        more = {"activation_alpha": 0.2} if activation == "LeakyRelu" else {}
        yield fused(
            "FusedGemm", floats(3, 4), floats(5, 4), floats(5), transB=1, activation=activation, beta=2.0, **more
        )
    yield fused("FusedMatMul", floats(2, 4, 3), floats(2, 4, 2), transA=1, alpha=0.5)
    yield fused("FusedMatMul", floats(3, 2, 4), floats(2, 2, 4), transB=1, transBatchA=1, transBatchB=1)
    yield fused("FusedMatMulActivation", floats(3, 4), floats(4, 2), activation="Tanh", alpha=0.5)
    yield fused("TransposeMatMul", floats(4, 3), floats(4, 2), transA=1, alpha=2.0)


def _attention() -> Iterator[Case]:
    heads = {"num_heads": 2}
    x, weights, bias = floats(2, 3, 4), floats(4, 12), floats(12)
    raw = np.array([[1, 1, 0], [0, 1, 1]], np.int32)
    for stored in ([], [1, 2]):
        yield fused("Attention", x, weights, bias, raw, stored=stored, **heads)
    yield fused("Attention", x, weights, bias, None, floats(2, 2, 2, 2, 2), floats(2, 2, 3, 5), outputs=2, **heads)
    yield fused("Attention", x, weights, bias, ints(3, 2, dtype="int32"), unidirectional=1, **heads)
    q, k, v = (floats(2, 3, 4, seed=s) for s in range(3))
    past = [floats(2, 2, 2, 2, seed=s) for s in (5, 6)]
    for causal in (0, 1):
        attrs = {"unidirectional": causal, **heads}
        yield fused("MultiHeadAttention", q, k, v, bias, None, floats(1, 2, 3, 5), *past, outputs=3, **attrs)
        yield fused("MultiHeadAttention", q, k, v, bias, raw, **attrs)
    tokens, starts = [floats(4, 4, seed=s) for s in range(3)], ints(0, 3, 4, dtype="int32")
    offsets = np.zeros((2, 3), np.int32)
    yield fused("PackedMultiHeadAttention", *tokens, bias, offsets, starts, **heads)
    angles = between(0, 6, 6, 1)
    caches = [np.cos(angles), np.sin(angles)]
    places = ints(0, 1, 2, 2, 3, 4).reshape(2, 3)
    for interleaved in (0, 1):
        yield fused("RotaryEmbedding", q, places, *caches, interleaved=interleaved, **heads)
    three = np.stack([places, places[::-1], places])
    for layout in (0, 1):
        caches = [np.cos(between(0, 6, 6, 4)), np.sin(between(0, 6, 6, 4))]
        x = floats(2, 3, 16)
        yield fused("MRotaryEmbedding", x, three, *caches, mrope_section=[2, 1, 1], mrope_layout=layout, **heads)
    packed = [floats(4, 4), floats(4, 12), floats(12), offsets, starts]
    yield fused("PackedAttention", *packed, **heads)
    query = [floats(2, 1, 4, seed=s) for s in range(3)]
    room = [floats(2, 2, 4, 2, seed=s) for s in (3, 4)]
    inputs = [*query, None, floats(1, 1, 1, 4), *room, ints(3, dtype="int32"), None, None, bias]
    yield fused("DecoderMaskedMultiHeadAttention", *inputs, outputs=3, past_present_share_buffer=1, **heads)


def _grouped() -> Iterator[Case]:
    """4 heads of queries, 2 of keys, each of 2."""
    caches = [np.cos(between(0, 6, 6, 1)), np.sin(between(0, 6, 6, 1))]
    attrs = {"num_heads": 4, "kv_num_heads": 2}
    q, k, v = floats(1, 2, 8), floats(1, 2, 4, seed=1), floats(1, 2, 4, seed=2)
    past = [floats(1, 2, 3, 2, seed=s) for s in (3, 4)]
    counts = [ints(4, dtype="int32"), ints(5, dtype="int32").reshape(())]
    bias, sink = floats(1, 4, 2, 5), floats(4)
    for rotary in (0, 1):
        turned = {"do_rotary": 1, "rotary_interleaved": rotary}
        yield fused("GroupQueryAttention", q, k, v, *past, *counts, *caches, outputs=3, **turned, **attrs)
    more = {"softcap": 2.0, "local_window_size": 3}
    yield fused(
        "GroupQueryAttention", q, k, v, *past, *counts, None, None, None, bias, sink, outputs=3, **more, **attrs
    )
    yield fused("GroupQueryAttention", q, k, v, *past, *counts, smooth_softmax=1, outputs=3, **attrs)
    norms = [*[None] * 7, floats(2, seed=5), floats(2, seed=6)]
    yield fused("GroupQueryAttention", q, k, v, *past, *counts, *norms, qk_output=2, outputs=4, **attrs)
    epsilons = {"q_norm_epsilon": 0.1, "k_norm_epsilon": 0.2}
    yield fused("GroupQueryAttention", q, k, v, *past, *counts, *norms, outputs=3, **epsilons, **attrs)
    yield from _padded(attrs)
    past = [integers("int8", 1, 2, 3, 2, seed=s) for s in (3, 4)]
    scales = [*[None] * 5, np.array([0.02], np.float32), np.array([0.03], np.float32)]
    quantised = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8}
    yield fused("GroupQueryAttention", q, k, v, *past, *counts, *scales, outputs=3, **quantised, **attrs)


def _padded(attrs: dict[str, Any]) -> Iterator[Case]:
    """Chunks of 2 tokens, of which one row has both, one only the first; caches of all keys, or of the last."""
    x = [floats(2, 2, size, seed=s) for s, size in enumerate((8, 4, 4))]
    caches = [np.cos(between(0, 6, 8, 1)), np.sin(between(0, 6, 8, 1))]
    counts = [ints(4, 2, dtype="int32"), ints(6, dtype="int32").reshape(()), *caches, *[None] * 7]
    new = ints(2, 1, dtype="int32")
    for past, more in ((4, {}), (3, {"sliding_window_cache": 1, "local_window_size": 2})):
        cache = [floats(2, 2, past, 2, seed=s) for s in (3, 4)]
        yield fused("GroupQueryAttention", *x, *cache, *counts, new, outputs=3, do_rotary=1, **more, **attrs)


def _blocks() -> Iterator[Case]:
    """Of 8 channels, which `checked` says are a block."""
    x = floats(1, 8, 3, 3)
    yield node("Conv", x, floats(8, 8, 2, 2), floats(8), floats(1, 8, 2, 2), domain=NCHWC, activation="Relu")
    yield node("ReorderInput", floats(1, 3, 2, 2), domain=NCHWC)
    yield node("ReorderOutput", x, domain=NCHWC, channels=5, channels_last=1)
    for name in ("MaxPool", "AveragePool"):
        yield node(name, x, domain=NCHWC, kernel_shape=[2, 2])
    for name in ("GlobalMaxPool", "GlobalAveragePool"):
        yield node(name, x, domain=NCHWC)
    yield node("Upsample", x, domain=NCHWC, scales=[1, 1, 2, 2])


def _dropouts() -> Iterator[Case]:
    x, bias, ratio, training = floats(3, 4), floats(4), np.array(0.25, np.float32), np.array(True)
    yield fused("BiasAdd", x, bias, floats(3, 4, seed=1))
    for name in ("BiasDropout", "BitmaskBiasDropout"):
        yield fused(name, x, bias, floats(3, 4, seed=1), ratio, training)
        yield fused(name, x, bias, floats(3, 4, seed=1))
    yield fused("BitmaskDropout", x, ratio, training)


def _others() -> Iterator[Case]:
    for name in ("ComplexMul", "ComplexMulConj"):
        yield fused(name, floats(2, 3, 2), floats(3, 2))
    yield fused("GemmFastGelu", floats(2, 3), floats(3, 2), floats(2))
    operands = [floats(1, 2, 3, 4, seed=s).astype(np.float16) for s in range(4)]
    yield fused("GemmaRotaryEmbedding", floats(1, 3, 4), *operands, outputs=2)
    yield fused("TorchEmbedding", floats(5, 3), ints(1, 4, 1))
    for stored in ([], [1]):
        yield fused("SparseToDenseMatMul", floats(3, 2), floats(3, 4), transA=1, alpha=0.5, stored=stored)
    yield fused(
        "MaxpoolWithMask",
        floats(1, 2, 4, 4),
        ints(*[1, 1, 1, 0] * 8, dtype="int32").reshape(1, 2, 4, 4),
        kernel_shape=[2, 2],
    )
    yield fused("NGramRepeatBlock", ints(1, 2, 1, 2, 1).reshape(1, 5), floats(1, 4), ngram_size=2)
    yield fused("SampleOp", floats(2, 3))
    yield fused("NhwcMaxPool", floats(1, 3, 3, 2), kernel_shape=[2, 2])
    yield fused("UnfoldTensor", floats(2, 4, 5), size=2, step=2, dim=1)
    boxes, size = np.array([[0.1, 0.2, 0.72, 0.9], [0.8, 0.9, 0.2, 0.1]], np.float32), ints(2, 3, dtype="int32")
    words = np.array([[3, 1, 4, 2], [2, 2, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], np.int32)
    for stored in ([], [1, 2, 3]):
        yield fused("WordConvEmbedding", words, floats(3, 1, 2, 2), floats(3), floats(5, 2), stored=stored)
    for mode in ("bilinear", "nearest"):
        yield fused("CropAndResize", floats(2, 1, 4, 4), boxes, ints(1, 0, dtype="int32"), size, mode=mode)
    yield fused("Inverse", floats(2, 3, 3) + 3 * np.eye(3, dtype=np.float32))
    for metric in ("euclidean", "sqeuclidean"):
        yield fused("CDist", floats(3, 4), floats(2, 4), metric=metric)
    for onesided in (0, 1):
        yield fused("Rfft", floats(2, 4), signal_ndim=1, onesided=onesided)
        yield fused("Irfft", floats(2, 3, 2), signal_ndim=1, onesided=onesided)
    yield fused("Trilu", floats(2, 3, 4), ints(1).reshape(()), upper=0)
    yield fused("Pad", floats(2, 3), ints(0, 1, 2, 0), np.array([0.7], np.float32))
    yield fused("Unique", np.array([3, 1, 7, 3, 2.5], np.float32), outputs=3)
    for mode in ("bilinear", "nearest", "bicubic"):
        yield fused("GridSample", floats(1, 2, 3, 4), between(-0.9, 0.9, 1, 2, 2, 2), mode=mode)
    yield fused("ExpandDims", floats(2, 3), ints(-1, dtype="int32").reshape(()), stored=[1])
    yield fused("GatherND", floats(2, 3), np.array([[0, 1], [1, 2]], np.int32))
    yield fused("Range", *(np.array(v, np.float32) for v in (1.3, 7.1, 2.2)))
