"""What classical models (ai.onnx.ml) share: rows in, scores and labels out, shapes of outputs.

Where the standard is not precise, onnxruntime is followed.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.code.quote import literal
from onnxgen.errors import WRITER
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.ops.cast import METHODS
from onnxgen.shapes.dims import Dim, product
from onnxgen.shapes.info import Info, NodeFacts, Shape, tensor

FLOAT, INT64, STRING = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.STRING


def _rows(n: NodeFacts) -> Dim:
    """Return the number of rows; a vector is one row. Raises `Unknown`."""
    shape = n.shape()
    return 1 if len(shape) == 1 else shape[0]


def _has(n: NodeFacts, name: str) -> bool:
    attribute = n.node.attributes.get(name)
    return attribute is not None and bool(len(attribute.value))


def same(n: NodeFacts) -> list[Info]:
    return [Info(n.dtype(), n.input(0).shape)]


def as_float(n: NodeFacts) -> list[Info]:
    return [Info(FLOAT, n.input(0).shape)]


def regressor(n: NodeFacts) -> list[Info]:
    columns = 1 if n.op == "SVMRegressor" else n.int_("targets" if n.op == "LinearRegressor" else "n_targets", 1)
    dtype = n.dtype() if n.op == "TreeEnsemble" else FLOAT
    return [tensor(dtype, [_rows(n), columns])]


def classifier(n: NodeFacts) -> list[Info]:
    """Labels, and one column of scores per class (or, for support vectors, per pair of classes)."""
    labels = STRING if _has(n, "classlabels_strings") else INT64
    columns: Dim = n.fresh(1, 1)
    if n.op == "TreeEnsembleClassifier":
        listed = n.node.attributes.get("classlabels_strings" if labels == STRING else "classlabels_int64s")
        columns = len(listed.value) if listed is not None else columns
    elif n.op == "LinearClassifier" and n.has(2):
        count = n.shape(2)[0]
        named = labels == STRING or _has(n, "classlabels_ints")
        columns = 2 if count == 1 and named else count
    return [tensor(labels, [_rows(n)]), tensor(FLOAT, [_rows(n), columns])]


def encoder(n: NodeFacts) -> list[Info]:
    """LabelEncoder and CategoryMapper: the type follows from the values, else from the input."""
    shape = n.input(0).shape
    for name, dtype in (("values_strings", STRING), ("values_int64s", INT64), ("values_floats", FLOAT)):
        if _has(n, name):
            return [Info(dtype, shape)]
    if "values_tensor" in n.node.attributes:
        return [Info(n.node.attributes["values_tensor"].value.dtype, shape)]
    return [Info({STRING: INT64, INT64: STRING}.get(n.dtype() or INT64), shape)]


def one_hot_encoder(n: NodeFacts) -> list[Info]:
    name = "cats_int64s" if _has(n, "cats_int64s") else "cats_strings"
    return [tensor(FLOAT, [*n.shape(), len(n.node.attributes[name].value)])]


def feature_vectorizer(n: NodeFacts) -> list[Info]:
    sizes = n.ints("inputdimensions")
    return [tensor(FLOAT, [_rows(n), n.fresh(1) if sizes is None else sum(sizes)])]


def array_feature_extractor(n: NodeFacts) -> list[Info]:
    shape = n.shape()
    lead: Shape = (1,) if len(shape) == 1 else shape[:-1]
    return [tensor(n.dtype(), [*lead, product(n.shape(1))])]


def zip_map(n: NodeFacts) -> list[Info]:
    return [Info(FLOAT, None, None, "maps", STRING if _has(n, "classlabels_strings") else INT64)]


def dict_vectorizer(n: NodeFacts) -> list[Info]:
    name = "string_vocabulary" if _has(n, "string_vocabulary") else "int64_vocabulary"
    return [tensor(n.dtype(), [1, len(n.node.attributes[name].value)])]


def cast_map(n: NodeFacts) -> list[Info]:
    dtype = {"TO_STRING": STRING, "TO_INT64": INT64}.get(n.str_("cast_to", "TO_FLOAT"), FLOAT)
    is_dense = n.str_("map_form", "DENSE") == "DENSE"
    return [tensor(dtype, [1, n.fresh(1) if is_dense else n.int_("max_map", 1)])]


ML = "ai.onnx.ml"
TRANSFORMS = {
    "NONE": "x",
    "SOFTMAX": "x.softmax(1)",
    "LOGISTIC": "x.sigmoid()",
    "SOFTMAX_ZERO": "softmax_zero(x)",
    "PROBIT": "probit(x)",
}


def as_dtype(b: Builder, x: Any, source: ir.DataType | None, target: ir.DataType) -> ast.expr:
    """Convert `x` from the type `source` to `target`, a floating point type."""
    return literal(x) if source == target else b(METHODS[target], x=x)


def matrix(b: Builder, X: Arg) -> None:
    """Refuse an input that is neither a matrix with one sample per row nor a vector, which is one sample."""
    if X.known_rank not in (1, 2):
        raise b.error(
            f"the input has rank {X.rank}, but samples must be rows of a matrix", "reshape it to [N, features]"
        )


def rows(b: Builder, X: Arg, dtype: ir.DataType = ir.DataType.FLOAT) -> ast.expr:
    """Return the input as a matrix with one sample per row."""
    matrix(b, X)
    x = as_dtype(b, X, X.dtype, dtype)
    return b("x.unsqueeze(0)", x=x) if X.rank == 1 else x


def table(b: Builder, arg: Arg, shape: tuple[int, ...], hint: str = "") -> ast.expr:
    """Return the numbers of an attribute in a shape, as a parameter if they are trained, else as a constant."""
    if arg.is_trainable:
        return b.parameter(arg, arg.name.rpartition(":")[2], shape=shape)
    return b.buffer(elements(b, arg).reshape(shape), hint or "table")


def elements(b: Builder, arg: Arg) -> np.ndarray[Any, Any]:
    """Return the numbers of an attribute as they are in the file, trained or not."""
    if arg.source is not None:
        return arg.source.numpy()
    if arg.constant is None:
        raise b.error("the numbers of the attributes are not in the file", WRITER)
    return arg.constant


def transformed(b: Builder, scores: Any, name: str) -> ast.expr:
    """Apply a post transform to scores of two or more columns."""
    if name not in TRANSFORMS:
        raise b.error(f"attribute 'post_transform' must be one of {', '.join(TRANSFORMS)}, not {name!r}", WRITER)
    return b(TRANSFORMS[name], x=scores)


def second_class(b: Builder, scores: Any, name: str, mixed: bool) -> ast.expr:
    """Make two columns of the single score of a binary model, which is the score of the second class.

    `mixed`: the weights have both signs, so that 0 divides the classes. Otherwise the score is a probability, unless
    LOGISTIC makes it one.
    """
    if name == "PROBIT":
        raise b.error("PROBIT is not defined for one score of two classes", "give a score for each class")
    if name == "LOGISTIC":
        return b("torch.cat([-x, x], 1).sigmoid()", x=scores)
    return b("torch.cat([-x, x], 1)" if mixed else "torch.cat([1 - x, x], 1)", x=scores)


def labels(b: Builder, index: Any, ints: Sequence[int] | None, strings: Sequence[str] | None) -> ast.expr:
    """Return the labels of classes, given by index: an int64 tensor, or text."""
    if strings:
        return b("text_at(t, i)", t=list(strings), i=index)
    if not ints or list(ints) == list(range(len(ints))):
        return literal(index)
    return b("c[i]", c=b.buffer(np.asarray(ints, np.int64), "classes"), i=index)
