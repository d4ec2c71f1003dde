"""Changes by options of the generation, applied to the file that is written back.

Sizes and a free batch are in `freed.py`. BatchNorms that `--restore-batchnorm` restored become nodes of the file, each
after its convolution. A norm without a matching convolution in the file is folded in again (`provenance.Fold`). For
`--dtype`, the original file is converted to that floating point type. An operator that does not support the type gets
Cast nodes around it, and computes in single precision. The module's layer may not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from onnxgen.common.names import Namer
from onnxgen.errors import OnnxgenError, counted
from onnxgen.export import files
from onnxgen.export.back import write_back
from onnxgen.export.decoding import fit_decoding
from onnxgen.export.freed import declare_outputs, fix_sizes, free_batch
from onnxgen.export.heads import Head, fit_sizes
from onnxgen.export.places import Array, CannotWriteBack, declare, drop_unused, places, used_names
from onnxgen.export.report import ExportReport
from onnxgen.export.state import Origin
from onnxgen.graph.nodes import FLOATS, NAMED, all_nodes, types_of
from onnxgen.graph.operators import having_all
from onnxgen.graph.traits import PRODUCT, SAMPLES
from onnxgen.heads.reading import find_tail
from onnxgen.options import Options
from onnxgen.passes.batch import Freed
from onnxgen.passes.retype import KEY, retype, retype_node
from onnxgen.passes.standard.batchwise import time_first
from onnxgen.reader import read
from onnxgen.reader.protos import inner_uses, opset_of, put, uses
from onnxgen.record.sidecar import metadata_of
from onnxgen.record.tail import Tail
from onnxgen.record.way_back import cut_of, parts
from onnxgen.shapes import propagate
from onnxgen.verify.integrity import approximation_of
from onnxgen.verify.oracle import freed_of

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
        keeps_scales: integers are rounded by the file's scales, also where trained values are beyond their range.
    """

    def __init__(
        self, origin: Origin, options: Options, state: Mapping[str, Array], head: Head | None, keeps_scales: bool
    ) -> None:
        self.origin, self.options, self.state, self.head = origin, options, state, head
        self.keeps_scales = keeps_scales

    def write(self, target: Path, report: ExportReport, wanted: _Changes) -> _Changes:
        """Write the file to `target`, and return which of the changes it has. The report says why others are missing.

        Raises:
            CannotWriteBack: the original graph can't hold the values.
            OnnxgenError: a file can't be read or written.
        """
        with TemporaryDirectory() as folder:
            source = self._retyped(Path(folder), report) if DTYPE in wanted else None
            return self._write(source or self.origin.onnx, target, report, wanted) | ({DTYPE} if source else set())

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

    def _is_free(self) -> bool:
        """Return True if the module has floats where the file has integers, and no rounding, and scales may change."""
        approximation = approximation_of(self.origin.space)
        return approximation is not None and approximation.mode == "float" and not self.keeps_scales

    def _write(self, source: Path, target: Path, report: ExportReport, wanted: _Changes) -> _Changes:
        record, norms = self.origin.record, None
        if NORMS in wanted:
            norms = Norms(onnx.load(source, load_external_data=False), record.tensors)
            record = replace(record, tensors=norms.tensors)
        resized = write_back(source, target, record, self.state, report, self.head, self._is_free())
        done = {SIZES} if SIZES in wanted and self._resized(target, report, SIZES, source) else set()
        done |= {BATCH} if BATCH in wanted and self._resized(target, report, BATCH, source) else set()
        if norms is not None and norms.layers:
            done |= {NORMS} if self._normed(target, report, norms) else set()
        done |= {LAYOUT} if LAYOUT in wanted and _time_first(target, report) else set()
        if self.head is not None:
            model = onnx.load(target, load_external_data=False)
            new = {key: (self.head.sizes[key][0],) for key in self.head.axes if key in report.added}  # of BatchNorms
            report.resized = [*resized, *self._fitted(model, target.parent, resized | new)]
            if SIZES in done:
                declare_outputs(model, target.parent)
            files.save(model, target, report.out)
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

    def _resized(self, target: Path, report: ExportReport, change: str, source: Path) -> bool:
        """Give the file the sizes that the module was generated for, or its free batch. Returns True if it changed."""
        freed = freed_of(self.origin.space)
        if change == BATCH and (freed is None or not freed.inputs):
            return False
        model = onnx.load(target, load_external_data=False)
        if change == SIZES:
            is_changed = fix_sizes(model, self.origin.signature)
            if is_changed and self.head is None:  # else it is not fitted to the head yet
                declare_outputs(model, target.parent)
        else:
            assert freed is not None
            is_changed = self._freed(model, report, freed, source)
        if is_changed:
            files.save(model, target, report.out)
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

    def _normed(self, target: Path, report: ExportReport, norms: Norms) -> bool:
        apart = len(norms.layers) - len(norms.folded)
        if norms.folded:
            again = f"{counted(len(norms.folded), 'BatchNorm')} folded in again"
            report.notes.append(f"{again}: not each has a convolution of its own")
        if not apart:
            return False
        model = onnx.load(target, load_external_data=False)
        report.added += norms.insert(model, self.state)
        files.save(model, target, report.out)
        report.notes.append(f"{counted(apart, 'BatchNorm')} put into the graph, as in the module")
        return True


def _time_first(target: Path, report: ExportReport) -> bool:
    """Let recurrent layers take the time first, since onnxruntime runs no others. Returns True if the file changed."""
    model = onnx.load(target, load_external_data=False)
    count = time_first(model)
    if count:
        files.save(model, target, report.out)
        layers = counted(count, "recurrent layer")
        report.notes.append(f"{layers} take the time first, since onnxruntime runs no others")
    return bool(count)


MIN_OPSET = 9  # oldest opset in which BatchNormalization is in evaluation mode by default and has one output
_Fold = Mapping[str, Any]  # a `provenance.Fold`, as recorded


class Norms:
    """The norms that can be separate nodes in a file.

    Args:
        model: the file's protobuf.
        tensors: how each ONNX tensor is made of the state dict (`provenance.way_back`).

    Attributes:
        tensors: the same for the file with these norms as nodes.
        folded: the paths of the norms that stay folded in.
    """

    def __init__(self, model: onnx.ModelProto, tensors: Mapping[str, Any]) -> None:
        self.model = model
        self.passed_on = {n.output[0]: n.input[0] for n in model.graph.node if n.op_type == "Identity"}
        folds: dict[str, list[tuple[str, _Fold]]] = {}
        for name, part in ((name, part) for name, entries in tensors.items() for part in parts(entries)):
            if "fold" in part:
                folds.setdefault(part["fold"]["norm"], []).append((name, part["fold"]))
        self.layers = {path: self._layers(fused) for path, fused in folds.items()}
        self.folds = folds
        self.folded = [path for path, layers in self.layers.items() if not layers]
        self.without_bias = {p for p, fused in folds.items() for _, fold in fused if fold["part"] == "norm bias"}
        self.tensors = {name: entry for name, entries in tensors.items() if (entry := self._unfolded(entries))}

    def _layers(self, folds: list[tuple[str, _Fold]]) -> list[onnx.NodeProto]:
        """Return the convolutions that have the norm folded in; none if it cannot follow all of them."""
        weights = {name for name, fold in folds if fold["part"] == "weight"}
        biases = {name for name, fold in folds if fold["part"] != "weight"}
        layers = [
            n for n in self.model.graph.node if n.op_type != "Identity" and weights & set(map(self._stored, n.input))
        ]
        fits = all(self._is_convolution(node, weights, biases) for node in layers)
        is_alone = len(weights) == 1 and not weights & inner_uses(self.model.graph)
        return layers if fits and is_alone and opset_of(self.model) >= MIN_OPSET else []

    def _is_convolution(self, node: onnx.NodeProto, weights: set[str], biases: set[str]) -> bool:
        """Return True for a convolution with one of these weights and biases."""
        if node.op_type not in having_all(PRODUCT, SAMPLES) or node.domain not in STANDARD or len(node.input) != 3:
            return False
        return self._stored(node.input[1]) in weights and self._stored(node.input[2]) in biases

    def _stored(self, name: str) -> str:
        """Return the stored tensor that a value is. torch's older exporter shares some by Identity nodes."""
        while name in self.passed_on:
            name = self.passed_on[name]
        return name

    def _unfolded(self, entries: Any) -> Any:
        """Return a tensor's record without the separate norms; empty if it was a bias that only the norm had."""
        if isinstance(entries, str):
            return entries
        records: list[Any] = []
        for entry in entries if isinstance(entries, list) else [entries]:
            kept = [] if isinstance(entry, str) else [self._part(part) for part in entry["parts"]]
            rest = [part for part in kept if part is not None]
            if isinstance(entry, str) or len(rest) == len(kept):
                records.append(entry if isinstance(entry, str) else {**entry, "parts": rest})
            elif rest:
                records.append({**entry, "parts": rest, "partial": True})
        return records if isinstance(entries, list) and len(records) > 1 else next(iter(records), None)

    def _part(self, part: dict[str, Any]) -> dict[str, Any] | None:
        fold = part.get("fold")
        if fold is None or not self.layers[fold["norm"]]:
            return part
        return None if fold["part"] == "norm bias" else {key: value for key, value in part.items() if key != "fold"}

    def insert(self, model: onnx.ModelProto, state: Mapping[str, Array]) -> list[str]:
        """Add the norms to a file whose tensors are as `self.tensors` says. Returns the names of the norms' tensors."""
        old, namer, added = uses(model.graph), Namer(used_names(model.graph)), []
        after: dict[str, onnx.NodeProto] = {}
        of_output = {node.output[0]: node for node in model.graph.node if node.output}
        kinds = {place.name: place.tensor.data_type for place in places(model) if place.tensor is not None}
        for path, layers in self.layers.items():
            values: list[str] = []
            for node in (of_output[layer.output[0]] for layer in layers):
                for key in () if values else ("weight", "bias", "running_mean", "running_var"):
                    values.append(namer.take(f"{path}.{key}"))
                    kind = helper.tensor_dtype_to_np_dtype(kinds[self._stored(node.input[1])])
                    array = np.asarray(state[f"{path}.{key}"]).astype(kind, copy=False)
                    declare(model, numpy_helper.from_array(np.ascontiguousarray(array), values[-1]))
                result = node.output[0]
                if path in self.without_bias:
                    del node.input[2:]
                node.output[0] = namer.take(f"{result}.conv")
                norm = helper.make_node("BatchNormalization", [node.output[0], *values], [result])
                norm.attribute.append(helper.make_attribute("epsilon", self.folds[path][0][1]["epsilon"]))
                after[node.output[0]] = norm
            added += values
        pairs = ((node, after.get(next(iter(node.output), ""))) for node in model.graph.node)
        put(model.graph.node, [node for pair in pairs for node in pair if node is not None])
        drop_unused(model.graph, old)
        return added


STANDARD = ("", "ai.onnx")
_Formal = onnx.defs.OpSchema.FormalParameter


def retyped_file(source: Path, dtype: ir.DataType, options: Options, folder: Path) -> Path:
    """Write the file in another floating point type into a folder. Nodes and names stay; Cast nodes are added.

    Raises:
        CannotWriteBack: the file's opset has no such type, or it has local functions.
    """
    try:
        model = ir.load(source)
    except Exception as error:  # onnx_ir cannot read some forms, such as types of maps
        raise CannotWriteBack("onnx_ir can't read the file") from error
    is_external = any(isinstance(v.const_value, ir.ExternalTensor) for v in model.graph.initializers.values())
    if model.functions:
        raise CannotWriteBack("the file has local functions")
    opset = model.opset_imports.get("", 1)
    model.graph.sort()  # in an unsorted file, inputs of a node may not have a known type yet
    propagate(model.graph, options)
    retype(model, dtype, is_file=True)
    casting = _Casting(model, dtype, opset)
    for node in all_nodes(model.graph):
        if node.domain in STANDARD and node.op_type != "Cast":
            casting.fit(node)
    out = folder / source.name
    values = list(model.graph.initializers.values())
    for value in values:
        if isinstance(tensor := value.const_value, ir.ExternalTensor):  # external data lies beside the original
            value.const_value = ir.tensor(np.array(tensor.numpy()), tensor.dtype, name=tensor.name)
    size = sum(value.const_value.nbytes for value in values if value.const_value is not None)
    is_external |= size > files.MAX_PROTOBUF_BYTES
    ir.save(model, out, external_data=f"{out.name}.data" if is_external else None)
    return out


class _Casting:
    """Puts Cast nodes around operators that do not support a type."""

    def __init__(self, model: ir.Model, dtype: ir.DataType, opset: int) -> None:
        self.dtype, self.opset = dtype, opset
        names = [v.name for node in all_nodes(model.graph) for v in (*node.inputs, *node.outputs) if v is not None]
        self.namer = Namer(name for name in names if name)
        cast = onnx.defs.get_schema("Cast", opset, "")
        if not _takes(cast, cast.outputs[0], dtype):
            raise CannotWriteBack(f"opset {opset} has no {dtype.name.lower()} (upgrade it with onnx.version_converter)")

    def fit(self, node: ir.Node) -> None:
        """Cast the inputs and outputs of a node that must compute in single precision."""
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opset, "")
        except onnx.defs.SchemaError:
            return
        takes, gives = _paired(schema.inputs, node.inputs), _paired(schema.outputs, node.outputs)
        ours = [formal for formal, value in (*takes, *gives) if value is not None and value.dtype == self.dtype]
        narrow = {formal.type_str for formal in ours if not _takes(schema, formal, self.dtype)}
        for i, (formal, value) in enumerate(takes):
            if formal.type_str in narrow and value is not None and value.dtype in FLOATS:
                node.replace_input_with(i, self._before(node, value))
        for formal, value in gives:
            if formal.type_str in narrow and value is not None and value.dtype == self.dtype:
                retype_node(node, ir.DataType.FLOAT)
                self._after(node, value)

    def _before(self, node: ir.Node, value: ir.Value) -> ir.Value:
        if value.dtype == ir.DataType.FLOAT:
            return value
        cast = self._cast(value, ir.DataType.FLOAT, f"{value.name}.float")
        assert node.graph is not None
        node.graph.insert_before(node, cast)
        return cast.outputs[0]

    def _after(self, node: ir.Node, value: ir.Value) -> None:
        cast = self._cast(value, self.dtype, value.name or "made")
        output = cast.outputs[0]
        ir.convenience.replace_all_uses_with(value, output, replace_graph_outputs=True)
        cast.replace_input_with(0, value)
        assert node.graph is not None
        node.graph.insert_after(node, cast)
        output.name, value.name = value.name, self.namer.take(f"{value.name}.float")
        output.shape, output.type, value.type = value.shape, value.type, ir.TensorType(ir.DataType.FLOAT)

    def _cast(self, value: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
        node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(dtype))])
        node.outputs[0].name = self.namer.take(name)
        node.outputs[0].shape, node.outputs[0].type = value.shape, ir.TensorType(dtype)
        return node


def _paired(formals: Sequence[_Formal], values: Sequence[ir.Value | None]) -> list[tuple[_Formal, ir.Value | None]]:
    """Return inputs or outputs with the schema's parameters for them. The last parameter may be variadic."""
    return [(formals[min(i, len(formals) - 1)], value) for i, value in enumerate(values)] if formals else []


def _takes(schema: onnx.defs.OpSchema, formal: _Formal, dtype: ir.DataType) -> bool:
    return f"tensor({_ONNX[dtype]})" in types_of(schema, formal)


_ONNX = {
    ir.DataType.FLOAT: "float",
    ir.DataType.DOUBLE: "double",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
}
