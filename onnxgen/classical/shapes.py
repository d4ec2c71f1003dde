"""Dtypes and shapes of the outputs of classical models (ai.onnx.ml)."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.shapes.dims import Dim, product
from onnxgen.shapes.info import Info, Shape
from onnxgen.shapes.node_facts import NodeFacts, tensor

FLOAT, INT64, STRING = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.STRING


def _rows(n: NodeFacts) -> Dim:
    """Return the number of rows; a vector is one row. Raises `Unknown`."""
    shape = n.shape()
    return 1 if len(shape) == 1 else shape[0]


def _has(n: NodeFacts, name: str) -> bool:
    found = n.node.attributes.get(name)
    return found is not None and bool(len(found.value))


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
        found = n.node.attributes.get("classlabels_strings" if labels == STRING else "classlabels_int64s")
        columns = len(found.value) if found is not None else columns
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
