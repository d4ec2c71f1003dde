"""Losses of probabilities are those of the logits, where these are known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.training.data.samples import Field
from onnxgen.training.logits import Noting, logits_of
from onnxgen.training.losses import objective

X = torch.linspace(-60, 60, 12).reshape(6, 2)


@pytest.mark.parametrize(
    "made",
    [
        torch.sigmoid,
        Tensor.sigmoid,
        lambda x: nn.Sigmoid()(x).unsqueeze(1).mean(1),
        lambda x: torch.sigmoid(x.reshape(-1)).view(6, 2),
        lambda x: torch.stack([torch.sigmoid(x[:, 0]), torch.sigmoid(x[:, 1])], 1),
        lambda x: torch.stack([torch.sigmoid(x[:, 0]), torch.sigmoid(x[:, 1])], -1),
    ],
)
def test_logits_are_known(made: Callable[[Tensor], Tensor]) -> None:
    x = X.clone().requires_grad_()
    with Noting():
        output = made(x)
    assert torch.equal(logits_of(output), x)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "made",
    [
        lambda x: torch.sigmoid(x).t(),
        lambda x: torch.sigmoid(x).mean(1),
        lambda x: torch.sigmoid(x) * 2,
        lambda x: torch.stack([torch.sigmoid(x[:, 0]), torch.sigmoid(x[:, 1])], 1).reshape(2, 6),
        lambda x: torch.stack([torch.sigmoid(x[:, 0]), x[:, 1]], 1),
        lambda x: torch.sigmoid(x).mul_(2),
        lambda x: torch.softmax(x, 1),
    ],
)
def test_what_is_moved_has_none(made: Callable[[Tensor], Tensor]) -> None:
    with Noting():
        assert logits_of(made(X.clone().requires_grad_())) is None


def test_a_sure_mistake_has_a_gradient() -> None:
    """The probability is 1 in float32: of it alone, the gradient would be 0."""
    x, target = torch.tensor([[40.0], [-40.0]], requires_grad=True), torch.tensor([[0], [1]])
    goal = objective(0, "", torch.sigmoid(x), "y", Field(torch.int64, (1,), ("0", "1")), target, "auto")
    assert goal.loss == "binary_cross_entropy"
    (alone,) = torch.autograd.grad(goal(torch.sigmoid(x), target), x)
    with Noting():
        output = torch.sigmoid(x)
    loss = goal(output, target)
    (gradient,) = torch.autograd.grad(loss, x)
    assert alone[0] == 0
    torch.testing.assert_close(gradient, torch.tensor([[0.5], [-0.5]]))
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(x, target.float()))


def test_an_evaluation_has_the_loss_of_a_training() -> None:
    x, target = torch.tensor([[200.0], [-200.0]], requires_grad=True), torch.tensor([[0], [1]])
    goal = objective(0, "", torch.sigmoid(x), "y", Field(torch.int64, (1,), ("0", "1")), target, "auto")
    with torch.inference_mode(), Noting():
        assert goal(torch.sigmoid(x), target) == 200
        assert goal(torch.sigmoid(x).neg_().neg_(), target) == 100  # it was written to: torch's bound of a logarithm
