"""Gradual unfreezing with Lightning's Trainer and a user's LightningModule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

lightning = pytest.importorskip("lightning")

from onnxgen import OnnxgenError  # noqa: E402
from onnxgen.training import GradualUnfreeze, freeze, param_groups  # noqa: E402
from onnxgen.training.prepare import quiet  # noqa: E402
from onnxgen.training.task import QUIET  # noqa: E402


class Mine(lightning.LightningModule):  # type: ignore[misc,name-defined]
    """A user's LightningModule that records what is trained in each epoch."""

    def __init__(self, only_trained: bool = False) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 2))
        freeze(self.model, "?")
        self.model[3].requires_grad_(True)
        self.only_trained = only_trained
        self.trained: list[str] = []
        self.moved: list[str] = []

    def training_step(self, batch: tuple[Tensor, ...], index: int) -> Tensor:
        self.trained.append("".join(name[0] for name, p in self.model.named_parameters() if p.requires_grad))
        return self.model(batch[0]).square().mean()  # type: ignore[no-any-return]

    def on_train_epoch_start(self) -> None:
        self.before = {name: p.clone() for name, p in self.model.named_parameters()}

    def on_train_epoch_end(self) -> None:
        self.moved.append("".join(n[0] for n, p in self.model.named_parameters() if not torch.equal(p, self.before[n])))

    def configure_optimizers(self) -> Any:
        if self.only_trained:
            return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)
        return torch.optim.SGD(param_groups(self.model, lr=0.1))


def fit(module: Mine, callback: GradualUnfreeze, folder: Path, epochs: int = 4) -> None:
    data = torch.utils.data.TensorDataset(torch.randn(8, 4, generator=torch.Generator().manual_seed(0)))
    with quiet():
        trainer = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", callbacks=[callback], default_root_dir=folder, **QUIET
        )
        trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=8))


def test_parts_are_unfrozen_in_their_epochs_and_learn(tmp_path: Path) -> None:
    module = Mine()
    fit(module, GradualUnfreeze({1: "2", 3: ["0", "1"]}), tmp_path)
    assert module.trained == ["33", "2233", "2233", "00112233"]
    assert [set(moved) for moved in module.moved] == [{"3"}, {"2", "3"}, {"2", "3"}, {"0", "1", "2", "3"}]


def test_a_block_every_other_epoch(tmp_path: Path) -> None:
    module = Mine()
    fit(module, GradualUnfreeze(2), tmp_path, 6)
    assert module.trained == ["33", "33", "2233", "2233", "112233", "112233"]


@pytest.mark.parametrize("schedule", [2, {2: "2", 4: ["0", "1"]}])
def test_a_resumed_run_catches_up(schedule: Any, tmp_path: Path) -> None:
    module = Mine()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(4, 4)), batch_size=4)
    with quiet():
        for epochs, resumed in ((3, None), (5, tmp_path / "last.ckpt")):
            module = Mine()
            callback = GradualUnfreeze(schedule)
            trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", callbacks=[callback], **QUIET)
            trainer.fit(module, data, ckpt_path=resumed)
            trainer.save_checkpoint(tmp_path / "last.ckpt")
    assert module.trained[-2] == "2233" and "2" in module.trained[-1] and len(module.trained) == 2
    assert set(module.trained[-1]) == ({"1", "2", "3"} if schedule == 2 else {"0", "1", "2", "3"})


def test_an_optimizer_without_the_unfrozen_parameters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OnnxgenError, match=r"no optimizer has 2\.weight.*param_groups"):
        fit(Mine(only_trained=True), GradualUnfreeze({1: "2"}), tmp_path)


def test_a_pattern_that_matches_nothing(tmp_path: Path) -> None:
    with pytest.raises(OnnxgenError, match="'layer4'"):
        fit(Mine(), GradualUnfreeze({3: "layer4"}), tmp_path)
