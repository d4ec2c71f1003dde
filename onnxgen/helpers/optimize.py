"""Steps of optimizers, as a training graph of ONNX applies them to one tensor at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def adagrad_step(
    x: Tensor, grad: Tensor, squares: Tensor, rate: Tensor, count: Tensor, decay: float, norm: float, eps: float
) -> tuple[Tensor, Tensor]:
    """ONNX Adagrad: return the tensor and the sum of squared gradients after a step."""
    grad = norm * x + grad
    squares = squares + grad * grad
    return x - rate / (1 + count * decay) * grad / (squares.sqrt() + eps), squares


def adam_step(
    x: Tensor, grad: Tensor, mean: Tensor, squares: Tensor, rate: Tensor, count: Tensor,
    alpha: float, beta: float, norm: float, norm_post: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """ONNX Adam: return the tensor and both means after update number `count`."""
    grad = norm * x + grad
    mean = alpha * mean + (1 - alpha) * grad
    squares = beta * squares + (1 - beta) * grad * grad
    steps = count.clamp(min=1)  # 0 / 0 would have a NaN gradient even if it is unused
    corrected = torch.where(count > 0, rate * (1 - beta**steps).sqrt() / (1 - alpha**steps), rate)
    return (1 - norm_post) * (x - corrected * mean / (squares.sqrt() + eps)), mean, squares


def momentum_step(
    x: Tensor, grad: Tensor, velocity: Tensor, rate: Tensor, count: Tensor,
    alpha: float, beta: float, norm: float, nesterov: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """ONNX Momentum: return the tensor and its velocity after update number `count`."""
    grad = norm * x + grad
    velocity = alpha * velocity + torch.where(count > 0, beta, 1.0) * grad
    return x - rate * (grad + alpha * velocity if nesterov else velocity), velocity
