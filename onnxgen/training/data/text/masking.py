"""Masks tokens anew in each epoch (Devlin et al. 1810.04805)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from onnxgen.training.data.draw import uniform

SHARE, KEPT, RANDOM = 0.15, 0.1, 0.1  # of all tokens; and of these: left as they are, replaced by any token
IGNORED = -100
_STREAM = 15


@dataclass(frozen=True)
class Masked:
    """Masks token ids, or makes their labels; both draw the same tokens for a sample, its index and a seed.

    Attributes:
        dtype, shape: of a sample.
        mask: the id of the mask token.
        vocabulary: tokens that replace others have smaller ids.
        specials: ids that are never masked.
        labels: True for the column of labels, which has -100 at all tokens that were not drawn.
        frozen: True to draw the same in each epoch (for a validation).
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    mask: int
    vocabulary: int
    specials: frozenset[int]
    labels: bool
    frozen: bool

    def __call__(self, x: Tensor, indices: Sequence[int], seed: int) -> Tensor:
        """Return the ids of samples [n, length] with some of them masked, or their labels."""
        length = x.shape[1]
        drawn = torch.from_numpy(uniform(0 if self.frozen else seed, indices, 3 * length, _STREAM))
        chosen, way, other = drawn[:, :length], drawn[:, length : 2 * length], drawn[:, 2 * length :]
        masked = (chosen < SHARE) & (x != IGNORED)
        masked &= ~torch.isin(x, torch.tensor(sorted(self.specials), dtype=x.dtype))
        if self.labels:
            return torch.where(masked, x, IGNORED).to(self.dtype)
        any_token = (other * self.vocabulary).long().to(x.dtype)
        new = torch.where(way < RANDOM, any_token, torch.full_like(x, self.mask))
        return torch.where(masked & (way < 1 - KEPT), new, x).to(self.dtype)
