"""Apply changed sizes (`--dynamic-batch` and `--input-shape`) to the ONNX file.

The pass that frees the batch rewrites the simplified graph. It runs here again, and its changes are applied to the
original: new shapes of Reshapes, Flattens that become Reshapes, Expands of values that are the same for all samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from onnxgen.common.names import Namer, printable
from onnxgen.export.places import CannotWriteBack, declare, drop_unused, used_names
from onnxgen.graph.annotations import FREED
from onnxgen.graph.operators import having
from onnxgen.graph.traits import SIZES
from onnxgen.options import Options
from onnxgen.passes import PASSES
from onnxgen.passes.batch import Freed, dynamic_batch
from onnxgen.plugins import plugged
from onnxgen.reader import read
from onnxgen.reader.normal import is_placeholder
from onnxgen.reader.protos import opset_of, put, uses
from onnxgen.record.signature import Signature
from onnxgen.shapes import propagate
from onnxgen.shapes.dims import Dim, Sym, Symbol, atom_text, is_symbol
from onnxgen.shapes.expression import Atom
from onnxgen.shapes.info import Info, info

MIN_OPSET = 10  # oldest opset in which Slice takes its bounds as inputs
Picture = tuple[str, str, tuple[str | None, ...], str]


def fix_sizes(model: onnx.ModelProto, signature: Signature) -> bool:
    """Declare the sizes that the module was generated for, where the file leaves sizes of inputs and outputs open.

    Returns:
        True if it left one open.
    """
    known = {port.name: port.dims for port in (*signature.outputs, *signature.inputs) if port.kind == "tensor"}
    sizes = _fixed(model.graph.input, known)
    if sizes is None:
        return False
    _fixed(model.graph.output, known)
    for value in model.graph.value_info:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes and not is_placeholder(dim.dim_param):
                dim.dim_value = sizes[dim.dim_param]
    return True


def declare_outputs(model: onnx.ModelProto, folder: Path) -> None:
    """Declare the sizes of outputs that follow from those of the inputs, where the file has formulas of others.

    A module that is a part of the network tells nothing of the outputs of the whole. `folder`: of the external data.
    """
    try:
        graph = ir.serde.deserialize_model(model).graph
    except Exception:  # onnx_ir cannot read some forms, such as types of maps
        return
    ir.external_data.set_base_dir(graph, folder)
    graph.sort()
    propagate(graph, Options())
    facts = {value.name: info(value) for value in graph.outputs}
    for value in model.graph.output:
        for dim, size in zip(value.type.tensor_type.shape.dim, facts[value.name].shape or (), strict=False):
            if isinstance(size, int) and not dim.HasField("dim_value"):
                dim.dim_value = size


def _fixed(
    values: Iterable[onnx.ValueInfoProto], known: Mapping[str, Sequence[int | str] | None]
) -> dict[str, int] | None:
    """Declare the sizes of some values. Returns those of named dims, or None if nothing was open."""
    sizes: dict[str, int] = {}
    is_changed = False
    for value in values:
        for dim, size in zip(value.type.tensor_type.shape.dim, known.get(value.name) or (), strict=False):
            if isinstance(size, int) and not dim.HasField("dim_value"):
                sizes |= {dim.dim_param: size} if dim.dim_param else {}
                dim.dim_value, is_changed = size, True
    return sizes if is_changed else None


def free_batch(model: onnx.ModelProto, source: Path, options: Options, freed: Freed) -> None:
    """Give a written-back model the free batch that its module has.

    Args:
        model: changed in place.
        source: the file that the module was generated from.
        options: those of the generation that the proof needs.
        freed: the batch that the generation freed.

    Raises:
        CannotWriteBack: the graph can't have it; `model` is then half changed.
        OnnxgenError: the pass can't free the batch.
    """
    opset = opset_of(model)
    if opset < MIN_OPSET:
        raise CannotWriteBack(f"opset {opset} is older than {MIN_OPSET} (upgrade it with onnx.version_converter)")
    with plugged(options):
        proven = read(source, options)
        names = [getattr(step, "__name__", "") for step in PASSES]
        for step in PASSES[: names.index("dynamic_batch")]:
            step(proven, options)
        before = _pictures(proven.graph)
        dynamic_batch(proven, options)
    proof = FREED.get(proven)
    assert proof is not None
    if (proof.size, proof.inputs, proof.outputs) != (freed.size, freed.inputs, freed.outputs):
        raise CannotWriteBack("the batch would move to other axes")
    _Writer(model, proven.graph, before).run()


def _picture(node: ir.Node) -> Picture:
    inputs = tuple(None if value is None else value.name for value in node.inputs)
    return node.domain, node.op_type, inputs, str(sorted((name, str(a)) for name, a in node.attributes.items()))


def _pictures(graph: ir.Graph) -> dict[str, Picture]:
    """Describe each node under the names of its outputs. Other values have an empty description."""
    taken = {value.name or "": ("", "", (), "") for node in graph for value in node.inputs if value is not None}
    return taken | {value.name or "": _picture(node) for node in graph for value in node.outputs}


class _Writer:
    """Applies the changes of a graph to the protobuf that it was made from.

    Args:
        model: the protobuf.
        graph: the simplified graph with a free batch.
        before: its nodes before the batch was freed.
    """

    def __init__(self, model: onnx.ModelProto, graph: ir.Graph, before: Mapping[str, Picture]) -> None:
        self.model, self.graph, self.before = model, graph, before
        self.producers = {name: node for node in model.graph.node for name in node.output if name}
        self.inputs = {value.name for value in model.graph.input}
        self.names = Namer(used_names(model.graph))
        self.new: dict[ir.Value, str] = {}  # names of values that are new in the file
        self.sizes: dict[str, str] = {}  # names of tensors that hold the sizes of symbols
        self.first: list[onnx.NodeProto] = []  # nodes that read these sizes off the inputs
        self.here: list[onnx.NodeProto] = []  # new nodes in front of the current one

    def run(self) -> None:
        old = uses(self.model.graph)
        nodes: dict[str, tuple[list[onnx.NodeProto], onnx.NodeProto]]
        nodes = {next(filter(None, n.output), ""): ([], n) for n in self.model.graph.node}
        for node in self.graph:
            name = next((value.name for value in node.outputs if value.name), "")
            if name in nodes and self.before.get(name) != _picture(node):  # other nodes are part of a fused operator
                self.here = []
                changed = self._node(node, list(nodes[name][1].output))
                nodes[name] = (self.here, changed)
            for value in node.inputs:
                if value is not None and value.producer() is None and self._is_frozen(value):
                    tensor = numpy_helper.from_array(np.asarray(info(value).constant))
                    constant = helper.make_node("Constant", [], [value.name or ""], value=tensor)
                    nodes[value.name or ""] = ([], constant)
        kept = [node for before, changed in nodes.values() for node in (*before, changed)]
        put(self.model.graph.node, [*self.first, *kept])
        drop_unused(self.model.graph, old)
        self._declare()

    # ---- nodes ----

    def _is_frozen(self, value: ir.Value) -> bool:
        """Return True if the file computes the value from sizes, and the proof took its number in a single run."""
        name = value.name or ""
        return (
            name in self.producers
            and name in self.before
            and info(value).constant is not None
            and self._reads_size(name)
        )

    def _reads_size(self, name: str) -> bool:
        todo, seen = [name], set[str]()
        while todo:
            node = self.producers.get(todo.pop())
            if node is None or node.output[0] in seen:
                continue
            if node.op_type in having(SIZES):
                return True
            seen.add(node.output[0])
            todo.extend(node.input)
        return False

    def _node(self, node: ir.Node, outputs: list[str]) -> onnx.NodeProto:
        proto = ir.serde.serialize_node(node)
        inputs = [self._name(node, i, value) for i, value in enumerate(node.inputs)]
        del proto.input[:], proto.output[:], proto.metadata_props[:]
        proto.input.extend(inputs)
        proto.output.extend(outputs)
        return proto

    def _name(self, node: ir.Node, i: int, value: ir.Value | None) -> str:
        """Return the name of an input in the file. The value is added to the file if necessary."""
        if value is None:
            return ""
        name = value.name or ""
        if value in self.new:
            return self.new[value]
        if name in self.before and name in self.names:
            return name
        producer, facts = value.producer(), info(value)
        if producer is not None and name not in self.before:
            outputs = [self.names.take(output.name or "made") for output in producer.outputs]
            self.new.update(zip(producer.outputs, outputs, strict=True))
            changed = self._node(producer, outputs)
            changed.name = ""  # it has that of the node before which it stands
            self.here.append(changed)
        elif producer is None and facts.data is not None:
            shape = info(node.inputs[0]).shape if node.op_type == "Reshape" and i == 1 else None
            self.new[value] = self._known(name, facts, shape, node.op_type == "Reshape")
        else:
            raise CannotWriteBack(f"{printable(name)} is not a value of the file")
        return self.new[value]

    # ---- sizes ----

    def _known(self, name: str, facts: Info, shape: tuple[Dim, ...] | None, is_reshape: bool) -> str:
        """Return the name of a tensor with known elements: a constant if possible, which for a Reshape it mostly is."""
        assert facts.data is not None
        dims: list[Dim] = list(facts.data.reshape(-1))
        dims = _of_reshape(dims, shape or ()) if is_reshape else dims
        if not _symbolic(dims):
            dtype = np.int64 if facts.dtype is None or facts.data.dtype == object else facts.dtype.numpy()
            return self._constant(np.array(dims, dtype).reshape(facts.data.shape), name)
        if len(dims) == 1:
            return self._size(dims[0], name, self.here)
        return self._op("Concat", [self._size(dim, name, self.here) for dim in dims], name, self.here, axis=0)

    def _size(self, dim: Dim, name: str, where: list[onnx.NodeProto]) -> str:
        """Return the name of a one-element tensor that holds a dim."""
        if not isinstance(dim, Sym):
            return self._constant(np.array([dim], np.int64), name)
        terms = []
        for monomial, coefficient in dim.terms:
            factors = [self._symbol(atom) for atom, power in monomial for _ in range(power)]
            if coefficient != 1 or not factors:
                factors.append(self._constant(np.array([coefficient], np.int64), name))
            terms.append(self._folded("Mul", factors, name, where))
        return self._folded("Add", terms, name, where)

    def _folded(self, op: str, values: list[str], name: str, where: list[onnx.NodeProto]) -> str:
        total, *rest = values
        for value in rest:
            total = self._op(op, [total, value], name, where)
        return total

    def _symbol(self, atom: Atom) -> str:
        """Return the name of a one-element tensor that holds the size of an input's axis."""
        if not isinstance(atom, Symbol) or atom.source is None or atom.source[0] not in self.inputs:
            raise CannotWriteBack(f"no input has the size {printable(atom_text(atom, alone=True))}")
        if atom.name not in self.sizes:
            value, axis = atom.source
            shape = self._op("Shape", [value], f"{value}.shape", self.first)
            index = self._constant(np.array([axis], np.int64), f"{value}.axis")
            self.sizes[atom.name] = self._op("Gather", [shape, index], f"{value}.{atom.name}", self.first)
        return self.sizes[atom.name]

    def _constant(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], name: str) -> str:
        tensor = numpy_helper.from_array(array, self.names.take(name))
        declare(self.model, tensor)
        return tensor.name

    def _op(self, op: str, inputs: list[str], name: str, where: list[onnx.NodeProto], **attributes: int) -> str:
        result = self.names.take(name)
        where.append(helper.make_node(op, inputs, [result], None, None, None, None, **attributes))
        return result

    # ---- declarations ----

    def _declare(self) -> None:
        """Declare the free batch in the types of the file's values. Types that are no longer known are removed."""
        values = {v.name: v for v in (*self.graph.inputs, *self.graph.outputs)}
        values |= {v.name: v for node in self.graph for v in node.outputs}
        kept = [declared for declared in self.model.graph.value_info if declared.name in values]
        for declared in (*self.model.graph.input, *self.model.graph.output, *kept):
            if declared.name in values:
                _declare(declared, info(values[declared.name]))
        put(self.model.graph.value_info, kept)


def _symbolic(dims: list[Dim]) -> list[Sym]:
    return [dim for dim in dims if isinstance(dim, Sym)]


def _of_reshape(dims: list[Dim], shape: tuple[Dim, ...]) -> list[Dim]:
    """Return the sizes that a Reshape is given: 0 for one that its input has there, and -1 for one that follows."""
    symbolic = _symbolic(dims)
    if len(symbolic) > 1:
        dims = [0 if dim in symbolic and shape[i : i + 1] == (dim,) else dim for i, dim in enumerate(dims)]
        symbolic = _symbolic(dims)
    if len(symbolic) > 1:  # a computed one follows from the others
        symbolic = [dim for dim in symbolic if not is_symbol(dim) and -1 not in dims]
    return [-1 if dim in symbolic else dim for dim in dims] if len(symbolic) == 1 else dims


def _declare(declared: onnx.ValueInfoProto, facts: Info) -> None:
    for dim, known in zip(declared.type.tensor_type.shape.dim, facts.shape or (), strict=False):
        if dim.HasField("dim_value") and isinstance(known, Sym):
            dim.dim_param = str(known)
