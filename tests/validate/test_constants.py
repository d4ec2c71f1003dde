"""Constants that are written as what they are: right ones are let pass, and each edit of one is refused."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnxgen.code.literals import tensor_literal, text_literal
from onnxgen.validate import WrongTranslation
from onnxgen.validate.constants import checked
from tests.code.test_literals import FORMS

ARRAYS = [array for array, form in FORMS if form is not None]


def made(array: np.ndarray[Any, Any]) -> tuple[ast.expr, ir.DataType]:
    dtype = ir.DataType.from_numpy(array.dtype)
    tree = tensor_literal(array, dtype, ast.Constant("cpu"))
    assert tree is not None
    return tree, dtype


@pytest.mark.parametrize("array", ARRAYS, ids=range(len(ARRAYS)))
def test_every_form_is_let_pass_and_no_other_number(array: np.ndarray[Any, Any]) -> None:
    tree, dtype = made(array)
    checked(tree, array, dtype)
    other = array.copy()
    other.flat[-1] = 0 if other.flat[-1] else 1
    with pytest.raises(WrongTranslation, match="other numbers"):
        checked(tree, other, dtype)


@pytest.mark.parametrize(
    ("array", "wrong"),
    [
        (np.arange(32), "torch.arange(33)"),
        (np.arange(32), "torch.arange(32, dtype=torch.int32)"),
        (np.arange(32)[None], "torch.arange(32)"),
        (np.arange(32)[None], "torch.arange(32)[0]"),
        (np.arange(32)[None], "torch.arange(32)[:, None]"),
        (np.arange(9, 0, -1), "torch.arange(0, 9)"),
        (np.eye(5, dtype=np.float32), "torch.ones(5, 5).tril()"),
        (np.tril(np.ones((5, 5), np.float32)), "torch.ones(5, 5).tril(1)"),
        (np.tril(np.ones((5, 5), np.float32)), "torch.ones(5, 5).triu()"),
        (np.arange(8) * np.float32(0.1), "torch.arange(8) * 0.2"),
        (np.full((2, 3), 5.0, np.float32), "torch.full((3, 2), 5.0)"),
        (np.full((2, 3), 5.0, np.float32), "torch.full((2, 3), 5)"),
        (np.zeros(2, np.float32), "-torch.zeros(2)"),
        (np.zeros(2, np.float32), "torch.tensor([0.0, -0.0])"),
        (np.zeros(2, np.float32), "torch.rand(2)"),
        (np.zeros(2, np.float32), "torch.zeros(2, pin_memory=True)"),
        (np.zeros(2, np.float32), "torch.empty((2,))"),
    ],
)
def test_what_is_wrong_is_refused(array: np.ndarray[Any, Any], wrong: str) -> None:
    with pytest.raises(WrongTranslation):
        checked(ast.parse(wrong, mode="eval").body, array, ir.DataType.from_numpy(array.dtype))


def test_text() -> None:
    array = np.array(["a", "b'"], dtype=object)
    tree = text_literal(list(array), (2,))
    assert tree is not None and checked(tree, array, ir.DataType.STRING) is tree
    for wrong in ("np.array(['b', 'a'], dtype=object)", "np.array([['a', 'b']], dtype=object)", "np.array(v)"):
        with pytest.raises(WrongTranslation):
            checked(ast.parse(wrong, mode="eval").body, array, ir.DataType.STRING)
