"""The usual standard operators in numpy, on numbers, in their newest form: for the check that every generation makes.

It must take little time, so no library is loaded for it; `--paranoid` asks onnxruntime instead. Apart from `evaluate`,
by which constants are folded, so that no fault is in both. A node of an older form, or with anything unusual, has no
kernel here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import onnx_ir as ir

Array: TypeAlias = Any  # numpy says no more of most results
Kernel = Callable[..., Any]
NEWEST = {"Squeeze": 13, "Unsqueeze": 13, "Slice": 10, "Softmax": 13, "LogSoftmax": 13, "Clip": 11, "Split": 13}
REDUCES_BY_INPUT = {"ReduceSum": 13}  # the others from 18 on
FLOAT_NARROW = frozenset({1, 10, 16})
NUMPY_TYPES = 256  # the numbers of types that others add to numpy begin there
OTHERS = frozenset({"Constant", "Dropout", "If", "Loop", "Scan"})  # see `has`


class Made(Protocol):
    """A node, as the kernels ask for it."""

    @property
    def domain(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def attributes(self) -> Mapping[str, ir.Attr]: ...
    @property
    def outputs(self) -> Sequence[ir.Value]: ...
    def attribute(self, name: str, default: Any) -> Any: ...


class Unusual(Exception):
    """A node that has no kernel here."""


def run(made: Made, inputs: Sequence[Any], wide: bool) -> list[Any]:
    """Return the outputs of a node. Raises `Unusual`, or what numpy raises for inputs that do not fit.

    Args:
        wide: floats are computed in float64, whatever attributes say.
    """
    if made.domain or made.version < NEWEST.get(made.op, 0) or not all(map(_is_usual, inputs)):
        raise Unusual
    if made.op in ELEMENTWISE and not made.attributes:
        return [np.asarray(ELEMENTWISE[made.op](*inputs))]
    kernel = KERNELS.get(made.op)
    if kernel is None:
        raise Unusual
    found = kernel(made, wide, *inputs)
    return found if isinstance(found, list) else [np.asarray(found)]


def has(domain: str, op: str) -> bool:
    """Return True if there is a kernel of an operator, or if the checker computes it from others."""
    return domain == "" and (op in ELEMENTWISE or op in KERNELS or op in OTHERS)


def _is_usual(value: Any) -> bool:
    return value is None or isinstance(value, np.ndarray) and _is_numpys(value.dtype)


def _is_numpys(dtype: np.dtype[Any]) -> bool:
    """Return True for numpy's own numbers, False for types of `ml_dtypes`."""
    return dtype.num < NUMPY_TYPES and dtype.kind in "fiub"


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[x.dtype])(x) if x.size else x


def _div(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b
    quotient = np.abs(a) // np.abs(b)
    return (quotient * np.sign(a) * np.sign(b)).astype(a.dtype)


def _sigmoid(x: Array) -> Array:
    return 0.5 * (np.tanh(0.5 * x) + 1)


def _power(a: Array, b: Array) -> Array:
    return np.power(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype)


ELEMENTWISE: dict[str, Kernel] = {
    "Abs": np.abs, "Add": np.add, "And": np.logical_and, "Ceil": np.ceil, "Cos": np.cos, "Div": _div,
    "Equal": np.equal, "Erf": _erf, "Exp": np.exp, "Floor": np.floor, "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal, "Identity": lambda x: x, "IsNaN": np.isnan, "Less": np.less,
    "LessOrEqual": np.less_equal, "Log": np.log, "Mul": np.multiply, "Neg": np.negative, "Not": np.logical_not,
    "Or": np.logical_or, "Pow": _power, "Reciprocal": lambda x: 1 / x, "Relu": lambda x: np.maximum(x, 0),
    "Round": np.rint, "Sigmoid": _sigmoid, "Sign": np.sign, "Sin": np.sin, "Softplus": lambda x: np.logaddexp(0, x),
    "Sqrt": np.sqrt, "Sub": np.subtract, "Tanh": np.tanh, "Where": np.where, "Xor": np.logical_xor,
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "Max": lambda *x: _folded(np.maximum, x), "Min": lambda *x: _folded(np.minimum, x),
    "Sum": lambda *x: _folded(np.add, x), "MatMul": np.matmul,
}  # fmt: skip


def _folded(function: Callable[[Array, Array], Array], arrays: Sequence[Array]) -> Array:
    result, *rest = arrays
    for one in rest:
        result = function(result, one)
    return result


def _cast(made: Made, wide: bool, x: Array, *_: Array) -> Array:
    to = int(made.attribute("to", 0))
    dtype = np.dtype(np.float64) if wide and to in FLOAT_NARROW else ir.DataType(to).numpy()
    if not _is_numpys(dtype) or x.dtype.kind == "f" and dtype.kind in "iu" and not np.isfinite(x).all():
        raise Unusual
    return x.astype(dtype)


def _clip(made: Made, wide: bool, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def _leaky_relu(made: Made, wide: bool, x: Array) -> Array:
    return np.where(x < 0, x * x.dtype.type(made.attribute("alpha", 0.01)), x)


def _hard_sigmoid(made: Made, wide: bool, x: Array) -> Array:
    alpha, beta = (x.dtype.type(made.attribute(name, usual)) for name, usual in (("alpha", 0.2), ("beta", 0.5)))
    return np.clip(x * alpha + beta, 0, 1)


def _gelu(made: Made, wide: bool, x: Array) -> Array:
    if made.attribute("approximate", "none") == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _gemm(made: Made, wide: bool, a: Array, b: Array, c: Array | None = None) -> Array:
    a, b = (a.T if made.attribute("transA", 0) else a), (b.T if made.attribute("transB", 0) else b)
    y = a @ b * a.dtype.type(made.attribute("alpha", 1.0))
    return y if c is None else y + c * c.dtype.type(made.attribute("beta", 1.0))


def _einsum(made: Made, wide: bool, *arrays: Array) -> Array:
    equation = made.attribute("equation", "")
    return np.einsum(equation.replace(" ", ""), *arrays, optimize=True)


# ---- along axes ------------------------------------------------------------------------------------------------------


def _reducing(function: Callable[..., Array]) -> Kernel:
    def kernel(made: Made, wide: bool, x: Array, axes: Array | None = None) -> Array:
        by_input = made.version >= REDUCES_BY_INPUT.get(made.op, 18)
        given = axes if by_input else made.attribute("axes", None)
        chosen = None if given is None or not len(given) else tuple(int(a) for a in given)
        if not x.size:
            raise Unusual
        if chosen is None and made.attribute("noop_with_empty_axes", 0):
            return x
        return function(x, axis=chosen, keepdims=bool(made.attribute("keepdims", 1))).astype(x.dtype)

    return kernel


def _log_sum_exp(x: Array, **how: Any) -> Array:
    return np.log(np.exp(x).sum(**how))


def _softmax(made: Made, wide: bool, x: Array) -> Array:
    axis = int(made.attribute("axis", -1))
    powers = np.exp(x - x.max(axis, keepdims=True)) if x.shape[axis] else x
    return powers / powers.sum(axis, keepdims=True)


def _log_softmax(made: Made, wide: bool, x: Array) -> Array:
    return np.log(_softmax(made, wide, x))


def _normalised(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    mean = x.mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + x.dtype.type(epsilon))


def _layer_norm(made: Made, wide: bool, x: Array, scale: Array | None = None, bias: Array | None = None) -> Array:
    if len(made.outputs) > 1:
        raise Unusual
    axis = int(made.attribute("axis", -1)) % x.ndim
    y = _normalised(x, tuple(range(axis, x.ndim)), made.attribute("epsilon", 1e-5))
    y = y if scale is None else y * scale
    return y if bias is None else y + bias


def _rms_norm(made: Made, wide: bool, x: Array, scale: Array) -> Array:
    axes = tuple(range(int(made.attribute("axis", -1)) % x.ndim, x.ndim))
    return x / np.sqrt((x * x).mean(axes, keepdims=True) + x.dtype.type(made.attribute("epsilon", 1e-5))) * scale


def _per_channel(v: Array, x: Array) -> Array:
    return v.reshape(1, -1, *[1] * (x.ndim - 2))


def _instance_norm(made: Made, wide: bool, x: Array, scale: Array, bias: Array) -> Array:
    y = _normalised(x, tuple(range(2, x.ndim)), made.attribute("epsilon", 1e-5))
    return y * _per_channel(scale, x) + _per_channel(bias, x)


def _batch_norm(made: Made, wide: bool, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
    if len(made.outputs) > 1 or made.attribute("training_mode", 0):
        raise Unusual
    scale, bias, mean, variance = (_per_channel(v, x) for v in (scale, bias, mean, variance))
    return (x - mean) / np.sqrt(variance + x.dtype.type(made.attribute("epsilon", 1e-5))) * scale + bias


def _group_norm(made: Made, wide: bool, x: Array, scale: Array, bias: Array) -> Array:
    groups = int(made.attribute("num_groups", 1))
    if made.version < 21:
        raise Unusual
    y = _normalised(x.reshape(x.shape[0], groups, -1), (2,), made.attribute("epsilon", 1e-5)).reshape(x.shape)
    return y * _per_channel(scale, x) + _per_channel(bias, x)


# ---- elements that are moved -----------------------------------------------------------------------------------------


def _reshape(made: Made, wide: bool, x: Array, shape: Array) -> Array:
    wanted = [int(n) for n in shape]
    if not made.attribute("allowzero", 0):
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    return x.reshape(wanted)


def _flatten(made: Made, wide: bool, x: Array) -> Array:
    axis = int(made.attribute("axis", 1))
    axis = axis + x.ndim if axis < 0 else axis
    return (
        x.reshape(math.prod(x.shape[:axis]), -1)
        if x.size
        else x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
    )


def _transpose(made: Made, wide: bool, x: Array) -> Array:
    return x.transpose(made.attribute("perm", None))


def _squeeze(made: Made, wide: bool, x: Array, axes: Array | None = None) -> Array:
    return x.squeeze(None if axes is None else tuple(int(a) for a in axes))


def _unsqueeze(made: Made, wide: bool, x: Array, axes: Array) -> Array:
    return np.expand_dims(x, tuple(int(a) for a in axes))


def _concat(made: Made, wide: bool, *arrays: Array) -> Array:
    return np.concatenate(arrays, int(made.attributes["axis"].value))


def _split(made: Made, wide: bool, x: Array, sizes: Array | None = None) -> list[Array]:
    axis = int(made.attribute("axis", 0))
    if sizes is not None:
        if int(sizes.sum()) != x.shape[axis]:
            raise ValueError("sizes that are not those of the axis")
        return np.split(x, np.cumsum(sizes)[:-1], axis)
    count = len(made.outputs)
    step = -(-x.shape[axis] // count)
    return np.split(x, [step * i for i in range(1, count)], axis)


def _slice(made: Made, wide: bool, x: Array, starts: Array, ends: Array, *others: Array | None) -> Array:
    axes, steps = (*others, None, None)[:2]
    chosen = [slice(None)] * x.ndim
    for i, (start, end) in enumerate(zip(starts, ends)):
        step = 1 if steps is None else int(steps[i])
        if step < 1:
            raise Unusual
        chosen[i if axes is None else int(axes[i])] = slice(int(start), int(end), step)
    return x[tuple(chosen)]


def _gather(made: Made, wide: bool, x: Array, indices: Array) -> Array:
    return np.take(x, indices, int(made.attribute("axis", 0)))


def _expand(made: Made, wide: bool, x: Array, shape: Array) -> Array:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(n) for n in shape)))


def _tile(made: Made, wide: bool, x: Array, repeats: Array) -> Array:
    return np.tile(x, [int(n) for n in repeats])


def _shape(made: Made, wide: bool, x: Array) -> Array:
    return np.array(x.shape[made.attribute("start", 0) : made.attribute("end", None)], np.int64)


def _size(made: Made, wide: bool, x: Array) -> Array:
    return np.array(x.size, np.int64)


def _range(made: Made, wide: bool, start: Array, limit: Array, delta: Array) -> Array:
    return np.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


def _constant_of_shape(made: Made, wide: bool, shape: Array) -> Array:
    filled = np.zeros(1, np.float32) if "value" not in made.attributes else made.attributes["value"].value.numpy()
    if not _is_numpys(filled.dtype):
        raise Unusual
    filled = filled.astype(np.float64) if wide and filled.dtype.kind == "f" else filled
    return np.full(tuple(int(n) for n in shape), filled.reshape(-1)[0], filled.dtype)


def _trilu(made: Made, wide: bool, x: Array, k: Array | None = None) -> Array:
    side = np.triu if made.attribute("upper", 1) else np.tril
    return side(x, 0 if k is None else int(k))


KERNELS: dict[str, Kernel] = {
    "BatchNormalization": _batch_norm, "Cast": _cast, "Clip": _clip, "Concat": _concat,
    "ConstantOfShape": _constant_of_shape, "Einsum": _einsum, "Expand": _expand, "Flatten": _flatten,
    "Gather": _gather, "Gelu": _gelu, "Gemm": _gemm, "GroupNormalization": _group_norm, "HardSigmoid": _hard_sigmoid,
    "InstanceNormalization": _instance_norm, "LayerNormalization": _layer_norm, "LeakyRelu": _leaky_relu,
    "LogSoftmax": _log_softmax, "RMSNormalization": _rms_norm, "Range": _range, "ReduceL1": _reducing(
        lambda x, **how: np.abs(x).sum(**how)
    ),
    "ReduceL2": _reducing(lambda x, **how: np.sqrt((x * x).sum(**how))), "ReduceLogSumExp": _reducing(_log_sum_exp),
    "ReduceMax": _reducing(np.max), "ReduceMean": _reducing(np.mean), "ReduceMin": _reducing(np.min),
    "ReduceProd": _reducing(np.prod), "ReduceSum": _reducing(np.sum),
    "ReduceSumSquare": _reducing(lambda x, **how: (x * x).sum(**how)), "Reshape": _reshape, "Shape": _shape,
    "Size": _size, "Slice": _slice, "Softmax": _softmax, "Split": _split, "Squeeze": _squeeze, "Tile": _tile,
    "Transpose": _transpose, "Trilu": _trilu, "Unsqueeze": _unsqueeze,
}  # fmt: skip
