"""Check that every standard node has the inputs, outputs and attributes that its operator requires.

All later code relies on this, and reads `node.inputs[1]` without a check. Local functions are inlined before, since a
call may omit what a node of the body needs. onnxruntime refuses the same nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema, SchemaError

from onnxgen.errors import Problem, Problems
from onnxgen.graph.nodes import all_nodes, opset_of
from onnxgen.reader.tensors import label

DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")
# Attributes that hold an element type, in any operator.
TYPES = ("to", "dtype", "output_dtype", "output_datatype", "stash_type", "precision", "softmax_precision")

_SINGLE = OpSchema.FormalParameterOption.Single


@dataclass(frozen=True)
class Signature:
    """The requirements of an operator schema: positions of required inputs, allowed counts, required attributes."""

    inputs: tuple[int, ...]
    most_inputs: int
    least_outputs: int
    most_outputs: int
    attributes: tuple[str, ...]
    known: frozenset[str] | None


def check_signatures(model: ir.Model) -> None:
    """Check every node.

    Raises:
        OnnxgenError: a node lacks something, or has too much; the error lists all such nodes.
    """
    problems = Problems()
    for node in all_nodes(model.graph):
        version = opset_of(node, model)
        problem = None if node.outputs else "the node has no outputs"
        if node.domain in DOMAINS:
            signature = signature_of(node.op_type, "" if node.domain == "ai.onnx" else node.domain, version)
            if problem is None and signature is not None:
                problem = _problem(node, signature)
        if problem:
            problems.add(Problem(problem, label(node.name or _first(node.outputs)), label(node.op_type), version))
    problems.raise_if_any()


@lru_cache(maxsize=4096)
def signature_of(op_type: str, domain: str, version: int) -> Signature | None:
    """Return the signature of an operator in `version`, or its newest if all are newer; None if onnx has no schema."""
    try:
        if not onnx.defs.has(op_type, domain):
            return None
        schema, newer = onnx.defs.get_schema(op_type, version, domain), False
    except SchemaError:
        schema, newer = onnx.defs.get_schema(op_type, domain), True
    # Converters already omit inputs that only a later version makes optional (roi and scales of Resize).
    latest = onnx.defs.get_schema(op_type, domain)
    needed = [{i for i, formal in enumerate(s.inputs) if formal.option == _SINGLE} for s in (schema, latest)]
    changed = len(latest.inputs) < len(schema.inputs)
    return Signature(
        tuple(sorted(needed[0] if changed else needed[0] & needed[1])),
        schema.max_input,
        schema.min_output,
        schema.max_output,
        tuple(name for name, attribute in schema.attributes.items() if attribute.required),
        None if newer else frozenset(schema.attributes),
    )


def _problem(node: ir.Node, signature: Signature) -> str | None:
    inputs, count = node.inputs, len(node.inputs)
    while count and inputs[count - 1] is None:
        count -= 1  # an empty name means that the input is omitted
    for place in signature.inputs:
        if place >= count or inputs[place] is None:
            return f"required input {place} is missing"
    if count > signature.most_inputs:
        return f"the node has {count} inputs; the operator takes {signature.most_inputs} at most"
    if not signature.least_outputs <= len(node.outputs) <= signature.most_outputs:
        least, most = signature.least_outputs, signature.most_outputs
        allowed = least if least == most else f"{least} to {most}"
        return f"the node has {len(node.outputs)} outputs; the operator has {allowed}"
    for name in signature.attributes:
        if name not in node.attributes:
            return f"required attribute {name} is missing"
    for name in node.attributes.keys() - signature.known if signature.known is not None else ():
        return f"attribute {label(name)} is not defined for the operator"
    for name in TYPES:
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.type == ir.AttributeType.INT:
            if attribute.value not in ir.DataType.__members__.values():
                return f"attribute {name} is {attribute.value}, which is not an element type"
    return None


def _first(values: Sequence[ir.Value]) -> str:
    return next((value.name for value in values if value.name), "")
