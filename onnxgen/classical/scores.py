"""What classical models (ai.onnx.ml) share: rows of numbers in, scores with a transform and labels out.

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
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.cast import METHODS

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
