"""Writes trained values into the original graph: everything but the elements of stored tensors stays as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxgen.errors import OnnxgenError
from onnxgen.export import files
from onnxgen.export.places import Array, Place, places, tensors_of
from onnxgen.export.report import ExportReport
from onnxgen.names import printable
from onnxgen.wayback import rebuild


class NoWayBack(Exception):
    """The original graph has no place for these values; the text says why."""


def write_back(
    source: Path, out: Path, record: Mapping[str, Any], state: Mapping[str, Array], report: ExportReport
) -> None:
    """Write the ONNX file `source` with the tensors of `state` to `out`, and its external tensors beside it.

    Args:
        source: the original; neither it nor its data is touched.
        record: how each of its tensors is made of `state` (`wayback.way_back`).
        report: learns which tensors changed.

    Raises:
        NoWayBack: the graph can't hold the values.
        OnnxgenError: a file can't be read or written.
    """
    model = onnx.load(source, load_external_data=False)
    try:
        with files.data_file(out) as data:
            _Writer(model, source.absolute().parent, record, state, report).run(data)
        with open(out, "wb") as file:
            file.write(model.SerializeToString())
    except OSError as error:
        raise OnnxgenError(f"cannot write {report.out}: {error.strerror or error}") from error


class _Writer:
    def __init__(
        self,
        model: onnx.ModelProto,
        folder: Path,
        record: Mapping[str, Any],
        state: Mapping[str, Array],
        report: ExportReport,
    ) -> None:
        self.model, self.folder, self.record, self.state, self.report = model, folder, record, state, report

    def run(self, data: files.Data) -> None:
        found = list(places(self.model))
        counts = Counter(place.name for place in found)
        lost = sorted(self.record.keys() - counts.keys())
        if lost:
            raise NoWayBack(f"the graph has no tensor {printable(lost[0])}")
        double = sorted(name for name in self.record if counts[name] > 1)
        if double:
            raise NoWayBack(f"several tensors of the graph are called {printable(double[0])}")
        done: dict[int, onnx.TensorProto] = {}
        for place in found:
            content = place.read(self.folder)
            if place.name in self.record:
                content = self._trained(place, content)
            if place.is_external and place.tensor is not None:
                data.put(place.tensor, content)
                done[id(place.tensor)] = place.tensor
            _release(content)
        self._move_out(data, done)

    def _trained(self, place: Place, original: ir.TensorProtocol) -> ir.TensorProtocol:
        """The tensor as it is now; written in its place if that is in the protobuf itself."""
        self.report.tensors += 1
        if is_lossy(self.record[place.name]):
            self.report.lossy.append(place.name)
        before = original.numpy()
        value = np.asarray(self._value(place.name, before)).astype(before.dtype, copy=False)
        if same(value, before):
            return original
        self.report.changed.append(place.name)
        if not place.is_external and not place.write(value):
            self.report.notes.append(f"{printable(place.name)} was sparse, and is no longer")
        return ir.tensor(np.ascontiguousarray(value), original.dtype)

    def _value(self, name: str, before: Array) -> Array:
        value = rebuild(self.record, name, self._get, before)
        if value.shape != before.shape:
            raise NoWayBack(f"{printable(name)} is {list(before.shape)} and would be {list(value.shape)}")
        for entry in range(1, _count(self.record[name])):
            if not same(rebuild(self.record, name, self._get, value, entry).astype(value.dtype, copy=False), value):
                raise NoWayBack(f"the file stores {printable(name)} once for several tensors, and now they differ")
        return value

    @property
    def _get(self) -> Callable[[str], Array]:
        return self.state.__getitem__

    def _move_out(self, data: files.Data, done: dict[int, onnx.TensorProto]) -> None:
        """What else lies in the original's data goes along, and if the protobuf grew too large, its tensors."""
        inline = 0
        for tensor in tensors_of(self.model):
            if tensor.data_location == onnx.TensorProto.EXTERNAL and id(tensor) not in done:
                data.put(tensor, ir.serde.deserialize_tensor(tensor, str(self.folder)))
            inline += len(tensor.raw_data)
        for tensor in tensors_of(self.model) if inline > files.LARGEST else ():
            if len(tensor.raw_data) > files.SMALL:
                data.put(tensor, ir.serde.deserialize_tensor(tensor))


def _release(content: ir.TensorProtocol) -> None:
    if isinstance(content, ir.ExternalTensor):
        content.release()


def _count(entries: Any) -> int:
    return len(entries) if isinstance(entries, list) else 1


def parts(entries: Any) -> Iterator[dict[str, Any]]:
    """Every part in a tensor's record; a tensor that is a key's own has none."""
    for entry in entries if isinstance(entries, list) else [entries]:
        yield from () if isinstance(entry, str) else entry["parts"]


def is_lossy(entries: Any) -> bool:
    return any(part.get("lossy") for part in parts(entries))


def same(a: Array, b: Array) -> bool:
    """Whether two arrays of one dtype have the same bytes."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    first, second = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return bool(np.array_equal(first, second))
