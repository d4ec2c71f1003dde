"""Local functions: their calls become the nodes of their bodies.

How many nodes that makes is computed first, so that functions nested to make billions are refused. Where a call had a
name, its nodes remember it (`calls`), for `origin` to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from onnxgen.errors import OnnxgenError, Problem
from onnxgen.names import printable
from onnxgen.options import Limits

_CALL = "onnxgen.call."  # metadata key; InlinePass hands a call's metadata down to the nodes of the body
Key = tuple[str, str, str]


def check_functions(proto: onnx.ModelProto, limits: Limits) -> None:
    """Refuse functions that call themselves, or whose calls make more than `limits.function_nodes` nodes.

    Raises:
        OnnxgenError: naming the functions.
    """
    bodies = {(_domain(f.domain), f.name, f.overload): list(_calls(f.node)) for f in proto.functions}
    sorter = TopologicalSorter({key: {c for c in body if c in bodies} for key, body in bodies.items()})
    try:
        order = list(sorter.static_order())
    except CycleError as error:
        names = ", ".join(printable(name) for _, name, _ in error.args[1][:6])
        raise OnnxgenError(f"local functions call themselves: {names}") from None
    sizes: dict[Key, int] = {}
    for key in order:
        sizes[key] = sum(sizes.get(call, 1) for call in bodies[key])
    total = sum(sizes.get(call, 1) for call in _calls(proto.graph.node))
    if bodies and total > limits.function_nodes:
        shown = total if total < 10**15 else "more than 10**15"
        what = f"inlining the local functions makes {shown} nodes; the limit is {limits.function_nodes}"
        raise OnnxgenError(Problem(what, help="raise Limits.function_nodes if it is honest"))


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _calls(nodes: Iterable[onnx.NodeProto]) -> Iterator[Key]:
    """What every node calls, nodes of inner graphs included."""
    for node in nodes:
        yield _domain(node.domain), node.op_type, node.overload
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _calls(attribute.g.node)
            for graph in attribute.graphs:
                yield from _calls(graph.node)


def inline(model: ir.Model) -> None:
    """Replace every call of a local function by its body, in place.

    Raises:
        OnnxgenError: a call does not fit its function.
    """
    if not model.functions:
        return
    for function in model.functions.values():
        _keep_versions(function, model)
        _note_calls(function.all_nodes(), model)
    _note_calls(model.graph.all_nodes(), model)
    try:
        InlinePass()(model)
    except Exception as error:  # noqa: BLE001 - hostile calls fail in every way
        reason = printable(str(error.__cause__ or error), 300)
        raise OnnxgenError(f"the local functions cannot be inlined: {reason}") from None
    model.functions.clear()


def _keep_versions(function: ir.Function, model: ir.Model) -> None:
    """A function may import another opset than the model: its nodes then carry their own version."""
    for node in function.all_nodes():
        version = function.opset_imports.get(node.domain)
        if version is not None and version != model.opset_imports.get(node.domain, version):
            node.version = version
    for domain in list(function.opset_imports):
        if domain in model.opset_imports:
            function.opset_imports[domain] = model.opset_imports[domain]


def _note_calls(nodes: Iterable[ir.Node], model: ir.Model) -> None:
    for node in nodes:
        # A function stands once in a chain of calls (no recursion), so a key by function never overwrites an outer one.
        if node.name and node.op_identifier() in model.functions:
            node.metadata_props[_CALL + "|".join(node.op_identifier())] = node.name


def calls(node: ir.Node) -> list[str]:
    """The names of the calls that a node came from, outermost first; forgotten once told."""
    keys = [key for key in node.metadata_props if key.startswith(_CALL)]
    return [node.metadata_props.pop(key) for key in keys]
