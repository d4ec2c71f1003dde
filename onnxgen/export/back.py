"""Write trained values into the original graph.

Everything but the elements of stored tensors stays unchanged.

What is not in a module that is a part of its network (`--inputs`, `--outputs`) keeps its weights (`Rest`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError, counted
from onnxgen.export import files
from onnxgen.export.heads import Head
from onnxgen.export.places import (
    Array,
    CannotWriteBack,
    Integers,
    Sharing,
    StoredTensor,
    declare,
    places,
    places_in,
    same,
    scales_alone,
)
from onnxgen.export.report import ExportReport
from onnxgen.reader.inputs import cut_graph
from onnxgen.reader.normal import distinct, drop_duplicates, restore
from onnxgen.reader.protos import tensors_of, with_inner
from onnxgen.record.way_back import Cut, WayBack, parts
from onnxgen.weights.provenance import rebuild


def write_back(
    source: Path,
    out: Path,
    record: WayBack,
    state: Mapping[str, Array],
    report: ExportReport,
    head: Head | None = None,
    is_free: bool = False,
) -> dict[str, tuple[int, ...]]:
    """Write the ONNX file `source` with the tensors of `state` to `out`, and its external tensors beside it.

    Args:
        source: the original; neither it nor its data is touched.
        report: learns which tensors changed.
        head: the head, if it has another number of classes. The sizes in the graph are still the old ones then.
        is_free: training saw neither rounding nor saturation of the file's integers. Weights beyond their range get
            larger scales, and a change that rounding to the nearest would undo is rounded at random.

    Returns:
        the former shapes of the head's tensors, by name.

    Raises:
        CannotWriteBack: the graph can't hold the values.
        OnnxgenError: a file can't be read or written.
    """
    model = onnx.load(source, load_external_data=False)
    drop_duplicates(model)  # else the second copy would keep its old values
    renamed = distinct(model)
    try:
        with files.data_file(out) as data:
            writer = _Writer(model, source.absolute().parent, record, state, report, data, head, is_free)
            writer.run()
        restore(model, renamed)
        files.save(model, out, report.out)
    except OSError as error:
        raise OnnxgenError(f"cannot write {report.out}: {error.strerror or error}") from error
    return writer.resized


class _Writer:
    def __init__(
        self,
        model: onnx.ModelProto,
        folder: Path,
        record: WayBack,
        state: Mapping[str, Array],
        report: ExportReport,
        data: files.Data,
        head: Head | None,
        is_free: bool,
    ) -> None:
        self.head, self.resized = head, dict[str, tuple[int, ...]]()
        self.model, self.folder, self.record, self.report, self.data = model, folder, record, report, data
        self.state, self.get = state, state.__getitem__
        self.sharing = Sharing(model, record.uses, self.get)
        self.rest = Rest(model, record.cut, record.tensors.keys() - record.functions.keys())
        self.stored = {place.name: place for place in places(model)} if record.quantised else {}
        alone = scales_alone(model) if is_free and record.quantised else None
        self.integers = Integers(record.tensors, record.quantised, self.get, self._before, alone)

    def _before(self, name: str) -> Array:
        """Return a tensor as the file has it."""
        if name not in self.stored:
            raise CannotWriteBack(f"the original graph has no tensor {printable(name)}")
        return self.stored[name].read(self.folder).numpy()

    def run(self) -> None:
        # Integers first, then scales that depend on other tensors: these must still have the file's values.
        stored = sorted(self._places(), key=lambda item: self.integers.rank(item[0].name))
        self._refuse_misplaced(Counter(name for _, names in stored for name in names))
        done: dict[int, onnx.TensorProto] = {}
        for place, names in stored:
            content = place.read(self.folder)
            if names or place.name in self.integers.products or place.name in self.integers.rescaled:
                content = self._trained(place, names, content)
            if place.is_external and place.tensor is not None:
                self.data.put(place.tensor, content)
                done[id(place.tensor)] = place.tensor
            if isinstance(content, ir.ExternalTensor):
                content.release()
        self._move_out(done)
        self.report.rounded = sorted(map(printable, self.integers.moved))
        if self.integers.rescaled:
            what = counted(len(self.integers.rescaled), "scale")
            self.report.notes.append(f"{what} of integers became larger, since trained values were beyond their range")
        if followed := sorted(map(printable, self.rest.follows.intersection(self.report.changed))):
            what = f"the rest of the network has {', '.join(followed[:3])}, too"
            self.report.notes.append(f"{what}, and {len(followed) - 3} more" if len(followed) > 3 else what)

    def _refuse_misplaced(self, counts: Counter[str]) -> None:
        """Refuse to write tensors that the file has nowhere or twice, and biases that it lacks: they were zeros."""
        for name in sorted(self.record.tensors.keys() - counts.keys()):
            raise CannotWriteBack(f"the original graph has no tensor {printable(name)}")
        for name in sorted(name for name, count in counts.items() if count > 1):
            raise CannotWriteBack(f"the original graph has several tensors {printable(name)}")
        held = {part["key"] for entries in self.record.tensors.values() for part in parts(entries)}
        for key in self.state:
            if key.endswith("out_proj.bias") and key not in held and self.state[key].any():
                raise CannotWriteBack(f"the original graph has no tensor for {key}, which is not zeros any more")

    def _places(self) -> Iterator[tuple[StoredTensor, list[str]]]:
        """Yield every stored tensor and its names in the record. A tensor of a function has one name for each call."""
        for place in places(self.model):
            names = self.integers.by_tensor.get(place.name, [place.name])
            yield place, [n for n in names if n in self.record.tensors and n not in self.record.functions]
        for function in self.model.functions:
            own = (function.domain, function.name, function.overload)
            for place in places_in(function.node):
                where = [*own, place.name]
                yield place, [name for name, recorded in self.record.functions.items() if recorded == where]

    def _trained(self, place: StoredTensor, names: list[str], original: ir.TensorProtocol) -> ir.TensorProtocol:
        """Return the tensor with its trained value. If it is stored in the protobuf itself, it is replaced there."""
        self.report.tensors += bool(names)
        before = original.numpy()
        if self.head is not None and any(self.head.has(self.record.tensors[name]) for name in names):
            return ir.tensor(self._resized(place, names, before), original.dtype)
        if not names or place.name in self.integers.by_tensor:
            value = self.integers.value(names) if names else self.integers.now(place.name)
            return self._put(place, value, original, not self.integers.moved.isdisjoint(names))
        if self._is_lossy(names[0], before):
            self.report.lossy.append(place.name)
        value = self._value(names[0], before)
        if any(not same(self._value(name, before), value) for name in names[1:]):
            what = f"a local function stores {printable(place.name)} once for all calls"
            raise CannotWriteBack(f"{what}, but the values now differ")
        entries = self.record.tensors[names[0]]
        for name, other in self.sharing.separate(names[0], entries, value).items() if isinstance(entries, list) else ():
            self._add(name, other, original.dtype, place.is_external)
        return self._put(place, value, original, self._is_finer(names[0], before))

    def _resized(self, place: StoredTensor, names: list[str], before: Array) -> Array:
        """Replace a stored tensor of the head by one with the new number of classes. Returns the new one."""
        assert self.head is not None
        name = printable(place.name)
        if place.name in self.integers.by_tensor:
            raise CannotWriteBack(f"{name} holds the head's weights as integers, and new classes have no scale")
        if len(names) > 1 or isinstance(self.record.tensors[names[0]], list):
            raise CannotWriteBack(f"the file stores {name} once for the head and for something else")
        if names[0] in self.record.functions:
            raise CannotWriteBack(f"{name} is in a local function")
        value = self.head.resized(self.record.tensors, names[0], self.get, before).astype(before.dtype, copy=False)
        if not place.resize(value.shape):
            raise CannotWriteBack(f"{name} is sparse, or an attribute that other attributes must fit")
        self._keep(place, before)
        if not place.is_external:
            place.write(value)
        self.resized[place.name] = before.shape
        self.report.changed.append(place.name)
        return np.ascontiguousarray(value)

    def _put(self, place: StoredTensor, value: Array, original: ir.TensorProtocol, moved: bool) -> ir.TensorProtocol:
        """Replace a stored tensor. `moved`: training changed its floats, though what is stored may be the same."""
        if same(value, original.numpy()):
            self.report.below += [place.name] if moved else []
            return original
        self._keep(place, original)
        self.report.changed.append(place.name)
        if not place.is_external and not place.write(value):
            self.report.notes.append(f"{printable(place.name)} was sparse and is now dense")
        return ir.tensor(np.ascontiguousarray(value), original.dtype)

    def _keep(self, place: StoredTensor, original: ir.TensorProtocol | Array) -> None:
        """If nodes that are not in the module share a tensor, give them the original value as one of their own."""
        if self.rest.shares(place.name):
            content = original if isinstance(original, ir.TensorProtocol) else ir.tensor(original)
            new = self.sharing.names.take(place.name)
            self._add(new, content.numpy(), content.dtype, place.is_external)
            self.rest.separate(place.name, new)
            note = f"{printable(place.name)} stays as it is in the rest of the network: {printable(new)}"
            self.report.notes.append(note)

    def _is_lossy(self, name: str, before: Array) -> bool:
        """Return True if the state dict has a narrower type, because of `--dtype` or the given weights."""
        sources = list(parts(self.record.tensors[name]))
        narrow = any(self.get(part["key"]).dtype.itemsize < before.dtype.itemsize for part in sources)
        return narrow or any(part.get("lossy") for part in sources)

    def _is_finer(self, name: str, before: Array) -> bool:
        """Return True if the state dict has another type, with values that the file's type cannot hold."""
        values = [self.get(part["key"]) for part in parts(self.record.tensors[name])]
        others = [v for v in values if v.dtype != before.dtype]
        return any(not np.array_equal(v.astype(before.dtype).astype(v.dtype), v, equal_nan=True) for v in others)

    def _value(self, name: str, before: Array) -> Array:
        value = np.asarray(rebuild(self.record.tensors, name, self.get, before)).astype(before.dtype, copy=False)
        if value.shape != before.shape:
            was, now = list(before.shape), list(value.shape)
            raise CannotWriteBack(f"the shape of {printable(name)} changed from {was} to {now}")
        return value

    def _add(self, name: str, value: Array, dtype: ir.DataType, external: bool) -> None:
        """Add an initializer."""
        content = ir.tensor(np.ascontiguousarray(value), dtype)
        tensor = onnx.TensorProto(name=name, data_type=int(dtype), dims=value.shape)
        if external:
            self.data.put(tensor, content)
        else:
            tensor.raw_data = content.tobytes()
        declare(self.model, tensor)
        self.report.added.append(name)

    def _move_out(self, done: dict[int, onnx.TensorProto]) -> None:
        """Copy the other external data. If the protobuf grew too large, its tensors become external, too."""
        inline = 0
        for tensor in tensors_of(self.model):
            is_new = tensor.name in self.report.added
            if tensor.data_location == onnx.TensorProto.EXTERNAL and id(tensor) not in done and not is_new:
                self.data.put(tensor, ir.serde.deserialize_tensor(tensor, str(self.folder)))
            inline += len(tensor.raw_data)
        for tensor in tensors_of(self.model) if inline > files.MAX_PROTOBUF_BYTES else ():
            if len(tensor.raw_data) > files.MAX_INLINE_BYTES:
                self.data.put(tensor, ir.serde.deserialize_tensor(tensor))


class Rest:
    """The nodes that are not in the module, as far as they share stored tensors with it.

    Exporters store equal vectors once, such as the biases of layers before training. So a shared vector keeps its value
    for the rest. A shared matrix or kernel is one layer in two places: the rest follows it, and its bias too.

    Args:
        model: the protobuf, whose node inputs `separate` changes.
        cut: the part of the graph that the module is; None for all of it.
        names: the stored tensors that the module has.

    Attributes:
        follows: the tensors that the rest has with the module, and that change for both.
    """

    def __init__(self, model: onnx.ModelProto, cut: Cut | None, names: Collection[str]) -> None:
        self.follows = set[str]()
        self._users: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        if cut is None:
            return
        ranks = {place.name: len(place.tensor.dims) for place in places(model) if place.tensor is not None}
        sources = {name: name for name in names}
        for node in model.graph.node:
            if node.op_type == "Identity" and node.input[0] in sources:
                sources[node.output[0]] = sources[node.input[0]]
        for node in with_inner(_outside(model.graph, cut)):
            shared = {i: sources[name] for i, name in enumerate(node.input) if name in sources}
            if node.op_type == "Identity":
                continue
            if any(ranks.get(name, 2) > 1 for name in shared.values()):
                self.follows.update(shared.values())
                continue
            for index, name in shared.items():
                self._users.setdefault(name, []).append((node, index))

    def shares(self, name: str) -> bool:
        """Return True if the rest must keep a tensor as it is."""
        return name in self._users

    def separate(self, name: str, new: str) -> None:
        """Make the rest use the stored tensor `new` instead."""
        for node, index in self._users.pop(name):
            node.input[index] = new


def _outside(graph: onnx.GraphProto, cut: Cut) -> list[onnx.NodeProto]:
    """Return the nodes that are not in a part of the graph."""
    part = onnx.GraphProto(node=graph.node, input=graph.input, output=graph.output)
    part.initializer.extend(onnx.TensorProto(name=tensor.name) for tensor in graph.initializer)
    cut_graph(part, cut, {})
    inside = {output for node in part.node for output in node.output if output}
    return [node for node in graph.node if inside.isdisjoint(node.output)]
