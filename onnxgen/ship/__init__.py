"""Ship a trained network: write it as the file of a runtime, run that file, and compare it with the module.

`targets/` has a file for each kind. `comparison.py` holds that a shipped file gives the module's answers, and measures
what it costs. `card.py` writes what a person and a machine must know of the model. Imports torch.
"""

from __future__ import annotations

import inspect
import linecache
import os
import re
import shutil
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgen._callable import callable_module
from onnxgen.errors import OnnxgenError, one_line

if TYPE_CHECKING:
    from torch import Tensor, nn

    from onnxgen.ship.comparison import Shipped
    from onnxgen.ship.target import Job, Target
    from onnxgen.training.runs.learner import Learner

COMPARED = 64  # samples of which outputs are compared, at most
CALIBRATED = 256  # samples of the training part that say which values an 8-bit file must hold, at most

__all__ = ["ship"]


def ship(run: Path | str, to: str, out: Path | str | None = None, *, data: Any = None, force: bool = False) -> Shipped:
    """Write the network of a run as the file of a runtime.

    The file is run on held back samples before it is put in place, by the runtime itself where one runs here.

    Args:
        run: the folder of a run.
        to: "onnx", "onnx-int8", "torchscript", "pt2", "executorch", "coreml" or "litert".
        out: the file to write. Default: in the run's folder, under its name.
        data: where the run's data is now, if it was moved.
        force: overwrite `out`.

    Returns:
        a report: differences, metrics before and after, size, time.

    Raises:
        DiffersError: the file does not compute what the module does; nothing was written.
        OnnxgenError: a package is missing; the network can't be written in this form; the folder is no run, or its data
            is gone; or `out` exists.
    """
    from onnxgen.runtime.load import need_torch

    need_torch("ship", "train")
    from onnxgen.ship.card import write_card
    from onnxgen.ship.comparison import Shipped, compare
    from onnxgen.ship.samples import arguments_of
    from onnxgen.ship.targets import target_of
    from onnxgen.training import load

    target = target_of(to)
    learner = load(run, device="cpu")
    name = f"{learner.record.name}-int8" if target.rounds else learner.record.name
    path = Path(out) if out is not None else learner.run / f"{name}{target.suffix}"
    if path.exists() and not force:
        raise OnnxgenError(f"{path} exists", help="--force overwrites it, -o names another file")
    part = learner.held_back or "train"
    samples = list(arguments_of(learner, part, data, COMPARED))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        trial = Path(folder) / path.name
        job = _job(learner, target, samples, data)
        notes = [*_written(job, target, trial), *_fixed(job, target)]
        report = Shipped(to, str(path), size=size_of(trial), batch=job.batch, part=part, notes=notes)
        if target.open is not None:
            compare(learner, job, target, trial, samples, data, report)
        report.wrote = _placed(trial, path)
    report.wrote += write_card(learner.run, learner.record, report)
    return report


def _job(learner: Learner, target: Target, samples: list[list[Tensor]], data: Any) -> Job:
    """Return what is shipped. `samples`: batches of arguments of held back samples."""
    from onnxgen.ship.samples import arguments_of, batch_axes, in_batches
    from onnxgen.ship.target import Job
    from onnxgen.surgery.ports import signature_of
    from onnxgen.training.model import fixed_batch
    from onnxgen.training.runs.contract import shipped_facts

    signature, axes = signature_of(learner.model), batch_axes(learner.model)
    batch = fixed_batch(learner.model) or (1 if target.one else 0)
    example = next(in_batches([samples[0]], axes, batch or 2), samples[0])
    return Job(
        run=learner.run,
        record=learner.record,
        model=learner.model,
        example=tuple(example),
        inputs={port.name: tuple(port.dims or x.shape) for port, x in zip(signature.inputs, example)},
        outputs=tuple(port.name for port in signature.outputs),
        batch=batch,
        facts=shipped_facts(learner.run, learner.record),
        calibration=lambda: in_batches(arguments_of(learner, "train", data, CALIBRATED), axes, batch or 1),
    )


def _fixed(job: Job, target: Target) -> list[str]:
    """Return a sentence if a file has one size where the module takes any, beside that of the batch."""
    shapes = [
        f"{name} {list(x.shape)}"
        for (name, dims), x in zip(job.inputs.items(), job.example)
        if target.one and sum(isinstance(dim, str) for dim in dims) > 1
    ]
    return [f"the file takes one size only: {', '.join(shapes)}"] if shapes else []


def _written(job: Job, target: Target, path: Path) -> list[str]:
    """Write the file. Raises `OnnxgenError` if its library can't, with the place in the module that it names."""
    try:
        return target.write(job, path)
    except OnnxgenError:
        raise
    except Exception as error:
        place = line_of(error, job.model)
        what = f"--to {target.name} can't be written{place}: {one_line(error)}"
        help_ = "change that line in the module, or ship to another target" if place else "ship to another target"
        raise OnnxgenError(what, help=help_) from error


def line_of(error: BaseException, model: nn.Module) -> str:
    """Return " at FILE:LINE: TEXT", the place of an error in the module's own source; "" if no part of it is there.

    Exporters run the module, or write its place into their messages.
    """
    file = inspect.getsourcefile(type(model)) or ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    lines += [int(number) for number in re.findall(rf'{re.escape(file)}"?, line (\d+)', str(error))] if file else []
    numbers = [number for number in lines if number]
    if not numbers:
        return ""
    return f" at {Path(file).name}:{numbers[-1]}: {linecache.getline(file, numbers[-1]).strip()}"


def _placed(trial: Path, path: Path) -> list[Path]:
    """Put the file, or the folder, in place of what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    wrote = []
    for part in sorted(trial.parent.iterdir()):  # an ONNX file may have its weights beside it
        place = path.parent / part.name
        if place.is_dir():
            shutil.rmtree(place)
        os.replace(part, place)
        wrote.append(place)
    return wrote


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    return sum(part.stat().st_size for part in (path, *path.rglob("*")) if part.is_file())


callable_module(__name__, ship)
