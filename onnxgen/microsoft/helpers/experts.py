"""Routing of tokens to the experts of a mixture."""

from __future__ import annotations

import torch
from torch import Tensor


def route_by_groups(
    logits: Tensor, bias: Tensor, count: int, groups: int = 1, kept: int = 1, best: int = 2, sentinel: float = -10000.0
) -> Tensor:
    """Choose experts as DeepSeek-V3 does; return their log scores [tokens, experts].

    Experts compete by `sigmoid(logits) + bias` within the groups whose best experts are
    the strongest; the bias counts for the choice only (DeepSeek-AI 2024, "DeepSeek-V3
    Technical Report", 2.1.2).

    Args:
        logits: [..., experts].
        bias: [experts], float32.
        count: experts per token.
        groups: the number of groups of adjacent experts; `kept`: groups per token.
        best: how many of its best experts make up the score of a group.
        sentinel: the score of experts that are not chosen.
    """
    scores = torch.sigmoid(logits.flatten(0, -2).float())
    biased = scores + bias
    if kept < groups:
        members = biased.view(len(biased), groups, biased.shape[1] // groups)
        strength = members.topk(min(best, members.shape[-1])).values.sum(-1)
        strongest = strength.sort(dim=-1, descending=True, stable=True).indices[:, :kept]
        closed = torch.ones_like(strength, dtype=torch.bool).scatter(1, strongest, False)
        biased = members.masked_fill(closed[..., None], float("-inf")).flatten(1)
    chosen = biased.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    logs = scores.gather(1, chosen).clamp(min=1e-20).log()
    return torch.full_like(scores, sentinel).scatter(1, chosen, logs).to(logits.dtype)


def best_experts(
    scores: Tensor,
    weights: Tensor | None = None,
    count: int = 1,
    normalize: bool = True,
    epsilon: float = 0.0,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return the best experts of each token and their weights, both [tokens, count].

    The best comes first. Of equal ones the first is better, and NaN is the worst.

    Args:
        scores: [tokens, experts]; without weights, logits.
        weights: [tokens, experts]; default: the softmax of the scores.
        normalize: divide weights by their sum plus `epsilon`; they are 0 if that is 0.
        factor: factor of the final weights.
    """
    scores = scores.float()
    weights = scores.softmax(-1) if weights is None else weights.float()
    is_absent = scores.isnan()
    order = scores.masked_fill(is_absent, float("-inf")).sort(dim=-1, descending=True, stable=True).indices
    places = is_absent.gather(1, order).int().sort(dim=-1, stable=True).indices
    chosen = order.gather(1, places)[:, :count]
    share = weights.gather(1, chosen)
    if normalize:
        total = share.sum(-1, keepdim=True) + epsilon
        share = torch.where(total == 0, 0.0, share / total.masked_fill(total == 0, 1))
    return chosen, share * factor
