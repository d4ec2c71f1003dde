"""The endings of models, and the losses of their outputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError
from onnxgen.training.data.samples import Feeding, Field
from onnxgen.training.goals.names import ALIASES, LOSSES, loss_name
from onnxgen.training.losses import Objective, ending_of, objective
from onnxgen.training.prepare import trial
from onnxgen.training.task import Meter

INT, FLOAT, PETS = Field(torch.int64), Field(torch.float32), Field(torch.int64, (), ("cat", "dog"))


def scores(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), requires_grad=True)


@pytest.mark.parametrize(
    "made, kind, axis",
    [
        (lambda x: F.log_softmax(x, -1), "log_softmax", 2),
        (lambda x: F.log_softmax(x, 1), "log_softmax", 1),
        (lambda x: F.softmax(x, 1).log(), "log_softmax", 1),
        (lambda x: F.softmax(x, -2), "softmax", 1),
        (lambda x: F.softmax(x, 1).transpose(1, 2), "softmax", None),
        (lambda x: F.log_softmax(x, 1).reshape(2, -1), "log_softmax", None),
        (lambda x: x.sigmoid().squeeze(), "sigmoid", None),
        (lambda x: F.relu(x), "", None),
        (lambda x: F.softmax(x, 1) * 2, "", None),
        (lambda x: x.exp().log(), "", None),
        (lambda x: x.sigmoid()[:, 0], "sigmoid", None),
        (lambda x: x.sigmoid().clamp(1e-6, 1 - 1e-6), "sigmoid", None),
        (lambda x: F.softmax(x, 1).clamp_min(1e-9), "softmax", 1),
        (lambda x: torch.cat([x[:1].sigmoid(), x[1:].sigmoid()]), "sigmoid", None),
        (lambda x: torch.cat([x[:1].sigmoid(), x[1:]]), "", None),
        (lambda x: x.detach(), "", None),
    ],
)
def test_the_ending_of_a_model(made: Callable[[Tensor], Tensor], kind: str, axis: int | None) -> None:
    found = ending_of(made(scores(2, 3, 4)))
    assert (found.kind, found.axis) == (kind, axis)


CLASSES = torch.tensor([0, 2])
TOKENS = torch.tensor([[0, 1, 2, 1], [2, 0, -100, 1]])


@pytest.mark.parametrize(
    "output, target, loss, expected",
    [
        (lambda x: x, CLASSES, "cross_entropy", lambda x: F.cross_entropy(x, CLASSES)),
        (lambda x: x.log_softmax(1), CLASSES, "nll_loss", lambda x: F.cross_entropy(x, CLASSES)),
        (lambda x: x.softmax(1), CLASSES, "nll_loss", lambda x: F.cross_entropy(x, CLASSES)),
    ],
)
def test_the_loss_of_a_classifier(
    output: Callable[[Tensor], Tensor], target: Tensor, loss: str, expected: Callable[[Tensor], Tensor]
) -> None:
    x = scores(2, 3)
    made = objective(0, "", output(x), "y", INT, target, "auto")
    assert made.loss == loss and made.classes == 3
    value = made(output(x), target)
    torch.testing.assert_close(value, expected(x))
    (gradient,) = torch.autograd.grad(value, x)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected(x), x)[0])


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("end", [lambda x, axis: x, lambda x, axis: x.log_softmax(axis)])
def test_the_axis_of_the_classes(end: Callable[[Tensor, int], Tensor], last: bool) -> None:
    x = scores(2, 3, 4)
    output = end(x, 1).transpose(1, 2) if last else end(x, 1)
    made = objective(0, "", output, "y", INT, TOKENS, "auto")
    assert made.axis == (2 if last else 1)
    torch.testing.assert_close(made(output, TOKENS), F.cross_entropy(x, TOKENS))
    assert int(made.count(TOKENS)) == 7, "one token is to be ignored"


def test_an_ambiguous_axis_of_classes_is_refused() -> None:
    x, y = scores(2, 3, 3), torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(OnnxgenError, match=r"any of the axes \[1, 2\] could be the classes"):
        objective(0, "", x, "y", INT, y, "auto")
    assert objective(0, "", x.softmax(2), "y", INT, y, "auto").axis == 2


@pytest.mark.parametrize(
    "output, target, field, loss",
    [
        (lambda x: x, torch.zeros(2, 3), FLOAT, "mse_loss"),
        (lambda x: x.sigmoid(), torch.zeros(2, 3), FLOAT, "binary_cross_entropy"),
        (lambda x: x.log_softmax(1), torch.full((2, 3), 1 / 3), FLOAT, "kl_div"),
        (lambda x: x[:, :1], torch.tensor([0, 1]), PETS, "binary_cross_entropy_with_logits"),
        (lambda x: x[:, :1].sigmoid(), torch.tensor([0, 1]), INT, "binary_cross_entropy"),
        (lambda x: x[:, :1], torch.tensor([31, 47]), INT, "mse_loss"),
        (
            lambda x: x.softmax(1),
            torch.tensor([[True, True, False], [False, True, False]]),
            FLOAT,
            "binary_cross_entropy",
        ),
    ],
)
def test_the_loss_for_targets_that_are_not_class_indices(
    output: Callable[[Tensor], Tensor], target: Tensor, field: Field, loss: str
) -> None:
    made = objective(0, "", output(scores(2, 3)), "y", field, target, "auto")
    assert made.loss == loss
    value = made(output(scores(2, 3)), target)
    one_by_one = [made(o[None], t[None]) for o, t in zip(output(scores(2, 3)), target, strict=True)]
    torch.testing.assert_close(value, torch.stack(one_by_one).mean())


@pytest.mark.parametrize(
    "end, loss, instead",
    [
        (lambda x: x, "nll_loss", "cross_entropy"),
        (lambda x: x, "bce", "bce_with_logits"),
        (lambda x: x.sigmoid(), "bce_with_logits", "bce"),
        (lambda x: x.softmax(1), "cross_entropy", "nll_loss"),
    ],
)
def test_a_loss_that_does_not_fit_the_ending_is_refused(
    end: Callable[[Tensor], Tensor], loss: str, instead: str
) -> None:
    with pytest.raises(OnnxgenError, match=f"use {instead}"):
        objective(0, "", end(scores(2, 3)), "y", INT, CLASSES, loss)


@pytest.mark.parametrize("name", [*LOSSES, *ALIASES, "MSE"])
def test_losses_by_name(name: str) -> None:
    assert hasattr(F, loss_name(name))


def test_an_unknown_loss_is_refused_with_similar_names() -> None:
    with pytest.raises(OnnxgenError, match="perhaps cross_entropy"):
        loss_name("cross_entrpy")
    with pytest.raises(OnnxgenError, match=r"no loss is called 'bogus' -> one of bce, .*cross_entropy, .*nll_loss"):
        loss_name("bogus")


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"nll_loss", "cross_entropy", "multi_margin_loss"}))
def test_every_loss_matches_torch(name: str) -> None:
    x = scores(4, 3)
    output = {"kl_div": x.log_softmax(1), "binary_cross_entropy": x.sigmoid()}.get(name, x)
    target = torch.rand(4, 3, generator=torch.Generator().manual_seed(1)).round()
    target = target.long() if name == "multilabel_margin_loss" else target
    expected = F.kl_div(output, target, reduction="batchmean") if name == "kl_div" else getattr(F, name)(output, target)
    assert torch.equal(Objective(0, "", "y", name, ending_of(output))(output, target), expected)


def test_means_over_batches_of_different_sizes() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(37, 5), torch.randint(0, 5, (37,))
    made = Objective(0, "", "y", "cross_entropy", classes=5)
    meter = Meter([made], evaluating=True)
    for a, b in zip(x.split(8), y.split(8), strict=True):
        meter.add([(made(a, b), a, b)])
    found = meter.means("val", lambda t: t)
    assert found["val_loss"] == pytest.approx(F.cross_entropy(x, y).item(), rel=1e-6)
    assert found["val_accuracy"] == (x.argmax(1) == y).double().mean().item()
    expected = torch.zeros(5, 5, dtype=torch.int64)
    for true, said in zip(y.tolist(), x.argmax(1).tolist(), strict=True):
        expected[true, said] += 1
    assert meter.confusion is not None and torch.equal(meter.confusion, expected)


@pytest.mark.parametrize("end", [lambda x: x, lambda x: x.log_softmax(1)])
def test_a_batch_with_only_ignored_classes_has_loss_zero(end: Callable[[Tensor], Tensor]) -> None:
    x = scores(2, 3, 4)
    made = objective(0, "", end(x), "y", INT, TOKENS, "auto")
    nothing = torch.full((2, 4), -100)
    value = made(end(x), nothing)
    assert float(value.detach()) == 0 and not torch.autograd.grad(value, x)[0].any()
    meter = Meter([made])
    for target in (TOKENS, nothing):
        meter.add([(made(end(x), target), end(x), target)])
    assert meter.means("val", lambda sums: sums)["val_loss"] == pytest.approx(float(F.cross_entropy(x, TOKENS)))


def test_a_target_with_swapped_axes_is_refused() -> None:
    with pytest.raises(OnnxgenError, match=r"output 0 is \[2, 3, 4\], its target 'y' \[2, 4, 3\]"):
        objective(0, "", scores(2, 3, 4), "y", FLOAT, torch.zeros(2, 4, 3), "mse")


def test_binary_predictions_of_a_softmax_use_the_threshold_one_half() -> None:
    x, y = scores(2, 3), torch.tensor([[1, 0, 1], [0, 1, 0]], dtype=torch.bool)
    made = objective(0, "", x.softmax(1), "y", FLOAT, y, "bce")
    assert torch.equal(made.chosen(x.softmax(1)), (x.softmax(1) > 0.5).long())


def test_class_indices_stored_as_floats_are_refused() -> None:
    with pytest.raises(OnnxgenError, match="store them as whole numbers"):
        objective(0, "", scores(2, 3), "y", FLOAT, torch.tensor([0.0, 2.0]), "auto")


def test_classes_for_each_pixel_are_no_numbers() -> None:
    output = torch.zeros(2, 1, 4, 4, requires_grad=True) * 1
    with pytest.raises(OnnxgenError, match="output 0 is one number for each pixel, but its target holds whole numbers"):
        objective(0, "", output, "mask", INT, torch.full((2, 4, 4), 2), "auto")


def test_floats_of_two_named_classes_are_classified_and_other_floats_are_not() -> None:
    y = torch.tensor([[1.0], [0.0]])
    for field, classes in ((Field(torch.float32, (), ("cat", "dog")), 2), (FLOAT, 0)):
        made = objective(0, "", scores(2, 1), "y", field, y, "bce_with_logits")
        assert made.classes == classes and bool(made.metrics) is False
    assert objective(0, "", scores(2, 1), "y", INT, y.long(), "bce_with_logits").classes == 2


def test_a_model_whose_weights_are_frozen_has_its_ending() -> None:
    """What is trained may be added later, such as an adapter: the ending is found by the inputs' gradients."""
    model = nn.Sequential(nn.Linear(3, 4), nn.LogSoftmax(1)).requires_grad_(False)
    x = scores(5, 3).detach()
    (made,) = trial(model, {"x": x}, Feeding(("x",), {}))
    assert ending_of(made).kind == "log_softmax" and not x.requires_grad
