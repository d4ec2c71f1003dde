"""Cut a model to the part between values of its main graph (`--inputs VALUE`, `--outputs VALUE`)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

import onnx
import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import Problems
from onnxgen.reader.protos import put, taken
from onnxgen.record.way_back import Cut


def cut_graph(graph: onnx.GraphProto, cut: Cut, known: Mapping[str, onnx.TypeProto]) -> None:
    """Reduce a graph to the part between the values of these names. Graph inputs that the part needs stay inputs.

    Args:
        graph: the file's graph; it is changed in place.
        known: the types of values, at least those of the part's inputs.

    Raises:
        OnnxgenError: there is no such value, or the outputs don't depend on an input.
    """
    inputs, outputs = cut
    _check(graph, cut)
    makers = {name: node for node in graph.node for name in node.output}
    declared = {value.name: value for value in graph.input} | {name: _info(name, known) for name in inputs}
    ends = [_info(name, known) for name in outputs] or list(graph.output)
    kept: list[onnx.NodeProto] = []
    reached, todo = set[str](), [value.name for value in ends]
    while todo:
        name = todo.pop()
        if name not in reached and name in makers and name not in inputs:
            kept.append(makers[name])
            todo.extend(taken(makers[name]))
        reached.add(name)
    problems = Problems()
    for name in inputs:
        if name not in reached:
            problems.add(f"--inputs: no output depends on {printable(name)}")
    problems.raise_if_any()
    stored = {tensor.name for tensor in graph.initializer}
    rest = [value.name for value in graph.input if value.name in reached | stored and value.name not in inputs]
    is_kept = set(map(id, kept))
    put(graph.node, [node for node in graph.node if id(node) in is_kept])
    put(graph.input, [declared[name] for name in (*inputs, *rest)])
    put(graph.output, ends)
    put(graph.value_info, [value for value in graph.value_info if value.name not in (*inputs, *outputs)])


def _check(graph: onnx.GraphProto, cut: Cut) -> None:
    """Check the names of a cut. Raises `OnnxgenError` for names that are unknown or contradict each other."""
    problems = Problems()
    stored = {tensor.name for tensor in graph.initializer}
    computed = {name: None for node in graph.node for name in node.output if name}
    computed |= {value.name: None for value in graph.input if value.name not in stored}
    for option, names in zip(("--inputs", "--outputs"), cut, strict=True):
        for name in names:
            if name not in computed:
                near = ", ".join(map(printable, difflib.get_close_matches(name, computed, 3, 0.4)))
                what = "is stored in the file, not computed" if name in stored else "is not a value of the graph"
                way_out = f"did you mean {near}?" if near else "a viewer such as Netron shows the names of values"
                problems.add(f"{option}: {printable(name)} {what}", help=way_out)
            elif names.count(name) > 1 or (name in cut[0] and name in cut[1]):
                problems.add(f"{option}: {printable(name)} is named twice")
    problems.raise_if_any()


def _info(name: str, known: Mapping[str, onnx.TypeProto]) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name, type=known.get(name))


def types_of(graph: ir.Graph, names: Iterable[str]) -> dict[str, onnx.TypeProto]:
    """Return the types of the named values; `propagate` must have run. Raises `OnnxgenError` if a type is unknown."""
    from onnxgen.shapes.info import info  # imported here: `shapes` needs this package for the types of maps

    problems, found = Problems(), {}
    values = {v.name: v for v in (*graph.inputs, *(v for node in graph for v in node.outputs))}
    for name in names:
        facts = info(values[name])
        if facts.dtype is None or facts.kind != "tensor":
            problems.add(f"--inputs: the type of {printable(name)} is unknown")
            continue
        dims = None if facts.shape is None else [d if isinstance(d, int) else str(d) for d in facts.shape]
        found[name] = onnx.helper.make_tensor_type_proto(int(facts.dtype), dims)
    problems.raise_if_any()
    return found
