"""What a run is of: only the same model, data and settings that change the numbers go on from its checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import nn

from onnxgen.errors import OnnxgenError, counted
from onnxgen.training.checkpoint.weights import COMPILED
from onnxgen.training.data.samples import Samples
from onnxgen.training.settings import Settings

# What may differ is left out: where the run is, what it runs on, when it saves and, without a schedule, when it ends.
COMPARED = (
    "accumulate", "optimizer", "optimizer_args", "lr", "weight_decay", "schedule", "schedule_args", "head_lr", "clip",
    "loss", "inputs", "target", "classes", "precision", "freeze", "normalize", "augment", "seed", "early_stop",
    "monitor",
)  # fmt: skip
ENDS = ("epochs", "max_steps")
MODEL, TENSOR = "model", "tensor "  # a key, and what keys of tensors begin with
PROBED = 8  # samples that stand for the data

Identity = dict[str, str]  # what it is called in messages, and what it is


def identity(model: nn.Module, samples: Samples, settings: Settings) -> Identity:
    """What has to be the same to go on.

    Args:
        model: its parameters and buffers count by name and shape.
        samples: those that are trained on; they count by number, fields and the values of a few.
        settings: of several processes, the batch of all together counts.
    """
    names = COMPARED + (ENDS if settings.schedule else ())
    found = {name: _shown(getattr(settings, name)) for name in names}
    found["batch_size"] = f"{settings.batch_size * settings.devices * settings.nodes} of all processes together"
    found["data"] = f"{len(samples):,} samples ({_probe(samples)})"
    return found | _of_model(model)


def _of_model(model: nn.Module) -> Identity:
    count = sum(parameter.numel() for parameter in model.parameters())
    found = {MODEL: f"{type(model).__name__} of {count:,} parameters"}
    for name, tensor in model.state_dict().items():
        found[f"{TENSOR}{name.replace(COMPILED, '')}"] = "x".join(map(str, tensor.shape)) or "a number"
    return found


def compare(then: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raises `OnnxgenError` that names what differs between a checkpoint's identity and this run's."""
    differing = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    tensors = [name for name in differing if name.startswith(TENSOR)]
    others = [name for name in differing if name not in (MODEL, *tensors)]  # a class of another name is the same model
    if tensors:
        _refuse("model", [MODEL, *tensors[:3]], then, now, len(tensors) - 3)
    if others:
        _refuse("run", others, then, now)


def compare_model(then: Mapping[str, str], model: nn.Module) -> None:
    """As `compare`, of the model alone: before anything else turns out not to fit another one."""
    of_model = {name: value for name, value in then.items() if name == MODEL or name.startswith(TENSOR)}
    compare(of_model, _of_model(model))


def _refuse(what: str, shown: list[str], then: Mapping[str, str], now: Mapping[str, str], left_out: int = 0) -> None:
    labels = {MODEL: ""}  # the message says it already
    lines = [f"{labels.get(n, f'{n}: ')}{then.get(n, 'none')} there, {now.get(n, 'none')} here" for n in shown]
    more = f", and {counted(left_out, 'tensor')} more" if left_out > 0 else ""
    raise OnnxgenError(
        f"the checkpoint belongs to another {what}: {'; '.join(lines)}{more}",
        help="resume with the same settings and data, or start a new run in another --out",
    )


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={v}" for k, v in sorted(value.items())) or "none"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _probe(samples: Samples) -> str:
    """A short hash of the fields and of samples from all over."""
    digest = hashlib.sha256(repr([(n, str(f.dtype), f.shape, f.classes) for n, f in samples.fields.items()]).encode())
    indices = sorted({i * (len(samples) - 1) // max(PROBED - 1, 1) for i in range(PROBED)})
    for name, column in sorted(samples.take(indices, 0).items()):
        digest.update(name.encode() + column.cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]
