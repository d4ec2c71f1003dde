"""The private names of Lightning that training uses: no others, and each is what it was when it was chosen.

A newer Lightning may change them without a word. Each has its reason where it is used.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader

import onnxgen.training
from onnxgen.training.task import EACH_STEP, QUIET, ends_epoch, ends_run, lean, stepped
from tests.conftest import ROOT

READ = {
    "checkpoint/callback.py": {"_restarting"},
    "task.py": {"_current_fx_name"},
}
OF_LIGHTNING = ("trainer", "loop", "strategy")  # what is called so is an object of Lightning's


def test_no_other_private_name_is_read() -> None:
    found: dict[str, set[str]] = {}
    folder = ROOT / "onnxgen" / "training"
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_private(node)}
        names |= {"_current_fx_name"} if "_current_fx_name" in ast.unparse(tree) else set()
        if names:
            found[path.relative_to(folder).as_posix()] = names
    assert found == READ


def _is_private(node: ast.Attribute) -> bool:
    parts = ast.unparse(node).split(".")
    return node.attr.startswith("_") and not node.attr.startswith("__") and bool({*parts[:-1]} & {*OF_LIGHTNING})


def test_no_private_method_is_overridden() -> None:
    found = set()
    for module in pkgutil.walk_packages(onnxgen.training.__path__, "onnxgen.training."):
        if not module.name.endswith((".__main__", ".wrapper")):  # transformers is optional
            for kind in vars(importlib.import_module(module.name)).values():
                if inspect.isclass(kind) and kind.__module__ == module.name:
                    theirs = {n for b in kind.__mro__ if b.__module__.startswith("lightning") for n in vars(b)}
                    found |= {(kind.__name__, n) for n in vars(kind) if n[0] == "_" and n[1] != "_" and n in theirs}
    assert {pair for pair in found if pair[1] != "_abc_impl"} == set()


def test_the_private_names_are_there() -> None:
    """And the public setter does not do what the private attribute does: with `max_steps` it never says False."""
    assert lightning.LightningModule()._current_fx_name is None
    trainer = lightning.Trainer(max_steps=1, accelerator="cpu", **QUIET)
    loop = trainer.fit_loop
    loop.restarting = False
    assert loop.restarting
    loop._restarting = False
    assert not loop.restarting


def test_a_hook_that_is_no_function_is_not_called() -> None:
    """What `lean` relies on."""

    class Silent(lightning.Callback):
        def on_train_batch_end(self, *_: object) -> None:
            called.append("on_train_batch_end")

    called: list[str] = []
    lean(silent := Silent())
    trainer = lightning.Trainer(accelerator="cpu", callbacks=[silent], **QUIET)
    for name in EACH_STEP:
        lightning.pytorch.trainer.call._call_callback_hooks(trainer, name)
    assert called == ["on_train_batch_end"]
    assert [name for name in EACH_STEP if getattr(silent, name) is not None] == ["on_train_batch_end"]


class _Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        return self.layer(batch).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


class _Asking(lightning.Callback):
    def __init__(self) -> None:
        self.told: list[tuple[bool, bool, bool]] = []

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: object) -> None:
        loop = trainer.fit_loop.epoch_loop
        told = stepped(trainer), ends_epoch(trainer), ends_epoch(trainer) or ends_run(trainer)
        assert told == (not loop._should_accumulate(), loop._num_ready_batches_reached(), loop._is_training_done)
        self.told.append(told)


def test_where_a_batch_is_in_its_run_is_what_lightning_thinks() -> None:
    """Of five batches in an epoch, two in a step, three steps in an epoch; the fifth step is the last."""
    asking = _Asking()
    options: dict[str, Any] = {**QUIET, "accumulate_grad_batches": 2, "max_steps": 5}
    lightning.Trainer(accelerator="cpu", callbacks=[asking], **options).fit(_Net(), DataLoader(torch.ones(5, 1)))
    steps, epochs, ends = ("".join("-+"[told] for told in column) for column in zip(*asking.told))
    assert (steps, epochs, ends) == ("-+-++-+-+", "----+----", "----+---+")
