"""Ship a trained network: write it as the file of a runtime, run that file, and compare it with the module.

`targets/` has a file for each kind. `comparison.py` holds that a shipped file gives the module's answers, and measures
what it costs. `judging.py` says what a file of integers loses. `card.py` writes what a person and a machine must know
of the model. Imports torch.
"""

from __future__ import annotations

import inspect
import linecache
import math
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from itertools import chain, islice
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
STEP = 8  # of samples of many steps, each so many-th one
MAY_LOSE = 1.0  # points of the run's metric, by which an 8-bit file may be worse

__all__ = ["ship"]


def ship(
    run: Path | str,
    to: str,
    out: Path | str | None = None,
    *,
    onnx: Path | str | None = None,
    data: Any = None,
    force: bool = False,
    may_lose: float = MAY_LOSE,
) -> Shipped:
    """Write the network of a run as the file of a runtime.

    The file is run on held back samples before it is put in place, by the runtime itself where one runs here.

    Args:
        run: the folder of a run.
        to: "onnx", "onnx-int8", "torchscript", "pt2", "executorch", "coreml" or "litert".
        out: the file to write. Default: in the run's folder, under its name.
        onnx: of "onnx" and "onnx-int8", the original file. Default: the recorded name, beside the module.
        data: where the run's data is now, if it was moved.
        force: overwrite `out`.
        may_lose: of "onnx-int8", by how many points the run's metric may be worse (see `points_lost`). Layers stay in
            floats until it holds.

    Returns:
        a report: differences, metrics before and after, size, time.

    Raises:
        DiffersError: the file does not compute what the module does; nothing was written.
        OnnxgenError: a package is missing; the network can't be written in this form, or loses more than it may; the
            folder is no run, or its data is gone; or `out` exists.
    """
    from onnxgen.runtime.load import need_torch

    need_torch("ship", "train")
    from onnxgen.ship.card import fixed_in_file, places_of_card, write_card
    from onnxgen.ship.comparison import Shipped, compare
    from onnxgen.ship.place import put_in_place, refuse_place, workshop
    from onnxgen.ship.samples import arguments_of
    from onnxgen.ship.targets import target_of
    from onnxgen.training import load

    target = target_of(to)
    learner = load(run, device="cpu")
    name = f"{learner.record.name}-int8" if target.rounds else learner.record.name
    if may_lose != MAY_LOSE and not target.rounds:
        raise OnnxgenError(f"may_lose is of 8-bit integers, and --to {target.name} has none", help="leave it out")
    if not math.isfinite(may_lose):
        raise OnnxgenError(f"may_lose is {may_lose}", help="give points, as 1.5")
    path = Path(out) if out is not None else learner.run / f"{name}{target.suffix}"
    own = None if onnx is None else Path(onnx)
    refuse_place(path, target, [*_made_of(learner, data), *([own] if own else [])], force)
    card = places_of_card(path, force)
    part = learner.held_back or "train"
    samples = list(arguments_of(learner, part, data, COMPARED))
    job = replace(_job(learner, target, samples, data, may_lose), onnx=own)
    with workshop(path.parent) as folder:
        trial = folder / path.name
        notes = _written(job, target, trial)
        batch = job.batch or (fixed_in_file(trial, learner.record) if target.suffix == ".onnx" else 0)
        report = Shipped(to, str(path), size=size_of(folder), batch=batch, part=part, notes=notes)
        report.original = sum(x.nbytes for x in learner.model.state_dict().values())
        if target.open is not None:
            compare(learner, job, target, trial, samples, data, report)
            report.notes += job.judge.warned(report) if target.rounds else []
        write_card(learner.run, learner.record, report, folder, card)
        report.wrote = put_in_place(folder, path, card, force)
    return report


def _made_of(learner: Learner, data: Any) -> list[Path]:
    """Return the files that a run was made of: the network's and the data."""
    from onnxgen.export.files import original_files
    from onnxgen.training.runs.contract import onnx_beside_origin

    record = learner.record
    places = [
        *([data] if isinstance(data, (str, Path)) else []),
        record.data_for(learner.run),
        learner.settings.teacher,
    ]
    paths = [record.place_of_origin(learner.run), *(Path(place) for place in places if place)]
    if (onnx := onnx_beside_origin(learner.run, record)) is not None:
        paths.append(onnx)
        with suppress(Exception):  # what is there now may be no ONNX file
            paths += original_files(onnx)
    return paths


def _job(learner: Learner, target: Target, samples: list[list[Tensor]], data: Any, may_lose: float) -> Job:
    """Return what is shipped. `samples`: batches of arguments of held back samples."""
    from onnxgen.ship.judging import Judge
    from onnxgen.ship.samples import arguments_of, batch_axes, filled, in_batches
    from onnxgen.ship.target import Job
    from onnxgen.surgery.ports import signature_of
    from onnxgen.training.model import fixed_batch
    from onnxgen.training.runs.contract import shipped_facts
    from onnxgen.training.singly import Singly
    from onnxgen.training.stepwise import Stepwise

    model, single = learner.model, vars(learner.model).get("forward")
    signature, axes = signature_of(model), batch_axes(model)
    batch = fixed_batch(model) or (1 if target.one else 0)
    if isinstance(single, (Singly, Stepwise)):
        model = copy(model)  # it takes one sample, or one step: the file is of its own `forward`
        del model.forward
        example = next(single.samples(samples[0]))
        if isinstance(single, Stepwise):
            axes, batch = single.batch_axes, 1 if target.one or single.singly else 0
            example = filled(example, axes, batch or 2)
        else:
            batch = 1
    else:
        example = filled(samples[0], axes, batch or 2)

    def calibration() -> Iterator[list[Tensor]]:
        batches = arguments_of(learner, "train", data, CALIBRATED)
        if isinstance(single, Stepwise):
            steps = chain.from_iterable(map(single.samples, batches))
            return in_batches(islice(steps, 0, None, STEP), axes, batch or 1)
        if isinstance(single, Singly):
            return chain.from_iterable(map(single.samples, batches))
        return in_batches(batches, axes, batch or 1)

    return Job(
        run=learner.run,
        record=learner.record,
        model=model,
        example=tuple(x.contiguous() for x in example),
        inputs={port.name: tuple(port.dims or x.shape) for port, x in zip(signature.inputs, example)},
        outputs=tuple(port.name for port in signature.outputs),
        batch=batch,
        free={} if isinstance(single, Singly) else _free(model, example, [example] if single else samples, axes),
        facts=shipped_facts(learner.run, learner.record),
        calibration=calibration,
        judge=Judge(learner, data, axes, 0 if isinstance(single, Singly) else batch, may_lose),
    )


def _free(
    model: nn.Module, example: Sequence[Tensor], samples: Sequence[Sequence[Tensor]], axes: Sequence[int | None]
) -> dict[str, dict[int, int]]:
    """Return the axes of any size of each input, beside that of the batch; see `Job`.

    A file may name a size that its network can't change, so the module is asked.
    """
    from onnxgen.ship.comparison import OTHER_SIZES, runs
    from onnxgen.ship.samples import resized
    from onnxgen.surgery.ports import signature_of

    ports = signature_of(model).inputs
    free: dict[str, dict[int, int]] = {}
    named = [(n, axis, dim) for n, port in enumerate(ports) for axis, dim in enumerate(port.dims or ())]
    open_axes = [(n, axis, dim) for n, axis, dim in named if isinstance(dim, str) and axis != axes[n]]
    for name in dict.fromkeys(dim for *_, dim in open_axes):
        some = [(n, axis) for n, axis, dim in open_axes if dim == name]
        changed = [{axis: 0 for n, axis in some if n == number} for number in range(len(ports))]
        if any(runs(model, resized(example, changed, share)) for share in OTHER_SIZES):
            for n, axis in some:
                end = 2 * max(arguments[n].shape[axis] for arguments in samples)
                free.setdefault(ports[n].name, {})[axis] = end
    return free


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
    file = ""
    with suppress(TypeError):  # its class is of no file
        file = inspect.getsourcefile(type(model)) or ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    lines += [int(number) for number in re.findall(rf'{re.escape(file)}"?, line (\d+)', str(error))] if file else []
    numbers = [number for number in lines if number]
    if not numbers:
        return ""
    return f" at {Path(file).name}:{numbers[-1]}: {linecache.getline(file, numbers[-1]).strip()}"


def size_of(path: Path) -> int:
    """Return the bytes of all files of a folder."""
    return sum(part.stat().st_size for part in path.rglob("*") if part.is_file())


callable_module(__name__, ship)
