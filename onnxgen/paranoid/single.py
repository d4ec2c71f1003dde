"""Compute one node on arrays: with onnxruntime, else with onnx's evaluator, or with a stand-in.

Stand-ins are for operators of onnxruntime without a kernel in its CPU provider: they are computed
in numpy, or by other kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from onnxgen.graph.operators import card, is_a
from onnxgen.graph.traits import EXACT
from onnxgen.paranoid.apart import APART, HAS_ONNXRUNTIME, session
from onnxgen.paranoid.claims import LAYOUTS, Broken, Unable, Untold
from onnxgen.paranoid.picture import Made
from onnxgen.shapes import own, usual

DOUBLE = int(ir.DataType.DOUBLE)
NARROW = {int(d) for d in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)}
IR_VERSION = 10
# in what onnxruntime says of an operator that it cannot judge, the last of an opset that is newer than it is
UNKNOWN = ("NOT_IMPLEMENTED", "not a registered", "a crash", "model_load_utils")
PACKED = {ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.FLOAT4E2M1}
PLAIN = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16}


Key = tuple[object, ...]  # nodes with equal keys share a session


class Single:
    """Runs nodes one at a time. Equal nodes share a session.

    Args:
        second: ask onnx's own evaluator alone, for a second opinion.
        quick: compute the usual operators here (see `usual`).
        most: the number of elements that onnx's evaluator may be given, which is slow; None: any.
    """

    def __init__(self, second: bool = False, quick: bool = False, most: int | None = None) -> None:
        self.second, self.quick, self.most = second, quick, most
        self.sessions: dict[Key, Any] = {}
        self.evaluators: dict[Key, Any] = {}

    def run(self, step: Made, inputs: Sequence[Any], wide: bool, types: Sequence[ir.DataType | None] = ()) -> list[Any]:
        """Return the outputs of a node. Raises `Untold`.

        Args:
            wide: in float64, whatever its attributes say.
            types: of the outputs, for operators outside the standard, whose schemas do not infer them all.
        """
        if step.domain in LAYOUTS:
            raise Untold("kernels whose layout is that of the processor that they run on")
        if self.quick:
            with suppress(usual.Unusual), np.errstate(all="ignore"):
                return self._usual(step, inputs, wide)
        attributes = _attributes(step, wide)
        elem_types = [_elem_type(dtype, wide) for dtype in types if step.domain]
        key = _key(step, inputs, attributes, elem_types)
        why, known = "onnxruntime is not installed", False
        if self._asks_onnxruntime(step, inputs):
            try:
                return self._with_onnxruntime(key, step, attributes, inputs, elem_types)
            except Exception as error:
                why = f"onnxruntime: {_line(error)}"
                known = not any(text in why for text in UNKNOWN)
                if step.domain and "NOT_IMPLEMENTED" in why:
                    raise Untold(f"onnxruntime has no CPU kernel of {step.domain}.{step.op}") from None
        _refuse_other(step, why, known)
        try:
            return self._with_onnx(key, step, attributes, inputs)
        except Unable as error:
            raise (Broken(f"{step.op}: {why}") if known else error) from None
        except Exception as error:
            raise (Broken if known else Untold)(f"{step.op}: {why}; onnx.reference: {_line(error)}") from None

    def _asks_onnxruntime(self, step: Made, inputs: Sequence[Any]) -> bool:
        return HAS_ONNXRUNTIME and not self.second and not _is_exotic(step, inputs)

    def _usual(self, step: Made, inputs: Sequence[Any], wide: bool) -> list[Any]:
        try:
            return usual.run(step, inputs, wide)
        except usual.Unusual:
            raise
        except Exception as error:
            raise Broken(f"{step.op}: {_line(error)}") from None

    def _with_onnxruntime(
        self, key: Key, step: Made, attributes: list[Any], inputs: Sequence[Any], elem_types: Sequence[int]
    ) -> list[Any]:
        feeds = {f"i{i}": v for i, v in enumerate(inputs) if v is not None}
        if key not in self.sessions:
            model = _model(step, attributes, inputs, elem_types).SerializeToString()
            try:
                self.sessions[key] = model if step.domain else session(model)
            except Exception as error:
                self.sessions[key] = error
        runner = self.sessions[key]
        if isinstance(runner, Exception):
            raise runner
        return APART.run(runner, feeds) if step.domain else list(runner.run(None, feeds))

    def _with_onnx(self, key: Key, step: Made, attributes: list[Any], inputs: Sequence[Any]) -> list[Any]:
        if self.most is not None and sum(v.size for v in inputs if isinstance(v, np.ndarray)) > self.most:
            raise Unable(f"{step.op}: onnx.reference would take long")
        from onnx.reference import ReferenceEvaluator

        if key not in self.evaluators:
            self.evaluators[key] = ReferenceEvaluator(_model(step, attributes, inputs))
        with np.errstate(all="ignore"):
            outputs = self.evaluators[key].run(None, {f"i{i}": v for i, v in enumerate(inputs) if v is not None})
        return list(outputs)


def _key(step: Made, inputs: Sequence[Any], attributes: list[Any], elem_types: Sequence[int]) -> Key:
    kinds, texts = tuple(map(_kind, inputs)), [a.SerializeToString() for a in attributes]
    return (step.domain, step.op, step.version, len(step.outputs), kinds, tuple(elem_types), *texts)


def _refuse_other(step: Made, why: str, known: bool) -> None:
    """Raise `Untold` if onnx's evaluator can't stand in for onnxruntime. `known`: onnxruntime refuses the inputs."""
    if step.domain == "" and step.version < card("", step.op).since:  # the evaluator computes the newest meaning
        raise (Broken if known else Unable)(f"{step.op}: {why}")
    if known and is_a(step.node, EXACT) and "[ONNXRuntimeError]" in why:
        raise Broken(f"{step.op}: {why}")  # onnx.reference slices as numpy does, also past the end


def _is_exotic(step: Made, inputs: Sequence[Any]) -> bool:
    """Return True if a node has types that numpy lacks, and that onnxruntime returns as integers."""
    made_of = [step.attributes[name].value for name in ("to", "dtype", "output_dtype") if name in step.attributes]
    types = {ir.DataType(t) for t in made_of if t} | {dtype_of(v) for v in inputs if isinstance(v, np.ndarray)}
    return any(t.is_floating_point() and t not in PLAIN or t in PACKED for t in types)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


def _kind(value: Any) -> object:
    if isinstance(value, list):
        return ("list", _kind(value[0]) if value else None)
    return None if value is None else value.dtype.str if value.dtype.kind != "V" else str(value.dtype)


def _model(step: Made, attributes: list[Any], inputs: Sequence[Any], elem_types: Sequence[int] = ()) -> onnx.ModelProto:
    names = ["" if v is None else f"i{i}" for i, v in enumerate(inputs)]
    outputs = [f"o{i}" for i in range(len(step.outputs))]
    node = onnx.helper.make_node(step.op, names, outputs, domain=step.domain)
    node.attribute.extend(attributes)
    ports = [onnx.helper.make_value_info(f"i{i}", _type(v)) for i, v in enumerate(inputs) if v is not None]
    made_infos = [onnx.ValueInfoProto(name=o) for o in outputs]
    for output, elem_type in zip(made_infos, elem_types):
        if elem_type:
            output.type.CopyFrom(onnx.helper.make_tensor_type_proto(elem_type, None))
    graph = onnx.helper.make_graph([node], "one", ports, made_infos)
    opsets = [onnx.helper.make_opsetid(step.domain, step.version)]
    if step.domain:
        opsets.append(onnx.helper.make_opsetid("", 17))
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def _type(value: Any) -> onnx.TypeProto:
    if isinstance(value, list):
        element = _type(value[0]) if value else onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
        return onnx.helper.make_sequence_type_proto(element)
    return onnx.helper.make_tensor_type_proto(int(dtype_of(value)), None)


def _elem_type(dtype: ir.DataType | None, wide: bool) -> int:
    """Return the type of an output; 0 if it is unknown."""
    elem_type = 0 if dtype is None else int(dtype)
    return DOUBLE if wide and elem_type in NARROW else elem_type


def dtype_of(array: Any) -> ir.DataType:
    return ir.DataType.STRING if array.dtype == object else ir.DataType.from_numpy(array.dtype)


def _attributes(step: Made, wide: bool) -> list[onnx.AttributeProto]:
    """Return the attributes of a node. In float64 mode GroupNormalization computes its mean and variance in float64."""
    protos = [_proto(a, wide) for _, a in sorted(step.attributes.items())]
    if wide and step.op == "GroupNormalization" and step.version >= 21:
        stash = onnx.helper.make_attribute("stash_type", DOUBLE)
        protos = [*(a for a in protos if a.name != "stash_type"), stash]
    return protos


def _proto(attribute: ir.Attr, wide: bool) -> onnx.AttributeProto:
    """Return an attribute, converted to float64 if everything is to be float64."""
    if attribute.type == ir.AttributeType.TENSOR and wide and int(attribute.value.dtype) in NARROW:
        array = np.asarray(attribute.value.numpy()).astype(np.float64)
        return onnx.helper.make_attribute(attribute.name, onnx.numpy_helper.from_array(array))
    if wide and attribute.name in ("to", "dtype") and attribute.type == ir.AttributeType.INT:
        if int(attribute.value) in NARROW:
            return onnx.helper.make_attribute(attribute.name, DOUBLE)
    return ir.serde.serialize_attribute(attribute)


Array: TypeAlias = Any  # numpy says no more of most results


@dataclass
class Kernel:
    """Runs another operator with some attributes of a node."""

    single: Single
    step: Made
    wide: bool

    def __call__(self, op: str, *inputs: Array | None, without: Sequence[str] = ()) -> Array:
        attributes = {name: a for name, a in self.step.attributes.items() if name not in without}
        return self.run(replace(self.step, op=op, attributes=attributes), inputs)

    def standard(self, op: str, version: int, *inputs: Array | None, **names: str) -> Array:
        """Compute a standard operator. `names`: maps its attributes to those of the node."""
        attributes = {new: self.step.attributes[old] for new, old in names.items() if old in self.step.attributes}
        return self.run(replace(self.step, op=op, domain="", version=version, attributes=attributes), inputs)

    def run(self, step: Made, inputs: Sequence[Array | None]) -> Array:
        return self.single.run(replace(step, outputs=step.outputs[:1]), list(inputs), self.wide)[0]


StandIn = Callable[..., Any]
STAND_INS: dict[str, StandIn] = {}


def run(single: Single, step: Made, inputs: list[Any], wide: bool) -> Sequence[Any] | None:
    """Return the outputs of such a node, or None if there is no replacement. Raises `Untold`."""
    function = STAND_INS.get(step.op)
    if function is None:
        return None
    try:
        outputs = function(
            Kernel(single, step, wide), *inputs, **{name: a.value for name, a in step.attributes.items()}
        )
    except Untold:
        raise
    except Exception as error:
        raise Untold(f"{step.domain}.{step.op}: {error}") from None
    return outputs if isinstance(outputs, list) else [outputs]


def stand_in(*names: str) -> Callable[[StandIn], StandIn]:
    def register(function: StandIn) -> StandIn:
        STAND_INS.update(dict.fromkeys(names, function))
        return function

    return register


# ---- sums and products -----------------------------------------------------------------------------------------------


@stand_in("BiasAdd")
def bias_add(kernel: Kernel, x: Array, bias: Array, skip: Array) -> Array:
    return x + bias + skip


@stand_in("BiasSplitGelu")
def bias_split_gelu(kernel: Kernel, x: Array, bias: Array) -> Array:
    first, second = np.split(x + bias, 2, -1)
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return (first * second * (1 + erf(second / math.sqrt(2))) / 2).astype(x.dtype)


@stand_in("GemmFastGelu")
def gemm_fast_gelu(kernel: Kernel, x: Array, w: Array, bias: Array | None = None) -> Array:
    product = x @ w
    product = product if bias is None else product + bias
    inside = math.sqrt(2 / math.pi) * (product + 0.044715 * product**3)
    return (product * (1 + np.tanh(inside)) / 2).astype(x.dtype)


@stand_in("BiasDropout", "BitmaskBiasDropout")
def bias_dropout(
    kernel: Kernel, x: Array, bias: Array, residual: Array | None = None, ratio: Array | None = None,
    training_mode: Array | None = None, *, seed: int = 0,
) -> list[Array]:  # fmt: skip
    dropped = own.dropped(x + bias, 0.5 if ratio is None else float(ratio))
    return [dropped if residual is None else dropped + residual, np.ones(x.shape, bool)]


@stand_in("ComplexMul")
def complex_mul(kernel: Kernel, a: Array, b: Array) -> Array:
    return _pairs(_complex(a) * _complex(b), a)


@stand_in("ComplexMulConj")
def complex_mul_conj(kernel: Kernel, a: Array, b: Array) -> Array:
    return _pairs(_complex(a) * np.conj(_complex(b)), a)


def _complex(x: Array) -> Array:
    return x[..., 0] + 1j * x[..., 1]


def _pairs(x: Array, like: Array) -> Array:
    return np.stack([x.real, x.imag], -1).astype(like.dtype)


@stand_in("BiasSoftmax")
def bias_softmax(kernel: Kernel, x: Array, bias: Array, *, axis: int = 1, is_inner_broadcast: int) -> Array:
    axes = tuple(range(axis % x.ndim, x.ndim))
    powers = np.exp(x + bias - (x + bias).max(axes, keepdims=True))
    return powers / powers.sum(axes, keepdims=True)


@stand_in("GemmaRotaryEmbedding")
def gemma_rotary_embedding(kernel: Kernel, angles: Array, *parts: Array) -> list[Array]:
    sin, cos = (f(angles).astype(parts[0].dtype)[:, None] for f in (np.sin, np.cos))
    return [parts[i] * cos + parts[i + 1] * sin for i in (0, 2)]


# ---- norms -----------------------------------------------------------------------------------------------------------


@stand_in("GroupNorm")
def group_norm(
    kernel: Kernel, x: Array, gamma: Array, beta: Array, *, activation: int, groups: int, channels_last: int = 1,
    epsilon: float = 1e-5,
) -> Array:  # fmt: skip
    """Compute GroupNorm: mean and variance of each group of channels of a sample."""
    first = np.moveaxis(x, -1, 1) if channels_last else x
    grouped = first.reshape(x.shape[0], groups, -1).astype(np.float64)
    normed = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + epsilon)
    wide = (-1, *(1,) * (x.ndim - 2))
    scaled = normed.reshape(first.shape) * gamma.reshape(wide) + beta.reshape(wide)
    scaled = scaled / (1 + np.exp(-scaled)) if activation else scaled
    return (np.moveaxis(scaled, 1, -1) if channels_last else scaled).astype(x.dtype)


@stand_in("SkipGroupNorm")
def skip_group_norm(
    kernel: Kernel, x: Array, gamma: Array, beta: Array, skip: Array, bias: Array | None = None, *,
    channels_last: int = 1, **attributes: Any,
) -> list[Array]:  # fmt: skip
    inner = (1,) * (x.ndim - 2)
    if skip.ndim == 2:
        skip = skip.reshape(skip.shape[0], *inner, -1) if channels_last else skip.reshape(*skip.shape, *inner)
    if bias is not None:
        skip = skip + (bias if channels_last else bias.reshape(-1, *inner))
    return [group_norm(kernel, x + skip, gamma, beta, channels_last=channels_last, **attributes), x + skip]


# ---- integers --------------------------------------------------------------------------------------------------------


@stand_in("MulInteger")
def mul_integer(kernel: Kernel, a: Array, a_zero: Array | None, b: Array, b_zero: Array | None = None) -> Array:
    parts = [x.astype(np.int32) - (0 if z is None else z.astype(np.int32)) for x, z in ((a, a_zero), (b, b_zero))]
    return parts[0] * parts[1]


@stand_in("ReduceSumInteger")
def reduce_sum_integer(kernel: Kernel, x: Array, *, axes: Sequence[int], keepdims: int) -> Array:
    return x.astype(np.int32).sum(tuple(axes), dtype=np.int32, keepdims=bool(keepdims))


@stand_in("QLinearReduceMean")
def qlinear_reduce_mean(
    kernel: Kernel, x: Array, scale: Array, zero: Array | None, to_scale: Array, to_zero: Array | None = None, *,
    axes: Sequence[int], keepdims: int,
) -> Array:  # fmt: skip
    floats = (x.astype(np.float32) - (0 if zero is None else zero.astype(np.float32))) * scale
    steps = np.rint(floats.mean(tuple(axes), keepdims=bool(keepdims)) / to_scale)
    bounds = np.iinfo(x.dtype)
    return np.clip(steps + (0 if to_zero is None else to_zero.astype(np.float32)), bounds.min, bounds.max).astype(
        x.dtype
    )


@stand_in("TorchEmbedding")
def torch_embedding(kernel: Kernel, weight: Array, indices: Array, *_: Array | None) -> Array:
    return weight[indices]


# ---- by other kernels ------------------------------------------------------------------------------------------------


@stand_in("NhwcConv", "NhwcFusedConv")
def nhwc_conv(
    kernel: Kernel, x: Array, w: Array, bias: Array | None = None, z: Array | None = None, **attributes: Any
) -> Array:
    """Compute NhwcConv as FusedConv, whose channels come first."""
    inner = [None if v is None else np.ascontiguousarray(np.moveaxis(v, -1, 1)) for v in (x, z)]
    operands = [inner[0], w, bias, inner[1]]
    return np.moveaxis(kernel("FusedConv", *operands[: 4 if z is not None else 3]), 1, -1)


@stand_in("FusedMatMulActivation")
def fused_matmul_activation(kernel: Kernel, a: Array, b: Array, *, activation: Any, **attributes: Any) -> Array:
    names = {name: f"activation_{name}" for name in ("alpha", "beta", "gamma", "axis")}
    product = kernel("FusedMatMul", a, b, without=["activation", *names.values()])
    return kernel.standard(activation, 13 if "Softmax" in activation else 6, product, **names)


@stand_in("LayerNormalization", "SimplifiedLayerNormalization")
def layer_normalization(kernel: Kernel, *inputs: Array | None, **attributes: Any) -> Array:
    """Compute it with the standard's LayerNormalization."""
    version = 17 if kernel.step.op == "LayerNormalization" else 1
    return kernel.standard(kernel.step.op, version, *inputs, **{name: name for name in attributes})


@stand_in("PackedAttention")
def packed_attention(
    kernel: Kernel, x: Array, weights: Array, bias: Array, offsets: Array, starts: Array, *_: Array | None,
    qkv_hidden_sizes: Sequence[int] = (), **attributes: Any,
) -> Array:  # fmt: skip
    qkv = x @ weights + bias
    ends = np.cumsum(qkv_hidden_sizes)[:2] if len(qkv_hidden_sizes) else 3
    return packed_multi_head_attention(kernel, *np.split(qkv, ends, -1), None, offsets, starts)


@stand_in("PackedMultiHeadAttention")
def packed_multi_head_attention(
    kernel: Kernel, query: Array, key: Array | None, value: Array | None, bias: Array | None, offsets: Array,
    starts: Array, *_: Array | None, **attributes: Any,
) -> Array:  # fmt: skip
    """Compute MultiHeadAttention for each sequence separately."""
    parts = [query, key, value]
    if key is None:  # [tokens, heads, 3, size]
        parts = [query[:, :, i].reshape(query.shape[0], -1) for i in range(3)]
    rows = []
    for start, end in zip(starts, starts[1:]):
        operands = [np.ascontiguousarray(x[None, start:end]) for x in parts if x is not None]
        operands += [] if bias is None else [bias]
        rows.append(kernel("MultiHeadAttention", *operands, without=["qkv_hidden_sizes"])[0])
    return np.concatenate(rows)
