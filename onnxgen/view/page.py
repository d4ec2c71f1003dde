"""Makes the page of `onnxgen view`: an ONNX file's nodes beside the lines that come from them.

All text from the file is escaped, and nothing is loaded from a network.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import onnx_ir as ir
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from onnxgen.code.printer import ANNOTATION, marked
from onnxgen.common.names import printable
from onnxgen.graph.annotations import SCOPE
from onnxgen.graph.nodes import all_nodes
from onnxgen.options import Options
from onnxgen.output.compose import Generated
from onnxgen.passes.rewrite import names_of
from onnxgen.passes.trainable import stored_values
from onnxgen.pipeline import build
from onnxgen.plugins import plugged
from onnxgen.reader import read
from onnxgen.record.way_back import WayBack
from onnxgen.shapes import propagate
from onnxgen.shapes.info import info

HERE = Path(__file__).parent
GENERATOR = '<meta name="generator" content="onnxgen view">'


def view(path: Path, options: Options, out: Path) -> str:
    """Return the page of an ONNX file.

    Args:
        path: the ONNX file.
        out: the path of the module, of which only the name is used.

    Raises:
        OnnxgenError: the file or an option is bad, or the model can't be converted exactly.
    """
    generated, lines, nodes_of = traced(path, options, out)
    with plugged(options):
        model = read(path, options)
        scopes = node_rows(model, options)
    rows = [row for _, group in scopes for row in group]
    numbers: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        numbers[row.name].append(row.number)
    shown = [
        (line, sorted({n for name in nodes_of.get(i, ()) for n in numbers.get(name, ())}))
        for i, line in enumerate(coloured(lines), 1)
    ]
    templates = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
    text, digest = script(HERE / "page.js")
    return templates.get_template("page.html.jinja").render(
        generator=Markup(GENERATOR),
        digest=digest,
        script=Markup(text),
        colours=Markup(HtmlFormatter().get_style_defs("#source")),
        title=printable(path.name),
        module=out.name,
        opsets=", ".join(f"{printable(d or 'ai.onnx')} {v}" for d, v in sorted(model.opset_imports.items())),
        count=len(rows),
        report=generated.report,
        notes=[printable(note, 400) for note in generated.report.notes],
        scopes=scopes,
        lines=shown,
        in_lines={number for _, numbers in shown for number in numbers},
        tensors=tensor_rows(model, generated, WayBack.from_metadata(generated.metadata).tensors),
    )


def script(file: Path) -> tuple[str, str]:
    """Return a script, and the digest by which a page allows it and no other."""
    text = file.read_text(encoding="utf-8")
    return text, base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def coloured(lines: list[str]) -> list[Markup]:
    """Return lines of Python as HTML. pygments escapes them, and closes each tag in its line."""
    text: str = highlight("\n".join(lines), PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    return [Markup(line) for line in text.rstrip("\n").split("\n")]


_MARK = re.compile(rf"(?:; |\s*# ){ANNOTATION}@(\d+)$")


def traced(path: Path, options: Options, out: Path) -> tuple[Generated, list[str], dict[int, list[str]]]:
    """Generate a module in memory.

    Returns:
        The module, the lines of its source, and the names of the nodes of each line, by line number (from 1).

    Raises:
        OnnxgenError: as `onnxgen.pipeline.build`.
    """
    with marked() as marks:
        generated = build(path, replace(options, annotate=True), out)
    lines, marks_by_line = _without_marks(generated.source)
    tree = ast.parse("\n".join(lines))
    last = _last_lines(tree)
    nodes: dict[int, list[str]] = {}
    for first, mark in marks_by_line.items():
        names = [name.printable(MAX_NAME_CHARACTERS) for name in marks.nodes(mark)]
        for number in range(first, last.get(first, first) + 1):
            nodes[number] = names
    return generated, lines, {**nodes, **_registered(tree, nodes)}


def _without_marks(source: str) -> tuple[list[str], dict[int, int]]:
    """Return the lines of a source without its marks, and the mark of each statement by its first line."""
    lines: list[str] = []
    marks: dict[int, int] = {}
    above: int | None = None
    for line in source.splitlines():
        mark = _MARK.search(line)
        text = line if mark is None else line[: mark.start()]
        if mark is not None and not text.strip():
            above = int(mark[1])
            continue
        lines.append(text)
        number = above if above is not None else int(mark[1]) if mark is not None else None
        if number is not None:
            marks[len(lines)] = number
        above = None
    return lines, marks


def _last_lines(tree: ast.Module) -> dict[int, int]:
    """Return the last line of each statement, without its nested blocks, by its first line."""
    last: dict[int, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.For, ast.While, ast.With)):
            last[node.lineno] = node.body[0].lineno - 1
        elif isinstance(node, ast.stmt):
            last[node.lineno] = node.end_lineno or node.lineno
    return last


def _registered(tree: ast.Module, nodes: Mapping[int, list[str]]) -> dict[int, list[str]]:
    """Return the nodes of each line of `__init__`: those of the lines that use the member."""
    nodes_by_line: dict[int, list[str]] = {}
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        users: dict[str, list[str]] = defaultdict(list)
        methods = {node.name: node for node in cls.body if isinstance(node, ast.FunctionDef)}
        init = methods.pop("__init__", None)
        for name, line in itertools.chain.from_iterable(map(_own_attributes, methods.values())):
            users[name] += nodes.get(line, [])
        for statement in init.body if init is not None else ():
            names = dict.fromkeys(n for name, _ in _own_attributes(statement) for n in users[name])
            lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
            nodes_by_line |= dict.fromkeys(lines, list(names)) if names else {}
    return nodes_by_line


def _own_attributes(tree: ast.AST) -> Iterable[tuple[str, int]]:
    """Yield the attributes of `self` in a statement, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr, node.lineno


MAX_NAME_CHARACTERS = 1000  # of a node's name: long, so that different names stay different
MAX_ATTRIBUTE_CHARACTERS = 60
MAX_LANES = 24  # of the drawing


@dataclass(frozen=True)
class NodeRow:
    """A node of the file: its number in the graph, its inputs and outputs as text, and its line of the drawing."""

    number: int
    name: str
    op_type: str
    inputs: list[str]
    outputs: list[str]
    attributes: str
    lanes: str


@dataclass(frozen=True)
class TensorRow:
    """A stored tensor: dtype and shape as text, its state-dict key ("" if it has none), and if it is trained."""

    name: str
    described: str
    key: str
    trained: str
    why: str


def node_rows(model: ir.Model, options: Options) -> list[tuple[str, list[NodeRow]]]:
    """Return the nodes of a model from `reader.read`, in order, grouped by scope."""
    propagate(model.graph, options)
    nodes = list(all_nodes(model.graph))
    numbered = enumerate(zip(nodes, lanes_of(model.graph, nodes)))
    groups = itertools.groupby(numbered, key=lambda item: ".".join(SCOPE.get(item[1][0])))
    return [(scope, [_node(number, *drawn) for number, drawn in group]) for scope, group in groups]


def lanes_of(graph: ir.Graph, nodes: Sequence[ir.Node]) -> Iterator[str]:
    """Yield a line for each node, which together draw the graph: a column for each value that is computed and awaited.

    A node is at the column of its result: ●. It takes values that others await, too (┤), and that end here (┘).
    """
    numbers = {node: number for number, node in enumerate(nodes)}

    @cache
    def end(value: ir.Value) -> int:
        last = max((numbers.get(use.node, -1) for use in value.uses()), default=-1)
        return len(nodes) if value.is_graph_output() else last

    live: list[ir.Value | None] = [value for value in graph.inputs if end(value) >= 0]
    for number, node in enumerate(nodes):
        drawn = []
        for place, value in enumerate(live):
            taken = value is not None and value in node.inputs
            live[place] = value if value is not None and end(value) > number else None
            drawn.append(" " if value is None else "│" if not taken else "┤" if live[place] is not None else "┘")
        for value in node.outputs:
            if end(value) > number:
                place = live.index(None) if None in live else len(live)
                live[place : place + 1], drawn[place : place + 1] = [value], ["●"]
        yield "".join(drawn[:MAX_LANES]).rstrip() + "+" * (len(drawn) > MAX_LANES)


def tensor_rows(model: ir.Model, generated: Generated, keys: Mapping[str, Any]) -> list[TensorRow]:
    """Return the stored float tensors of a model. `keys`: the state-dict key of each that is one tensor unchanged."""
    rows = []
    for value in stored_values(model.graph):
        name = value.name or ""
        trained, why = generated.report.trainable.get(name, (None, ""))
        key = keys.get(name, "")
        shown = "" if trained is None else "yes" if trained else "no"
        rows.append(TensorRow(printable(name), _value(value), key if isinstance(key, str) else "", shown, why))
    return rows


def _node(number: int, node: ir.Node, lanes: str) -> NodeRow:
    domain = "" if node.domain in ("", "ai.onnx") else f"{printable(node.domain)}."
    outputs = [f"{printable(v.name or '')} {_value(v)}".strip() for v in node.outputs if v.name]
    inputs = ["" if v is None else printable(v.name or "") for v in node.inputs]
    return NodeRow(
        number,
        printable(names_of(node)[0], MAX_NAME_CHARACTERS),
        domain + printable(node.op_type),
        inputs,
        outputs,
        ", ".join(_attribute_texts(node)),
        lanes,
    )


def _attribute_texts(node: ir.Node) -> Iterator[str]:
    for name, attribute in node.attributes.items():
        kind = attribute.type
        if kind in (ir.AttributeType.TENSOR, ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            yield f"{printable(name)}=({kind.name.lower()})"
        else:
            yield f"{printable(name)}={printable(str(attribute.value), MAX_ATTRIBUTE_CHARACTERS)}"


def _value(value: ir.Value) -> str:
    """Return the known dtype and shape: `float32 [1, 8]`."""
    facts = info(value)
    dtype = "" if facts.dtype is None else str(facts.dtype).lower()
    dims = "" if facts.shape is None else f"[{', '.join(printable(str(d)) for d in facts.shape)}]"
    return f"{dtype} {dims}".strip()
