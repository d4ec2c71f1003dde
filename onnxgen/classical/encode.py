"""Encoders of ai.onnx.ml: from labels and categories to other labels, numbers or columns."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen import op
from onnxgen.classical import shapes
from onnxgen.classical.scores import ML
from onnxgen.errors import INFER, WRITER
from onnxgen.graph.gradients import INTEGERS, PIECEWISE_CONSTANT
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder

STRING, FLOAT, INT64 = ir.DataType.STRING, ir.DataType.FLOAT, ir.DataType.INT64
Column = list[Any]


def _key_indices(b: Builder, X: Arg, keys: Column) -> tuple[ast.expr, list[int]]:
    """Return the index of each element among the keys, `len(keys)` if it is not a key; and the order of the keys.

    The first of equal keys counts.
    """
    if X.dtype is None:
        raise b.error("the type of the input is unknown", INFER)
    if X.dtype == STRING:
        first = {key: i for i, key in reversed(list(enumerate(keys)))}
        order = sorted(first.values())
        return b("text_places(x, k)", x=X, k=[keys[i] for i in order]), order
    array = np.asarray(keys, X.dtype.numpy())
    _, found = np.unique(array, return_index=True)  # sorted; the first of equal keys, a single NaN at the end
    return b("places_of(x, k)", x=X, k=b.buffer(array[found], "keys")), [int(i) for i in found]


def _mapped(b: Builder, X: Arg, keys: Column, values: Column, default: Any, dtype: ir.DataType) -> ast.expr:
    """Return the value of the key that each element of X is, `default` if it is not a key."""
    if len(keys) != len(values):
        raise b.error(f"the node has {len(keys)} keys but {len(values)} values", WRITER)
    if not keys:
        raise b.error("the node has no keys_* attribute", WRITER)
    place, order = _key_indices(b, X, keys)
    listed = [*(values[i] for i in order), default]
    if dtype == STRING:
        return b("text_at(t, p)", t=listed, p=place)
    return b("v[p]", v=b.buffer(np.asarray(listed, dtype.numpy()), "values"), p=place)


def _last(keys: Sequence[Any], values: Sequence[Any]) -> tuple[Column, Column]:
    """Return keys and values with the last value for each key."""
    found = dict(zip(keys, values))
    return list(found), list(found.values())


@op("LabelEncoder", domain=ML, infer=shapes.encoder)
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
    if X.dtype == STRING:
        return _mapped(b, X, *_last(texts, range(len(texts))), default_int64, INT64)
    return _mapped(b, X, list(range(len(texts))), texts, default_string, STRING)


@op("LabelEncoder", since=2, domain=ML, infer=shapes.encoder, flat=INTEGERS)
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
    given: list[tuple[Column | None, Any, ir.DataType]] = [
        (values_strings, default_string, STRING),
        (values_int64s, default_int64, INT64),
        (values_floats, default_float, FLOAT),
    ]
    values, default, dtype = next((g for g in given if g[0]), (None, None, STRING))
    if values is None and values_tensor is not None:
        dtype = ir.DataType(values_tensor.dtype)
        values = _listed(values_tensor)
        usual = {STRING: default_string, INT64: default_int64}
        default = usual.get(dtype, default_float if dtype.is_floating_point() else -1)
    if keys is None or values is None:
        raise b.error("the node has no keys_* or no values_* attribute", WRITER)
    if default_tensor is not None:
        default = (_listed(default_tensor) or [default])[0]
    if b.opset < 4 and X.is_float:  # NaN is not found as a key
        pairs = [(k, v) for k, v in zip(keys, values) if k == k]
        keys, values = [k for k, _ in pairs], [v for _, v in pairs]
    return _mapped(b, X, keys, values, default, dtype)


def _listed(tensor: ir.TensorProtocol | None) -> Column | None:
    """Return the elements of a tensor, with strings decoded."""
    if tensor is None:
        return None
    found = tensor.numpy().reshape(-1).tolist()
    return [e.decode("utf-8", "replace") if isinstance(e, bytes) else e for e in found]


@op("CategoryMapper", domain=ML, infer=shapes.encoder, flat=INTEGERS)
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
    if X.dtype == STRING:
        return _mapped(b, X, *_last(texts, numbers), default_int64, INT64)
    return _mapped(b, X, *_last(numbers, texts), default_string, STRING)


@op("OneHotEncoder", domain=ML, infer=shapes.one_hot_encoder, flat=PIECEWISE_CONSTANT)
def one_hot_encoder(
    b: Builder, X: Arg, *, cats_strings: list[str] | None = None, cats_int64s: list[int] | None = None, zeros: int = 1
) -> ast.expr:
    """One column of zeros and ones per category. Unknown values give zeros, or an error at run time if `zeros` is 0."""
    categories: Column = cats_strings if cats_strings and X.dtype == STRING else cats_int64s or []
    if not categories:
        raise b.error("the node has no categories of the input's type", WRITER)
    if len(set(categories)) < len(categories):
        raise b.error("the node lists a category twice", WRITER)
    count = len(categories)
    x = X if X.dtype in (INT64, STRING) else b("x.long()", x=X)
    if X.dtype == STRING:
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
