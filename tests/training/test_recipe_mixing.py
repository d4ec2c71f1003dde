"""`--mixup` and `--cutmix`; the oracle is torch's cross entropy of mixed targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError
from onnxgen.training import fit
from onnxgen.training.data.samples import Feeding
from onnxgen.training.losses import Ending, Objective
from onnxgen.training.recipes.callbacks import SHARE, MixedTask, Mixing, other
from tests.training.test_fit import Seen, images
from tests.training.test_fit import net as convolutions
from tests.training.test_fit_options import CPU, net, points


def numbered(count: int = 6, *shape: int) -> dict[str, Tensor]:
    """Sample i is i everywhere, and is of class i."""
    x = torch.arange(count, dtype=torch.float32).view(count, *[1] * len(shape)).expand(count, *shape)
    return {"x": x.clone(), "y": torch.arange(count)}


def mixed(mixup: float, cutmix: float, seed: int, *shape: int) -> dict[str, Tensor]:
    batch = numbered(6, *shape)
    Mixing(0, mixup, cutmix, {"x": (2, 3)}, ("y",)).mix(batch, np.random.default_rng(seed))
    return batch


def test_mixup_is_the_mean_of_two_samples_by_their_shares() -> None:
    shares = []
    for seed in range(40):
        batch = mixed(0.4, 0.0, seed, 3)
        share, y, z = batch[SHARE], batch["y"], batch[other("y")]
        torch.testing.assert_close(batch["x"], (share * y + (1 - share) * z)[:, None].expand(6, 3))
        assert sorted(y.tolist()) == sorted(z.tolist()) == list(range(6)) and share.unique().numel() == 1
        shares.append(share[0].item())
    drawn = np.random.default_rng(1).beta(0.4, 0.4, 100_000)
    assert min(shares) >= 0.5 and np.mean(shares) == pytest.approx(np.maximum(drawn, 1 - drawn).mean(), abs=0.06)


def test_cutmix_pastes_a_box_whose_area_is_the_share() -> None:
    sizes = set()
    for seed in range(40):
        batch = mixed(0.0, 1.0, seed, 2, 9, 12)
        y, z, share = batch["y"], batch[other("y")], batch[SHARE][0].item()
        for x, a, b in zip(batch["x"], y.tolist(), z.tolist(), strict=True):
            first, second = (x == a).all(0), (x == b).all(0)
            assert bool((first | second).all())
            if a == b:
                continue
            assert first.float().mean().item() == pytest.approx(share)
            smaller = [mask for mask in (first, second) if mask.any() and _is_box(mask)]
            assert smaller or share == 1
            sizes.add(round(share, 3))
    assert len(sizes) > 15


def _is_box(mask: Tensor) -> bool:
    rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
    return bool(mask[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].all())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [(), (0.5, 2.0, 1.0)])
@pytest.mark.parametrize("kind, loss", [("", "cross_entropy"), ("log_softmax", "nll_loss")])
def test_the_loss_is_that_of_mixed_targets(kind: str, loss: str, weights: tuple[float, ...], smoothing: float) -> None:
    made = Objective(0, "", "y", loss, Ending(kind, 1), 3, weights=weights, smoothing=smoothing)
    model = nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1)) if kind else nn.Sequential(nn.Linear(4, 3))
    task = MixedTask(model, [made], Feeding(("x",), {0: "y"}))
    x, y, z = torch.randn(5, 4), torch.tensor([0, 1, 2, 2, 1]), torch.tensor([2, 1, 0, 1, 0])
    batch = {"x": x, "y": y, other("y"): z, SHARE: torch.full((5,), 0.7)}
    total, ((shown, _, target),) = task.compute(batch)
    soft = 0.7 * F.one_hot(y, 3) + 0.3 * F.one_hot(z, 3)
    weight = torch.tensor(weights) if weights else None
    expected = F.cross_entropy(model[0](x), soft, weight, label_smoothing=smoothing)
    torch.testing.assert_close(total, expected)
    assert torch.equal(shown, total) and torch.equal(target, y)
    plain = {"x": x, "y": y}
    torch.testing.assert_close(task.eval().compute(plain)[0], F.cross_entropy(model[0](x), y))


def test_a_binary_loss_is_that_of_a_mixed_target() -> None:
    made = Objective(0, "", "y", "binary_cross_entropy_with_logits", classes=2)
    task = MixedTask(nn.Linear(4, 1), [made], Feeding(("x",), {0: "y"}))
    x, y, z = torch.randn(5, 4), torch.tensor([0, 1, 0, 0, 1]), torch.tensor([1, 1, 0, 1, 0])
    total, _ = task.compute({"x": x, "y": y, other("y"): z, SHARE: torch.full((5,), 0.6)})
    expected = F.binary_cross_entropy_with_logits(task.model(x)[:, 0], 0.6 * y + 0.4 * z)
    torch.testing.assert_close(total, expected)


class Drawn(Seen):
    """Records the mixed batches, and in parts of how many samples they are computed."""

    def __init__(self, parts: int | None = None) -> None:
        super().__init__()
        self.parts = parts

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        pl_module.micro.size = self.parts

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, index: int) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, index)


def test_batches_differ_and_depend_on_the_seed_alone_and_a_run_learns_of_all_parts(tmp_path: Path) -> None:
    given = {"epochs": 2, "batch_size": 30, "cutmix": 1.0, "mixup": 0.3, "val": 0.0, "out": tmp_path / "run", **CPU}
    runs = [Drawn(), Drawn(7), Drawn()]
    for seed, seen in zip((0, 0, 1), runs, strict=True):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        torch.manual_seed(5)
        nn.init.normal_(model[1].weight, std=0.1)
        nn.init.zeros_(model[1].bias)
        fit(model, images(), seed=seed, callbacks=[seen], **given)
    whole, parts, others = (seen.batches for seen in runs)
    assert len(whole) == 6 and len({batch[SHARE][0].item() for batch in whole}) == 6
    image = next(iter(whole[0]))
    for one, same, another in zip(whole, parts, others, strict=True):
        assert all(torch.equal(one[name], same[name]) for name in one)
        assert not torch.equal(one[image], another[image])
    for name, value in runs[0].last.items():
        torch.testing.assert_close(runs[1].last[name], value)


@pytest.mark.parametrize(
    "given, said",
    [
        ({"mixup": -1}, "mixup must be at least 0"),
        ({"cutmix": 1.0}, r"cutmix needs images, but input 'x' is \[6\] -> mixup=0.2"),
        ({"mixup": 0.2, "target": "y"}, "mixup needs a class for each sample, but the model is trained with mse_loss"),
    ],
)
def test_what_can_not_be_mixed_is_refused(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    data = {"x": points()["x"], "y": points()["x"][:, :3]} if "target" in given else points()
    with pytest.raises(OnnxgenError, match=said):
        fit(net(), data, out=tmp_path / "run", **given, **CPU)
    assert not (tmp_path / "run").exists()


def test_ids_are_not_mixed(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 3))
    data = {"ids": torch.arange(90).view(30, 3) % 5, "label": torch.arange(30) % 3}
    with pytest.raises(OnnxgenError, match="mixup mixes numbers, but input 'ids' is torch.int64"):
        fit(model, data, mixup=0.2, out=tmp_path / "run", **CPU)


def test_a_convolution_is_trained_on_mixed_images(tmp_path: Path) -> None:
    result = fit(convolutions(), images(), epochs=2, cutmix=1.0, class_weights="balanced", out=tmp_path, **CPU)
    assert len(result.history) == 2
