"""`fit` is compared with hand-written loops over the same batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError
from onnxgen.training import evaluate, fit, predict


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 36, 10)

    def forward(self, image: Tensor) -> Tensor:
        return F.log_softmax(self.fc(F.relu(self.norm(self.conv(image))).flatten(1)), dim=1)


class Seen(lightning.Callback):
    """Records the batches that the trainer gave to the model."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Tensor]] = []
        self.last: dict[str, Tensor] = {}

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.batches.append({name: column.clone() for name, column in batch.items()})

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.last = copy.deepcopy(pl_module.model.state_dict())


def images(count: int = 90) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    labels = torch.arange(count) % 10
    return torch.randn(count, 1, 8, 8, generator=generator) + labels[:, None, None, None] / 5, labels


def net() -> Net:
    torch.manual_seed(1)
    return Net()


def by_hand(
    model: nn.Module,
    batches: Sequence[dict[str, Tensor]],
    optimizer: torch.optim.Optimizer,
    accumulate: int = 1,
    clip: float | None = None,
) -> dict[str, Tensor]:
    model.train()
    for number, batch in enumerate(batches, 1):
        image, label = batch.values()
        (F.nll_loss(model(image), label) / accumulate).backward()
        if number % accumulate == 0:
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()


def same(trained: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert trained.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(trained[key], value, rtol=1e-5, atol=1e-6)


CASES: dict[str, tuple[dict[str, Any], Callable[[nn.Module], torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (
        {"optimizer": "SGD", "lr": 0.05, "optimizer_args": {"momentum": 0.9}},
        lambda m: torch.optim.SGD(m.parameters(), 0.05, 0.9),
        {},
    ),
    "adam": ({"optimizer": "adam", "lr": 0.01}, lambda m: torch.optim.Adam(m.parameters(), 0.01), {}),
    "adagrad, its own rate": ({"optimizer": "adagrad"}, lambda m: torch.optim.Adagrad(m.parameters()), {}),
    "accumulated and clipped": (
        {"optimizer": "sgd", "lr": 0.1, "accumulate": 2, "clip": 0.1, "val": 0.0, "batch_size": 15},
        lambda m: torch.optim.SGD(m.parameters(), 0.1),
        {"accumulate": 2, "clip": 0.1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_a_hand_written_loop(case: str, tmp_path: Path) -> None:
    given, optimizer, more = CASES[case]
    model, seen = net(), Seen()
    result = fit(model, images(), callbacks=[seen], epochs=2, out=tmp_path, monitor="train_loss", **given)
    twin = net()
    expected = by_hand(twin, seen.batches, optimizer(twin), **more)
    same(seen.last, expected)
    assert len(result.history) == 2


def test_norms_and_biases_are_not_decayed(tmp_path: Path) -> None:
    model, seen = net(), Seen()
    fit(model, images(), callbacks=[seen], epochs=1, optimizer="sgd", lr=0.1, weight_decay=0.5, out=tmp_path)
    twin = net()
    decayed = [twin.conv.weight, twin.fc.weight]
    plain = [p for p in twin.parameters() if all(p is not d for d in decayed)]
    groups = [{"params": decayed, "weight_decay": 0.5}, {"params": plain, "weight_decay": 0.0}]
    expected = by_hand(twin, seen.batches, torch.optim.SGD(groups, 0.1))
    same(seen.last, expected)


def test_each_epoch_trains_every_sample_once_in_a_new_order(tmp_path: Path) -> None:
    x, y = images(50)
    seen = Seen()
    fit(net(), (x, y), callbacks=[seen], epochs=2, batch_size=16, val=0.0, out=tmp_path, monitor="train_loss")
    epochs = [seen.batches[:4], seen.batches[4:]]
    marks = [torch.cat([next(iter(b.values()))[:, 0, 0, 0] for b in epoch]) for epoch in epochs]
    for mark in marks:
        assert torch.equal(mark.sort().values, x[:, 0, 0, 0].sort().values)
    assert not torch.equal(marks[0], marks[1]) and not torch.equal(marks[0], x[:, 0, 0, 0])


def test_metrics_match_a_hand_written_evaluation(tmp_path: Path) -> None:
    x, y = images()
    data = {"train": (x[:60], y[:60]), "val": (x[60:75], y[60:75]), "test": (x[75:], y[75:])}
    model = net()
    result = fit(model, data, epochs=1, lr=0.01, out=tmp_path, batch_size=8)
    with torch.no_grad():
        for part, found in (("val", result.history[0]), ("test", result.test or {})):
            images_, labels = data[part]
            output = model.eval()(images_)
            assert found[f"{part}_loss"] == pytest.approx(F.nll_loss(output, labels).item(), rel=1e-5)
            assert found[f"{part}_accuracy"] == pytest.approx((output.argmax(1) == labels).float().mean().item())
    scores = evaluate(model, data, part="test")
    assert scores["loss"] == pytest.approx((result.test or {})["test_loss"])
    assert torch.equal(predict(model, data, part="test"), output)


def test_the_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    made = []
    for seed in (3, 3, 4):
        model = net()
        fit(model, images(), epochs=1, seed=seed, out=tmp_path / str(len(made)))
        made.append(model.state_dict()["fc.weight"])
    assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])


def test_nothing_to_train_is_refused(tmp_path: Path) -> None:
    model = net().requires_grad_(False)
    with pytest.raises(OnnxgenError, match="no parameter to train"):
        fit(model, images(), out=tmp_path)


@pytest.mark.parametrize("more", [{}, {"early_stop": 1}])
def test_a_monitored_metric_that_is_not_logged_is_refused(more: dict[str, Any], tmp_path: Path) -> None:
    """A user's callbacks may log any metric, so a missing one is known only after the first epoch."""
    with pytest.raises(OnnxgenError, match="no logged value is called 'val_acuracy'.*val_accuracy"):
        fit(net(), images(), callbacks=[Seen()], out=tmp_path, monitor="val_acuracy", epochs=2, **more)


def test_each_output_has_its_own_loss(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x), self.b(x)

    x = torch.randn(40, 4)
    data = {"x": x, "kind": torch.arange(40) % 3, "size": x.sum(1)}
    model, seen = Two(), Seen()
    twin = copy.deepcopy(model)
    target = {"output0": "kind", "output1": "size"}
    fit(model, data, callbacks=[seen], epochs=1, optimizer="sgd", lr=0.1, target=target, out=tmp_path)
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    for batch in seen.batches:
        kinds, sizes = twin(batch["x"])
        loss = F.cross_entropy(kinds, batch["kind"]) + F.mse_loss(sizes[:, 0], batch["size"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    same(seen.last, twin.state_dict())
