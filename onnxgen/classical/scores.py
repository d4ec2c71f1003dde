"""What the classical models (ai.onnx.ml) share: rows of numbers in, scores through a transform, labels out.

The standard leaves much of this open; it is as onnxruntime has it.
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
    """`x`, of the type `source`, as `target`, a floating point type."""
    return literal(x) if source == target else b(METHODS[target], x=x)


def matrix(b: Builder, X: Arg) -> None:
    """Refuse an input that is neither a matrix, of a sample a row, nor a vector, which is one sample."""
    if X.known_rank not in (1, 2):
        raise b.error(
            f"the input has rank {X.rank}, but samples must be rows of a matrix", "reshape it to [N, features]"
        )


def rows(b: Builder, X: Arg, dtype: ir.DataType = ir.DataType.FLOAT) -> ast.expr:
    """The input as a matrix of a sample a row; a vector is one sample."""
    if X.known_rank not in (1, 2):
        raise b.error(
            f"the input has rank {X.known_rank}, but samples must be rows of a matrix", "reshape it to [N, features]"
        )
    x = as_dtype(b, X, X.dtype, dtype)
    return b("x.unsqueeze(0)", x=x) if X.rank == 1 else x


def table(b: Builder, arg: Arg, shape: tuple[int, ...], hint: str = "") -> ast.expr:
    """Numbers of an attribute in their shape: a parameter where they are trained, else a constant."""
    if arg.is_trainable:
        return b.parameter(arg, arg.name.rpartition(":")[2], shape=shape)
    return b.buffer(elements(b, arg).reshape(shape), hint or "table")


def elements(b: Builder, arg: Arg) -> np.ndarray[Any, Any]:
    """The numbers of an attribute, trained or not, as they are in the file."""
    if arg.source is not None:
        return arg.source.numpy()
    if arg.constant is None:
        raise b.error("the numbers of the attributes are not in the file", WRITER)
    return arg.constant


def transformed(b: Builder, scores: Any, name: str) -> ast.expr:
    """A post transform of scores of two or more columns."""
    if name not in TRANSFORMS:
        raise b.error(f"attribute 'post_transform' must be one of {', '.join(TRANSFORMS)}, not {name!r}", WRITER)
    return b(TRANSFORMS[name], x=scores)


def second_class(b: Builder, scores: Any, name: str, mixed: bool) -> ast.expr:
    """Two columns of the one score of a binary model, which is the second class's.

    `mixed`: weights of both signs, so that 0 divides the classes; otherwise the score is a probability (unless LOGISTIC
    makes it one).
    """
    if name == "PROBIT":
        raise b.error("PROBIT is not defined for one score of two classes", "give a score for each class")
    if name == "LOGISTIC":
        return b("torch.cat([-x, x], 1).sigmoid()", x=scores)
    return b("torch.cat([-x, x], 1)" if mixed else "torch.cat([1 - x, x], 1)", x=scores)


def labels(b: Builder, index: Any, ints: Sequence[int] | None, strings: Sequence[str] | None) -> ast.expr:
    """The labels of classes by their numbers: an int64 tensor, or text."""
    if strings:
        return b("text_at(t, i)", t=list(strings), i=index)
    if not ints or list(ints) == list(range(len(ints))):
        return literal(index)
    return b("c[i]", c=b.buffer(np.asarray(ints, np.int64), "classes"), i=index)
