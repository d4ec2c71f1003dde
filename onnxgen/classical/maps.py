"""Maps of ai.onnx.ml: from rows of numbers to dicts, and from dicts to rows."""

from __future__ import annotations

import ast

import onnx_ir as ir

from onnxgen import op
from onnxgen.classical import shapes
from onnxgen.classical.scores import ML, matrix
from onnxgen.code.quote import TORCH_DTYPES, quote
from onnxgen.errors import WRITER
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder

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
