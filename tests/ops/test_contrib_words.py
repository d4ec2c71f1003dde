"""Words embedded by their letters, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.ops.fuzz import floats
from tests.ops.harness import Ran, refusal, run_node
from tests.ops.kernels import needs

MICROSOFT, OP = "com.microsoft", "WordConvEmbedding"
STORED = {1, 2, 3}


def weights(filters: int = 4, window: int = 2, size: int = 3, letters: int = 10) -> list[Any]:
    return [floats(filters, 1, window, size, seed=1), floats(filters, seed=2), floats(letters, size)]


def words(*rows: list[int]) -> Any:
    return np.array(rows, np.int32)


def run(inputs: list[Any], attrs: dict[str, Any] | None = None, **kwargs: Any) -> Ran:
    return run_node(OP, inputs, attrs, domain=MICROSOFT, **kwargs)


@needs(OP)
@pytest.mark.parametrize("stored", [frozenset(), STORED])
def test_words_of_all_lengths(stored: set[int]) -> None:
    """Letters are counted wherever they stand, so that a gap hides the last of them."""
    rows = words([1, 2, 3, 0, 0], [4, 0, 0, 0, 0], [5, 6, 7, 8, 9], [1, 0, 2, 3, 0], [1, 0, 0, 4, 4], [1, 2, 0, 0, 4])
    ran = run([rows, *weights()], initializers=stored)
    if stored:
        assert "nn.Embedding(10, 3)" in ran.source and "nn.Conv2d(1, 4, kernel_size=(2, 3))" in ran.source


@needs(OP)
@pytest.mark.parametrize("window", [1, 2, 3, 6])
@pytest.mark.parametrize("dynamic", [False, True])
def test_windows(window: int, dynamic: bool) -> None:
    """Words shorter than the window have one place all the same."""
    rng = np.random.default_rng(window)
    lengths = rng.integers(1, 7, (12, 1))
    rows = np.where(np.arange(6) < lengths, rng.integers(1, 10, (12, 6)), 0).astype(np.int32)
    attrs = {"embedding_size": 5, "conv_window_size": window, "char_embedding_size": 3}
    run([rows, *weights(5, window)], attrs, initializers=STORED, dynamic=dynamic)


@needs(OP)
def test_no_words() -> None:
    run([np.zeros((0, 5), np.int32), *weights()], initializers=STORED)


@needs(OP)
def test_one_filter_and_one_number_a_letter() -> None:
    run([words([2, 1, 0], [1, 1, 1]), *weights(1, 2, 1, 3)])


def test_words_of_no_letter_are_zeros() -> None:
    """onnxruntime leaves their results unset."""
    rows = words([0, 0, 0], [1, 2, 3], [0, 3, 4])
    ran = run([rows, *weights()], compare=False)
    made = ran.outputs[0]
    assert not made[[0, 2]].any() and made[1].all()


def test_no_gradient_of_words_of_no_letter_is_nan() -> None:
    ran = run([words([0, 0, 0], [1, 2, 3]), *weights()], initializers=STORED, compare=False)
    ran.model(torch.tensor([[0, 0, 0], [1, 2, 3]], dtype=torch.int32)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in ran.model.parameters())


def test_what_contradicts_itself_is_refused() -> None:
    def why(inputs: list[Any], **attrs: int) -> str:
        return refusal(OP, inputs, attrs, domain=MICROSOFT)

    rows, (weight, bias, table) = words([1, 2, 3]), weights()
    assert "a size of 4 where an attribute says 5" in why([rows, weight, bias, table], embedding_size=5)
    assert "a size of 2 where an attribute says 3" in why([rows, weight, bias, table], conv_window_size=3)
    assert "a size of 3 where an attribute says 2" in why([rows, weight, bias, table], char_embedding_size=2)
    assert "words must be rows of a matrix" in why([rows[None], weight, bias, table])
    assert "the weight have 4 axes" in why([rows, weight[:, 0], bias, table])
    assert "has 2 channels" in why([rows, weight.repeat(2, 1), bias, table])
    assert "sizes" in refusal(OP, [rows, weight, bias, table], domain=MICROSOFT, dynamic=True)
