"""Networks that take one sample, and get several rows: what they make of these is no row for each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError
from onnxgen.record.signature import Port
from onnxgen.surgery.example import outputs, undisturbed
from onnxgen.training.data.fed import fed, says_batch
from onnxgen.training.data.images import shown
from onnxgen.training.data.samples import Batch, Feeding
from onnxgen.training.model import fixed_batch

_WAY = "export it again with a batch axis in front of its inputs and outputs"
_ALIKE = 1e-3  # of the largest value of an output: rounding may depend on the size of a batch


def check_batch(model: nn.Module, batch: Batch, feeding: Feeding, made: Sequence[Tensor]) -> list[str]:
    """Return a note if outputs for a sample depend on the others of its batch, which may then be no batch.

    The signature decides where it names the batch, else the network does, in runs on the samples of `batch`, of which
    it has made `made`.

    Raises:
        OnnxgenError: an output does not grow with the number of samples.
    """
    ports, made_of = fed(model).inputs, fed(model).outputs
    first = {port.dims[0] for port in ports if port.dims}
    wanted = sorted(feeding.targets) or range(len(made_of))
    declared = [set(made_of[n].dims or ()) for n in wanted if n < len(made_of)]
    follows = all(any(dim in first for dim in dims if isinstance(dim, str)) for dims in declared)
    count = len(batch[feeding.inputs[0]])
    follows &= all(count in made[n].shape for n in wanted if n < len(made))  # the module may have been edited
    if count < 2 or follows and all(isinstance(dim, str) and says_batch(dim) for dim in first):
        return []
    if len(made) != len(made_of):  # it fails, or makes text
        return []
    still = [] if follows else _still(model, batch, feeding, made, wanted)
    if still and (feeding.targets or len(still) == len(made)):
        name, has, port = made_of[still[0]].name, list(made[still[0]].shape), ports[0]
        what = f"the network takes one sample: of {count} of them it makes an output {name!r} of {has}"
        raise OnnxgenError(f"{what}, so the first axis of input {port.name!r} {shown(port)} is no batch", help=_WAY)
    return _mixed(model, batch, feeding, made, wanted, ports)


def _still(
    model: nn.Module, batch: Batch, feeding: Feeding, made: Sequence[Tensor], wanted: Sequence[int]
) -> list[int]:
    """Return which outputs are as large for another number of samples; for a fixed number, which lack it."""
    fixed, count = fixed_batch(model), len(batch[feeding.inputs[0]])
    if fixed:
        return [n for n in wanted if fixed not in made[n].shape]
    more = {name: torch.cat((x, x[:1])) if len(x) == count else x for name, x in batch.items()}
    other = _run(model, more, feeding)
    return [n for n in wanted if len(other) == len(made) and made[n].shape == other[n].shape]


def _run(model: nn.Module, batch: Batch, feeding: Feeding) -> list[Tensor]:
    """Return the outputs for a batch; none if the network fails on it."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with undisturbed(model):
        try:
            return outputs(model(*(x.contiguous() for x in feeding.arguments(batch, device))))
        except Exception:  # what is wrong is told by others
            return []


def _mixed(
    model: nn.Module,
    batch: Batch,
    feeding: Feeding,
    made: Sequence[Tensor],
    wanted: Sequence[int],
    ports: Sequence[Port],
) -> list[str]:
    """Return a note if the outputs for the first sample are others when all samples are that one."""
    count = len(batch[feeding.inputs[0]])
    again = _run(model, batch, feeding)
    alone = _run(model, {name: x[:1].expand_as(x) if len(x) == count else x for name, x in batch.items()}, feeding)
    for n in wanted:
        if not len(made) == len(again) == len(alone) or not made[n].ndim or len(made[n]) != count:
            continue
        if _alike(made[n][0], again[n][0]) and not _alike(made[n][0], alone[n][0]):
            what = "what the network makes of a sample depends on the others of its batch"
            return [f"{what}: is the first axis of input {ports[0].name!r} {shown(ports[0])} one of samples?"]
    return []


def _alike(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return one.shape == other.shape and bool((one == other).all())
    span = float(torch.nan_to_num(one).abs().max()) if one.numel() else 0.0
    return one.shape == other.shape and torch.allclose(one, other, _ALIKE, _ALIKE * span, equal_nan=True)
