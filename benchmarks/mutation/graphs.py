"""The graph that the passes leave, as a digest: where a mistake in a pass does not change it, nothing else changes."""

from __future__ import annotations

import hashlib
import pickle
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import onnx_ir as ir

from benchmarks.mutation.forks import at_most

IMPORTED = re.compile(r"^ *from (onnxgen\.passes\.[\w.]+) import", re.MULTILINE)
PLACE = re.compile(r" at 0x[0-9a-f]+")  # of an object in memory
LARGEST = 4096  # elements of a tensor that are looked at
ABOUT_THE_RUN = ("checked", "nodes")  # notes on a model that hold times, and the file's own nodes


@cache
def passes_alone(package: Path) -> frozenset[str]:
    """The files of passes of which no later stage runs a line, `passes/norms.py`."""
    texts = {path.relative_to(package).as_posix(): path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    imported = {file: set(IMPORTED.findall(text)) for file, text in texts.items()}
    todo = [name for file, names in imported.items() if not file.startswith("passes/") for name in names]
    elsewhere = set[str]()
    while todo:
        file = f"{todo.pop().removeprefix('onnxgen.').replace('.', '/')}.py"
        if file not in elsewhere:
            elsewhere.add(file)
            todo += imported.get(file, ())
            todo += imported.get(file.replace(".py", "/__init__.py"), ())
    found = {file for file in imported if file.startswith("passes/")}
    return frozenset(f for f in found if f not in elsewhere and f.replace("/__init__.py", ".py") not in elsewhere)


def simplified(place: Path, seconds: float) -> str:
    """A digest of the graph of a file after all passes, with all that is noted on it."""
    from onnxgen.pipeline import read_and_simplify

    options = pickle.loads((place / "options.pickle").read_bytes())[1]
    with at_most(seconds):
        model = read_and_simplify(place / "net.onnx", options)
    text = PLACE.sub("", repr([_notes(model), *_graph(model.graph)]))
    return hashlib.sha256(text.encode()).hexdigest()


def _notes(holder: Any) -> list[tuple[str, str]]:
    return sorted((name, repr(fact)) for name, fact in holder.meta.items() if name not in ABOUT_THE_RUN)


def _graph(graph: ir.Graph) -> Iterator[object]:
    yield _notes(graph)
    yield [[_value(v) for v in some] for some in (graph.inputs, graph.outputs, graph.initializers.values())]
    for node in graph:
        yield node.op_type, node.domain, node.version, node.name, _notes(node)
        yield [None if v is None else v.name for v in node.inputs], [_value(v) for v in node.outputs]
        for name, attribute in sorted(node.attributes.items()):
            if attribute.type == ir.AttributeType.GRAPH:
                yield name, list(_graph(attribute.as_graph()))
            else:
                yield name, _tensor(attribute.value) if attribute.type == ir.AttributeType.TENSOR else attribute.value


def _value(value: ir.Value) -> object:
    held = None if value.const_value is None else _tensor(value.const_value)
    return value.name, str(value.type), str(value.shape), held, _notes(value)


def _tensor(tensor: ir.TensorProtocol) -> object:
    few = tensor.numpy().tolist() if tensor.size <= LARGEST else ""
    return type(tensor).__name__, tensor.name, str(tensor.dtype), str(tensor.shape), repr(few)
