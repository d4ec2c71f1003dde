"""What a checkpoint notes of its run: identity and random generators. No Lightning is needed.

The identity describes model, data and settings: a checkpoint may be resumed only with the same ones. `peek` reads what
onnxgen notes in a checkpoint. `capture` and `restore` are for the random number generators that training may use.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from onnxgen.errors import OnnxgenError, counted
from onnxgen.runtime.checkpoint import need_safe_torch
from onnxgen.training.checkpoint.weights import COMPILED
from onnxgen.training.data.arrays import column_of
from onnxgen.training.data.samples import Samples
from onnxgen.training.data.streaming.stream import leading, stream_of
from onnxgen.training.runs.folder import CHECKPOINT_FILES
from onnxgen.training.settings import SETTINGS, Settings

# All other settings must be the same. What some of these change is compared in another way: samples, tensors.
FREE_SETTINGS = (
    "batch_size", "device", "imports", "devices", "nodes", "strategy", "workers", "replace_head", "keep",
    "weights", "from_scratch", "partial", "val", "test", "strict", "compile", "checkpoint_minutes", "resume", "out",
    "name", "max_hours", "gradient_checkpointing", "profile", "recipe", "find_lr", "loggers", "tokenizer", "max_length",
    "teacher", "restartable", "early_stop",
)  # fmt: skip
LENGTH_SETTINGS = ("epochs", "max_steps")  # these may differ if nothing depends on the run's length
MODEL, TENSOR = "model", "tensor "  # the model's key, and the prefix of the tensors' keys
HASHED_SAMPLES = 8

Identity = dict[str, str]  # descriptions by name, both as they are shown in messages


def identity(model: nn.Module, samples: Samples, settings: Settings, teacher: str = "") -> Identity:
    """Return what must be the same to resume a run.

    Args:
        model: names and shapes of its parameters and buffers are compared.
        samples: the training samples; their number, fields and a few values are compared.
        settings: with several processes, the size of the global batch is compared.
        teacher: the SHA-256 of the teacher.
    """
    long = settings.schedule or 0 < (settings.warmup or 0) < 1 or 0 < settings.head_first < 1
    free = FREE_SETTINGS + (() if long else LENGTH_SETTINGS)
    facts = {name: _shown(getattr(settings, name)) for name in SETTINGS if name not in free}
    facts["batch_size"] = f"{settings.batch * settings.processes} of all processes together"
    facts["data"] = f"{len(samples):,} samples ({probe(samples)})"
    facts |= {"teacher": teacher} if teacher else {}
    return facts | _of_model(model)


def _of_model(model: nn.Module) -> Identity:
    count = sum(parameter.numel() for parameter in model.parameters())
    facts = {MODEL: f"{type(model).__name__} of {count:,} parameters"}
    for name, tensor in model.state_dict().items():
        facts[f"{TENSOR}{name.replace(COMPILED, '')}"] = "x".join(map(str, tensor.shape)) or "a number"
    return facts


def compare(then: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise `OnnxgenError` if a checkpoint's identity differs from this run's.

    A setting that the checkpoint's version did not have counts as its default. What nothing decided is "outputs".
    """
    default = Settings()
    then = {**{name: _shown(getattr(default, name)) for name in SETTINGS if name in now}, **then}
    then, now = ({**facts, "task": "outputs"} if facts.get("task") == "auto" else facts for facts in (then, now))
    differing = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    tensors = [name for name in differing if name.startswith(TENSOR)]
    others = [name for name in differing if name not in (MODEL, *tensors)]  # the class's name may differ
    if tensors:
        _refuse("model", [MODEL, *tensors[:3]], then, now, len(tensors) - 3)
    if others:
        _refuse("run", others, then, now)


def compare_model(then: Mapping[str, str], model: nn.Module) -> None:
    """Like `compare`, for the model alone: its error is clearer than those of other checks for a wrong model."""
    of_model = {name: value for name, value in then.items() if name == MODEL or name.startswith(TENSOR)}
    compare(of_model, _of_model(model))


def _refuse(what: str, shown: list[str], then: Mapping[str, str], now: Mapping[str, str], left_out: int = 0) -> None:
    lines = [f"{n}: {then.get(n, 'none')} there, {now.get(n, 'none')} here".removeprefix(f"{MODEL}: ") for n in shown]
    more = f", and {counted(left_out, 'tensor')} more" if left_out > 0 else ""
    way = "resume with the same settings and data, or start a new run in another --out"
    raise OnnxgenError(f"the checkpoint belongs to another {what}: {'; '.join(lines)}{more}", help=way)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={v}" for k, v in sorted(value.items())) or "none"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def probe(samples: Samples) -> str:
    """Return a short hash of the fields, of evenly spaced samples, and of all columns that are in memory."""
    digest = hashlib.sha256(repr([(n, str(f.dtype), f.shape, f.classes) for n, f in samples.fields.items()]).encode())
    indices = sorted({i * (len(samples) - 1) // (HASHED_SAMPLES - 1) for i in range(HASHED_SAMPLES)})
    indices = indices if stream_of(samples) is None else leading(samples, HASHED_SAMPLES)
    for name, some in sorted(samples.take(indices, 0).items()):
        column = column_of(samples, name)
        whole = some if column is None else column
        digest.update(name.encode() + whole.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


LAST = CHECKPOINT_FILES[0]
KEY = "onnxgen"  # the key of onnxgen's part in a checkpoint


def own_part(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return onnxgen's part of a checkpoint. Raise `OnnxgenError` if another program wrote it."""
    state = checkpoint.get(KEY)
    if not isinstance(state, dict) or not isinstance(state.get("identity"), dict):
        what = f"the checkpoint was not written by onnxgen: it has no {KEY!r}"
        raise OnnxgenError(what, help="start a new run without --resume")
    return state


def peek(folder: Path) -> dict[str, Any]:
    """Return onnxgen's part of the last checkpoint, without reading its tensors; {} if it can't be read."""
    with suppress(Exception):  # for a damaged file torch raises any exception
        need_safe_torch()
        last = folder / LAST
        if last.is_dir():
            from onnxgen.training.checkpoint.store import REST  # it loads torch's distributed checkpoints

            last = last / REST
        checkpoint: dict[str, Any] = torch.load(last, map_location="cpu", weights_only=True, mmap=True)
        return own_part(checkpoint)
    return {}


def capture(device: torch.device) -> dict[str, Any]:
    """Return the states of Python's, numpy's, torch's and the device's generator, in types that `torch.load` allows.

    Lightning's states hold numpy arrays, which `torch.load` refuses with `weights_only`.
    """
    name, keys, *rest = np.random.get_state(legacy=True)
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [name, np.asarray(keys).tolist(), *rest],
        "torch": torch.get_rng_state(),
    }
    if device.type != "cpu":
        with suppress(AttributeError, RuntimeError):  # a back end without its own generator (DirectML)
            states[device.type] = torch.get_device_module(device).get_rng_state(device)
    return states


def restore(states: dict[str, Any], device: torch.device) -> None:
    """Restore the states that `capture` returned. Without a state for this device, its generator is not changed."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, np.asarray(keys, np.uint32), *rest))
    torch.set_rng_state(states["torch"].cpu())
    if device.type in states:
        torch.get_device_module(device).set_rng_state(states[device.type].cpu(), device)
