"""Features of ai.onnx.ml: encoders, scaling, normalising, imputing, joining, and maps.

Encoders go from labels and categories to other labels, numbers or columns. Maps are dicts to rows,
and rows to dicts.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen import op
from onnxgen.classical import scores
from onnxgen.classical.scores import ML, as_dtype, elements, matrix, table
from onnxgen.code.quote import quote, shortest
from onnxgen.errors import INFER, WRITER
from onnxgen.graph.operators import INTEGERS, PIECEWISE_CONSTANT
from onnxgen.graph.traits import STANDARDISES
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.weights.dtypes import TORCH_DTYPES

TEXT, FLOAT32, INT64 = ir.DataType.STRING, ir.DataType.FLOAT, ir.DataType.INT64
Column = list[Any]


def _key_indices(b: Builder, X: Arg, keys: Column) -> tuple[ast.expr, list[int]]:
    """Return the index of each element among the keys, `len(keys)` if it is not a key; and the order of the keys.

    The first of equal keys counts.
    """
    if X.dtype is None:
        raise b.error("the type of the input is unknown", INFER)
    if X.dtype == TEXT:
        first = {key: i for i, key in reversed(list(enumerate(keys)))}
        order = sorted(first.values())
        return b("text_places(x, k)", x=X, k=[keys[i] for i in order]), order
    array = np.asarray(keys, X.dtype.numpy())
    _, rows = np.unique(array, return_index=True)  # sorted; the first of equal keys, a single NaN at the end
    return b("places_of(x, k)", x=X, k=b.buffer(array[rows], "keys")), [int(i) for i in rows]


def _mapped(b: Builder, X: Arg, keys: Column, values: Column, default: Any, dtype: ir.DataType) -> ast.expr:
    """Return the value of the key that each element of X is, `default` if it is not a key."""
    if len(keys) != len(values):
        raise b.error(f"the node has {len(keys)} keys but {len(values)} values", WRITER)
    if not keys:
        raise b.error("the node has no keys_* attribute", WRITER)
    place, order = _key_indices(b, X, keys)
    listed = [*(values[i] for i in order), default]
    if dtype == TEXT:
        return b("text_at(t, p)", t=listed, p=place)
    return b("v[p]", v=b.buffer(np.asarray(listed, dtype.numpy()), "values"), p=place)


def _last(keys: Sequence[Any], values: Sequence[Any]) -> tuple[Column, Column]:
    """Return keys and values with the last value for each key."""
    last = dict(zip(keys, values))
    return list(last), list(last.values())


@op("LabelEncoder", domain=ML, infer=scores.encoder)
def label_encoder_1(
    b: Builder,
    X: Arg,
    *,
    classes_strings: list[str] | None = None,
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> ast.expr:
    """From a string to its index in a list, or back."""
    texts = classes_strings or []
    if X.dtype == TEXT:
        return _mapped(b, X, *_last(texts, range(len(texts))), default_int64, INT64)
    return _mapped(b, X, list(range(len(texts))), texts, default_string, TEXT)


@op("LabelEncoder", since=2, domain=ML, infer=scores.encoder, flat=INTEGERS)
def label_encoder(
    b: Builder,
    X: Arg,
    *,
    keys_strings: list[str] | None = None,
    keys_int64s: list[int] | None = None,
    keys_floats: list[float] | None = None,
    keys_tensor: ir.TensorProtocol | None = None,
    values_strings: list[str] | None = None,
    values_int64s: list[int] | None = None,
    values_floats: list[float] | None = None,
    values_tensor: ir.TensorProtocol | None = None,
    default_string: str = "_Unused",
    default_int64: int = -1,
    default_float: float = -0.0,
    default_tensor: ir.TensorProtocol | None = None,
) -> ast.expr:
    """From keys to values. NaN can be a key from opset 4 on."""
    keys = keys_strings or keys_int64s or keys_floats or _listed(keys_tensor)
    tables: list[Table] = [
        (values_strings, default_string, TEXT),
        (values_int64s, default_int64, INT64),
        (values_floats, default_float, FLOAT32),
    ]
    values, default, dtype = _values(tables, values_tensor)
    if keys is None or values is None:
        raise b.error("the node has no keys_* or no values_* attribute", WRITER)
    if default_tensor is not None:
        default = (_listed(default_tensor) or [default])[0]
    if b.opset < 4 and X.is_float:  # NaN is not found as a key
        pairs = [(k, v) for k, v in zip(keys, values) if k == k]
        keys, values = [k for k, _ in pairs], [v for _, v in pairs]
    return _mapped(b, X, keys, values, default, dtype)


Table = tuple["Column | None", Any, ir.DataType]  # values, the default, and their type


def _values(tables: list[Table], tensor: ir.TensorProtocol | None) -> Table:
    """Return the first table that has values, or the tensor's, with the default of its type."""
    for listed in tables:
        if listed[0]:
            return listed
    if tensor is None:
        return None, None, TEXT
    dtype = ir.DataType(tensor.dtype)
    usual = {kind: default for _, default, kind in tables}
    return _listed(tensor), usual.get(dtype, usual[FLOAT32] if dtype.is_floating_point() else -1), dtype


def _listed(tensor: ir.TensorProtocol | None) -> Column | None:
    """Return the elements of a tensor, with strings decoded."""
    if tensor is None:
        return None
    items = tensor.numpy().reshape(-1).tolist()
    return [e.decode("utf-8", "replace") if isinstance(e, bytes) else e for e in items]


@op("CategoryMapper", domain=ML, infer=scores.encoder, flat=INTEGERS)
def category_mapper(
    b: Builder,
    X: Arg,
    *,
    cats_strings: list[str] | None = None,
    cats_int64s: list[int] | None = None,
    default_string: str = "_Unused",
    default_int64: int = -1,
) -> ast.expr:
    """From strings to numbers, or back."""
    texts, numbers = cats_strings or [], cats_int64s or []
    if X.dtype == TEXT:
        return _mapped(b, X, *_last(texts, numbers), default_int64, INT64)
    return _mapped(b, X, *_last(numbers, texts), default_string, TEXT)


@op("OneHotEncoder", domain=ML, infer=scores.one_hot_encoder, flat=PIECEWISE_CONSTANT)
def one_hot_encoder(
    b: Builder, X: Arg, *, cats_strings: list[str] | None = None, cats_int64s: list[int] | None = None, zeros: int = 1
) -> ast.expr:
    """One column of zeros and ones per category. Unknown values give zeros, or an error at run time if `zeros` is 0."""
    categories: Column = cats_strings if cats_strings and X.dtype == TEXT else cats_int64s or []
    if not categories:
        raise b.error("the node has no categories of the input's type", WRITER)
    if len(set(categories)) < len(categories):
        raise b.error("the node lists a category twice", WRITER)
    count = len(categories)
    x = X if X.dtype in (INT64, TEXT) else b("x.long()", x=X)
    if X.dtype == TEXT:
        place = b("text_places(x, k)", x=X, k=categories)
    elif zeros:
        cats = b.buffer(np.asarray(categories, np.int64), "categories")
        return b("(x.unsqueeze(-1) == c).float()", x=x, c=cats)
    else:
        order = np.argsort(categories)
        inverse = b.buffer(np.asarray([*order, count], np.int64), "columns")
        keys = b.buffer(np.asarray(categories, np.int64)[order], "categories")
        place = b("c[places_of(x, k)]", c=inverse, x=x, k=keys)
    if not zeros:
        place = b("is_known(p, n)", p=place, n=count)
    return b("F.one_hot(p, n)[..., :m].float()", p=place, n=count + 1, m=count)


FLOAT, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE


@op("Scaler", domain=ML, infer=scores.as_float, tables=("offset", "scale"), traits=[STANDARDISES])
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


@op("Normalizer", domain=ML, infer=scores.as_float)
def normalizer(b: Builder, X: Arg, *, norm: str = "MAX") -> ast.expr:
    """Divide rows by their norm, unless it is 0. MAX is the largest number, not the largest absolute value."""
    matrix(b, X)
    if norm not in NORMS:
        raise b.error(f"attribute 'norm' must be one of {', '.join(NORMS)}, not {norm!r}", WRITER)
    x = as_dtype(b, X, X.dtype, FLOAT)
    x = x if X.dtype == FLOAT else b.let(x)
    length = b(NORMS[norm], x=x)
    return b("x / n", x=x, n=length if norm == "L2" else b("or_one(n)", n=length))


@op("Imputer", domain=ML, infer=scores.same)
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


@op("Binarizer", domain=ML, infer=scores.same, flat=PIECEWISE_CONSTANT)
def binarizer(b: Builder, X: Arg, *, threshold: float = 0.0) -> ast.expr:
    """1 where X is greater than the threshold, else 0."""
    return b("(x > t).to(d)", x=X, t=shortest(threshold, X.dtype), d=X.dtype)


@op("FeatureVectorizer", domain=ML, infer=scores.feature_vectorizer)
def feature_vectorizer(b: Builder, *X: Arg, inputdimensions: list[int] | None = None) -> ast.expr:
    """Join inputs side by side, each cut or padded with zeros to its number of columns."""
    if inputdimensions is not None and len(inputdimensions) != len(X):
        raise b.error(f"the node has {len(X)} inputs but {len(inputdimensions)} inputdimensions", WRITER)
    counts: Sequence[int | None] = inputdimensions or [None] * len(X)
    return b("torch.cat(x, 1)", x=[b("feature_rows(x, n)", x=x, n=n) for x, n in zip(X, counts)])


@op("ArrayFeatureExtractor", domain=ML, infer=scores.array_feature_extractor)
def array_feature_extractor(b: Builder, X: Arg, Y: Arg) -> ast.expr:
    """Pick columns of the last axis; those of a vector become one row."""
    is_text = X.dtype == ir.DataType.STRING
    picked = b("x[..., y.flatten().cpu().numpy()]" if is_text else "x[..., y.flatten()]", x=X, y=Y)
    return b("p[None]" if is_text else "p.unsqueeze(0)", p=picked) if X.known_rank == 1 else picked


STRING = ir.DataType.STRING
CASTS = {"TO_FLOAT": ir.DataType.FLOAT, "TO_INT64": ir.DataType.INT64, "TO_STRING": STRING}


@op("ZipMap", domain=ML, infer=scores.zip_map)
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


@op("DictVectorizer", domain=ML, infer=scores.dict_vectorizer)
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


@op("CastMap", domain=ML, infer=scores.cast_map)
def cast_map(b: Builder, X: Arg, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> ast.expr:
    """A row of a map's values in the order of its keys (dense), or for each key below `max_map`, 0 if it is missing."""
    if cast_to not in CASTS or map_form not in ("DENSE", "SPARSE"):
        raise b.error("attribute 'cast_to' or 'map_form' has an unknown value", WRITER)
    default = "0.f" if cast_to == "TO_STRING" else 0  # "0.f" as in onnxruntime
    keys = None if map_form == "DENSE" else b("list(range(n))", n=max_map)
    return _row(b, b("map_values(x, k, d)", x=X, k=keys, d=default), CASTS[cast_to])
