"""`--pooling`: the vector of a text, of an output that has a vector for each of its tokens.

It is what sentence-transformers does behind such a network (Reimers and Gurevych 1908.10084): mean, first token or
greatest element over the tokens of the text, without its padding; then each vector has length 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.common.names import listed
from onnxgen.errors import OnnxgenError
from onnxgen.training.data.feeding import fed
from onnxgen.training.data.samples import Batch, Feeding
from onnxgen.training.data.text.roles import IDS, MASK, roles_of

if TYPE_CHECKING:
    from onnxgen.training.settings import Settings

AUTO, MEAN, CLS = "auto", "mean", "cls"
WORDS = {MEAN: "the mean over its tokens", CLS: "the first token", "max": "the greatest number over its tokens"}
WAY = "export the network with its pooling, or --pooling cls, which takes the first token"


@dataclass(frozen=True)
class Pooling:
    """How the vectors of tokens become those of texts.

    Attributes:
        how: one of `POOLINGS` of the settings, but not "auto".
        output: the index of the output, [n, tokens, D]; `name` its name.
        mask: the column of the mask; "" if the network has none. `fed` is the name of its input.
    """

    how: str
    output: int
    name: str
    mask: str
    fed: str

    def __call__(self, vectors: Tensor, batch: Batch) -> Tensor:
        """Return the vectors of texts [n, D], each of length 1, of those of their tokens [n, tokens, D]."""
        vectors = vectors.float()
        if self.how == CLS:
            return F.normalize(vectors[:, 0], dim=1)
        real = batch[self.mask].to(vectors.device)[:, :, None] != 0
        if self.how == MEAN:
            whole = vectors.masked_fill(~real, 0).sum(1) / real.sum(1).clamp_min(1)
        else:
            whole = vectors.masked_fill(~real, -math.inf).amax(1)
        return F.normalize(whole, dim=1)


def pooling_of(
    model: nn.Module, feeding: Feeding, settings: Settings, outputs: Sequence[Any], names: Sequence[str]
) -> Pooling | None:
    """Return the pooling that the settings ask for, or that the outputs need; None if an output is [n, D] already.

    Args:
        outputs: of the model, for any batch.
        names: theirs.

    Raises:
        OnnxgenError: no output has a vector for each token, or several have; or the network has no mask.
    """
    fits = [n for n, y in enumerate(outputs) if isinstance(y, Tensor) and y.ndim == 3 and y.is_floating_point()]
    flat = [n for n, y in enumerate(outputs) if isinstance(y, Tensor) and y.ndim == 2]
    inputs = fed(model).inputs
    roles = roles_of(fed(model), ())
    if settings.pooling == AUTO and (flat or len(fits) != 1 or IDS not in roles):
        return None
    if isinstance(settings.target, Mapping) and settings.target:
        fits = [n for n in fits if names[n] in settings.target]
    how = MEAN if settings.pooling == AUTO else settings.pooling
    if len(fits) != 1 or IDS not in roles:
        shapes = listed(f"{name} {list(y.shape)}" for name, y in zip(names, outputs) if isinstance(y, Tensor))
        what = f"--pooling needs one output with a vector for each token [N, T, D], and the outputs are {shapes}"
        raise OnnxgenError(what, help="an output [N, D] needs none; of several, name one: --target OUTPUT=COLUMN")
    mask = roles.get(MASK)
    if mask is None and how != CLS:
        raise OnnxgenError(
            f"--pooling {how}: the network has no input {MASK}, which tells texts from padding", help=WAY
        )
    columns = {port.name: column for port, column in zip(inputs, feeding.inputs)}
    column = columns[mask.name] if mask is not None else ""
    return Pooling(how, fits[0], names[fits[0]], column, mask.name if mask is not None else "")
