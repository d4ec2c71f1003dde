"""The usual standard operators in numpy, on numbers, in their newest form: for the check that every generation makes.

It must take little time, so no library is loaded for it; `--paranoid` asks onnxruntime instead. Apart from `evaluate`,
by which constants are folded, so that no fault is in both. A node of an older form, or with anything unusual, has no
kernel here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from typing import Any, Protocol, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxgen.graph.operators import Operator, card
from onnxgen.graph.traits import BROADCASTS, REDUCTION

Array: TypeAlias = Any  # numpy says no more of most results
Kernel = Callable[..., Any]
FLOAT_NARROW = frozenset({1, 10, 16})
NUMPY_TYPES = 256  # the numbers of types that others add to numpy begin there


class Node(Protocol):
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


def run(node: Node, inputs: Sequence[Any], wide: bool) -> list[Any]:
    """Return the outputs of a node. Raises `Unusual`, or what numpy raises for inputs that do not fit.

    Args:
        wide: floats are computed in float64, whatever attributes say.
    """
    known = card("", node.op)
    kernel = None if node.domain or node.version < known.since else _kernel(known)  # the newest meaning
    if kernel is None or not all(map(_is_usual, inputs)):
        raise Unusual
    outputs = kernel(node, wide, *inputs)
    return outputs if isinstance(outputs, list) else [np.asarray(outputs)]


def has(domain: str, op: str) -> bool:
    """Return True if there is a kernel of an operator, or if the checker computes it from others."""
    known = card(domain, op)
    is_composed = known.rules.inner is not None or op in ("Constant", "Dropout")
    return domain == "" and (is_composed or _kernel(known) is not None)


@cache
def _kernel(known: Operator) -> Kernel | None:
    """Return the kernel of an operator: its own, or one of its kind."""
    if known.rules.kernel is not None or known.rules.numbers is None:
        return known.rules.kernel
    if REDUCTION in known.traits:
        return reducing(known.rules.numbers)
    return _elementwise(known.rules.numbers, BROADCASTS in known.traits)


def _elementwise(function: Kernel, folds: bool) -> Kernel:
    def kernel(node: Node, wide: bool, *arrays: Array) -> Array:
        if node.attributes:
            raise Unusual
        return reduce(function, arrays) if folds else function(*arrays)

    return kernel


def since(version: int) -> Callable[[Kernel], Kernel]:
    """Make a kernel that takes only nodes in the form that they have from a version on, if the meaning is one."""

    def limited(kernel: Kernel) -> Kernel:
        def newest(node: Node, wide: bool, *arrays: Array) -> Array:
            if node.version < version:
                raise Unusual
            return kernel(node, wide, *arrays)

        return newest

    return limited


def _is_usual(value: Any) -> bool:
    return value is None or isinstance(value, np.ndarray) and _is_numpys(value.dtype)


def _is_numpys(dtype: np.dtype[Any]) -> bool:
    """Return True for numpy's own numbers, False for types of `ml_dtypes`."""
    return dtype.num < NUMPY_TYPES and dtype.kind in "fiub"


def erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[x.dtype])(x) if x.size else x


def divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b
    quotient = np.abs(a) // np.abs(b)
    return (quotient * np.sign(a) * np.sign(b)).astype(a.dtype)


def sigmoid(x: Array) -> Array:
    return 0.5 * (np.tanh(0.5 * x) + 1)


def power(a: Array, b: Array) -> Array:
    return np.power(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype)


def matmul(node: Node, wide: bool, a: Array, b: Array) -> Array:
    return a @ b


def where(node: Node, wide: bool, condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition, x, y)


def cast(node: Node, wide: bool, x: Array, *_: Array) -> Array:
    to = int(node.attribute("to", 0))
    dtype = np.dtype(np.float64) if wide and to in FLOAT_NARROW else ir.DataType(to).numpy()
    if not _is_numpys(dtype) or x.dtype.kind == "f" and dtype.kind in "iu" and not np.isfinite(x).all():
        raise Unusual
    return x.astype(dtype)


@since(11)
def clip(node: Node, wide: bool, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def leaky_relu(node: Node, wide: bool, x: Array) -> Array:
    return np.where(x < 0, x * x.dtype.type(node.attribute("alpha", 0.01)), x)


def hard_sigmoid(node: Node, wide: bool, x: Array) -> Array:
    alpha, beta = (x.dtype.type(node.attribute(name, usual)) for name, usual in (("alpha", 0.2), ("beta", 0.5)))
    return np.clip(x * alpha + beta, 0, 1)


def gelu(node: Node, wide: bool, x: Array) -> Array:
    if node.attribute("approximate", "none") == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gemm(node: Node, wide: bool, a: Array, b: Array, c: Array | None = None) -> Array:
    a, b = (a.T if node.attribute("transA", 0) else a), (b.T if node.attribute("transB", 0) else b)
    y = a @ b * a.dtype.type(node.attribute("alpha", 1.0))
    return y if c is None else y + c * c.dtype.type(node.attribute("beta", 1.0))


def einsum(node: Node, wide: bool, *arrays: Array) -> Array:
    equation = node.attribute("equation", "")
    return np.einsum(equation.replace(" ", ""), *arrays, optimize=True)


# ---- along axes ------------------------------------------------------------------------------------------------------


def reducing(function: Callable[..., Array], by_input: int = 18) -> Kernel:
    """Make the kernel of a reduction. `by_input`: the version from which an input names the axes."""

    def kernel(node: Node, wide: bool, x: Array, axes: Array | None = None) -> Array:
        named = axes if node.version >= by_input else node.attribute("axes", None)
        chosen = None if named is None or not len(named) else tuple(int(a) for a in named)
        if not x.size:
            raise Unusual
        if chosen is None and node.attribute("noop_with_empty_axes", 0):
            return x
        return function(x, axis=chosen, keepdims=bool(node.attribute("keepdims", 1))).astype(x.dtype)

    return kernel


def softmax(node: Node, wide: bool, x: Array) -> Array:
    axis = int(node.attribute("axis", -1))
    powers = np.exp(x - x.max(axis, keepdims=True)) if x.shape[axis] else x
    return powers / powers.sum(axis, keepdims=True)


def log_softmax(node: Node, wide: bool, x: Array) -> Array:
    return np.log(softmax(node, wide, x))


def _normalised(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    mean = x.mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + x.dtype.type(epsilon))


def layer_norm(node: Node, wide: bool, x: Array, scale: Array | None = None, bias: Array | None = None) -> Array:
    if len(node.outputs) > 1:
        raise Unusual
    axis = int(node.attribute("axis", -1)) % x.ndim
    y = _normalised(x, tuple(range(axis, x.ndim)), node.attribute("epsilon", 1e-5))
    y = y if scale is None else y * scale
    return y if bias is None else y + bias


def rms_norm(node: Node, wide: bool, x: Array, scale: Array) -> Array:
    axes = tuple(range(int(node.attribute("axis", -1)) % x.ndim, x.ndim))
    return x / np.sqrt((x * x).mean(axes, keepdims=True) + x.dtype.type(node.attribute("epsilon", 1e-5))) * scale


def _per_channel(v: Array, x: Array) -> Array:
    return v.reshape(1, -1, *[1] * (x.ndim - 2))


def instance_norm(node: Node, wide: bool, x: Array, scale: Array, bias: Array) -> Array:
    y = _normalised(x, tuple(range(2, x.ndim)), node.attribute("epsilon", 1e-5))
    return y * _per_channel(scale, x) + _per_channel(bias, x)


def batch_norm(node: Node, wide: bool, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
    if len(node.outputs) > 1 or node.attribute("training_mode", 0):
        raise Unusual
    scale, bias, mean, variance = (_per_channel(v, x) for v in (scale, bias, mean, variance))
    return (x - mean) / np.sqrt(variance + x.dtype.type(node.attribute("epsilon", 1e-5))) * scale + bias


@since(21)
def group_norm(node: Node, wide: bool, x: Array, scale: Array, bias: Array) -> Array:
    groups = int(node.attribute("num_groups", 1))
    y = _normalised(x.reshape(x.shape[0], groups, -1), (2,), node.attribute("epsilon", 1e-5)).reshape(x.shape)
    return y * _per_channel(scale, x) + _per_channel(bias, x)


# ---- elements that are moved -----------------------------------------------------------------------------------------


def reshape(node: Node, wide: bool, x: Array, shape: Array) -> Array:
    wanted = [int(n) for n in shape]
    if not node.attribute("allowzero", 0):
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    return x.reshape(wanted)


def flatten(node: Node, wide: bool, x: Array) -> Array:
    axis = int(node.attribute("axis", 1))
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def transpose(node: Node, wide: bool, x: Array) -> Array:
    return x.transpose(node.attribute("perm", None))


@since(13)
def squeeze(node: Node, wide: bool, x: Array, axes: Array | None = None) -> Array:
    return x.squeeze(None if axes is None else tuple(int(a) for a in axes))


@since(13)
def unsqueeze(node: Node, wide: bool, x: Array, axes: Array) -> Array:
    return np.expand_dims(x, tuple(int(a) for a in axes))


def concat(node: Node, wide: bool, *arrays: Array) -> Array:
    return np.concatenate(arrays, int(node.attributes["axis"].value))


@since(13)
def split(node: Node, wide: bool, x: Array, sizes: Array | None = None) -> list[Array]:
    axis = int(node.attribute("axis", 0))
    if sizes is not None:
        if int(sizes.sum()) != x.shape[axis]:
            raise ValueError("sizes that are not those of the axis")
        return np.split(x, np.cumsum(sizes)[:-1], axis)
    count = len(node.outputs)
    step = -(-x.shape[axis] // count)
    return np.split(x, [step * i for i in range(1, count)], axis)


@since(10)
def slices(node: Node, wide: bool, x: Array, starts: Array, ends: Array, *others: Array | None) -> Array:
    axes, steps = (*others, None, None)[:2]
    chosen = [slice(None)] * x.ndim
    for i, (start, end) in enumerate(zip(starts, ends)):
        step = 1 if steps is None else int(steps[i])
        if step < 1:
            raise Unusual
        chosen[i if axes is None else int(axes[i])] = slice(int(start), int(end), step)
    return x[tuple(chosen)]


def gather(node: Node, wide: bool, x: Array, indices: Array) -> Array:
    return np.take(x, indices, int(node.attribute("axis", 0)))


def expand(node: Node, wide: bool, x: Array, shape: Array) -> Array:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(n) for n in shape)))


def tile(node: Node, wide: bool, x: Array, repeats: Array) -> Array:
    return np.tile(x, [int(n) for n in repeats])


def shape(node: Node, wide: bool, x: Array) -> Array:
    return np.array(x.shape[node.attribute("start", 0) : node.attribute("end", None)], np.int64)


def size(node: Node, wide: bool, x: Array) -> Array:
    return np.array(x.size, np.int64)


def ranged(node: Node, wide: bool, start: Array, limit: Array, delta: Array) -> Array:
    return np.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


def constant_of_shape(node: Node, wide: bool, shape: Array) -> Array:
    filled = np.zeros(1, np.float32) if "value" not in node.attributes else node.attributes["value"].value.numpy()
    if not _is_numpys(filled.dtype):
        raise Unusual
    filled = filled.astype(np.float64) if wide and filled.dtype.kind == "f" else filled
    return np.full(tuple(int(n) for n in shape), filled.reshape(-1)[0], filled.dtype)


def trilu(node: Node, wide: bool, x: Array, k: Array | None = None) -> Array:
    side = np.triu if node.attribute("upper", 1) else np.tril
    return side(x, 0 if k is None else int(k))
