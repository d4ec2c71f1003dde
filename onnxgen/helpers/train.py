"""Layers whose state or mode is data of the graph, so that a module cannot have it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def batch_norm_update(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float, momentum: float
) -> tuple[Tensor, Tensor, Tensor]:
    """ONNX BatchNormalization in training: return y and the new running statistics.

    `momentum` is the share of the running values that is kept; the variance is that of
    the population.
    """
    axes = [axis for axis in range(x.dim()) if axis != 1]
    y = F.batch_norm(x, None, None, scale, bias, True, 0.1, eps)
    batch_var, batch_mean = torch.var_mean(x, axes, correction=0)
    return y, mean * momentum + batch_mean * (1 - momentum), var * momentum + batch_var * (1 - momentum)


def stochastic_depth(x: Tensor, p: float, mode: str, training: bool) -> Tensor:
    """Stochastic depth: in training, drop samples with probability p, scale the others.

    Kept samples are multiplied by 1 / (1 - p). Huang et al. 2016, Deep Networks with
    Stochastic Depth (arXiv 1603.09382).

    Args:
        x: [batch, ...].
        mode: "row" draws for each sample, "batch" once for all of them.
    """
    if not training:
        return x
    sizes = [x.shape[0] if mode == "row" else 1] + [1] * (x.dim() - 1)
    return x * x.new_empty(sizes).bernoulli_(1 - p).div_(1 - p)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def drawn_by_numpy(seed: int, shape: Sequence[int]) -> Tensor:
    """Draw float64 from [0, 1) with numpy's generator: the same in every call."""
    return torch.from_numpy(np.random.RandomState(seed).uniform(0, 1, tuple(shape)))


def batch_norm_by_input(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    """ONNX BatchNormalization; mean and variance get gradients, unlike F.batch_norm."""
    scale, bias, mean, var = (v.reshape(-1, *[1] * (x.dim() - 2)) for v in (scale, bias, mean, var))
    return (x - mean) / (var + eps).sqrt() * scale + bias


def dropout_by_input(
    x: Tensor, ratio: Tensor | float, training: Tensor | bool, seed: int | None = None
) -> tuple[Tensor, Tensor]:
    """ONNX Dropout whose ratio or mode is an input: return the result and the mask.

    The mask is True for kept elements. A seed draws as the operator's reference does,
    from numpy's generator, the same numbers in every call.
    """
    if training is False:
        return x, torch.ones_like(x, dtype=torch.bool)
    chance = torch.as_tensor(ratio, dtype=torch.float64, device=x.device) * training
    if seed is None:
        drawn = torch.rand(x.shape, dtype=torch.float64, device=x.device)
    else:
        drawn = drawn_by_numpy(seed, x.shape).to(x.device)
    mask = drawn >= chance
    return x * mask / (1 - chance), mask


def as_variable(x: Tensor) -> Tensor:
    """Return x if it requires gradients, else a detached copy that does."""
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
