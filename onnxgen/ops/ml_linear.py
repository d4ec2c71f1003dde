"""Linear models of ai.onnx.ml: an `nn.Linear`, a transform and, of classifiers, the label of the best score."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from onnxgen.code.quote import OMIT
from onnxgen.ops.arg import Arg
from onnxgen.ops.linear import linear_module
from onnxgen.ops.ml_scores import ML, elements, labels, rows, second_class, table, transformed
from onnxgen.ops.registry import op

if TYPE_CHECKING:
    from onnxgen.ops.builder import Builder


def product(b: Builder, x: ast.expr, weight: Arg, bias: Arg | None, columns: int) -> ast.expr:
    """`x @ weight.T + bias`, the weight's rows one after another in its attribute."""
    count = elements(b, weight).size
    if columns < 1 or count % columns:
        raise b.error(f"its {count} coefficients are not those of {columns} outputs")
    shape = (columns, count // columns)
    if weight.is_trainable and (bias is None or bias.is_trainable) and weight.source is not None:
        source = None if bias is None else bias.source
        module = linear_module(b, weight.source.reshape(shape), source, transposed=False)
        if module is not None:
            return b("m(x)", m=module, x=x)
    offset = OMIT if bias is None else table(b, bias, (columns,), "intercepts")
    return b.call("F.linear", x, table(b, weight, shape, "coefficients"), offset)


@op("LinearRegressor", domain=ML)
def linear_regressor(
    b: Builder,
    X: Arg,
    coefficients: Arg,
    intercepts: Arg | None = None,
    *,
    targets: int = 1,
    post_transform: str = "NONE",
) -> ast.expr:
    """Of one target, only PROBIT transforms: onnxruntime has it so."""
    if intercepts is not None and elements(b, intercepts).size != targets:
        intercepts = None  # onnxruntime leaves them out, too
    scores = product(b, rows(b, X), coefficients, intercepts, targets)
    return transformed(b, scores, post_transform if targets > 1 or post_transform == "PROBIT" else "NONE")


@op("LinearClassifier", domain=ML)
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
    """As many scores as intercepts. One score is the second class's if there are two labels."""
    names = classlabels_strings or classlabels_ints or []
    if intercepts is None:
        raise b.error("it has no intercepts, by which onnxruntime counts its classes", "write zeros in the file")
    count = elements(b, intercepts).size
    scores = b.let(product(b, rows(b, X), coefficients, intercepts, count), "scores")
    if count > 1:
        if len(names) < count:
            raise b.error(f"it has {count} scores and {len(names)} labels")
        best = b("s.argmax(1)", s=scores)
        return [labels(b, best, classlabels_ints, classlabels_strings), transformed(b, scores, post_transform)]
    positive = b("(s.squeeze(1) > 0).long()", s=scores)
    if len(names) not in (0, 2):
        raise b.error(f"it has one score and {len(names)} labels, not two")
    if not names:
        label = labels(b, positive, None, None)
        return [label, transformed(b, scores, post_transform if post_transform == "PROBIT" else "NONE")]
    label = labels(b, positive, classlabels_ints, classlabels_strings)
    return [label, second_class(b, scores, post_transform, mixed=post_transform == "LOGISTIC")]
