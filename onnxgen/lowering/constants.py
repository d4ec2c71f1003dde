"""Constants as expressions that make exactly their elements."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.literals import tensor_literal, text_literal
from onnxgen.code.quote import OMIT
from onnxgen.errors import WrongTranslation
from onnxgen.validate.constants import checked

CPU = ast.Constant("cpu")


def written(array: NDArray[Any], dtype: ir.DataType, is_loaded: bool = False) -> ast.expr | None:
    """Return an expression that makes a constant, and check it. None if the constant is large and has no form.

    A form that does not make the very elements is none: they are listed, or stored. A constant that no file has (not
    `is_loaded`) is made on the CPU also where parameters are made on the meta device.
    """
    how = array, dtype, OMIT if is_loaded else CPU, is_loaded
    try:
        return _checked(tensor_literal(*how), array, dtype, is_loaded)
    except WrongTranslation:
        return _checked(tensor_literal(*how, has_form=False), array, dtype, is_loaded)


def _checked(made: ast.expr | None, array: NDArray[Any], dtype: ir.DataType, is_loaded: bool) -> ast.expr | None:
    return None if made is None else checked(made, array, dtype, is_loaded)


def written_text(items: list[str], shape: tuple[int, ...]) -> ast.expr | None:
    """Return an expression that makes an array of strings, and check it; None if there are many."""
    array = np.array(items, dtype=object).reshape(shape)
    return _checked(text_literal(items, shape), array, ir.DataType.STRING, False)
