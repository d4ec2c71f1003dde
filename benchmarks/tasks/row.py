"""A row of the table: one network, trained by onnxgen and in a loop by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from onnxgen import generate
from onnxgen.cli import run as command
from onnxgen.training import Result, fit
from onnxgen.training.loader import epoch_seed

Batch: TypeAlias = dict[str, Tensor]
Loss: TypeAlias = Callable[[Tensor, Batch], Tensor]
ROUNDING = 1e-6  # of a metric in float32, as a share of it
SMALLER = ("error", "loss", "perplexity")  # metrics that are better if they are smaller


@dataclass(frozen=True)
class Given:
    """What both ways train on.

    Attributes:
        onnx: the network's file, with the weights that the seed 0 makes.
        data: what `fit` reads.
        train, val: the same, read by hand: columns with a row for each sample, in the order of `data`.
        inputs: the columns that the network takes, in the order of its inputs.
        options: of `fit`, beside those of the row.
    """

    onnx: Path
    data: Any
    train: Batch
    val: Batch
    inputs: tuple[str, ...] = ("x",)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def module(self) -> Path:
        path = self.onnx.with_suffix(".py")
        if not path.exists():
            generate(self.onnx, path)
        return path

    def fed(self, batch: Batch) -> tuple[Tensor, ...]:
        return tuple(batch[name] for name in self.inputs)


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        name: of the network, and of the file that has it.
        task: of `--task`.
        metric: of the validation part.
        epochs, rate: of both ways; the optimizer is AdamW without weight decay.
        network: makes the original, with the weights that the seed 0 makes.
        made: writes the network and data to a folder, and reads them by hand.
        loss: makes the loss that is written by hand; if it is a module, its parameters are trained, too.
        measured: the metric by hand, of the outputs for the validation part.
        options: of `fit`.
        batch: samples of a batch.
        begun: draws what is new in the network, with the run's seed.
        drawn: what is drawn anew for each batch.
    """

    name: str
    task: str
    metric: str
    epochs: int
    rate: float
    network: Callable[[], nn.Module]
    made: Callable[[Path], Given]
    loss: Callable[[], Loss]
    measured: Callable[[Tensor, Batch], float]
    options: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 32
    begun: Callable[[nn.Module], None] = lambda network: None
    drawn: Callable[[Batch], Batch] = lambda batch: batch

    def as_good(self, ours: float, theirs: float, spread: float) -> bool:
        """Return False if our mean is worse than theirs by more than the spread and rounding."""
        better = theirs - ours if self.metric.endswith(SMALLER) else ours - theirs
        return better >= -spread - ROUNDING * abs(theirs)


def by_onnxgen(row: Row, given: Given, seed: int, out: Path) -> tuple[float, Result]:
    """Return the metric after the last epoch, and the result, whose model has the weights of the best one."""
    result = fit(
        given.module, given.data, task=row.task, epochs=row.epochs, lr=row.rate, weight_decay=0.0, batch_size=row.batch,
        seed=seed, workers=0, device="cpu", show="nothing", out=out, **row.options, **given.options,
    )  # fmt: skip
    assert result.stopped == "epochs", result.stopped
    return result.history[-1][f"val_{row.metric}"], result


def by_hand(row: Row, given: Given, seed: int) -> float:
    """Return the metric after the last epoch. The batches have the order that onnxgen gives them."""
    torch.manual_seed(0)
    network = row.network()
    torch.manual_seed(seed)
    row.begun(network)
    loss, count = row.loss(), len(next(iter(given.train.values())))
    own = [*loss.parameters()] if isinstance(loss, nn.Module) else []
    optimizer = torch.optim.AdamW([*network.parameters(), *own], row.rate, weight_decay=0.0)
    for epoch in range(row.epochs):
        order = np.random.Generator(np.random.PCG64(epoch_seed(seed, epoch))).permutation(count)
        network.train()
        for rows in torch.from_numpy(order).split(row.batch):
            batch = row.drawn({name: column[rows] for name, column in given.train.items()})
            optimizer.zero_grad()
            loss(network(*given.fed(batch)), batch).backward()
            optimizer.step()
    with torch.no_grad():
        return row.measured(network.eval()(*given.fed(given.val)), given.val)


def in_onnxruntime(given: Given, result: Result) -> float:
    """Export a run. Return the largest difference of the file's outputs from the trained module's, over the largest."""
    assert command(["export", str(result.out), "-q"]) == 0
    (file,) = result.out.glob("*.onnx")
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    fed = given.fed(given.val)
    (found,) = session.run(None, {port.name: x.numpy() for port, x in zip(session.get_inputs(), fed, strict=True)})
    with torch.no_grad():
        wanted = result.model.eval()(*fed).numpy()
    assert found.shape == wanted.shape
    return float(abs(found - wanted).max() / abs(wanted).max())
