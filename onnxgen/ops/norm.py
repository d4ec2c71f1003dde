"""Normalisation layers, Dropout, and a learned scale and bias for a whole map."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.code.quote import OMIT, MemberRef, shortest, unless
from onnxgen.errors import CHECK
from onnxgen.graph.annotations import OWN_NORM
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import Lowering, op
from onnxgen.graph.traits import ELEMENTWISE, KEEPS_SIGN, NORM, SAME, SAMPLES
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.ops.index import shown_axis
from onnxgen.ops.rules import rules
from onnxgen.shapes import own


@op("Affine", domain=DOMAIN, traits=[ELEMENTWISE], weights="scale bias", reference=own.Affine)
def affine(b: Builder, x: Arg, scale: Arg, bias: Arg) -> ast.expr:
    """`scale * x + bias`, with single numbers."""
    sources = {"scale": scale.source, "bias": bias.source}
    keys = {key: None if source is None else source.reshape((1,)) for key, source in sources.items()}
    dtype = OMIT if scale.source is None else unless(scale.source.dtype, ir.DataType.FLOAT)
    build = b.call("LearnableAffine", dtype=dtype)
    module = b.module("affine", build, **keys) if all(keys.values()) else None
    return b("m(x)", m=module, x=x) if module is not None else b("s * x + b", s=scale, x=x, b=bias)


def _dtype(arg: Arg) -> Any:
    return unless(arg.source.dtype if arg.source is not None else ir.DataType.FLOAT, ir.DataType.FLOAT)


def is_plain(scale: Arg, bias: Arg | None) -> bool:
    """Return True if a norm scales by constant ones and adds constant zeros, so that it has no parameters."""
    ones = scale.constant
    if ones is None or not bool((ones == 1).all()):
        return False
    return bias is None or (bias.constant is not None and not bool(bias.constant.any()))


@op(
    "BatchNormalization",
    renames={"mean": "input_mean", "var": "input_var", "is_test": "_"},
    traits=[NORM, SAMPLES],
    weights="scale B",
    still="input_mean input_var",
    **rules("batch_norm"),
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
    """`nn.BatchNormNd`. ONNX's momentum is the share that is kept, torch's is the share that is replaced."""
    epsilon, momentum = shortest(epsilon), shortest(momentum)
    wants_statistics = b.wants(1) or b.wants(2)
    if not spatial:  # until opset 8: statistics and weights for each element, [C, size...]
        if wants_statistics:
            raise b.error(
                "spatial=0 with statistics as outputs is not handled", "export the model with opset 9 or newer"
            )
        operands = {"x": X, "m": input_mean, "v": input_var, "e": epsilon, "s": scale, "c": B}
        return b("(x - m) / torch.sqrt(v + e) * s + c", **operands)
    _check_channels(b, X, scale, B, input_mean, input_var)
    module = _batch_norm(b, X.known_rank, scale, B, input_mean, input_var, epsilon, momentum)
    if module is not None:
        normalised = _applied(b, module, X)
        if not wants_statistics:
            return normalised
        y = b.let(normalised, "x", b.out(0))
        return [y, b("m.running_mean", m=module), b("m.running_var", m=module)]
    if training_mode or wants_statistics:
        normalised = b.call("batch_norm_update", X, scale, B, input_mean, input_var, epsilon, momentum)
        return b.unpack(normalised, 3) if wants_statistics else b("y[0]", y=normalised)
    if input_mean.constant is None or input_var.constant is None:  # they may need a gradient, which torch's lacks
        return b.call("batch_norm_by_input", X, scale, B, input_mean, input_var, epsilon)
    return b.call(
        "F.batch_norm", X, input_mean, input_var, scale, B,
        momentum=unless(_inverted(momentum), 0.1), eps=unless(epsilon, 1e-5),
    )  # fmt: skip


def _applied(b: Builder, module: MemberRef, X: Arg) -> ast.expr:
    """Call a batch norm. nn.BatchNorm2d takes rank 4, 3d rank 5, 1d the others, as [N, C] or [N, C, L]."""
    rank = X.known_rank
    if 2 <= rank <= 5:
        return b("m(x)", m=module, x=X)
    x = b("x.flatten(2)" if rank > 5 else "x.unsqueeze(-1)", x=X)
    return b("m(x).reshape(y.shape)", m=module, x=x, y=X)


def _check_channels(b: Builder, x: Arg, *weights: Arg) -> None:
    """Raise a problem if the weights are known not to have one number per channel."""
    channels = x.shape[1] if x.shape is not None and len(x.shape) > 1 else None
    for weight in weights:
        size = weight.shape[0] if weight.shape is not None and len(weight.shape) == 1 else None
        if isinstance(channels, int) and isinstance(size, int) and size != channels:
            raise b.error(f"the input has {channels} channels, but {weight.name} has {size} elements", CHECK)


def _inverted(momentum: float) -> float:
    """Return torch's momentum for ONNX's: 1 - m, in the decimal that a person would write."""
    return round(1.0 - momentum, 7)


def _batch_norm(
    b: Builder, rank: int, scale: Arg, B: Arg, mean: Arg, var: Arg, epsilon: float, momentum: float
) -> MemberRef | None:
    if mean.source is None:
        return None
    affine: dict[str, Any] = {} if is_plain(scale, B) else {"weight": scale, "bias": B}
    build = b.call(
        f"nn.BatchNorm{ {4: 2, 5: 3}.get(rank, 1)}d", mean.source.shape[0], eps=unless(epsilon, 1e-5),
        momentum=unless(_inverted(momentum), 0.1), affine=unless(bool(affine), True), dtype=_dtype(mean),
    )  # fmt: skip
    module = b.module("bn", build, **affine, running_mean=mean, running_var=var)
    if module is not None:
        module.member.extra["num_batches_tracked"] = np.zeros((), np.int64)
    return module


@op("InstanceNormalization", traits=[NORM, SAMPLES], weights="scale B", **rules("instance_norm"))
def instance_normalization(b: Builder, input: Arg, scale: Arg, B: Arg, *, epsilon: float = 1e-5) -> ast.expr:
    """`nn.InstanceNormNd`. torch refuses a single element per channel, for which the result is the bias."""
    _check_channels(b, input, scale, B)
    eps = unless(shortest(epsilon), 1e-5)
    dims = {3: 1, 4: 2, 5: 3}.get(input.known_rank)
    if input.shape is not None and all(d == 1 for d in input.shape[2:]):
        return _of_single_elements(b, input, scale, B)
    if is_plain(scale, B):
        return b.call("F.instance_norm", input, eps=eps)
    if dims is not None and scale.source is not None:
        build = b.call(f"nn.InstanceNorm{dims}d", scale.source.shape[0], eps=eps, affine=True, dtype=_dtype(scale))
        module = b.module("norm", build, weight=scale, bias=B)
        if module is not None:
            return b("m(x)", m=module, x=input)
    return b.call("F.instance_norm", input, weight=scale, bias=B, eps=eps)


def _of_single_elements(b: Builder, x: Arg, scale: Arg, bias: Arg) -> ast.expr:
    if x.known_rank == 2:  # torch's norms need an axis
        return b("(x - x) * w + b", x=x, w=scale, b=bias)
    ones = tuple([1] * (x.known_rank - 2))
    weights = [b("w.reshape(s)", w=w, s=(-1, *ones)) for w in (scale, bias)]
    return b("F.layer_norm(x, s) * w + b", x=x, s=ones, w=weights[0], b=weights[1])


@op("GroupNormalization", since=18, traits=[NORM, SAMPLES], weights="scale bias", **rules("group_norm"))
def group_normalization(
    b: Builder, X: Arg, scale: Arg, bias: Arg, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> ast.expr:
    """From opset 21 on, scale and bias are per channel; before, they are per group."""
    eps = unless(shortest(epsilon), 1e-5)
    if X.shape is not None and X.shape[1] == num_groups and all(d == 1 for d in X.shape[2:]):
        return _of_single_elements(b, X, scale, bias)  # torch refuses groups of one element in a batch of one
    if is_plain(scale, bias):
        return b.call("F.group_norm", X, num_groups, eps=eps)
    if b.opset < 21:
        channels = X.shape[1] if X.shape is not None else b("x.shape[1]", x=X)
        each = b("n // g", n=channels, g=num_groups) if not isinstance(channels, int) else channels // num_groups
        spread = [b("w.repeat_interleave(n)", w=w, n=each) for w in (scale, bias)]
        return b.call("F.group_norm", X, num_groups, *spread, eps=eps)
    if scale.source is not None:
        build = b.call("nn.GroupNorm", num_groups, scale.source.shape[0], eps=eps, dtype=_dtype(scale))
        module = b.module("norm", build, weight=scale, bias=bias)
        if module is not None:
            return b("m(x)", m=module, x=X)
    return b.call("F.group_norm", X, num_groups, scale, bias, eps=eps)


@op("LayerNormalization", since=1, traits=[NORM], weights="Scale B", **rules("layer_norm"))
def layer_normalization(
    b: Builder, X: Arg, Scale: Arg, B: Arg | None = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    """Normalise over the axes from `axis` on. Further outputs: the mean and the inverse of the standard deviation."""
    rank = X.known_rank
    shape = None if X.shape is None else X.shape[axis % rank :]
    eps = shortest(epsilon)
    normalised = None
    if shape is not None and all(isinstance(d, int) for d in shape):
        normalised = _layer_norm(b, X, Scale, B, [int(d) for d in shape if isinstance(d, int)], eps)
    if normalised is None:
        normal = b.call("F.layer_norm", X, b("x.shape[i:]", x=X, i=axis % rank), eps=unless(eps, 1e-5))
        normalised = b("n * s", n=normal, s=Scale) if B is None else b("n * s + b", n=normal, s=Scale, b=B)
    if not b.wants(1) and not b.wants(2):
        return normalised
    dims = tuple(range(axis % rank - rank, 0))
    mean = b("x.mean(dims, keepdim=True)", x=X, dims=dims)
    inverse = b("(x.var(dims, correction=0, keepdim=True) + eps).rsqrt()", x=X, dims=dims, eps=eps)
    return [normalised, mean, inverse]


def _layer_norm(b: Builder, X: Arg, scale: Arg, bias: Arg | None, shape: list[int], eps: float) -> ast.expr | None:
    """Write a layer norm whose weight and bias have exactly the normalised shape; None for other shapes."""
    normalised = shape[0] if len(shape) == 1 else tuple(shape)
    if is_plain(scale, bias):
        return b.call("F.layer_norm", X, tuple(shape), eps=unless(eps, 1e-5))
    if OWN_NORM.get(b.node):  # the parameters belong to a module that computes more than the norm
        weights = [b.parameter(w, shape=tuple(shape[-1:])) for w in (scale, bias) if w is not None]
        return b.call("F.layer_norm", X, tuple(shape), *weights, eps=unless(eps, 1e-5))
    if scale.shape != tuple(shape) or (bias is not None and bias.shape != tuple(shape)):
        return None
    options = {"eps": unless(eps, 1e-5), "bias": unless(bias is not None, True), "dtype": _dtype(scale)}
    module = b.module("norm", b.call("nn.LayerNorm", normalised, **options), weight=scale, bias=bias)
    if module is not None:
        return b("m(x)", m=module, x=X)
    return b.call("F.layer_norm", X, tuple(shape), scale, unless(bias, None), eps=unless(eps, 1e-5))


@op("Normalize", domain=DOMAIN, reference=own.Normalize)
def normalize(b: Builder, x: Arg, *, axis: int, p: int, epsilon: float) -> ast.expr:
    """`x / max(norm(x), eps)` along an axis."""
    options = {"p": unless(p, 2), "dim": unless(shown_axis(axis, x.rank), 1), "eps": unless(shortest(epsilon), 1e-12)}
    return b.call("F.normalize", x, **options)


@op("CosineSimilarity", domain=DOMAIN, reference=own.CosineSimilarity)
def cosine_similarity(b: Builder, x: Arg, y: Arg, *, axis: int, epsilon: float) -> ast.expr:
    dim = unless(shown_axis(axis, x.rank), 1)
    return b.call("F.cosine_similarity", x, y, dim=dim, eps=unless(shortest(epsilon), 1e-8))


def _statistic(method: str) -> Lowering:
    def lower(b: Builder, x: Arg, *, axes: list[int], keepdims: int) -> ast.expr:
        dim = shown_axis(axes[0], x.rank) if len(axes) == 1 else tuple(axes)
        return b.call(b(f"x.{method}", x=x), dim=dim, keepdim=unless(bool(keepdims), False))

    return lower


op("Variance", domain=DOMAIN, reference=own.Variance)(_statistic("var"))
op("Deviation", domain=DOMAIN, reference=own.Deviation)(_statistic("std"))


@op(
    "Dropout", renames={"is_test": "_"}, traits=[ELEMENTWISE, SAME, KEEPS_SIGN], still="ratio training_mode",
    **rules("dropout"),
)  # fmt: skip
def dropout(
    b: Builder,
    data: Arg,
    ratio: Arg | None = None,
    training_mode: Arg | None = None,
    *,
    seed: int | None = None,
    _: Any = None,
) -> Any:
    """`nn.Dropout`. It drops elements in training mode, whatever mode the graph was exported in."""
    rate = 0.5 if ratio is None else ratio.scalar
    if rate is None or (training_mode is not None and training_mode.scalar is None):
        chance, mode = (0.5 if ratio is None else ratio), (False if training_mode is None else training_mode)
        dropped = b.call("dropout_by_input", data, chance, mode, unless(seed, None))
        return b.unpack(dropped, 2) if b.wants(1) else b("d[0]", d=dropped)
    module = b.module("dropout", b.call("nn.Dropout", unless(rate, 0.5)))
    assert module is not None
    dropped = b("m(x)", m=module, x=data)
    if not b.wants(1):
        return dropped
    y = b.let(dropped, "x", b.out(0))
    # the mask in evaluation mode: all true from opset 12 on; before, onnxruntime's is all false
    return [y, b(f"torch.{'ones' if b.opset >= 12 else 'zeros'}_like(x, dtype=torch.bool)", x=data)]


@op("RMSNormalization", since=1, traits=[NORM], weights="scale", **rules("rms_norm"))
def rms_normalization(
    b: Builder, X: Arg, scale: Arg, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> ast.expr:
    """Normalise over the axes from `axis` on."""
    rank = X.known_rank
    shape: Any = None if X.shape is None else X.shape[axis % rank :]
    eps = shortest(epsilon)
    known = shape is not None and all(isinstance(d, int) for d in shape)
    if known and is_plain(scale, None):
        return b.call("F.rms_norm", X, shape, eps=eps)
    if OWN_NORM.get(b.node):
        return b.call("F.rms_norm", X, shape, b.parameter(scale, shape=shape[-1:]), eps=eps)
    if shape is None or scale.shape != shape or not known:
        normal = b.call("F.rms_norm", X, b("x.shape[i:]", x=X, i=axis % rank), eps=eps)
        return b("n * s", n=normal, s=scale)
    normalised = shape[0] if len(shape) == 1 else shape
    module = b.module("norm", b.call("nn.RMSNorm", normalised, eps=eps, dtype=_dtype(scale)), weight=scale)
    return b.call("F.rms_norm", X, shape, scale, eps=eps) if module is None else b("m(x)", m=module, x=X)


@op("StochasticDepth", domain=DOMAIN, reference=own.StochasticDepth)
def stochastic_depth(b: Builder, x: Arg, *, p: float, mode: str) -> ast.expr:
    """Drops samples, their channels (`nn.Dropout2d`) or for SELU (`nn.AlphaDropout`), only in training, as Dropout."""
    layer = {"alpha": "nn.AlphaDropout", "feature alpha": "nn.FeatureAlphaDropout"}.get(mode)
    if layer or mode == "feature":
        build = b.call(layer or f"nn.Dropout{x.known_rank - 2}d", unless(shortest(p), 0.5))
        return b("m(x)", m=b.module("dropout", build), x=x)
    return b("stochastic_depth(x, p, mode, self.training)", x=x, p=shortest(p), mode=mode)


@op("Standardize", domain=DOMAIN, traits=[NORM], weights="scale B", **rules("standardize"), reference=own.Standardize)
def standardize(
    b: Builder,
    X: Arg,
    scale: Arg | None = None,
    B: Arg | None = None,
    *,
    epsilon: float,
    shape: list[int] | None = None,
) -> ast.expr:
    """BatchNorm by the statistics of X alone. `shape`: of the stored weight that X, one sample, was made of."""
    weight = None if shape is None else b.parameter(X, shape=tuple(shape))
    x = X.expr if shape is None else b("w.reshape(1, n, -1)", w=weight, n=shape[0])
    y = b.call(
        "F.batch_norm", x, None, None, scale or OMIT, bias=B or OMIT, training=True,
        eps=unless(shortest(epsilon), 1e-5),
    )  # fmt: skip
    return y if weight is None else b("y.reshape_as(w)", y=y, w=weight)
