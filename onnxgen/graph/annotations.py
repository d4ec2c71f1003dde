"""All facts, with their types, that onnxgen notes on nodes, values, graphs and models.

onnx_ir gives each of these objects a dict, `meta`, which is not stored in files. Only this module reads and writes it.
The comment before each fact describes it. The modules that note and read one are not listed here (`git grep -w SCOPE`
does); a test checks that somebody does each.

The reader notes these facts of a file, which need types of their own:

- types of maps, which onnx_ir cannot represent. Only classical models (ai.onnx.ml) have them. At run time they are
  dicts; keys and values are text or numbers;
- positions of values in the file. They are recorded after local functions are inlined and before any rewrite;
- the bytes that were read. They limit the bytes that a generation writes: without that, nodes that copy tensors could
  make a small file huge.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import onnx
import onnx_ir as ir

from onnxgen.common.names import ModulePath, Variable
from onnxgen.graph.nodes import all_nodes
from onnxgen.options import Options

if TYPE_CHECKING:
    from onnxgen.paranoid.check import Counts
    from onnxgen.passes.batch import Freed
    from onnxgen.passes.folded import Restored
    from onnxgen.shapes.info import Info
    from onnxgen.weights.dequantised import Approximation
    from onnxgen.weights.stored import Copied


@dataclass(frozen=True)
class MapType:
    """The types of a map's keys and values. `listed`: the value is a sequence of such maps."""

    key: ir.DataType
    value: ir.DataType
    listed: bool = False

    @property
    def kind(self) -> str:
        return "maps" if self.listed else "map"


def map_types(graph: onnx.GraphProto) -> dict[str, MapType]:
    """Return the types of a graph's inputs and outputs that are maps, by name."""
    types = {info.name: _map_type(info.type) for info in (*graph.input, *graph.output)}
    return {name: kind for name, kind in types.items() if kind is not None}


def _map_type(kind: onnx.TypeProto) -> MapType | None:
    listed = kind.WhichOneof("value") == "sequence_type"
    if listed:
        kind = kind.sequence_type.elem_type
    if kind.WhichOneof("value") != "map_type":
        return None
    key, value = kind.map_type.key_type, kind.map_type.value_type.tensor_type.elem_type
    return MapType(ir.DataType(key), ir.DataType(value), listed)


def note_maps(graph: ir.Graph, types: Mapping[str, MapType]) -> None:
    """Record the types of maps in the values' `meta`."""
    for value in (*graph.inputs, *graph.outputs):
        if (value.name or "") in types:
            MAP.set(value, types[value.name or ""])


Site = tuple[str, int]  # name of a node's output in the file, and index of the node's input
Nodes = dict[str, tuple[tuple[Site, str], ...]]


def site(node: ir.Node, index: int) -> Site:
    """Return the position in the file of an input of a node."""
    return CALLED.get(node).get(index) or (next((o.name for o in node.outputs if o.name), "") or "", index)


def note_nodes(model: ir.Model) -> None:
    """Record in `model.meta` which values each node of the file takes."""
    noted: Nodes = {}
    for node in all_nodes(model.graph):
        inputs = tuple((site(node, i), v.name) for i, v in enumerate(node.inputs) if v is not None and v.name)
        noted |= {o.name: inputs for o in node.outputs if o.name}
    NODES.set(model, noted)


def note_body(call: ir.Node, function: ir.Function, values: Mapping[ir.Value, ir.Value | None]) -> None:
    """Record for an inlined function which inputs come from the call, and which tensors the function stores.

    `values`: for the function's own values, those of the body.
    """
    formal = {value: index for index, value in enumerate(function.inputs)}
    for node in function:
        producer = next((new.producer() for o in node.outputs if (new := values.get(o)) is not None), None)
        if producer is not None:
            CALLED.set(producer, {i: site(call, formal[v]) for i, v in enumerate(node.inputs) if v in formal})
    stored = [o for node in all_nodes(function) if node.op_type == "Constant" for o in node.outputs]
    stored += [value for graph in function.subgraphs() for value in graph.initializers.values()]
    for value in stored:
        new = values.get(value)
        if new is not None:
            LOCAL.set(new, (*function.identifier(), value.name))


Holder = TypeVar("Holder", bound="ir.Node | ir.Value | ir.Graph | ir.Model")
Fact = TypeVar("Fact")


class Annotation(Generic[Holder, Fact]):
    """One kind of fact. Objects on which it was not noted have the default."""

    def __init__(self, key: str, default: Fact) -> None:
        self._key, self._default = key, default

    def get(self, holder: Holder) -> Fact:
        fact: Fact = holder.meta.data.get(self._key, self._default)  # a quarter of the time of `meta.get`
        return fact

    def has(self, holder: Holder) -> bool:
        return self._key in holder.meta.data

    def set(self, holder: Holder, fact: Fact) -> None:
        holder.meta[self._key] = fact

    def copy(self, old: Holder, new: Holder) -> None:
        """Copy the fact to another object if it was noted."""
        if self.has(old):
            self.set(new, self.get(old))


def copy_all(old: Holder, new: Holder) -> None:
    """Copy all facts to another object."""
    new.meta.update(old.meta)


# ---- of nodes ----

# The module path that the node was written in.
SCOPE: Annotation[ir.Node, ModulePath] = Annotation("scope", ())
# True if the scope was derived from the graph's structure: a better one may replace it.
FOUND: Annotation[ir.Node, bool] = Annotation("found", False)
# Names of the calls whose inlining made the node, outermost first.
CALLS: Annotation[ir.Node, tuple[str, ...]] = Annotation("calls", ())
# The name that a node of a local function's body had there.
BODY_NAME: Annotation[ir.Node, str | None] = Annotation("name", None)
# For inputs that come from an inlined function's call: the sites of the call's inputs.
CALLED: Annotation[ir.Node, Mapping[int, Site]] = Annotation("called", {})
# The file's names of the nodes that this one replaces.
STANDS_FOR: Annotation[ir.Node, tuple[str, ...]] = Annotation("nodes", ())
# Names of the inputs that were attributes, after the schema's own.
TABLE_INPUTS: Annotation[ir.Node, tuple[str, ...]] = Annotation("tables", ())
# The row of a table that a lookup gives no gradient, if the file has it.
PADDING: Annotation[ir.Node, int | None] = Annotation("padding", None)
# Inputs that training should not follow.
BLOCKED: Annotation[ir.Node, Set[int] | None] = Annotation("blocked", None)
# The feature of the node that can't be written, and the workaround.
REFUSED: Annotation[ir.Node, tuple[str, str] | None] = Annotation("refused", None)
# The size of the blocks of channels in onnxruntime's layout.
NCHWC_BLOCK: Annotation[ir.Node, int | None] = Annotation("nchwc_block", None)
# True if a QuantizeLinear must keep its scale.
FIXED: Annotation[ir.Node, bool] = Annotation("fixed scale", False)
# The tensors whose product is the scale of a bias's DequantizeLinear.
PRODUCT: Annotation[ir.Node, tuple[str, ...]] = Annotation("product", ())
# The scope of the Dropout inside an attention.
DROPOUT: Annotation[ir.Node, ModulePath | None] = Annotation("dropout", None)
# True if a norm was spelled out in its own module.
OWN_NORM: Annotation[ir.Node, bool] = Annotation("own", False)
# By input, and by the name of a stored tensor: where the file's nodes take it.
SITES: Annotation[ir.Node, Mapping[int, Mapping[str, Set[Site]]]] = Annotation("sites", {})

# ---- of values ----

# The facts that are known before anything runs.
INFO: Annotation[ir.Value, Info | None] = Annotation("info", None)
# The key and value types if the value is a map.
MAP: Annotation[ir.Value, MapType | None] = Annotation("map", None)
# True if a stored tensor is trained, and the reason.
TRAINABLE: Annotation[ir.Value, tuple[bool, str]] = Annotation("trainable", (False, "nobody decided"))
# True if a name without a dot is a key of PyTorch's state dict.
ROOT: Annotation[ir.Value, bool] = Annotation("root", False)
# True for a single number that differs between places which are alike.
VARIES: Annotation[ir.Value, bool] = Annotation("varies", False)
# The reason why a tensor gets no gradient and so is not trained.
STILL: Annotation[ir.Value, str] = Annotation("still", "")
# True for a buffer of PyTorch's state dict, or a view of one.
KEPT: Annotation[ir.Value, bool] = Annotation("kept", False)
# True for a tensor that each call which takes it names as a buffer or constant.
NO_PARAMETER: Annotation[ir.Value, bool] = Annotation("no parameter", False)
# What constant folding made a tensor of: copies of other stored tensors.
COPIES: Annotation[ir.Value, Sequence[Copied]] = Annotation("copies", ())
# True for an input that the file declares without a rank.
RANKLESS: Annotation[ir.Value, bool] = Annotation("rankless", False)
# The local function that stores a tensor (3 names), and the tensor's name there.
LOCAL: Annotation[ir.Value, tuple[str | None, ...]] = Annotation("local", ())

# ---- of a graph ----

# The exporter: the model's producer.
PRODUCER: Annotation[ir.Graph, str | None] = Annotation("producer", None)
# True if its names are those of PyTorch's state dict.
KEEPS_STATE: Annotation[ir.Graph, bool] = Annotation("state", False)
# True if the exporter recorded which tensors are parameters.
RECORDED: Annotation[ir.Graph, bool] = Annotation("recorded", False)
# True if the names of its tensors are not followed.
NAMELESS: Annotation[ir.Graph, bool] = Annotation("nameless", False)

# ---- of the model ----

# The files of its external data.
DATA_FILES: Annotation[ir.Model, Set[Path]] = Annotation("data files", frozenset())
# Bytes of the file, and of each data file once.
BYTES_READ: Annotation[ir.Model, int] = Annotation("bytes read", 0)
# The class names that an exporter recorded, or `scopes` found, by module path.
CLASSES: Annotation[ir.Model, Mapping[ModulePath, str]] = Annotation("classes", {})
# The paths of those that `scopes` found.
FOUND_CLASSES: Annotation[ir.Model, Set[ModulePath]] = Annotation("found classes", frozenset())
# By name of a value and by module: its variable in the author's source.
VARIABLES: Annotation[ir.Model, Mapping[str, Mapping[ModulePath, Variable]]] = Annotation("variables", {})
# By stored tensor and scope of its users: the parameters that it is there.
PARAMETER_NAMES: Annotation[ir.Model, Mapping[str, Mapping[ModulePath, frozenset[str]]]] = Annotation("parameters", {})
# For each node's output, by name: the sites of the node's inputs, and their names.
NODES: Annotation[ir.Model, Nodes] = Annotation("nodes", {})
# The norms that were put back, in order.
RESTORED: Annotation[ir.Model, list[Restored] | None] = Annotation("restored", None)
# The result of `--dynamic-batch`.
FREED: Annotation[ir.Model, Freed | None] = Annotation("batch", None)
# The allowed distance of the module from a quantised file.
APPROXIMATED: Annotation[ir.Model, Approximation | None] = Annotation("quantized", None)
# The numbers of steps over which recurrent layers were unrolled.
UNROLLED: Annotation[ir.Model, Set[int]] = Annotation("unrolled", frozenset())
# Notes for the user about integers that became floats.
QUANTISED_NOTES: Annotation[ir.Model, list[str]] = Annotation("quantised", [])
# The counts of what was compared.
CHECKED: Annotation[ir.Model, Counts | None] = Annotation("checked", None)
# True once a second set of rules has decided which tensors are trained.
DECIDED: Annotation[ir.Model, bool] = Annotation("decided", False)


def is_trained(value: ir.Value) -> bool:
    return TRAINABLE.get(value)[0]


WRITTEN_PER_STORED_BYTE = 4  # bytes written for each stored byte: it may become a float32
WRITTEN_PER_UNPACKED_BYTE = 16  # the same where quantised weights of two bits become float32


def note_read(model: ir.Model, path: Path) -> None:
    """Record the sizes of the file and of its data files, in bytes."""
    files = {path, *DATA_FILES.get(model)}
    BYTES_READ.set(model, sum(os.path.getsize(file) for file in files if os.path.isfile(file)))


def writable(model: ir.Model, options: Options) -> int:
    """Return how many bytes may be written."""
    times = WRITTEN_PER_STORED_BYTE if options.quantized == "keep" else WRITTEN_PER_UNPACKED_BYTE
    return times * BYTES_READ.get(model) + options.limits.written


def past(size: int, most: int, what: str) -> str | None:
    """Return a message if `size` bytes are more than `most`, else None. `what` names the thing of that size."""
    if size <= most:
        return None
    return f"{what} {size:,} bytes; the size of the file allows {most:,} (raise it with --limit written={size})"
