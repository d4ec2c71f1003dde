"""Linear models and support vector machines of ai.onnx.ml.

A linear model is an `nn.Linear`, a transform and, for classifiers, the label of the best score. The
vectors and coefficients of support vector machines are trained.
"""

from __future__ import annotations

import ast
from typing import Any

from onnxgen import op
from onnxgen.classical import scores as shapes
from onnxgen.classical.scores import ML, elements, labels, rows, second_class, table, transformed
from onnxgen.code.quote import OMIT, shortest
from onnxgen.errors import WRITER
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.ops.linear import QuantizedLayer, linear_module


def product(b: Builder, X: Arg, weight: Arg, bias: Arg | None, columns: int) -> ast.expr:
    """Return `X @ weight.T + bias`. The attribute has the weight's rows one after another.

    If there are more numbers than the input has features, onnxruntime uses the first ones.
    """
    x, count = rows(b, X), elements(b, weight).size
    features = _features(X, count, columns)
    if features is None or columns < 1 or count < columns * features:
        raise b.error(f"{count} coefficients do not divide into {columns} outputs", WRITER)
    shape, used = (columns, features), columns * features
    if used < count:
        b.note(f"{b.node.op_type} has more coefficients than its input has features: the first {used} are used")
        w = b("w[:n].view(s)", w=table(b, weight, (count,), "coefficients"), n=used, s=shape)
    else:
        if weight.is_trainable and (bias is None or bias.is_trainable) and weight.source is not None:
            source = None if bias is None else bias.source
            layer = QuantizedLayer.plain("Linear", weight.source.reshape(shape))
            module = linear_module(b, source, layer)
            if module is not None:
                return b("m(x)", m=module, x=x)
        w = table(b, weight, shape, "coefficients")
    return b.call("F.linear", x, w, OMIT if bias is None else table(b, bias, (columns,), "intercepts"))


def _features(X: Arg, count: int, columns: int) -> int | None:
    """Return the features of an input, or else how many of `count` coefficients each column has."""
    if X.shape and isinstance(X.shape[-1], int):
        return X.shape[-1]
    return count // columns if columns > 0 and count % columns == 0 else None


@op("LinearRegressor", domain=ML, infer=shapes.regressor, tables=("coefficients", "intercepts"))
def linear_regressor(
    b: Builder,
    X: Arg,
    coefficients: Arg,
    intercepts: Arg | None = None,
    *,
    targets: int = 1,
    post_transform: str = "NONE",
) -> ast.expr:
    """For a single target, onnxruntime applies no transform but PROBIT."""
    if intercepts is not None and elements(b, intercepts).size != targets:
        intercepts = None  # onnxruntime ignores them, too
    scores = product(b, X, coefficients, intercepts, targets)
    return transformed(b, scores, post_transform if targets > 1 or post_transform == "PROBIT" else "NONE")


@op("LinearClassifier", domain=ML, infer=shapes.classifier, tables=("coefficients", "intercepts"))
def linear_classifier(
    b: Builder,
    X: Arg,
    coefficients: Arg,
    intercepts: Arg | None = None,
    *,
    post_transform: str = "NONE",
    multi_class: int = 0,
    classlabels_strings: list[str] | None = None,
    classlabels_ints: list[int] | None = None,
) -> list[ast.expr]:
    """There are as many scores as intercepts. A single score is that of the second class if there are two labels."""
    names = classlabels_strings or classlabels_ints or []
    if intercepts is None:
        raise b.error(
            "the node has no intercepts, by which onnxruntime counts the classes", "write zeros as intercepts"
        )
    count = elements(b, intercepts).size
    scores = b.let(product(b, X, coefficients, intercepts, count), "scores")
    if count > 1:
        if len(names) < count:
            raise b.error(f"the node has {count} scores but {len(names)} labels", WRITER)
        best = b("s.argmax(1)", s=scores)
        return [labels(b, best, classlabels_ints, classlabels_strings), transformed(b, scores, post_transform)]
    positive = b("(s.squeeze(1) > 0).long()", s=scores)
    if len(names) not in (0, 2):
        raise b.error(f"a node with one score must have two labels, not {len(names)}", WRITER)
    label = labels(b, positive, classlabels_ints, classlabels_strings)
    if not names:
        return [label, transformed(b, scores, post_transform if post_transform == "PROBIT" else "NONE")]
    return [label, second_class(b, scores, post_transform, mixed=False)]


KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


def _kernel(b: Builder, x: ast.expr, vectors: Arg, count: int, kind: str, params: list[float] | None) -> ast.expr:
    """Return the kernel of each row with each support vector, `[rows, count]`."""
    if kind not in KERNELS:
        raise b.error(f"attribute 'kernel_type' must be one of {', '.join(KERNELS)}, not {kind!r}", WRITER)
    size = elements(b, vectors).size
    if size % count:
        raise b.error(f"{size} numbers do not divide into {count} support vectors", WRITER)
    v = table(b, vectors, (count, size // count), "support_vectors")
    if kind == "LINEAR":
        return b("x @ v.T", x=x, v=v)
    if params is None or len(params) < 3:
        raise b.error("attribute 'kernel_params' (gamma, coef0, degree) is missing", WRITER)
    gamma, offset, degree = map(shortest, params[:3])
    if kind == "RBF":
        return b("radial_kernel(x, v, g)", x=x, v=v, g=gamma)
    inner = b("g * (x @ v.T) + c" if offset else "g * (x @ v.T)", x=x, v=v, g=gamma, c=offset)
    if kind == "SIGMOID":
        return b("i.tanh()", i=inner)
    return b("i ** d", i=inner, d=int(degree) if degree == int(degree) else degree)


@op("SVMRegressor", domain=ML, infer=shapes.regressor, tables=("coefficients", "support_vectors", "rho"))
def svm_regressor(
    b: Builder,
    X: Arg,
    coefficients: Arg,
    support_vectors: Arg | None = None,
    rho: Arg | None = None,
    *,
    kernel_type: str = "LINEAR",
    kernel_params: list[float] | None = None,
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
) -> ast.expr:
    """A single target without a post transform, as in onnxruntime. `one_class`: 1 if a row is in the class, else -1."""
    if rho is None:
        raise b.error("attribute 'rho' is missing", WRITER)
    if n_supports > 0:
        if support_vectors is None or elements(b, coefficients).size != n_supports:
            raise b.error(f"the node must have {n_supports} support vectors and coefficients", WRITER)
        kernel = _kernel(b, rows(b, X), support_vectors, n_supports, kernel_type, kernel_params)
        weights = table(b, coefficients, (n_supports,), "coefficients")
        scores = b("(k @ w).unsqueeze(1)", k=kernel, w=weights)
    else:
        scores = product(b, X, coefficients, None, 1)
    scores = b("s + r[0]", s=scores, r=table(b, rho, (elements(b, rho).size,), "rho"))
    return b("torch.where(s > 0, 1.0, -1.0)", s=scores) if one_class else scores


@op(
    "SVMClassifier",
    domain=ML,
    infer=shapes.classifier,
    tables=("coefficients", "support_vectors", "rho", "prob_a", "prob_b"),
)
def svm_classifier(
    b: Builder,
    X: Arg,
    coefficients: Arg,
    support_vectors: Arg | None = None,
    rho: Arg | None = None,
    prob_a: Arg | None = None,
    prob_b: Arg | None = None,
    *,
    kernel_type: str = "LINEAR",
    kernel_params: list[float] | None = None,
    vectors_per_class: list[int] | None = None,
    classlabels_strings: list[str] | None = None,
    classlabels_ints: list[int] | None = None,
    post_transform: str = "NONE",
) -> list[ast.expr]:
    """Pairs of classes vote, as in libsvm; without support vectors each class has a score, as in liblinear."""
    names = classlabels_strings or classlabels_ints or []
    if not names or rho is None:
        raise b.error("the node has no labels or no rho", WRITER)
    counts, classes = vectors_per_class or [], len(names)
    if not sum(counts):
        index, scores = _linear(b, X, coefficients, rho, classes, prob_a is not None, post_transform)
        return [labels(b, index, classlabels_ints, classlabels_strings), scores]
    if len(counts) != classes or classes < 2 or support_vectors is None:
        raise b.error(f"the node has {classes} labels but support vectors of {len(counts)} classes", WRITER)
    total, pairs = sum(counts), classes * (classes - 1) // 2
    if (elements(b, coefficients).size, elements(b, rho).size) != ((classes - 1) * total, pairs):
        raise b.error("the number of coefficients or of rho does not fit the classes and support vectors", WRITER)
    kernel = _kernel(b, rows(b, X), support_vectors, total, kernel_type, kernel_params)
    weights = table(b, coefficients, (classes - 1, total), "coefficients")
    offsets = table(b, rho, (pairs,), "rho")
    scores = b.let(b.call("pair_scores", kernel, weights, counts, offsets), "scores")
    label = labels(b, b("pair_winner(s, n)", s=scores, n=classes), classlabels_ints, classlabels_strings)
    if prob_a is not None and prob_b is not None:
        a, c = (table(b, t, (pairs,), hint) for t, hint in ((prob_a, "prob_a"), (prob_b, "prob_b")))
        chances = b.call("pair_probabilities", scores, a, c, classes)
        return [label, transformed(b, chances, post_transform)]
    if classes > 2:
        return [label, transformed(b, scores, post_transform)]
    return [label, second_class(b, scores, post_transform, mixed=post_transform == "NONE")]


def _linear(
    b: Builder, X: Arg, coefficients: Arg, rho: Arg, classes: int, has_chances: bool, transform: str
) -> tuple[Any, ast.expr]:
    """Return the class index and the scores of a model without support vectors: one row of coefficients per class."""
    raw = product(b, X, coefficients, None, classes)
    scores = b.let(b("s + r[0]", s=raw, r=table(b, rho, (elements(b, rho).size,), "rho")), "scores")
    best = b("s.argmax(1)", s=scores)
    if classes == 2 and not has_chances:  # onnxruntime returns the second class if the best score is high enough
        limit = b("s.amax(1) >= 0.5" if bool((elements(b, coefficients) >= 0).all()) else "s.amax(1) > 0", s=scores)
        best = b("torch.where(c, 1, i)", c=limit, i=best)
    if classes == 1:
        return best, transformed(b, scores, transform if transform == "PROBIT" else "NONE")
    return best, transformed(b, scores, transform)
