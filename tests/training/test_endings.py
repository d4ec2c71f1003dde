"""Outputs that are probabilities, however the network ends, and outputs that only look like them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import log_loss
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError
from onnxgen.training import evaluate
from onnxgen.training.endings import read_ending
from onnxgen.training.prepare import prepare
from onnxgen.training.settings import Settings

GIVEN: dict[str, Any] = {"device": "cpu", "val": 0.0}


class Ends(nn.Module):
    """A small network whose scores [n, width] end in a given way."""

    def __init__(self, end: Callable[[Tensor], Tensor], width: int, seed: int = 0, scale: float = 3.0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.hidden, self.out, self.end = nn.Linear(4, 8), nn.Linear(8, width), end
        self.out.weight.data *= scale

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.out(self.hidden(x).tanh()))


class Leaves(nn.Module):
    """The mean of the leaves of stumps, as a forest computes the share of yes. Each leaf is a parameter."""

    def __init__(self, classes: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        shares = torch.rand(5, 2, classes)
        shares[:, 0, 0], shares[:, 1, 0] = shares[:, 0, 0] * 0.3, 0.7 + shares[:, 1, 0] * 0.3
        self.leaves = nn.Parameter(shares / shares.sum(2, keepdim=True) if classes > 1 else shares)

    def forward(self, x: Tensor) -> Tensor:
        side = (x[:, :1] + 0.1 * x[:, 1:2] > torch.linspace(-0.5, 0.5, 5)).long()
        return torch.stack([self.leaves[i, side[:, i]] for i in range(5)]).mean(0)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]


CLASSES: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "softmax": (lambda x: x.softmax(1), 3),
    "mean of softmaxes": (lambda x: sum(half.softmax(1) for half in halves(x)) / 2, 6),
    "sigmoids divided by their sum": (lambda x: x.sigmoid() / x.sigmoid().sum(1, keepdim=True), 3),
    "exponentials divided by their sum": (lambda x: x.exp() / x.exp().sum(1, keepdim=True), 3),
    "one less a sigmoid, and the sigmoid": (lambda x: torch.cat([1 - x.sigmoid(), x.sigmoid()], 1), 1),
    "two sigmoids": (lambda x: torch.cat([(-x).sigmoid(), x.sigmoid()], 1), 1),
    "normalised": (lambda x: F.normalize(x.exp(), p=1.0, dim=1), 4),
}
LABELS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "sigmoid": (lambda x: x.sigmoid(), 1),
    "one less a sigmoid": (lambda x: 1 - x.sigmoid(), 1),
    "hardsigmoid": (lambda x: F.hardsigmoid(x), 1),
    "hyperbolic tangent": (lambda x: x.tanh() * 0.5 + 0.5, 1),
    "by hand": (lambda x: 1 / (1 + (-x).exp()), 1),
    "one of a softmax": (lambda x: 1 - x.softmax(1)[:, :1], 2),
    "not none": (lambda x: 1 - (1 - x.sigmoid()).prod(1, keepdim=True), 2),
    "mean of sigmoids": (lambda x: x.sigmoid().mean(1, keepdim=True), 3),
    "clip": (lambda x: (0.2 * x + 0.5).clamp(0.0, 1.0), 1),
}


def data(classes: int, seed: int = 0, number: int = 90) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    x = torch.randn(number, 4)
    return {"x": x, "y": ((x[:, 0] * 2 + torch.randn(number)).sigmoid() * classes).long().clamp(0, classes - 1)}


def is_log_loss(network: nn.Module, given: dict[str, Tensor]) -> None:
    """Check that the loss of an evaluation is scikit-learn's of the outputs as probabilities."""
    said = network(given["x"]).detach().double().numpy()
    found = evaluate(network, given, **GIVEN)
    said = said[:, 0] if said.shape[1] == 1 else said
    assert found["loss"] == pytest.approx(log_loss(given["y"].numpy(), said.clip(1e-38, 1)), rel=1e-4)
    (goal,) = prepare(network, given, Settings(device="cpu", val=0.0)).objectives
    assert goal.loss in ("nll_loss", "binary_cross_entropy")


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", [*CLASSES, *(name for name in LABELS if name not in ("hardsigmoid", "clip"))])
def test_probabilities_have_the_log_loss_of_scikit_learn(name: str, seed: int) -> None:
    end, width = CLASSES.get(name) or LABELS[name]
    network = Ends(end, width, seed)
    outputs = network(torch.zeros(2, 4)).shape[1]
    is_log_loss(network, data(max(outputs, 2), seed))


@pytest.mark.parametrize("name", ["hardsigmoid", "clip"])
def test_probabilities_with_exact_bounds(name: str) -> None:
    is_log_loss(Ends(*LABELS[name], scale=1.0), data(2))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("classes", [1, 2])
def test_the_shares_of_a_forest_are_probabilities(classes: int, seed: int) -> None:
    given = data(2, seed)
    given["y"] = (given["x"][:, 0] + 0.3 * torch.randn(90) > 0).long()
    given["y"] = given["y"] if classes == 1 else 1 - given["y"]
    is_log_loss(Leaves(classes, seed), given)


def small(x: Tensor) -> Tensor:
    return 0.01 * x + 0.4


LOGITS: dict[str, tuple[Callable[[Tensor], Tensor], int, str]] = {
    "logits": (lambda x: x, 3, "cross_entropy"),
    "small logits": (small, 3, "cross_entropy"),
    "logits that are not negative": (lambda x: x.relu(), 3, "cross_entropy"),
    "softplus": (lambda x: F.softplus(x), 3, "cross_entropy"),
    "cosines": (lambda x: F.normalize(x, dim=1), 3, "cross_entropy"),
    "a row less its least": (lambda x: x - x.amin(1, keepdim=True), 3, "cross_entropy"),
    "sixes": (lambda x: F.relu6(x), 3, "cross_entropy"),
    "centred": (lambda x: x - x.mean(1, keepdim=True), 3, "cross_entropy"),
    "a sum of softmaxes": (lambda x: sum(half.softmax(1) for half in halves(x)), 6, "cross_entropy"),
    "a scaled softmax": (lambda x: 30 * x.softmax(1), 3, "cross_entropy"),
    "one logit": (lambda x: x, 1, "binary_cross_entropy_with_logits"),
    "one small logit": (small, 1, "binary_cross_entropy_with_logits"),
    "one that is not negative": (lambda x: F.softplus(x), 1, "binary_cross_entropy_with_logits"),
    "a difference of logits": (lambda x: x[:, :1] - x[:, 1:], 2, "binary_cross_entropy_with_logits"),
    "a margin": (lambda x: x.tanh(), 1, "binary_cross_entropy_with_logits"),
}
NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "numbers": lambda x: x,
    "positive numbers": lambda x: x.exp(),
    "not negative": lambda x: x.relu(),
    "shares": lambda x: 0.5 + 0.5 * x.tanh(),
    "shares of a whole": lambda x: x.exp() / x.exp().sum(1, keepdim=True),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", LOGITS)
def test_logits_are_no_probabilities(name: str, seed: int) -> None:
    end, width, loss = LOGITS[name]
    network = Ends(end, width, seed)
    outputs = network(torch.zeros(2, 4)).shape[1]
    (goal,) = prepare(network, data(max(outputs, 2), seed), Settings(device="cpu", val=0.0)).objectives
    assert goal.loss == loss


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("width", [1, 3])
def test_numbers_are_no_probabilities(name: str, width: int) -> None:
    given = data(2) | {"y": torch.rand(90, width)}
    (goal,) = prepare(Ends(NUMBERS[name], width), given, Settings(device="cpu", val=0.0)).objectives
    assert goal.loss == "mse_loss"


def test_a_run_says_that_outputs_are_probabilities() -> None:
    plan = prepare(Ends(*CLASSES["mean of softmaxes"]), data(3), Settings(device="cpu", val=0.0))
    assert "the model holds probabilities (they add up to 1): trained with nll_loss" in plan.notes
    with pytest.raises(OnnxgenError, match="cross_entropy needs logits, but output 0 holds probabilities"):
        prepare(Ends(*CLASSES["normalised"]), data(4), Settings(device="cpu", val=0.0, loss="cross_entropy"))
    with pytest.raises(OnnxgenError, match="each for itself.*cross_entropy if these are scores"):
        prepare(Ends(lambda x: 1 - x.sigmoid(), 3), data(3), Settings(device="cpu", val=0.0))
    asked = Settings(device="cpu", val=0.0, loss="bce")  # the right loss may be named, whatever the graph ends in
    assert prepare(Ends(*LABELS["mean of sigmoids"]), data(2), asked).objectives[0].loss == "binary_cross_entropy"
    asked = Settings(device="cpu", val=0.0, loss="cross_entropy")
    assert prepare(Ends(lambda x: 1 - x.sigmoid(), 3), data(3), asked).objectives[0].classes == 3


def test_the_axis_along_which_probabilities_add_up() -> None:
    x = torch.randn(2, 3, 4, requires_grad=True)
    mixed = (x.softmax(1) + (2 * x).softmax(1)) / 2
    assert (read_ending(mixed).kind, read_ending(mixed).axis) == ("softmax", 1)
    assert (read_ending(mixed.log()).kind, read_ending(mixed.log()).axis) == ("log_softmax", 1)
    assert read_ending(mixed, [2]).kind == "" and read_ending(mixed.half(), [1]).kind == "softmax"
