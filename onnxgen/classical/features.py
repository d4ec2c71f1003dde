"""Features and maps of ai.onnx.ml: scaling, normalising, imputing, joining; dicts to rows, and rows to dicts."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxgen import op
from onnxgen.classical import shapes
from onnxgen.classical.scores import ML, as_dtype, elements, matrix, table
from onnxgen.code.quote import quote, shortest
from onnxgen.errors import WRITER
from onnxgen.graph.gradients import PIECEWISE_CONSTANT
from onnxgen.graph.traits import STANDARDISES
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.weights.dtypes import TORCH_DTYPES

FLOAT, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE


@op("Scaler", domain=ML, infer=shapes.as_float, tables=("offset", "scale"), traits=[STANDARDISES])
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


@op("Binarizer", domain=ML, infer=shapes.same, flat=PIECEWISE_CONSTANT)
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


STRING = ir.DataType.STRING
CASTS = {"TO_FLOAT": ir.DataType.FLOAT, "TO_INT64": ir.DataType.INT64, "TO_STRING": STRING}


@op("ZipMap", domain=ML, infer=shapes.zip_map)
def zip_map(
    b: Builder, X: Arg, *, classlabels_strings: list[str] | None = None, classlabels_int64s: list[int] | None = None
) -> ast.expr:
    """A list with one dict per row."""
    keys = classlabels_strings or classlabels_int64s
    if not keys or (classlabels_strings and classlabels_int64s):
        raise b.error("the node needs either classlabels_strings or classlabels_int64s", WRITER)
    matrix(b, X)
    if X.shape is not None and isinstance(X.shape[-1], int) and X.shape[-1] != len(keys):
        raise b.error(f"the node has {len(keys)} labels for {X.shape[-1]} columns", WRITER)
    return b.call("zip_map", X, keys)


def _row(b: Builder, values: ast.expr, dtype: ir.DataType) -> ast.expr:
    if dtype == STRING:
        return b("text_row(v)", v=values)
    return b("number_row(v, d)", v=values, d=quote(f"torch.{TORCH_DTYPES[dtype]}"))


@op("DictVectorizer", domain=ML, infer=shapes.dict_vectorizer)
def dict_vectorizer(
    b: Builder, X: Arg, *, string_vocabulary: list[str] | None = None, int64_vocabulary: list[int] | None = None
) -> ast.expr:
    """A row of a map's values for the keys of the vocabulary; 0 or an empty string for missing keys."""
    keys = string_vocabulary or int64_vocabulary
    if not keys or X.dtype is None:
        raise b.error("the node has no vocabulary, or the type of its map is unknown", WRITER)
    if X.info.kind != "map" or (X.info.key == STRING) != bool(string_vocabulary):
        raise b.error("the input is not a map with keys of the vocabulary's type", WRITER)
    return _row(b, b("map_values(x, k, d)", x=X, k=keys, d="" if X.dtype == STRING else 0), X.dtype)


@op("CastMap", domain=ML, infer=shapes.cast_map)
def cast_map(b: Builder, X: Arg, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> ast.expr:
    """A row of a map's values in the order of its keys (dense), or for each key below `max_map`, 0 if it is missing."""
    if cast_to not in CASTS or map_form not in ("DENSE", "SPARSE"):
        raise b.error("attribute 'cast_to' or 'map_form' has an unknown value", WRITER)
    default = "0.f" if cast_to == "TO_STRING" else 0  # "0.f" as in onnxruntime
    keys = None if map_form == "DENSE" else b("list(range(n))", n=max_map)
    return _row(b, b("map_values(x, k, d)", x=X, k=keys, d=default), CASTS[cast_to])
