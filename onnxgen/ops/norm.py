"""Normalisation layers, and Dropout."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.code.quote import MemberRef, shortest, unless
from onnxgen.errors import CHECK
from onnxgen.graph.annotations import OWN_NORM
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import op
from onnxgen.graph.traits import ELEMENTWISE, KEEPS_SIGN, NORM, SAMPLES
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder


def _dtype(arg: Arg) -> Any:
    return unless(arg.source.dtype if arg.source is not None else ir.DataType.FLOAT, ir.DataType.FLOAT)


def is_plain(scale: Arg, bias: Arg | None) -> bool:
    """Whether a norm scales by constant ones and adds constant zeros: it has no parameters."""
    ones = scale.constant
    zeros = None if bias is None else bias.constant
    return (
        ones is not None and bool((ones == 1).all()) and (bias is None or zeros is not None and not bool(zeros.any()))
    )


@op(
    "BatchNormalization",
    renames={"mean": "input_mean", "var": "input_var", "is_test": "_", "consumed_inputs": "_"},
    traits=[NORM, SAMPLES],
    weights="scale B",
    still="input_mean input_var",
)
def batch_normalization(
    b: Builder,
    X: Arg,
    scale: Arg,
    B: Arg,
    input_mean: Arg,
    input_var: Arg,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    spatial: int = 1,
    _: Any = None,
) -> Any:
    """`nn.BatchNormNd`; ONNX's momentum is the share that is kept, torch's the share that is replaced."""
    if not spatial:
        return _normalized_each(b, X, scale, B, input_mean, input_var, shortest(epsilon))
    _check_channels(b, X, scale, B, input_mean, input_var)
    rank = X.known_rank
    x, dims = _batch_norm_input(b, X, rank)
    module = _batch_norm(b, dims, scale, B, input_mean, input_var, shortest(epsilon), shortest(momentum))
    if module is None and (training_mode or b.wants(1) or b.wants(2)):
        options = shortest(epsilon), shortest(momentum)
        made = b.call("batch_norm_update", X, scale, B, input_mean, input_var, *options)
        return b.unpack(made, 3) if b.wants(1) or b.wants(2) else b("y[0]", y=made)
    if module is None and (_is_data(input_mean) or _is_data(input_var)):
        return b.call("batch_norm_by_input", X, scale, B, input_mean, input_var, shortest(epsilon))
    if module is None:
        made = b.call(
            "F.batch_norm", X, input_mean, input_var, scale, B,
            momentum=unless(_inverted(momentum), 0.1), eps=unless(shortest(epsilon), 1e-5),
        )  # fmt: skip
    else:
        made = b("m(x)", m=module, x=x)
        if rank not in (2, 3, 4, 5):
            made = b("y.reshape(x.shape)", y=made, x=X)
    if not b.wants(1) and not b.wants(2):
        return made
    y = b.let(made, "x", b.out(0))
    return [y, b("m.running_mean", m=module), b("m.running_var", m=module)]


def _normalized_each(b: Builder, X: Arg, scale: Arg, bias: Arg, mean: Arg, var: Arg, epsilon: float) -> ast.expr:
    """spatial=0, until opset 8: statistics and weights for each element, [C, size...]."""
    if b.wants(1) or b.wants(2):
        raise b.error("spatial=0 with statistics as outputs is not handled", "export the model with opset 9 or newer")
    return b("(x - m) / torch.sqrt(v + e) * s + c", x=X, m=mean, v=var, e=epsilon, s=scale, c=bias)


def _batch_norm_input(b: Builder, X: Arg, rank: int) -> tuple[Any, int]:
    """nn.BatchNorm2d wants rank 4, 3d rank 5; other ranks come as (N, C, L)."""
    dims = {2: 1, 3: 1, 4: 2, 5: 3}.get(rank)
    if dims is not None:
        return X, dims
    return b("x.flatten(2)" if rank > 5 else "x.unsqueeze(-1)", x=X), 1


def _check_channels(b: Builder, x: Arg, *weights: Arg) -> None:
    """A problem where the weights are certainly not one number a channel."""
    channels = x.shape[1] if x.shape is not None and len(x.shape) > 1 else None
    for weight in weights:
        size = weight.shape[0] if weight.shape is not None and len(weight.shape) == 1 else None
        if isinstance(channels, int) and isinstance(size, int) and size != channels:
            raise b.error(f"the input has {channels} channels, but {weight.name} has {size} elements", CHECK)


def _is_data(statistic: Arg) -> bool:
    """Whether a running mean or variance may have a gradient: torch's function refuses one that has."""
    return statistic.value is None or statistic.constant is None


def _inverted(momentum: float) -> float:
    """torch's momentum for ONNX's: 1 - m, in the decimal that a person would write."""
    return round(1.0 - shortest(momentum), 7)


def _batch_norm(
    b: Builder, dims: int, scale: Arg, B: Arg, mean: Arg, var: Arg, epsilon: float, momentum: float
) -> MemberRef | None:
    if mean.source is None or var.source is None:
        return None
    affine: dict[str, Any] = {} if is_plain(scale, B) else {"weight": scale, "bias": B}
    if affine and (scale.source is None or B.source is None):
        return None
    channels = mean.source.shape[0]
    build = b.call(
        f"nn.BatchNorm{dims}d", channels, eps=unless(epsilon, 1e-5), momentum=unless(_inverted(momentum), 0.1),
        affine=unless(bool(affine), True), dtype=_dtype(mean),
    )  # fmt: skip
    module = b.module("bn", build, **affine, running_mean=mean, running_var=var)
    if module is not None:
        module.member.extra["num_batches_tracked"] = np.zeros((), np.int64)
    return module


@op("InstanceNormalization", renames={"consumed_inputs": "_"}, traits=[NORM, SAMPLES], weights="scale B")
def instance_normalization(
    b: Builder, input: Arg, scale: Arg, B: Arg, *, epsilon: float = 1e-5, _: Any = None
) -> ast.expr:
    """`nn.InstanceNormNd`; torch refuses to take it over a single element, of which nothing is left but the bias."""
    _check_channels(b, input, scale, B)
    eps = unless(shortest(epsilon), 1e-5)
    dims = {3: 1, 4: 2, 5: 3}.get(input.known_rank)
    if input.shape is not None and all(d == 1 for d in input.shape[2:]):
        return _of_single_elements(b, input, scale, B)
    if is_plain(scale, B):
        return b.call("F.instance_norm", input, eps=eps)
    if dims is not None and scale.source is not None and B.source is not None:
        build = b.call(f"nn.InstanceNorm{dims}d", scale.source.shape[0], eps=eps, affine=True, dtype=_dtype(scale))
        module = b.module("norm", build, weight=scale, bias=B)
        if module is not None:
            return b("m(x)", m=module, x=input)
    return b.call("F.instance_norm", input, weight=scale, bias=B, eps=eps)


def _of_single_elements(b: Builder, x: Arg, scale: Arg, bias: Arg) -> ast.expr:
    ones = tuple([1] * (x.known_rank - 2))
    weights = [b("w.reshape(s)", w=w, s=(-1, *ones)) for w in (scale, bias)]
    return b("F.layer_norm(x, s) * w + b", x=x, s=ones, w=weights[0], b=weights[1])


@op("GroupNormalization", since=18, traits=[NORM, SAMPLES], weights="scale bias")
def group_normalization(
    b: Builder, X: Arg, scale: Arg, bias: Arg, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> ast.expr:
    """From opset 21 on scale and bias are per channel; in opset 18 they were per group."""
    eps = unless(shortest(epsilon), 1e-5)
    if X.shape is not None and X.shape[1] == num_groups and all(d == 1 for d in X.shape[2:]):
        return _of_single_elements(b, X, scale, bias)  # torch refuses such groups in a batch of one
    if is_plain(scale, bias):
        return b.call("F.group_norm", X, num_groups, eps=eps)
    if b.opset < 21:
        channels = X.shape[1] if X.shape is not None else b("x.shape[1]", x=X)
        each = b("n // g", n=channels, g=num_groups) if not isinstance(channels, int) else channels // num_groups
        spread = [b("w.repeat_interleave(n)", w=w, n=each) for w in (scale, bias)]
        return b.call("F.group_norm", X, num_groups, *spread, eps=eps)
    if scale.source is not None and bias.source is not None:
        build = b.call("nn.GroupNorm", num_groups, scale.source.shape[0], eps=eps, dtype=_dtype(scale))
        module = b.module("norm", build, weight=scale, bias=bias)
        if module is not None:
            return b("m(x)", m=module, x=X)
    return b.call("F.group_norm", X, num_groups, scale, bias, eps=eps)


@op("LayerNormalization", since=1, traits=[NORM], weights="Scale B")
def layer_normalization(
    b: Builder,
    X: Arg,
    Scale: Arg,
    B: Arg | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Any:
    """Over the axes from `axis` on; the optional outputs are the mean and the inverse of the standard deviation."""
    rank = X.known_rank
    shape = None if X.shape is None else X.shape[axis % rank :]
    eps = shortest(epsilon)
    made = None
    if shape is not None and all(isinstance(d, int) for d in shape):
        made = _layer_norm(b, X, Scale, B, [int(d) for d in shape if isinstance(d, int)], eps)
    if made is None:
        normal = b.call("F.layer_norm", X, b("x.shape[i:]", x=X, i=axis % rank), eps=unless(eps, 1e-5))
        made = b("n * s", n=normal, s=Scale) if B is None else b("n * s + b", n=normal, s=Scale, b=B)
    if not b.wants(1) and not b.wants(2):
        return made
    dims = tuple(range(axis % rank - rank, 0))
    mean = b("x.mean(dims, keepdim=True)", x=X, dims=dims)
    inverse = b("(x.var(dims, correction=0, keepdim=True) + eps).rsqrt()", x=X, dims=dims, eps=eps)
    return [made, mean, inverse]


def _layer_norm(b: Builder, X: Arg, scale: Arg, bias: Arg | None, shape: list[int], eps: float) -> ast.expr | None:
    """`nn.LayerNorm` where weight and bias have exactly the normalised shape."""
    normalised = shape[0] if len(shape) == 1 else tuple(shape)
    if is_plain(scale, bias):
        return b.call("F.layer_norm", X, tuple(shape), eps=unless(eps, 1e-5))
    if OWN_NORM.get(b.node):
        weights = [_own(b, w, X.shape) for w in (scale, bias) if w is not None]
        return b.call("F.layer_norm", X, tuple(shape), *weights, eps=unless(eps, 1e-5))
    if scale.shape != tuple(shape) or (bias is not None and bias.shape != tuple(shape)):
        return None
    if scale.source is not None and (bias is None or bias.source is not None):
        options = {"eps": unless(eps, 1e-5), "bias": unless(bias is not None, True), "dtype": _dtype(scale)}
        module = b.module("norm", b.call("nn.LayerNorm", normalised, **options), weight=scale, bias=bias)
        if module is not None:
            return b("m(x)", m=module, x=X)
    return b.call("F.layer_norm", X, tuple(shape), scale, *([bias] if bias is not None else []), eps=unless(eps, 1e-5))


@op("Normalize", domain=DOMAIN)
def normalize(b: Builder, x: Arg, *, axis: int, p: int, epsilon: float) -> ast.expr:
    """`x / max(norm(x), eps)` along an axis."""
    dim = _axis(axis, x)
    return b.call("F.normalize", x, p=unless(p, 2), dim=unless(dim, 1), eps=unless(shortest(epsilon), 1e-12))


@op("CosineSimilarity", domain=DOMAIN)
def cosine_similarity(b: Builder, x: Arg, y: Arg, *, axis: int, epsilon: float) -> ast.expr:
    return b.call("F.cosine_similarity", x, y, dim=unless(_axis(axis, x), 1), eps=unless(shortest(epsilon), 1e-8))


@op("Variance", domain=DOMAIN)
def variance(b: Builder, x: Arg, *, axes: list[int], keepdims: int) -> ast.expr:
    return _statistic_of(b, "x.var", x, axes, keepdims)


@op("Deviation", domain=DOMAIN)
def deviation(b: Builder, x: Arg, *, axes: list[int], keepdims: int) -> ast.expr:
    return _statistic_of(b, "x.std", x, axes, keepdims)


def _statistic_of(b: Builder, function: str, x: Arg, axes: list[int], keepdims: int) -> ast.expr:
    dim = _axis(axes[0], x) if len(axes) == 1 else tuple(axes)
    return b.call(b(function, x=x), dim=dim, keepdim=unless(bool(keepdims), False))


def _axis(axis: int, x: Arg) -> int:
    """The last axis is -1 to a person."""
    return -1 if x.rank is not None and x.rank > 2 and axis == x.rank - 1 else axis


def _own(b: Builder, weight: Arg, shape: Any) -> ast.expr:
    """A weight of a module that has more in it than a norm over the last axis: its parameter, in that axis's shape."""
    return b.parameter(weight, shape=(shape[-1],))


@op("Dropout", renames={"is_test": "_"}, traits=[ELEMENTWISE, KEEPS_SIGN], still="ratio training_mode")
def dropout(
    b: Builder,
    data: Arg,
    ratio: Arg | None = None,
    training_mode: Arg | None = None,
    *,
    seed: int | None = None,
    _: Any = None,
) -> Any:
    """`nn.Dropout`: at work while training, whatever mode the graph was recorded in."""
    rate = 0.5 if ratio is None else ratio.scalar
    if rate is None or (training_mode is not None and training_mode.scalar is None):
        chance, mode = (0.5 if ratio is None else ratio), (False if training_mode is None else training_mode)
        made = b.call("dropout_by_input", data, chance, mode, unless(seed, None))
        return b.unpack(made, 2) if b.wants(1) else b("d[0]", d=made)
    module = b.module("dropout", b.call("nn.Dropout", unless(rate, 0.5)))
    assert module is not None
    made = b("m(x)", m=module, x=data)
    if not b.wants(1):
        return made
    y = b.let(made, "x", b.out(0))
    # nothing is dropped in evaluation: all true from opset 12 on; before, onnxruntime's mask is all false
    return [y, b(f"torch.{'ones' if b.opset >= 12 else 'zeros'}_like(x, dtype=torch.bool)", x=data)]


@op("RMSNormalization", since=1, traits=[NORM], weights="scale")
def rms_normalization(
    b: Builder, X: Arg, scale: Arg, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> ast.expr:
    """Over the axes from `axis` on."""
    rank = X.known_rank
    shape = None if X.shape is None else X.shape[axis % rank :]
    eps = shortest(epsilon)
    known = shape is not None and all(isinstance(d, int) for d in shape)
    if known and is_plain(scale, None):
        return b.call("F.rms_norm", X, shape, eps=eps)
    if OWN_NORM.get(b.node):
        return b.call("F.rms_norm", X, shape, _own(b, scale, X.shape), eps=eps)
    if shape is None or scale.shape != shape or not known:
        normal = b.call("F.rms_norm", X, b("x.shape[i:]", x=X, i=axis % rank), eps=eps)
        return b("n * s", n=normal, s=scale)
    if scale.source is not None:
        normalised = shape[0] if len(shape) == 1 else shape
        module = b.module("norm", b.call("nn.RMSNorm", normalised, eps=eps, dtype=_dtype(scale)), weight=scale)
        if module is not None:
            return b("m(x)", m=module, x=X)
    return b.call("F.rms_norm", X, shape, scale, eps=eps)


@op("StochasticDepth", domain=DOMAIN)
def stochastic_depth(b: Builder, x: Arg, *, p: float, mode: str) -> ast.expr:
    """At work while training, as Dropout is."""
    return b("stochastic_depth(x, p, mode, self.training)", x=x, p=shortest(p), mode=mode)
