"""What differs of two files beside their functions: inputs, outputs, opset, producer, metadata, names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import counted
from onnxgen.graph.nodes import all_nodes
from onnxgen.passes.rewrite import names_of
from onnxgen.passes.trainable import stored_values
from onnxgen.record.signature import Port, Signature
from onnxgen.view.page import MAX_NAME_CHARACTERS

MAX_TEXT = 60  # characters of an entry that are shown
QUANTISED = ("Quantize", "Dequantize", "QLinear", "Integer", "QAttention", "QGemm", "MatMulNBits")


@dataclass
class Facts:
    """What a file says beside its function.

    Attributes:
        operators: how many nodes there are of each.
        order: the operators of the nodes, in the file's order.
        kinds: the operator of each node, by its name, in the file's order.
        names: of stored tensors; `unused`: of those that nothing takes.
    """

    opset: str = ""
    producer: str = ""
    ir_version: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    doc: str = ""
    operators: Counter[str] = field(default_factory=Counter)
    order: tuple[str, ...] = ()
    kinds: dict[str, str] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()

    @property
    def norms(self) -> int:
        return self.operators["BatchNormalization"]

    @property
    def is_quantised(self) -> bool:
        return any(word in op for op in self.operators for word in QUANTISED)


def facts(model: ir.Model) -> Facts:
    """Return what a model from `reader.read` says."""
    nodes = list(all_nodes(model.graph))
    stored = list(stored_values(model.graph))
    return Facts(
        ", ".join(f"{printable(d or 'ai.onnx')} {v}" for d, v in sorted(model.opset_imports.items())),
        " ".join(printable(p) for p in (model.producer_name, model.producer_version) if p),
        str(model.ir_version),
        {printable(k): printable(v, 10_000) for k, v in model.metadata_props.items()},
        printable(model.doc_string or model.graph.doc_string or "", 10_000),
        Counter(printable(node.op_type) for node in nodes),
        tuple(node.op_type for node in nodes),
        {printable(names_of(node)[0], MAX_NAME_CHARACTERS): node.op_type for node in nodes},
        frozenset(printable(v.name or "") for v in stored),
        frozenset(printable(v.name or "") for v in stored if not v.uses() and not v.is_graph_output()),
    )


def beside(one: Facts | None, other: Facts | None) -> list[str]:
    """Say what differs of two files, and not of their functions."""
    if one is None or other is None:
        return []
    said = [
        f"{name}: {a or 'none'} -> {b or 'none'}"
        for name, a, b in (
            ("opset", one.opset, other.opset),
            ("producer", one.producer, other.producer),
            ("IR version", one.ir_version, other.ir_version),
        )
        if a != b
    ]
    said += _entries(one.metadata, other.metadata)
    if one.doc != other.doc:
        said.append(f"doc string: {_short(one.doc)} -> {_short(other.doc)}")
    if one.operators != other.operators:
        more, fewer = other.operators - one.operators, one.operators - other.operators
        words = [f"+{n} {op}" for op, n in sorted(more.items())] + [f"-{n} {op}" for op, n in sorted(fewer.items())]
        said.append(f"nodes: {sum(one.operators.values())} -> {sum(other.operators.values())} ({', '.join(words)})")
    elif one.order != other.order:
        said.append("the nodes are in another order")
    if one.names - one.unused != other.names - other.unused and len(one.names) == len(other.names):
        said.append(f"{counted(len(other.names - one.names), 'tensor')} renamed")
    for side, which in ((one, "first"), (other, "second")):
        if side.unused and one.unused != other.unused:
            said.append(f"{counted(len(side.unused), 'tensor')} of the {which} file unused")
    return said


def _entries(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    said = []
    for key in dict.fromkeys((*one, *other)):
        a, b = one.get(key), other.get(key)
        if a != b:
            what = "added" if a is None else "removed" if b is None else f"{_short(a)} -> {_short(b)}"
            said.append(f"metadata {key}: {what}{f' ({_short(b)})' if a is None and b is not None else ''}")
    return said


def _short(text: str) -> str:
    return repr(text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "...")


def ports(one: Signature | None, other: Signature | None) -> tuple[list[str], list[str], bool]:
    """Compare inputs and outputs.

    Returns:
        what differs; what only bears another name; and whether both take the same inputs.
    """
    if one is None or other is None:
        return ["the inputs of a module without a sidecar are not known"] if one is not other else [], [], True
    said: list[str] = []
    names: list[str] = []
    alike = True
    for word, mine, theirs in (("input", one.inputs, other.inputs), ("output", one.outputs, other.outputs)):
        for a, b in zip(mine, theirs, strict=False):
            if a.name != b.name:
                names.append(f"{word} {printable(a.name)} is named {printable(b.name)}")
            if (a.dtype, a.kind) != (b.dtype, b.kind):
                said.append(f"{word} {printable(b.name)}: {_type(a)} -> {_type(b)}")
                alike = alike and word != "input"
            elif _other_dims(a, b, word == "input"):
                said.append(f"{word} {printable(b.name)}: {_dims(a)} -> {_dims(b)}")
                alike = alike and word != "input"
        for verb, rest in (("removed", mine[len(theirs) :]), ("added", theirs[len(mine) :])):
            said += [f"{word} {printable(port.name)} {_type(port)} {_dims(port)} {verb}" for port in rest]
            alike = alike and not rest
    return said, names, alike


def _other_dims(one: Port, other: Port, exactly: bool) -> bool:
    """Return True if dims differ by more than their names. `exactly`: a known size differs from an unknown one, too."""
    if one.dims is None or other.dims is None:
        return exactly and one.dims is not other.dims
    if len(one.dims) != len(other.dims):
        return True
    for a, b in zip(one.dims, other.dims, strict=True):
        numbers = isinstance(a, int), isinstance(b, int)
        if (all(numbers) or (exactly and any(numbers))) and a != b:
            return True
    return False


def _dims(port: Port) -> str:
    return "of any rank" if port.dims is None else f"[{', '.join(printable(str(d)) for d in port.dims)}]"


def _type(port: Port) -> str:
    return f"{port.dtype or 'of an unknown type'}{'' if port.kind == 'tensor' else f' ({port.kind})'}"
