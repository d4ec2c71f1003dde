"""Losses of a user, for `--task module:function`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

Named = Mapping[str, Tensor]
calls = 0


def scaled(outputs: Named, batch: Named) -> dict[str, Any]:
    """Numbers have names: the loss, and another."""
    away = outputs["y"][:, 0] - batch["t"]
    return {"loss": away.square().mean(), "away_error": away.abs().mean()}


def plain(outputs: Named, batch: Named) -> Tensor:
    return (outputs["y"][:, 0] - batch["t"]).square().mean()


def fails(outputs: Named, batch: Named) -> Tensor:
    return outputs["nothing"]


def many(outputs: Named, batch: Named) -> Tensor:
    return outputs["y"]


def nothing(outputs: Named, batch: Named) -> None:
    return None


def changes(outputs: Named, batch: Named) -> dict[str, Any]:
    global calls
    calls += 1
    return {"loss": plain(outputs, batch), f"error{calls}": 1.0}


class Learned(nn.Module):
    """The variance of the error is learned, too (Kendall & Gal 1703.04977, equation 8 for all samples together)."""

    def __init__(self) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(()))

    def forward(self, outputs: Named, batch: Named) -> dict[str, Any]:
        error = plain(outputs, batch)
        return {"loss": error * (-self.log_variance).exp() + self.log_variance, "variance": self.log_variance.exp()}
