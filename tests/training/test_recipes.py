"""What a run stresses, how long it trains and what it keeps; the oracles are torch and scikit-learn."""

from __future__ import annotations

import lightning
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight
from torch import nn

from onnxgen.errors import OnnxgenError
from onnxgen.training import fit
from onnxgen.training.data.arrays import Columns
from onnxgen.training.losses import Ending, Objective, stressed
from onnxgen.training.memory import keep_all, recompute
from onnxgen.training.prepare import prepare
from onnxgen.training.runs.metrics import read_rows
from onnxgen.training.settings import Settings
from tests.training.test_fit import Seen
from tests.training.test_fit_options import CPU, net, points

WEIGHTS = (0.5, 2.0, 1.25)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(7, 3), (4, 3, 5)])
@pytest.mark.parametrize("kind, loss", [("", "cross_entropy"), ("log_softmax", "nll_loss"), ("softmax", "nll_loss")])
def test_class_weights_and_smoothing_are_those_of_cross_entropy(kind, loss, shape, smoothing):
    scores, target = drawn(*shape), drawn(shape[0], *shape[2:]).gt(0).long() + 1
    output = {"": scores, "log_softmax": scores.log_softmax(1), "softmax": scores.softmax(1)}[kind]
    made = Objective(0, "", "y", loss, Ending(kind, 1), 3, weights=WEIGHTS, smoothing=smoothing)
    each = F.cross_entropy(scores, target, torch.tensor(WEIGHTS), reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(made(output, target, training=True), each.mean())
    torch.testing.assert_close(made(output, target), F.cross_entropy(scores, target))  # an evaluation has neither


def test_binary_weights_and_smoothing_are_those_of_two_classes():
    scores, target = drawn(9, 1), drawn(9).gt(0).long()
    made = Objective(0, "", "y", "binary_cross_entropy_with_logits", classes=2, weights=WEIGHTS[:2], smoothing=0.2)
    weight, smooth = torch.tensor(WEIGHTS)[target], target * 0.8 + 0.1
    expected = F.binary_cross_entropy_with_logits(scores[:, 0], smooth, weight)
    torch.testing.assert_close(made(scores, target, training=True), expected)


def test_balanced_weights_are_those_of_scikit_learn():
    labels = np.array([0, 0, 0, 0, 2, 2, 1, 0, 3])
    samples = Columns({"y": torch.from_numpy(labels)}, {})
    (made,) = stressed([Objective(0, "", "y", "cross_entropy", classes=5)], samples, Settings(class_weights="balanced"))
    expected = compute_class_weight("balanced", classes=np.arange(4), y=labels)
    assert made.weights == pytest.approx([*expected, 0.0])


def test_weights_of_outputs_and_of_named_classes():
    samples = Columns({"a": torch.tensor([0, 1]), "b": torch.zeros(2)}, {"a": ("cat", "dog")})
    both = [Objective(0, "kind", "a", "cross_entropy", classes=2), Objective(1, "size", "b", "mse_loss")]
    kind, size = stressed(both, samples, Settings(loss_weights={"size": "0.5"}, class_weights={"dog": "3"}))
    assert (kind.factor, kind.weights, size.factor, size.weights) == (1.0, (1.0, 3.0), 0.5, ())
    x, y = drawn(4), drawn(4) + 1
    torch.testing.assert_close(size(x, y), F.mse_loss(x, y))


def test_losses_are_shown_before_their_weights_and_summed_with_them(tmp_path):
    """Training takes the weighted sum; the oracle is a loop by hand."""
    torch.manual_seed(0)
    x, data = torch.randn(24, 4), {"a": torch.arange(24) % 2, "b": torch.randn(24, 2)}
    made = [Two(), Two()]
    made[1].load_state_dict(made[0].state_dict())
    plain = {"epochs": 3, "lr": 0.1, "optimizer": "sgd", "weight_decay": 0.0, "batch_size": 24, "val": 0.0}
    given = {"target": {"output0": "a", "output1": "b"}, "loss_weights": {"output1": "0.25"}, **plain}
    result = fit(made[0], {"x": x} | data, **given, out=tmp_path / "run", **CPU)
    optimizer = torch.optim.SGD(made[1].parameters(), 0.1)
    for row in result.history:
        kind, size = made[1](x)
        losses = F.cross_entropy(kind, data["a"]), F.mse_loss(size, data["b"])
        assert row["train_loss_output1"] == pytest.approx(losses[1].item(), rel=1e-5)
        assert row["train_loss"] == pytest.approx((losses[0] + 0.25 * losses[1]).item(), rel=1e-5)
        optimizer.zero_grad()
        (losses[0] + 0.25 * losses[1]).backward()
        optimizer.step()
    (said,) = [text for text in prepare(Two(), {"x": x} | data, Settings(**given, device="cpu")).notes if "sum" in text]
    assert said == "the loss is the sum of 1 output0, 0.25 output1; the loss of each is shown before its weight"


class Two(nn.Module):
    """Scores of two classes, and two numbers."""

    def __init__(self):
        super().__init__()
        self.kind, self.size = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return self.kind(x), self.size(x)


@pytest.mark.parametrize(
    "given, said",
    [
        ({"label_smoothing": 1.0}, "label_smoothing must be less than 1, not 1.0"),
        ({"class_weights": "balance"}, "class_weights must be none, balanced or a weight for each class"),
        ({"class_weights": {"0": "many"}}, "the weight of 0 must be a number, not 'many'"),
        ({"class_weights": {"0": -1}}, "the weight of 0 must be at least 0 and finite, not -1"),
        ({"class_weights": {"7": 2}}, "class_weights names '7', which is no class -> there are 0, 1, 2"),
        ({"loss_weights": {"size": 2}}, "loss_weights names 'size', which is no output"),
        ({"max_hours": 0}, "max_hours must be more than 0, not 0"),
        ({"warmup": -1}, "warmup must be at least 0, not -1"),
        ({"warmup": 5, "schedule": "onecyclelr"}, "OneCycleLR sets the learning rate itself"),
        ({"target": "y", "label_smoothing": 0.1}, "need a classifier"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_step(tmp_path, given, said):
    data = {"x": points()["x"], "y": points()["x"][:, :3]} if "target" in given else points()
    with pytest.raises(OnnxgenError, match=said):
        fit(net(), data, epochs=1, out=tmp_path / "run", **given, **CPU)
    assert not (tmp_path / "run").exists()


def test_a_warm_up_precedes_a_schedule(tmp_path):
    rates = {}
    for warmup in (0, 4):
        seen = Rates()
        out = tmp_path / str(warmup)
        options = {"epochs": 3, "val": 0.0, "batch_size": 10, "lr": 0.1, "schedule": "cosineannealinglr"}
        fit(net(), points(30), warmup=warmup, callbacks=[seen], out=out, **options, **CPU)
        rates[warmup] = seen.rates
    assert rates[4][:4] == pytest.approx([rate * (i + 1) / 4 for i, rate in enumerate(rates[0][:4])])
    assert rates[4][4:] == pytest.approx(rates[0][4:])


class Rates(Seen):
    def __init__(self):
        super().__init__()
        self.rates = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.rates.append(optimizer.param_groups[0]["lr"])


def test_each_block_may_have_its_own_rate(tmp_path):
    seen = Groups()
    fit(net(), points(), epochs=1, lr=0.1, layer_decay=0.5, callbacks=[seen], out=tmp_path / "run", **CPU)
    assert {rate for name, rate in seen.groups.items() if name.startswith("0")} == {0.05}
    assert {rate for name, rate in seen.groups.items() if name.startswith("2")} == {0.1}


class Groups(Seen):
    def on_train_start(self, trainer, pl_module):
        self.groups = {group["name"]: group["lr"] for group in trainer.optimizers[0].param_groups}


def deep() -> nn.Module:
    torch.manual_seed(3)

    def block(a: int, b: int) -> nn.Module:
        end = nn.utils.parametrizations.spectral_norm(nn.Linear(b, b))
        return nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.Dropout(0.3), nn.Tanh(), end)

    return nn.Sequential(nn.Linear(6, 8), block(8, 32), block(32, 3))


class Recomputes(lightning.Callback):
    """Notes at each step whether a layer of the model has another forward, which recomputes."""

    def __init__(self) -> None:
        self.found: set[bool] = set()

    def on_train_batch_end(self, trainer, task, *args) -> None:
        self.found.add(any("forward" in vars(module) for module in task.model.modules()))


def test_gradient_checkpointing_keeps_less_and_changes_nothing(tmp_path):
    states, kept = {}, {}
    for on in (False, True):
        model = deep()
        options = {"epochs": 2, "val": 0.2, "batch_size": 8, "gradient_checkpointing": on}
        seen = Recomputes()
        fit(model, points(40), out=tmp_path / str(on), callbacks=[seen], **options, **CPU)
        assert seen.found == {on}
        states[on] = model.state_dict()
        assert not any("forward" in vars(module) for module in model.modules())
        kept[on] = held(model, on)
    assert all(torch.equal(states[True][name], value) for name, value in states[False].items())
    assert kept[True] < kept[False] / 2


def held(model: nn.Module, on: bool) -> int:
    """Return the number of elements that a forward pass keeps."""
    sizes = []
    model.train()
    if on:
        recompute(model)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        model(drawn(64, 6))
    keep_all(model)
    return sum(sizes)


def test_a_run_that_ran_out_of_time_can_be_resumed(tmp_path):
    data, options = points(40), {"epochs": 3, "batch_size": 8, "val": 0.2, **CPU}
    whole = fit(net(), data, out=tmp_path / "whole", **options)
    cut = fit(net(), data, out=tmp_path / "cut", max_hours=1e-9, **options)
    assert cut.stopped == "max_hours" and read_rows(tmp_path / "cut" / "metrics.csv")[-1]["step"] == 1
    rest = fit(net(), data, out=tmp_path / "cut", resume=True, **options)
    assert rest.stopped == "epochs"
    for name, value in whole.model.state_dict().items():
        assert torch.equal(rest.model.state_dict()[name], value)


def test_a_profile_is_written(tmp_path):
    fit(net(), points(), epochs=1, profile=True, out=tmp_path / "run", **CPU)
    (file,) = (tmp_path / "run").glob("*profile*.txt")
    assert "optimizer_step" in file.read_text()
