"""Read the names and metadata that exporters leave. They tell the passes the role of a stored tensor.

PyTorch's legacy (TorchScript) exporter keeps the names of parameters and buffers. Tensors that it computes are called
`onnx::Conv_41`, or `41` before PyTorch 1.12. The dynamo exporter records on each tensor what it is, and calls values
that it makes `val_3`; onnxslim and onnxsim drop the records.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from onnxgen.scopes.recorded import CALL
from onnxgen.weights.stored import folded_names

# The dynamo exporter, on each initializer: "PARAMETER", "BUFFER", ...
# what the dynamo exporter calls the folded result of `torch.zeros` and its like
FILL = re.compile(r"(new_)?(full|zeros|ones)(_like)?(_\d+)?")
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
# The dynamo exporter, on each initializer: "False" for a buffer that the state dict does not have.
PERSISTENT = "pkg.torch.export.graph_signature.InputSpec.persistent"
# The dynamo exporter, on each node: the classes of the modules around it.
CLASSES = "pkg.torch.onnx.class_hierarchy"
# PyTorch's names of the parameters of nn.LSTM, nn.GRU and nn.RNN, with the number of the layer.
RECURRENT = re.compile(r"(?:weight|bias)_[ih]h_l(\d+)(?:_reverse)?$")
# Those of nn.LSTMCell, nn.GRUCell and nn.RNNCell.
CELL = re.compile(r"(?:weight|bias)_[ih]h$")

# Names without a dot that no parameter of the root has: onnxruntime's, and the dynamo exporter's.
_GENERATED = re.compile(r"reorder|\w+_token_\d+|val_\d+")
# Names of tensors with a folded BatchNorm: the legacy exporter's weights, the bias that the dynamo exporter adds to a
# layer without one, and tf2onnx's weights.
_FOLDED_NORM = re.compile(r"onnx::Conv(Transpose)?_\d+|.+\.weight_bias|.*_fused_bn")
_LOOKUP = re.compile(r"aten\.embedding\.default\]\(args = \(%\w+, %\w+, (\d{1,18})[,)]")
# Names that the dynamo exporter gives to values which no parameter is: torch's functions, numbered.
_COMPUTED = re.compile(
    r"(val|(c_)?lifted_tensor|arange|zeros|ones|full|eye|linspace|(zeros|ones|full)_like|scalar_tensor|empty|add|sub|mul|"
    r"div|rsub|neg|pow|sqrt|rsqrt|exp|log|sin|cos|abs|floor|floor_divide|remainder|clamp|round|reciprocal|"
    r"_?(unsafe_)?view|reshape|unsqueeze|squeeze|expand|permute|transpose|stack|cat|repeat|tile|slice|select|flip|roll|"
    r"flatten|getitem|index|index_select|convert_element_type|_?to_copy|clone|alias|detach|lift_fresh_copy|tril|triu|"
    r"where|eq|ne|lt|gt|le|ge|logical_(not|and|or)|bitwise_(not|and|or)|constant_pad_nd|meshgrid|cumsum|sum|mean|max|"
    r"min|amax|amin|sinc|tmp|const|const_cast|pi_self|_MATH_PI|_MATH_PI_cast|int64|"
    r"(hamming|hann|bartlett|blackman|kaiser)_window)"
    r"(_default)?(_\d+)?"
)


def is_by_pytorch(model: ir.Model) -> bool:
    """True if PyTorch exported a model. optimum writes its own name into the decoders that it merges of such files."""
    return model.producer_name in ("pytorch", "optimum-onnx")


def may_be_root_name(name: str) -> bool:
    """True if a name without a dot may be that of a parameter or buffer of the root module (`temperature`)."""
    return re.fullmatch(r"[A-Za-z_]\w*", name) is not None and not _GENERATED.fullmatch(name)


def is_made_of_constants(value: ir.Value) -> bool:
    """True if the dynamo exporter recorded that it computed a tensor from such values only."""
    names = folded_names(value)
    return bool(names) and all(map(is_function_name, names))


def is_function_name(name: str) -> bool:
    """True if a name is one that the dynamo exporter gives to the result of a function."""
    return _COMPUTED.fullmatch(name) is not None


def is_by_dynamo(graph: ir.Graph) -> bool:
    """True if the dynamo exporter wrote a graph, by the names of its values."""
    names = (v.name or "" for node in graph for v in (*node.inputs, *node.outputs) if v is not None)
    return any(re.fullmatch(r"val_\d+", name) for name in names)


def holds_folded_norm(name: str) -> bool:
    """True if a tensor's name says that a BatchNorm was folded into it."""
    return _FOLDED_NORM.fullmatch(name) is not None


def padding_row(node: ir.Node) -> int | None:
    """Return the row without a gradient in a lookup, `aten.embedding(weight, ids, row)`, if the file has the call."""
    found = _LOOKUP.search(node.metadata_props.get(CALL, ""))
    return int(found[1]) if found else None


def is_in_norm(node: ir.Node) -> bool:
    """True if the dynamo exporter recorded that a node was part of a BatchNorm."""
    return "batch_norm" in node.metadata_props.get(CLASSES, "").rpartition(",")[2]
