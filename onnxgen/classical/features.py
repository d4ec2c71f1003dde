"""Preparation of features (ai.onnx.ml): scaling, normalising, imputing, joining."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxgen import op
from onnxgen.classical import shapes
from onnxgen.classical.scores import ML, as_dtype, elements, matrix, table
from onnxgen.code.quote import shortest
from onnxgen.errors import WRITER
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder

FLOAT, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE


@op("Scaler", domain=ML, infer=shapes.as_float, tables=("offset", "scale"))
def scaler(b: Builder, X: Arg, offset: Arg | None = None, scale: Arg | None = None) -> ast.expr:
    """`(X - offset) * scale`, each with a single number or one per column."""
    x: ast.expr | Arg = X if X.dtype == DOUBLE else as_dtype(b, X, X.dtype, FLOAT)
    for template, arg, hint in (("x - t", offset, "offset"), ("x * t", scale, "scale")):
        if arg is None:
            continue
        count = elements(b, arg).size
        if count > 1 and X.known_rank > 2:
            raise b.error(f"{hint} has a number for each column, but the input has rank {X.rank}", WRITER)
        if count > 1 and X.shape is not None and isinstance(X.shape[-1], int) and X.shape[-1] != count:
            raise b.error(f"{hint} has {count} numbers for {X.shape[-1]} columns", WRITER)
        x = b(template, x=x, t=table(b, arg, (count,), hint))
    return as_dtype(b, x, DOUBLE if X.dtype == DOUBLE else FLOAT, FLOAT)


NORMS = {
    "MAX": "row_maxima(x)",
    "L1": "x.abs().sum(-1, keepdim=True)",
    "L2": "or_one(x.square().sum(-1, keepdim=True)).sqrt()",
}


@op("Normalizer", domain=ML, infer=shapes.as_float)
def normalizer(b: Builder, X: Arg, *, norm: str = "MAX") -> ast.expr:
    """Divide rows by their norm, unless it is 0. MAX is the largest number, not the largest absolute value."""
    matrix(b, X)
    if norm not in NORMS:
        raise b.error(f"attribute 'norm' must be one of {', '.join(NORMS)}, not {norm!r}", WRITER)
    x = as_dtype(b, X, X.dtype, FLOAT)
    x = x if X.dtype == FLOAT else b.let(x)
    length = b(NORMS[norm], x=x)
    return b("x / n", x=x, n=length if norm == "L2" else b("or_one(n)", n=length))


@op("Imputer", domain=ML, infer=shapes.same)
def imputer(
    b: Builder,
    X: Arg,
    *,
    imputed_value_floats: list[float] | None = None,
    replaced_value_float: float = 0.0,
    imputed_value_int64s: list[int] | None = None,
    replaced_value_int64: int = 0,
) -> ast.expr:
    is_float = X.is_float
    values = imputed_value_floats if is_float else imputed_value_int64s
    if not values or X.dtype is None:
        raise b.error("the node has no imputed values of the input's type", WRITER)
    if len(values) > 1 and X.known_rank > 2:
        raise b.error(f"the node has an imputed value for each column, but the input has rank {X.rank}", WRITER)
    replaced = replaced_value_float if is_float else replaced_value_int64
    array = np.asarray(values, np.float32 if is_float else np.int64).astype(X.dtype.numpy())
    return b("fill_missing(x, r, v)", x=X, r=shortest(replaced, X.dtype), v=b.buffer(array, "imputed_values"))


@op("Binarizer", domain=ML, infer=shapes.same)
def binarizer(b: Builder, X: Arg, *, threshold: float = 0.0) -> ast.expr:
    """1 where X is greater than the threshold, else 0."""
    return b("(x > t).to(d)", x=X, t=shortest(threshold, X.dtype), d=X.dtype)


@op("FeatureVectorizer", domain=ML, infer=shapes.feature_vectorizer)
def feature_vectorizer(b: Builder, *X: Arg, inputdimensions: list[int] | None = None) -> ast.expr:
    """Join inputs side by side, each cut or padded with zeros to its number of columns."""
    if inputdimensions is not None and len(inputdimensions) != len(X):
        raise b.error(f"the node has {len(X)} inputs but {len(inputdimensions)} inputdimensions", WRITER)
    counts: Sequence[int | None] = inputdimensions or [None] * len(X)
    return b("torch.cat(x, 1)", x=[b("feature_rows(x, n)", x=x, n=n) for x, n in zip(X, counts)])


@op("ArrayFeatureExtractor", domain=ML, infer=shapes.array_feature_extractor)
def array_feature_extractor(b: Builder, X: Arg, Y: Arg) -> ast.expr:
    """Pick columns of the last axis; those of a vector become one row."""
    is_text = X.dtype == ir.DataType.STRING
    picked = b("x[..., y.flatten().cpu().numpy()]" if is_text else "x[..., y.flatten()]", x=X, y=Y)
    return b("p[None]" if is_text else "p.unsqueeze(0)", p=picked) if X.known_rank == 1 else picked
