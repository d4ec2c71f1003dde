"""`calibrate_batchnorm`: statistics for norms that have none yet, without changing what the network computes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError, typed
from onnxgen.surgery.example import undisturbed
from onnxgen.training.data.samples import Data
from onnxgen.training.settings import Settings

SETTINGS = Settings()  # of data that is opened: all of it is measured, as it is
NORM = nn.modules.batchnorm._BatchNorm
Batches: TypeAlias = Iterable[Tensor | Sequence[Tensor] | Mapping[str, Tensor]]


@dataclass(frozen=True)
class Calibrated:
    """What was measured at one norm, by channel.

    Attributes:
        path: of the norm.
        values: how many a channel were measured; 0 where the data never came by, and nothing was changed.
        mean, std: of its input, float64 on the CPU.
    """

    path: str
    values: int
    mean: Tensor
    std: Tensor


def calibrate_batchnorm(model: nn.Module, batches: Batches | Path | Data, *, every: bool = False) -> list[Calibrated]:
    """Measure what BatchNorms see, and let them normalise with it; what the model computes in evaluation stays.

    `--restore-batchnorm` puts a folded norm back as the identity: mean 0, variance 1, scale 1. In training it would
    normalise with the batch, and compute something else than the network that the file holds. With the mean and
    variance of its input over all batches as running statistics, `sqrt(variance + eps)` in the scale and the mean in
    the shift, it computes the same in evaluation, and nearly the same in training.

    Args:
        model: any module; measured in evaluation mode.
        batches: a tensor each, or the arguments of `forward` (what comes after them, such as labels, is ignored), or a
            dict of them by name; a `DataLoader` will do. Or data as `fit` takes it: a path, or `Data`, of which the
            training part is measured. The more, the better: a few hundred samples at least.
        every: all norms, not only those that are the identity.

    Returns:
        what was measured, norm by norm.

    Raises:
        OnnxgenError: there is no such norm, no batch, or a batch that the model can't take.
    """
    measured = {path: _Moments() for path in _norms(model, every)}
    if not measured:
        way_out = "generate with --restore-batchnorm, or measure every=True"
        raise OnnxgenError("no BatchNorm of the model is the identity", help=way_out)
    with undisturbed(model), _watched(model, measured):
        count = 0
        for count, batch in enumerate(_opened(model, batches), 1):
            _run(model, batch, count)
    if not count:
        raise OnnxgenError("measuring BatchNorms needs at least one batch")
    for path, moments in measured.items():
        if moments.count:
            _adopt(model.get_submodule(path), moments)
    return [Calibrated(path, m.count, m.mean, m.variance().sqrt()) for path, m in measured.items()]


@dataclass
class _Moments:
    """Mean and squared deviations over several batches (Chan, Golub & LeVeque 1979), in float64."""

    count: int = 0
    mean: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    squares: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    def add(self, x: Tensor) -> None:
        """One more batch [n, channels, ...]."""
        count = x.numel() // x.shape[1]
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        variance, mean = torch.var_mean(wide, [0, *range(2, x.ndim)], correction=0)
        mean, squares = mean.cpu().double(), variance.cpu().double() * count
        if not self.count:
            self.count, self.mean, self.squares = count, mean, squares
            return
        total, step = self.count + count, mean - self.mean
        self.squares = self.squares + squares + step**2 * (self.count * count / total)
        self.mean = self.mean + step * (count / total)
        self.count = total

    def variance(self) -> Tensor:
        """Unbiased, as BatchNorm's running variance."""
        return self.squares / max(self.count - 1, 1)


def _opened(model: nn.Module, batches: Batches | Path | Data) -> Batches:
    if isinstance(batches, Tensor):
        return [batches]
    if not isinstance(batches, (str, Path, Data)):
        return batches
    from onnxgen.training.data.feeding import feed
    from onnxgen.training.data.opening import open_data

    data = open_data(batches, model, SETTINGS, targets=False)
    inputs = feed(data, model, SETTINGS, targets=False).inputs
    samples = next(part for part in (data.train, data.val, data.test) if part is not None)
    starts = range(0, len(samples), SETTINGS.batch_size)
    chunks = (range(start, min(start + SETTINGS.batch_size, len(samples))) for start in starts)
    taken = (samples.take(chunk, SETTINGS.seed) for chunk in chunks)
    return ([batch[column] for column in inputs] for batch in taken)


def _norms(model: nn.Module, every: bool) -> Iterator[str]:
    for path, module in model.named_modules():
        if isinstance(module, NORM) and module.affine and module.running_var is not None:
            if every or _is_identity(module):
                yield path


def _is_identity(norm: NORM) -> bool:
    """Whether a norm is what `--restore-batchnorm` makes; its shift is the convolution's bias."""
    assert norm.running_mean is not None and norm.running_var is not None
    near_one = (norm.running_var - 1).abs() < 1e-3
    return bool((near_one & (norm.running_mean == 0) & (norm.weight == 1)).all())


@contextmanager
def _watched(model: nn.Module, measured: Mapping[str, _Moments]) -> Iterator[None]:
    def watch(moments: _Moments) -> Any:
        return lambda _, arguments: moments.add(arguments[0])

    hooks = [model.get_submodule(p).register_forward_pre_hook(watch(m)) for p, m in measured.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _run(model: nn.Module, batch: Tensor | Sequence[Tensor] | Mapping[str, Tensor], number: int) -> None:
    names = [p.name for p in inspect.signature(model.forward).parameters.values() if p.kind is not p.VAR_KEYWORD]
    device = next(model.parameters()).device
    try:
        if isinstance(batch, Mapping):
            model(**{name: batch[name].to(device) for name in names if name in batch})
        else:
            given = [batch] if isinstance(batch, Tensor) else batch[: len(names)]
            model(*[x.to(device) for x in given])
    except Exception as error:  # whatever a model's own code raises
        reason = typed(error, 200)
        raise OnnxgenError(
            f"the model fails on batch {number}: {reason}", help=f"forward takes {', '.join(names)}"
        ) from error


@torch.no_grad()
def _adopt(norm: nn.Module, moments: _Moments) -> None:
    """New statistics, and the scale and shift with which it computes what it did."""
    assert isinstance(norm, NORM) and norm.running_mean is not None and norm.running_var is not None
    mean, variance = norm.running_mean.cpu().double(), norm.running_var.cpu().double()
    slope = norm.weight.cpu().double() / (variance + norm.eps).sqrt()
    norm.running_mean.copy_(moments.mean)
    norm.running_var.copy_(moments.variance())
    stored_mean, stored_variance = norm.running_mean.cpu().double(), norm.running_var.cpu().double()
    norm.weight.copy_(slope * (stored_variance + norm.eps).sqrt())
    norm.bias.copy_(norm.bias.cpu().double() + slope * (stored_mean - mean))
