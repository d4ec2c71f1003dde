"""Linear models of ai.onnx.ml: an `nn.Linear`, a transform and, for classifiers, the label of the best score."""

from __future__ import annotations

import ast

from onnxgen import op
from onnxgen.classical import shapes
from onnxgen.classical.scores import ML, elements, labels, rows, second_class, table, transformed
from onnxgen.code.quote import OMIT
from onnxgen.errors import WRITER
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.fake_quant import QuantizedLayer
from onnxgen.ops.linear import linear_module


def product(b: Builder, X: Arg, weight: Arg, bias: Arg | None, columns: int) -> ast.expr:
    """Return `X @ weight.T + bias`. The attribute has the weight's rows one after another.

    If there are more numbers than the input has features, onnxruntime uses the first ones.
    """
    x, count = rows(b, X), elements(b, weight).size
    features = X.shape[-1] if X.shape and isinstance(X.shape[-1], int) else None
    if features is None and columns > 0 and count % columns == 0:
        features = count // columns
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
