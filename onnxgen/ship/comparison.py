"""A shipped file beside its module: the same answers, the same metrics, its size, and the time that a sample takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError, typed
from onnxgen.ship.samples import batch_axes, filled, resized
from onnxgen.ship.target import ONE_SIZE, Job, Run, Target
from onnxgen.training.runs.learner import Learner
from onnxgen.training.singly import Singly
from onnxgen.training.standing_in import standing_in
from onnxgen.training.stepwise import Stepwise

RELATIVE, ABSOLUTE = 1e-3, 1e-5  # of the largest number of an output; as those of `onnxgen verify`
PART = 1e-4  # of the same, in a part of an output whose numbers are small
SIZES = (1, 3)  # of batches that a file of any batch is tried with, beside those of the data
OTHER_SIZES = (2, 0.5)  # beside the size of the samples, with which an axis of any size is tried
EQUAL, FAILS, DIFFERS = "equal", "fails", "differs"
TIMED = 20  # samples whose time is taken


@dataclass
class Shipped:
    """A report of `onnxgen.ship`.

    Attributes:
        to, out: the target, and its file.
        wrote: the files that were written, the card's too.
        size: in bytes, and `original` that of the module's weights.
        batch: how many samples the file takes at a time; 0 if any.
        compared: the number of samples on which file and module were compared; 0 if no runtime runs the file here.
        difference: the largest difference of an output, as a share of the largest number of that output.
        before, after: metrics of the module and of the file, of the same samples of `part`; {} if there are none.
        seconds: of one sample in the module, and in the file; both on this machine's CPU, one after the other.
        notes: what else is to be known.
    """

    to: str
    out: str
    wrote: list[Path] = field(default_factory=list)
    size: int = 0
    original: int = 0
    batch: int = 0
    compared: int = 0
    difference: float = 0.0
    part: str = ""
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    seconds: tuple[float, float] = (0.0, 0.0)
    notes: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> list[tuple[str, float, float]]:
        """The name of each metric, before and after."""
        return [(name, value, self.after[name]) for name, value in self.before.items() if name in self.after]

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain types."""
        return {**vars(self), "wrote": [str(path) for path in self.wrote], "seconds": list(self.seconds)}


class DiffersError(OnnxgenError):
    """The file does not compute what its module does. Nothing was written."""

    exit_code = 1


def compare(
    learner: Learner, job: Job, target: Target, path: Path, samples: Sequence[list[Tensor]], data: Any, report: Shipped
) -> None:
    """Run a file on held back samples, and note in the report how it differs from its module.

    Raises:
        DiffersError: outputs differ. Those of integers may: of these the metrics tell what was lost.
    """
    model, own, run = learner.model, module_run(job.model), _opened(job, target, path)
    single = vars(model).get("forward")
    axes, batch = batch_axes(model), 0 if isinstance(single, Singly) else job.batch
    first, of_samples = samples[0], axes
    if isinstance(single, Stepwise):  # the file takes steps
        axes, of_samples = single.batch_axes, [0 if n in single.axes else None for n in single.places]
    one = next(single.samples(first)) if isinstance(single, (Singly, Stepwise)) else first
    one = one if isinstance(single, Singly) else filled(one, axes, job.batch or 1)
    tried = [(arguments, count_of(arguments, of_samples)) for arguments in samples]
    if not job.batch:  # that it takes any number of samples
        tried += [(filled(first, of_samples, size), 0) for size in SIZES]
    for arguments, count in tried:
        fills = batch and count % batch and not isinstance(single, Stepwise)
        whole = filled(arguments, axes, -(-count // batch) * batch) if fills else arguments
        ours = module_run(model)(whole)
        with run_by(model, run, axes, batch):
            theirs = module_run(model)(whole)
        names = job.outputs if len(job.outputs) == len(ours) else [str(n) for n in range(len(ours))]
        report.difference = max(
            report.difference, difference(ours, theirs, names, rounds=target.rounds or bool(job.rounded))
        )
        report.compared += count
    if not target.one:
        report.notes += _told_sizes(job, target, run, report.notes)
    before, after = seconds_of((own, run), one)
    report.seconds = (before / (job.batch or 1), after / (job.batch or 1))
    if learner.held_back:
        report.before = learner.evaluate(data)
        with run_by(model, run, axes, batch):
            report.after = learner.evaluate(data)


def _told_sizes(job: Job, target: Target, run: Run, notes: Sequence[str]) -> list[str]:
    """Return a sentence if a file does not take the sizes that the module takes, and no note says so."""
    said, size = other_sizes(job, run, rounds=target.rounds or bool(job.rounded)), job.sizes(False)
    if said == DIFFERS:
        return [f"at other sizes than {size} the file computes something else, without an error: give it this size"]
    told = any(note.startswith(ONE_SIZE) for note in notes)
    return [f"at other sizes than {size} the file may fail"] if said == FAILS and not told else []


def runs(model: nn.Module, arguments: Sequence[Tensor]) -> bool:
    """Return True if a module takes arguments of such sizes."""
    try:
        module_run(model)(arguments)
    except Exception:  # it may raise anything
        return False
    return True


def other_sizes(job: Job, run: Run, *, rounds: bool = False) -> str:
    """Say what a file does with other sizes of axes that have any in the module: `EQUAL`, `FAILS` or `DIFFERS`.

    "" if there are none, or if the module itself takes none of the sizes that are tried.
    """
    said = ""
    for share in OTHER_SIZES if job.free else ():
        arguments = resized(job.example, [job.free.get(name, {}) for name in job.inputs], share)
        if not runs(job.model, arguments):
            continue
        ours = module_run(job.model)(arguments)
        try:
            theirs = run(arguments)
        except Exception:
            return FAILS
        try:
            difference(ours, theirs, [str(n) for n in range(len(ours))], rounds=rounds)
        except DiffersError:
            return DIFFERS
        said = EQUAL
    return said


def count_of(arguments: Sequence[Tensor], axes: Sequence[int | None]) -> int:
    """Return the number of samples in the arguments of a module."""
    return next((x.shape[axis] for x, axis in zip(arguments, axes) if axis is not None), len(arguments[0]))


def _opened(job: Job, target: Target, path: Path) -> Run:
    """Open a file. What it raises, then and when it runs, is an `OnnxgenError`."""
    assert target.open is not None
    opened: list[Run] = []

    def run(arguments: Sequence[Tensor]) -> list[Tensor]:
        try:
            opened[:] = opened or [target.open(job, path)]  # type: ignore[misc]
            return opened[0](arguments)
        except OnnxgenError:
            raise
        except Exception as error:
            what = f"the file is written, but {target.about} does not run it: {typed(error)}"
            raise OnnxgenError(what, help="nothing is kept of it; ship to another target") from error

    return run


@contextmanager
def run_by(model: nn.Module, run: Run, batch_axes: Sequence[int | None], batch: int) -> Iterator[None]:
    """Let a module answer what a file computes, while this context lasts. A file of fixed batch is run piece by piece.

    `batch_axes`: the axis of the batch in each argument and then in each output; None if it has none.
    """

    def forward(*arguments: Tensor) -> Tensor | tuple[Tensor, ...]:
        result = tuple(in_pieces(run, [x.detach() for x in arguments], batch_axes, batch))
        return result if len(result) > 1 else result[0]

    with standing_in(model, forward):
        yield


def in_pieces(run: Run, arguments: Sequence[Tensor], batch_axes: Sequence[int | None], batch: int) -> list[Tensor]:
    """Return the outputs of a file for a batch of any size."""
    taken, output_axes = batch_axes[: len(arguments)], batch_axes[len(arguments) :]
    count = next((x.shape[axis] for x, axis in zip(arguments, taken) if axis is not None), 0)
    if not batch or not count or count == batch:
        return run(arguments)
    pieces = [
        run([x if axis is None else x.narrow(axis, start, batch) for x, axis in zip(arguments, taken)])
        for start in range(0, count, batch)
    ]
    return [
        torch.cat(parts, axis) if axis is not None else parts[0]
        for parts, axis in zip(map(list, zip(*pieces)), (*output_axes, *[0] * len(pieces[0])))
    ]


def by_pieces(run: Run, batch_axes: Sequence[int | None], fixed: int) -> Run:
    """Return what runs a file of a fixed batch on any number of samples. `batch_axes`: as in `run_by`."""

    def whole(arguments: Sequence[Tensor]) -> list[Tensor]:
        taken = batch_axes[: len(arguments)]
        count = count_of(arguments, taken)
        made = in_pieces(run, filled(arguments, taken, -(-count // fixed) * fixed), batch_axes, fixed)
        axes = (*batch_axes[len(arguments) :], *[0] * len(made))
        return [x if axis is None else x.narrow(axis, 0, count) for x, axis in zip(made, axes)]

    return whole


def difference(
    ours: Sequence[Tensor], theirs: Sequence[Tensor], names: Sequence[str], *, rounds: bool = False
) -> float:
    """Return the largest difference of the outputs of module and file, as a share of the largest number of its output.

    Raises:
        DiffersError: it is more than `RELATIVE` and `ABSOLUTE` (unless the file `rounds`), or shapes differ.
    """
    if len(ours) != len(theirs):
        raise DiffersError(f"the module has {len(ours)} outputs, and the file {len(theirs)}")
    most = 0.0
    for name, a, b in zip(names, ours, theirs, strict=True):
        if a.shape != b.shape:
            raise DiffersError(f"output {name} has the shape {list(a.shape)}, and that of the file {list(b.shape)}")
        if not a.is_floating_point():
            if not rounds and not torch.equal(a, b.to(a.dtype)):
                raise DiffersError(f"output {name} has other numbers in the file")
            continue
        a, b = a.double(), b.double()
        finite = a.isfinite()
        if not torch.equal(finite, b.isfinite()) or not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
            raise DiffersError(f"output {name} is infinite or NaN in one of file and module only")
        a, b = a.where(finite, 0.0), b.where(finite, 0.0)
        scale, away = (float(x.abs().max()) if x.numel() else 0.0 for x in (a, a - b))
        if not rounds and (away > RELATIVE * scale + ABSOLUTE or _differs_in_a_part(a, b, scale)):
            what = f"output {name} differs from the module's by {away:.3g}, where its largest number is {scale:.3g}"
            raise DiffersError(what, help="ship to another target, or report this")
        most = max(most, away / scale if scale else away)
    return most


def _differs_in_a_part(a: Tensor, b: Tensor, scale: float) -> bool:
    """Return True if numbers differ where an output has small ones, as the scores beside coordinates in pixels.

    A part is all that has one index of an axis.
    """
    if a.ndim < 2 or not a.numel():
        return False
    for axis in range(a.ndim):
        others = [other for other in range(a.ndim) if other != axis]
        limit = RELATIVE * a.abs().amax(others) + PART * scale + ABSOLUTE
        if bool(((a - b).abs().amax(others) > limit).any()):
            return True
    return False


def seconds_of(runs: Sequence[Run], arguments: Sequence[Tensor]) -> list[float]:
    """Return the median time of a call of each, side by side, after one that is not timed."""
    times: list[list[float]] = [[] for _ in runs]
    for turn in range(TIMED + 1):
        for run, own in zip(runs, times):
            start = time.perf_counter()
            run(arguments)
            own.extend([time.perf_counter() - start] if turn else [])
    return [statistics.median(own) for own in times]


def module_run(model: nn.Module) -> Run:
    """Return a module as a file is run."""

    def run(arguments: Sequence[Tensor]) -> list[Tensor]:
        with torch.inference_mode():
            result = model(*arguments)
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        if not all(isinstance(x, Tensor) for x in results):
            raise OnnxgenError("the module returns something else than tensors, which no file is compared by")
        return results

    return run
