"""What a runtime's file is: how it is written, and how it is run again.

The files in `targets/` list them, each in `TARGETS`. The libraries of a target are an extra of onnxgen, imported when
it writes or runs.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from onnxgen.common.names import Namer, identifier, legible

if TYPE_CHECKING:
    from torch import Tensor, nn

    from onnxgen.ship.judging import Judge
    from onnxgen.training.runs.record import Record

SHIPS = ("onnx", "onnx-int8", "torchscript", "pt2", "executorch", "coreml", "litert")  # the names of all targets
ONE_SIZE = "the file takes one size only"
Dims: TypeAlias = tuple[int | str, ...]
Run: TypeAlias = "Callable[[Sequence[Tensor]], list[Tensor]]"  # the arguments of `forward` -> the outputs


@dataclass(frozen=True)
class Job:
    """What is shipped.

    Attributes:
        run: the folder of the run, and `record` its record.
        model: the trained module, in eval mode on the CPU.
        example: arguments of its `forward`, of as many samples as the file's batch.
        inputs: the names and dims of these; a dim of any size has its name.
        outputs: the names of what it returns.
        batch: the number of samples that the file takes at a time; 0 if it takes any.
        free: the axes of any size, beside that of the batch, by input; each with the largest size that a file need take
            if it must have one: twice that of the samples.
        facts: what the file's metadata says, as JSON by key: classes, the contract of the run.
        calibration: yields arguments of `forward` made of training samples, to find ranges of values.
        judge: says how much a file loses, and how much it may.
        rounded: the trained tensors that the file has as integers: `write` adds them.
        onnx: the original file, if it is not beside the module.
    """

    run: Path
    record: Record
    model: nn.Module
    example: tuple[Tensor, ...]
    inputs: Mapping[str, Dims]
    outputs: tuple[str, ...]
    batch: int
    free: Mapping[str, Mapping[int, int]]
    facts: Mapping[str, str]
    calibration: Callable[[], Iterator[Sequence[Tensor]]]
    judge: Judge
    rounded: list[str] = field(default_factory=list)
    onnx: Path | None = None

    def called(self) -> tuple[list[str], list[str]]:
        """Return names of inputs and outputs that are identifiers, for runtimes that take no others."""
        namer = Namer(["self"])
        names = [name if name.isascii() and name.isidentifier() else identifier(name) for name in self.inputs]
        others = [name if name.isascii() and name.isidentifier() else identifier(name) for name in self.outputs]
        return [*map(namer.take, names)], [*map(namer.take, others)]

    def renamed(self, inputs: Iterable[str], outputs: Iterable[str]) -> list[str]:
        """Return a sentence if names in a file, each in the order of the network, are not those of the network."""
        pairs = [*zip(self.inputs, inputs), *zip(self.outputs, outputs)]
        other = [f"{legible(old)} is {new}" for old, new in pairs if old != new]
        return [f"names in the file: {', '.join(other)}"] if other else []

    def sizes(self, free: bool) -> str:
        """Return the shapes of the inputs that have axes of any size: those of the file if it takes one size only.

        free: say the largest size of these axes instead.
        """
        shapes = []
        for (name, known), x in zip(self.inputs.items(), self.example):
            axes, dims = self.free.get(name, {}), [str(size) for size in x.shape]
            for axis, dim in enumerate(known):
                if axis in axes:
                    dims[axis] = f"up to {axes[axis]}" if free else dims[axis]
                elif isinstance(dim, str) and not self.batch:  # any
                    dims[axis] = legible(dim)
            shapes += [f"{legible(name)} [{', '.join(dims)}]"] if axes else []
        return ", ".join(shapes)


@dataclass(frozen=True)
class Target:
    """A kind of file.

    Attributes:
        name: what `--to` calls it.
        suffix: of its file, or of its folder.
        about: one line for people.
        needs: the packages that write and run it, as pip names them, each with its module; `extra` is that of onnxgen.
        write: writes the file of a job to a path. It raises any exception if it can't.
        open: opens a file of a job to run it here; None if no runtime runs it on this system.
        one: True if the file takes one sample at a time.
        folder: True if it is a folder of files.
        rounds: True if its numbers are integers, so that outputs differ and only the metrics tell what was lost.
    """

    name: str
    suffix: str
    about: str
    needs: Mapping[str, str]
    extra: str
    write: Callable[[Job, Path], list[str]]
    open: Callable[[Job, Path], Run] | None = None
    one: bool = False
    folder: bool = False
    rounds: bool = False


@contextmanager
def quietly() -> Iterator[None]:
    """Let converters keep to themselves what they print and warn of."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.ERROR))
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
