"""The model with the weights that training begins with."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from onnxgen.errors import OnnxgenError
from onnxgen.training.finetune.scratch import reset
from onnxgen.training.known import note_known
from onnxgen.training.model import load_model
from onnxgen.training.runs.record import read_record
from onnxgen.training.settings import Settings


def begun(model: nn.Module | Path | str, settings: Settings) -> tuple[nn.Module, str]:
    """Return the model with the weights that training begins with, and what was loaded in part."""
    partial = settings.partial
    if not isinstance(model, nn.Module):
        if settings.lora and Path(model).is_dir() and read_record(Path(model)).settings.get("lora"):
            what = f"{model} has an adapter, and a second one can't be put on it"
            raise OnnxgenError(what, help="continue it with --resume, or start from its base with --lora again")
        return _loaded(Path(model), settings)
    if settings.weights is not None or partial:
        what = "weights= and partial= need a model that is given as a file"
        raise OnnxgenError(f"{what}: load the weights into this model yourself")
    if settings.from_scratch:
        note_known(model, None)
        reset(model)
    return model, ""


def _loaded(model: Path, settings: Settings) -> tuple[nn.Module, str]:
    """Return a model as `load_model` does. What a sharded run begins with is mapped from files."""

    def load() -> tuple[nn.Module, str]:
        partial = settings.partial
        return load_model(model, settings.weights, settings.from_scratch, not partial, partial)

    if settings.strategy != "fsdp" or not (settings.from_scratch or settings.partial):
        return load()
    from onnxgen.training.sharded.outside import built_outside

    said: list[str] = []

    def build() -> nn.Module:
        made, note = load()
        said.append(note)
        return made

    return built_outside(build), said[0]
