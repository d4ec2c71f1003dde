"""Changes by options of the generation (sizes, batch, BatchNorms), applied to the file that is written back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from onnxgen.errors import OnnxgenError, counted
from onnxgen.export import files
from onnxgen.export.back import write_back
from onnxgen.export.decoding import fit_decoding
from onnxgen.export.freed import declare_outputs, fix_sizes, free_batch
from onnxgen.export.heads import Head
from onnxgen.export.norms import Norms
from onnxgen.export.origin import Origin
from onnxgen.export.places import Array
from onnxgen.export.report import ExportReport
from onnxgen.export.resized import fit_sizes
from onnxgen.export.retyped import retyped_file
from onnxgen.export.shared import CannotWriteBack
from onnxgen.graph.element_types import NAMED
from onnxgen.heads.reading import find_tail
from onnxgen.options import Options
from onnxgen.passes.batch import Freed
from onnxgen.passes.retype import KEY
from onnxgen.passes.standard.batchwise import time_first
from onnxgen.reader import read
from onnxgen.record.module import metadata_of
from onnxgen.record.tail import Tail
from onnxgen.record.way_back import cut_of
from onnxgen.verify.integrity import approximation_of
from onnxgen.verify.stacked import freed_of

SIZES, BATCH, NORMS, DTYPE, LAYOUT = "sizes", "batch", "norms", "dtype", "layout"
ALL = frozenset((SIZES, BATCH, NORMS, DTYPE, LAYOUT))
LEFT_OUT = {
    BATCH: "the batch stays fixed: the original graph gives other results with a free batch",
    NORMS: "the BatchNorms are folded in again: as nodes they give other results",
    DTYPE: "the floating-point types are the original ones: with the module's the graph fails or gives other results",
    SIZES: "the declared sizes are the original ones",
    LAYOUT: "the recurrent layers take the batch first: onnxruntime runs none of these",
}
_Changes = frozenset[str]


def choices() -> Iterator[_Changes]:
    """Yield the sets of changes to try: all of them, all but one, and none. The first that verifies is kept."""
    yield ALL
    yield from (ALL - {change} for change in (DTYPE, BATCH, NORMS))
    yield frozenset()


class Changed:
    """Writes the file with a set of changes.

    Args:
        origin: the origin of the module.
        options: the sizes that the module was generated for.
        state: the trained tensors.
        head: the head, if it has another number of classes.
    """

    def __init__(self, origin: Origin, options: Options, state: Mapping[str, Array], head: Head | None) -> None:
        self.origin, self.options, self.state, self.head = origin, options, state, head

    def write(self, made: Path, report: ExportReport, wanted: _Changes) -> _Changes:
        """Write the file to `made`, and return which of the changes it has. The report says why others are missing.

        Raises:
            CannotWriteBack: the original graph can't hold the values.
            OnnxgenError: a file can't be read or written.
        """
        with TemporaryDirectory() as folder:
            source = self._retyped(Path(folder), report) if DTYPE in wanted else None
            return self._write(source or self.origin.onnx, made, report, wanted) | ({DTYPE} if source else set())

    def _retyped(self, folder: Path, report: ExportReport) -> Path | None:
        """Return the original in the module's floating point type, or None if the types are the same."""
        name = metadata_of(self.origin.space).get(KEY, "")
        if name not in NAMED:
            return None
        try:
            return retyped_file(self.origin.onnx, NAMED[name], self.options, folder)
        except CannotWriteBack as reason:
            report.notes.append(f"the floating-point types are the original ones: {reason}")
            return None

    def _write(self, source: Path, made: Path, report: ExportReport, wanted: _Changes) -> _Changes:
        record, norms = self.origin.record, None
        if NORMS in wanted:
            norms = Norms(onnx.load(source, load_external_data=False), record.tensors)
            record = replace(record, tensors=norms.tensors)
        resized = write_back(source, made, record, self.state, report, self.head)
        done = {SIZES} if SIZES in wanted and self._resized(made, report, SIZES, source) else set()
        done |= {BATCH} if BATCH in wanted and self._resized(made, report, BATCH, source) else set()
        if norms is not None and norms.layers:
            done |= {NORMS} if self._normed(made, report, norms) else set()
        done |= {LAYOUT} if LAYOUT in wanted and _time_first(made, report) else set()
        if self.head is not None:
            model = onnx.load(made, load_external_data=False)
            new = {key: (self.head.sizes[key][0],) for key in self.head.axes if key in report.added}  # of BatchNorms
            report.resized = [*resized, *self._fitted(model, made.parent, resized | new)]
            if SIZES in done:
                declare_outputs(model, made.parent)
            files.save(model, made, report.out)
        return frozenset(done)

    def _fitted(self, model: onnx.ModelProto, folder: Path, resized: Mapping[str, tuple[int, ...]]) -> list[str]:
        """Fit the graph to a head with another number of classes. Returns the names of the constants that changed."""
        assert self.head is not None
        tail, pairs = self._tail(), self.head.pairs
        if tail is not None:
            counts = {tail.of_size(*pair) for pair in pairs}
            if len(counts) == 1 and (classes := counts.pop()):
                return fit_decoding(model, self.origin.onnx, self._whole, tail, classes)
        if len(pairs) > 1:
            raise CannotWriteBack(f"{counted(len(pairs), 'size')} were changed")
        return fit_sizes(model, folder, resized, pairs[0][0])

    @property
    def _whole(self) -> Options:
        """The sizes that the module was generated for, and the whole network."""
        return replace(self.options, inputs=(), outputs=())

    def _tail(self) -> Tail | None:
        """Return the tail of a detector, if the module ends in its raw maps; else None."""
        if not self.options.outputs:
            return None
        try:
            tail = find_tail(read(self.origin.onnx, self._whole))
        except OnnxgenError:
            return None
        return tail if set(tail.maps) <= set(self.options.outputs) else None

    def _resized(self, made: Path, report: ExportReport, change: str, source: Path) -> bool:
        """Give the file the sizes that the module was generated for, or its free batch. Returns True if it changed."""
        freed = freed_of(self.origin.space)
        if change == BATCH and (freed is None or not freed.inputs):
            return False
        model = onnx.load(made, load_external_data=False)
        if change == SIZES:
            is_changed = fix_sizes(model, self.origin.signature)
            if is_changed and self.head is None:  # else it is not fitted to the head yet
                declare_outputs(model, made.parent)
        else:
            assert freed is not None
            is_changed = self._freed(model, report, freed, source)
        if is_changed:
            files.save(model, made, report.out)
        return is_changed

    def _freed(self, model: onnx.ModelProto, report: ExportReport, freed: Freed, source: Path) -> bool:
        axes = {port.name: freed.inputs.get(port.name) for port in self.origin.signature.inputs}
        approximation = approximation_of(self.origin.space)
        options = replace(self.options, dynamic_batch=True, batch_axes=axes)
        options = options if approximation is None else replace(options, quantized=approximation.mode)
        try:
            if cut_of(options) is not None:
                raise CannotWriteBack("the module is a part of the network")
            free_batch(model, source, options, freed)
        except (CannotWriteBack, OnnxgenError) as reason:
            report.notes.append(f"the batch stays fixed at {freed.size}: {reason}")
            return False
        report.notes.append("the batch is free, as in the module")
        return True

    def _normed(self, made: Path, report: ExportReport, norms: Norms) -> bool:
        apart = len(norms.layers) - len(norms.folded)
        if norms.folded:
            report.notes.append(
                f"{counted(len(norms.folded), 'BatchNorm')} folded in again: not each has a convolution of its own"
            )
        if not apart:
            return False
        model = onnx.load(made, load_external_data=False)
        report.added += norms.insert(model, self.state)
        files.save(model, made, report.out)
        report.notes.append(f"{counted(apart, 'BatchNorm')} put into the graph, as in the module")
        return True


def _time_first(made: Path, report: ExportReport) -> bool:
    """Let recurrent layers take the time first, since onnxruntime runs no others. Returns True if the file changed."""
    model = onnx.load(made, load_external_data=False)
    count = time_first(model)
    if count:
        files.save(model, made, report.out)
        report.notes.append(
            f"{counted(count, 'recurrent layer')} take the time first, since onnxruntime runs no others"
        )
    return bool(count)
