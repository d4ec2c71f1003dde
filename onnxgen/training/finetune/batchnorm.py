"""`calibrate_batchnorm`: measures statistics for BatchNorms without changing what the network computes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError, counted, typed
from onnxgen.record.asked import command, recorded_options
from onnxgen.record.sidecar import metadata_of, space_of
from onnxgen.surgery.ports import NORMS, is_below, signature_of, undisturbed
from onnxgen.training.data.samples import Data, Feeding, Samples
from onnxgen.training.data.streaming.stream import leading
from onnxgen.training.finetune.freezing import freeze, has_statistics, held
from onnxgen.training.loader import Loader
from onnxgen.training.model import fixed_batch
from onnxgen.training.runs.folder import RECORD
from onnxgen.training.settings import Settings
from onnxgen.training.singly import alone_of, is_singly
from onnxgen.training.tasks import card_of

SETTINGS = Settings()  # for opening data
NORM = nn.modules.batchnorm._BatchNorm
FEW = 256  # training samples; the statistics of fewer say little about others
# Samples of a batch. Detectors train in fewer, and freeze norms then (Detectron2): what is measured on one such batch
# is noise (Wu & He, 1803.08494). Small classifiers do not gain by it: docs/MEASUREMENTS.md has both.
SMALL = 16
_DEEP = 8  # convolutions, which are seldom trained without a norm
_MEASURED = 512  # samples, at most
Batches: TypeAlias = Iterable[Tensor | Sequence[Tensor] | Mapping[str, Tensor]]


@dataclass(frozen=True)
class Calibrated:
    """The measurements at one norm.

    Attributes:
        path: the norm's path.
        values: number of values measured per channel; 0 if no data reached the norm, which then was not changed.
        mean, std: of its input, by channel; float64 on the CPU.
    """

    path: str
    values: int
    mean: Tensor
    std: Tensor


def calibrate_batchnorm(model: nn.Module, batches: Batches | Path | Data, *, every: bool = False) -> list[Calibrated]:
    """Measure the inputs of BatchNorms, and make these their running statistics.

    The model's outputs in evaluation mode stay the same. `--restore-batchnorm` restores a folded norm as the identity:
    mean 0, variance 1, scale 1. In training this norm would normalise with the batch, so the network would compute
    something else. With measured running statistics, `sqrt(variance + eps)` in the scale and the mean in the shift, the
    norm computes the same in evaluation, and nearly the same in training.

    Args:
        model: any module; it runs in evaluation mode.
        batches: each is a tensor, the arguments of `forward` (later items, such as labels, are ignored), or a dict of
            arguments. A `DataLoader` is fine. Or data as for `fit`: a path, or `Data`; its training part is measured.
            Use a few hundred samples or more.
        every: measure all norms, not only those that are the identity.

    Returns:
        the measurements of each norm.

    Raises:
        OnnxgenError: there is no such norm, there is no batch, or the model fails on a batch.
    """
    paths = [*_norms(model, every)]
    if not paths:
        way_out = "generate with --restore-batchnorm, or measure all with every=True"
        raise OnnxgenError("no BatchNorm of the model is the identity", help=way_out)
    return _calibrated(model, paths, batches)


def norms_before(
    model: nn.Module, samples: Samples, feeding: Feeding, settings: Settings, recipe: bool
) -> tuple[list[str], list[str]]:
    """Make a model's BatchNorms fit to be trained on some samples. Returns notes, and the paths of what was frozen.

    Norms that `--restore-batchnorm` put back are measured, since they have seen no data yet: with the first batches the
    network would compute something else than it has learned. A recipe for fine-tuning freezes all norms if the samples
    are too few to measure, or the batches of a detector. Otherwise a note tells of such batches. Norms that the
    exporter folded, and that nobody put back, are parts of other weights: they are as if frozen.
    """
    # A run that is resumed has the measurements in its files.
    notes = [] if settings.resume else _measured(model, samples, feeding, settings)
    norms = [*_norms(model, True)]
    small = settings.batch < SMALL and card_of(settings.task).freezes_norms
    few = f"{len(samples)} samples are too few for them" if len(samples) < FEW else ""
    few = few or (f"batches of {settings.batch} are too small for them" if small else "")
    if recipe and not settings.lora and few and norms:
        freeze(model, *norms)
        return [*notes, f"the recipe froze {counted(len(norms), 'BatchNorm')}: {few}"], norms
    left = [path for path in norms if not is_below(path, settings.freeze)]
    if settings.batch == 1 and left and not is_singly(model):
        way = "--freeze them to use their statistics"
        notes.append(f"each sample is a batch, by which {_listed(left)} normalise it; {way}")
    elif small and left and not is_singly(model):
        what = f"batches of {settings.batch} samples give {_listed(left)} noisy statistics"
        notes.append(f"{what}; larger ones, or --freeze them to use those of the weights")
    return notes, []


def _measured(model: nn.Module, samples: Samples, feeding: Feeding, settings: Settings) -> list[str]:
    """Measure the norms that `--restore-batchnorm` put back. Returns a note of them."""
    restored = [path for path in _norms(model, False) if _is_restored(model.get_submodule(path))]
    if not restored:
        return []
    fixed = fixed_batch(model)
    size = fixed or settings.batch
    taken = leading(samples, max(_MEASURED // size, 1) * size)
    several = [taken[i : i + size] for i in range(0, len(taken) - len(taken) % (fixed or 1), size)]
    # As positional arguments, like every other pass of a run.
    batches = ([*feeding.arguments(samples.take(indices, settings.seed))] for indices in several)
    _calibrated(model, restored, batches)
    text = counted(len(restored), "BatchNorm")
    return [f"{text} put back by --restore-batchnorm: measured on {counted(len(taken), 'sample')} at first"]


def _freeing(model: nn.Module) -> str:
    """Return the command that makes the module of a model again, with a free batch."""
    from onnxgen.training.report.facts import file_of  # imported here: it imports Lightning

    file, options = file_of(model), None
    if file is not None and not (file.parent / RECORD).is_file():
        options = recorded_options(metadata_of(space_of(model)), file.parent)
    if file is None or options is None:
        return "--dynamic-batch"
    return command(Path(signature_of(model).source), file, replace(options, dynamic_batch=True))


def without_norms(model: nn.Module) -> list[str]:
    """Return a note of a deep network that may have lost its norms when it was exported."""
    layers = [m for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd) and m.bias is not None]
    if len(layers) < _DEEP or any(isinstance(module, NORMS) for module in model.modules()):
        return []
    what = f"none of the {len(layers)} convolutions has a norm, as if the export had folded BatchNorms into them"
    return [f"{what}: a module that onnxgen makes with --restore-batchnorm learns better from scratch"]


def held_if_singly(model: nn.Module) -> list[str]:
    """Let the norms of a network that runs on one sample at a time use their statistics, and return notes."""
    if not is_singly(model):
        return []
    left = [path for path, module in model.named_modules() if has_statistics(module)]
    held(map(model.get_submodule, left))
    note = "the network takes one sample: each of a batch is run by itself, and their gradients add up"
    note += "" if alone_of(model)[0] else f" (faster if onnxgen can free the batch of the file: {_freeing(model)})"
    return [note + (f"; {_listed(left)} use the statistics that they have, since one sample has none" if left else "")]


def _listed(norms: Sequence[str]) -> str:
    return f"{counted(len(norms), 'BatchNorm')} ({', '.join(norms[:3])}{', ...' * (len(norms) > 3)})"


def _calibrated(model: nn.Module, paths: Sequence[str], batches: Batches | Path | Data) -> list[Calibrated]:
    measured = {path: _Moments() for path in paths}
    with undisturbed(model), ExitStack() as hooks:
        for path, moments in measured.items():
            hooks.enter_context(model.get_submodule(path).register_forward_pre_hook(moments.hook))
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

    def hook(self, module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        """Add a batch [n, channels, ...], the norm's input."""
        x = arguments[0]
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
        """Return the unbiased variance, like BatchNorm's running variance."""
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
    samples = next(iter(data.parts.values()))
    return ([batch[column] for column in inputs] for batch in Loader(samples, SETTINGS.batch, workers=0))


def _norms(model: nn.Module, every: bool) -> Iterator[str]:
    for path, module in model.named_modules():
        if isinstance(module, NORM) and module.affine and module.running_var is not None:
            if every or _is_identity(module):
                yield path


def _is_identity(norm: NORM) -> bool:
    """Return True if the norm is as `--restore-batchnorm` makes it, apart from its shift (the convolution's bias)."""
    assert norm.running_mean is not None and norm.running_var is not None
    near_one = (norm.running_var - 1).abs() < 1e-3
    return bool((near_one & (norm.running_mean == 0) & (norm.weight == 1)).all())


def _is_restored(norm: nn.Module) -> bool:
    """Return True if a norm that is the identity stands for one that was trained: it has its shift, or 1 - eps."""
    assert isinstance(norm, NORM) and norm.running_var is not None
    return bool(norm.bias.any() or (norm.running_var != 1).any())


def _run(model: nn.Module, batch: Tensor | Sequence[Tensor] | Mapping[str, Tensor], number: int) -> None:
    names = [p.name for p in inspect.signature(model.forward).parameters.values() if p.kind is not p.VAR_KEYWORD]
    device = next(model.parameters()).device
    try:
        if isinstance(batch, Mapping):
            model(**{name: batch[name].to(device) for name in names if name in batch})
        else:
            arguments = [batch] if isinstance(batch, Tensor) else batch[: len(names)]
            model(*[x.to(device) for x in arguments])
    except Exception as error:  # the model's code may raise anything
        what = f"the model fails on batch {number}: {typed(error, 200)}"
        raise OnnxgenError(what, help=f"forward takes {', '.join(names)}") from error


@torch.no_grad()
def _adopt(norm: nn.Module, moments: _Moments) -> None:
    """Set new statistics, and the scale and shift with which the norm computes the same as before."""
    assert isinstance(norm, NORM) and norm.running_mean is not None and norm.running_var is not None
    mean, variance = norm.running_mean.cpu().double(), norm.running_var.cpu().double()
    slope = norm.weight.cpu().double() / (variance + norm.eps).sqrt()
    norm.running_mean.copy_(moments.mean)
    norm.running_var.copy_(moments.variance())
    stored_mean, stored_variance = norm.running_mean.cpu().double(), norm.running_var.cpu().double()
    norm.weight.copy_(slope * (stored_variance + norm.eps).sqrt())
    norm.bias.copy_(norm.bias.cpu().double() + slope * (stored_mean - mean))
