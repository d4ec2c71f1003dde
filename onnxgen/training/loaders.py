"""Makes the loaders of a run for Lightning's Trainer."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import lightning
from torch import nn

from onnxgen.training.data.samples import Samples
from onnxgen.training.loader import Loader
from onnxgen.training.model import fixed_batch
from onnxgen.training.prepare import Plan


class Loaders(lightning.LightningDataModule):
    """Makes the loaders of a run. Lightning asks for them once it knows the rank of this process."""

    def __init__(self, plan: Plan, say: Callable[[str], None] = warnings.warn) -> None:
        """`say` tells which samples were skipped."""
        super().__init__()
        self.plan, self.say = plan, say
        self._made: list[Loader] = []

    def teardown(self, stage: str) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes. A run that is interrupted has no `teardown`."""
        for loader in self._made:
            loader.close()

    def train_dataloader(self) -> Loader:
        assert self.plan.data.train is not None
        return self._loader(self.plan.data.train, shuffle=True)

    def val_dataloader(self) -> Loader | list[Loader]:
        return [] if self.plan.data.val is None else self._loader(self.plan.data.val)

    def test_dataloader(self) -> Loader | list[Loader]:
        return [] if self.plan.data.test is None else self._loader(self.plan.data.test)

    def _loader(self, samples: Samples, shuffle: bool = False) -> Loader:
        settings, trainer = self.plan.settings, self.trainer
        assert trainer is not None
        rank, world = trainer.global_rank, trainer.world_size
        # BatchNorm can't train on one sample: it has no variance.
        norms = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.plan.model.modules())
        several = settings.accumulate * world > 1
        loader = Loader(
            samples,
            settings.batch,
            shuffle=shuffle,
            seed=settings.seed,
            workers=settings.workers,
            rank=rank,
            world=world,
            accumulate=settings.accumulate,
            smallest=2 if shuffle and norms else 1,
            drop_last=shuffle and fixed_batch(self.plan.model) is not None,
            pin_memory=self.plan.device.torch_device.type == "cuda",
            say=self.say,
            ahead=shuffle and several and any(goal.counts for goal in self.plan.objectives),
            classes=self.plan.classes if shuffle else None,
        )
        self._made.append(loader)
        return loader
