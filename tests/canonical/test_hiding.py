"""Spellings of an attention mask: one function to a query that has a key, and only to such."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.canonical.transplant import NotTheSame, transplant
from tests.canonical.test_transplant import drawn

LOWEST = torch.finfo(torch.float32).min
X, MASK = torch.randn(2, 5, 8), torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]])


SPELLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "chosen": lambda s, shown: torch.where(shown, s, -math.inf).softmax(-1),
    "chosen low": lambda s, shown: s.masked_fill(~shown, LOWEST).softmax(-1),
    "added": lambda s, shown: (s + torch.where(shown, 0.0, LOWEST)).softmax(-1),
    "added by product": lambda s, shown: (s + (1.0 - shown.float()) * LOWEST).softmax(-1),
    "added -inf": lambda s, shown: (s + torch.where(shown, 0.0, -math.inf)).softmax(-1),
}
TORCH = ["torch", *SPELLINGS]
OTHERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "less low": lambda s, shown: s.masked_fill(~shown, -1e4).softmax(-1),
    "not low": lambda s, shown: (s + torch.where(shown, 0.0, -1.0)).softmax(-1),
    "the reverse": lambda s, shown: s.masked_fill(shown, LOWEST).softmax(-1),
    "behind": lambda s, shown: s.softmax(-1) * shown,
    "none": lambda s, shown: s.softmax(-1),
    "queries": lambda s, shown: s.masked_fill(~shown.transpose(1, 2), LOWEST).softmax(-1),
    "later": lambda s, shown: s.masked_fill(~shown.roll(1, -1), LOWEST).softmax(-1),
}


class Masked(nn.Module):
    """Attention with a mask."""

    def __init__(self, shares: Callable[[Tensor, Tensor], Tensor] | None) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.shares = shares

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v, shown = self.q(x), self.k(x), self.v(x), mask.bool()[:, None]
        if self.shares is None:  # torch's own
            return F.scaled_dot_product_attention(q, k, v, shown)
        return self.shares(q @ k.transpose(1, 2) * 8**-0.5, shown) @ v  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("masks")

    def file(spelling: str) -> Path:
        path = folder / f"{spelling}.onnx"
        if not path.exists():
            torch.onnx.export(drawn(Masked(SPELLINGS.get(spelling)), 1), (X, MASK), str(path), dynamo=False)
        return path

    return file


PAIRS = [("added", other) for other in TORCH] + [("torch", other) for other in TORCH]


@pytest.mark.parametrize(("one", "other"), PAIRS)
@pytest.mark.filterwarnings("ignore")
def test_spellings(files: Callable[[str], Path], one: str, other: str) -> None:
    module = drawn(Masked(SPELLINGS.get(other)), 2)
    report = transplant(files(one), module)
    original = drawn(Masked(SPELLINGS.get(one)), 1)
    torch.testing.assert_close(module(X, MASK), original(X, MASK), rtol=1e-5, atol=1e-5)
    one_, other_ = (m.eval()(X, MASK * 0) for m in (original, module))
    if not torch.allclose(one_, other_, rtol=1e-4, atol=1e-4, equal_nan=True):
        assert report.assumed  # said wherever they differ


@pytest.mark.parametrize(("one", "other"), list(itertools.product(["added", "torch"], OTHERS)))
@pytest.mark.filterwarnings("ignore")
def test_others(files: Callable[[str], Path], one: str, other: str) -> None:
    with pytest.raises(NotTheSame):
        transplant(files(one), drawn(Masked(OTHERS[other]), 2))
