"""What exporters record beside module paths: parameters that are one, and names of variables.

`note_parameter_names`: is a stored tensor that several layers take one parameter, or were equal ones merged? Both of
PyTorch's exporters store equal tensors once. Both also leave the parameters' own names, where nobody removed them:

- The legacy exporter names every merged tensor by an Identity node. Modules that share a parameter take the tensor
  itself. (It has no name for a matrix that it folded a transposition into.)
- The dynamo exporter writes the call of the original on each node, with the names of its arguments:
  `aten.linear.default](args = (%x, %p_layers_1_weight, %p_layers_0_bias)`.

`note_variables`: the dynamo exporter writes a `stack_trace` on every node: for each `forward` that was running,
innermost last, the file, the line and its text. The name of the variable that a line assigns is all that is read of it.
The nodes of one run of a line make its value together, and what leaves them is the variable. What they make on the way
is called so, too, as far as it becomes that one value. A line belongs to the module whose `forward` it is in. So a
value may have several names, one for each module around it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby

import onnx_ir as ir

from onnxgen.common.names import FileText, ModulePath, Variable, unscoped
from onnxgen.graph.annotations import NO_PARAMETER, PARAMETER_NAMES, SCOPE, VARIABLES
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import PASSES_ON, VIEW
from onnxgen.scopes.origin import recorded_modules

Names = Mapping[ModulePath, frozenset[str]]

CALL = "pkg.torch.onnx.fx_node"  # of the original, on each node of the dynamo exporter
_ARGUMENT = re.compile(r"%([pbc]_\w+)")
# `onnx::MatMul_12`, `12` and `/fc/Constant_output_0` are no parameters
_OF_TORCH = re.compile(r"(?!val_\d+$)[A-Za-z_]\w*|\w+(\.\w+)+")
_PRODUCERS = ("pytorch", "optimum-onnx")  # optimum merges files of PyTorch
_DEPTH = 8  # of views of a stored tensor


def note_parameter_names(model: ir.Model) -> None:
    """Set the model's `PARAMETER_NAMES`, and `NO_PARAMETER` of tensors. The nodes must be the file's own."""
    values = list(model.graph.initializers.values())
    called = {node: frozenset(_ARGUMENT.findall(text)) for node, text in _calls(model)}
    names: list[Names] = []
    if any(called.values()):
        stored = {_argument(value.name or "") for value in values}
        names = [_by_calls(value, called, stored) for value in values]
        for value in values:
            NO_PARAMETER.set(value, _is_never_parameter(value, called))
    elif model.producer_name in _PRODUCERS and any(label for value in values for _, label in _takers(value)):
        names = [*map(_by_labels, values)]
    PARAMETER_NAMES.set(model, {value.name or "": own for value, own in zip(values, names) if own})


def _calls(model: ir.Model) -> Iterator[tuple[ir.Node, str]]:
    for node in all_nodes(model.graph):
        if text := node.metadata_props.get(CALL):
            yield node, text.lower()


def _argument(name: str) -> str:
    """Return the argument that the dynamo exporter makes of a parameter (`p_` may be `b_` or `c_`)."""
    return "p_" + re.sub(r"[^a-z0-9]", "_", unscoped(name).lower())


def _by_calls(value: ir.Value, called: Mapping[ir.Node, frozenset[str]], stored: Set[str]) -> Names:
    """Return the arguments of the calls that a tensor's users come from, without those that are other tensors."""
    by_scope: dict[ModulePath, frozenset[str]] = {}
    own = _argument(value.name or "")
    for node, _ in _takers(value):
        if names := frozenset(n for n in called.get(node, ()) if n == own or n not in stored):
            scope = SCOPE.get(node)
            by_scope[scope] = by_scope.get(scope, frozenset()) | names
    return by_scope


def _is_never_parameter(value: ir.Value, called: Mapping[ir.Node, frozenset[str]]) -> bool:
    """True if all calls that take a tensor name it as a buffer or constant: no equal parameter was merged into it."""
    own = _argument(value.name or "").removeprefix("p_")
    takers = [called.get(node, frozenset()) for node, _ in _takers(value)]
    return bool(takers) and all({f"b_{own}", f"c_{own}"} & names for names in takers)


def _by_labels(value: ir.Value) -> Names:
    """Return the names that the legacy exporter gave to a tensor: its own, or those of the merged ones."""
    own = value.name or ""
    if not _OF_TORCH.fullmatch(own):
        return {}
    by_scope: dict[ModulePath, frozenset[str]] = {}
    for node, label in _takers(value):
        scope = SCOPE.get(node)
        by_scope[scope] = by_scope.get(scope, frozenset()) | {label or own}
    return by_scope


def _takers(value: ir.Value, label: str = "", depth: int = _DEPTH) -> Iterator[tuple[ir.Node, str]]:
    """Yield the nodes that use a tensor or a view of it, each with the view's own parameter name."""
    for use in value.uses():
        passes = is_a(use.node, PASSES_ON) and depth > 0
        if not passes:
            yield use.node, label
        for output in use.node.outputs if passes else ():
            name = output.name or ""
            is_name = is_a(use.node, VIEW) and _OF_TORCH.fullmatch(name) is not None and not output.is_graph_output()
            yield from _takers(output, name if is_name else label, depth - 1)


_LONGEST = 65_536  # characters of a stack trace that is read
_FRAME = re.compile(r'^ *File "([^"\n]*)", line (\d+), in ([^\n]*)\n([^\n]*)$', re.MULTILINE)
# `x = `, `x: Tensor = `, `x += `, `a, (b, c) = `; with spaces around, which the `=` of an argument has not
_TARGETS = re.compile(r"\s*([A-Za-z_][\w ,()]*?)(?:: [\w.\[\], ]+)? (?:[-+*/@]|//|\*\*)?= ")
_WORD = re.compile(r"[A-Za-z_]\w*")
_FITTING = 0.9  # the least share of traces with a frame for each module, in a file whose lines are read

Line = tuple[str, str]  # the file and the number of the line


@dataclass(frozen=True)
class _Frame:
    line: Line
    module: ModulePath
    targets: tuple[str, ...]
    is_row: bool


Stack = tuple[_Frame, ...]


def note_variables(model: ir.Model) -> None:
    """Set the model's `VARIABLES`: by name of a value and by module, what the author's source calls it there."""
    graphs: dict[ir.Graph, list[tuple[ir.Node, Stack]]] = {}
    traced = 0
    for node in all_nodes(model.graph):
        if (trace := _trace(node)) and isinstance(node.graph, ir.Graph):
            traced += 1
            if frames := _frames(trace, recorded_modules(node)):
                graphs.setdefault(node.graph, []).append((node, frames))
    variables: dict[str, dict[ModulePath, Variable]] = {}
    if sum(map(len, graphs.values())) >= _FITTING * max(traced, 1):
        for nodes in graphs.values():
            for depth in range(max(len(frames) for _, frames in nodes)):
                for run in _runs(nodes, depth):
                    _note(run, variables)
    VARIABLES.set(model, variables)


def _trace(node: ir.Node) -> str:
    trace = node.metadata_props.get("pkg.torch.onnx.stack_trace", "")
    return trace if len(trace) <= _LONGEST else ""


def _frames(trace: str, modules: Sequence[ModulePath]) -> Stack:
    """Return the frames of a trace, each with the module that it is in; () unless each module has its `forward`."""
    frames, at = [], -1
    for file, number, function, text in _FRAME.findall(trace):
        at += function == "forward"
        if not 0 <= at < len(modules):
            return ()
        frames.append(_Frame((file, number), modules[at], *_targets(text)))
    return tuple(frames) if at == len(modules) - 1 else ()


def _targets(text: str) -> tuple[tuple[str, ...], bool]:
    """Return the variables that a line assigns, and True if it has an expression for each of several.

    There are none for a list or a tuple that one variable is, and for the rest of a longer statement.
    """
    match = _TARGETS.match(text)
    value = text[match.end() :].partition(" #")[0].strip() if match else ")"
    names = tuple(_WORD.findall(match[1])) if match else ()
    level, items = 0, 1
    for character in value:
        level += (character in "([{") - (character in ")]}")
        items += character == "," and not level
        if level < 0:
            return (), False
    fits = items in (1, len(names)) and not value.startswith(("[", "{"))
    return names if fits else (), items > 1


def _runs(nodes: Iterable[tuple[ir.Node, Stack]], depth: int) -> Iterator[list[tuple[ir.Node, _Frame]]]:
    """Yield the runs of the lines at one depth of the stack: nodes in a row, each with its frame there."""
    for _, group in groupby(nodes, lambda item: [frame.line for frame in item[1][: depth + 1]]):
        if run := [(node, frames[depth]) for node, frames in group if len(frames) > depth]:
            yield run


def _note(run: list[tuple[ir.Node, _Frame]], variables: dict[str, dict[ModulePath, Variable]]) -> None:
    """Note the variables of one run of a line."""
    frame, inside = run[0][1], {node for node, _ in run}
    targets, left = _assigned(run, inside)
    if len(left) != len(targets) or (not frame.is_row and len({value.producer() for value in left}) > 1):
        return
    for whole, name in zip(left, targets):
        for value in [whole, *(_becoming(whole, inside) if len(left) == 1 else ())]:
            if name != "_":
                variables.setdefault(value.name or "", {})[frame.module] = Variable(FileText(name), value is whole)


def _assigned(run: list[tuple[ir.Node, _Frame]], inside: Collection[ir.Node]) -> tuple[Sequence[str], list[ir.Value]]:
    """Return the variables that a line assigns, and the values that leave it."""
    targets = run[0][1].targets
    values = [value for node, _ in run for value in node.outputs if value.name]
    left = [v for v in values if v.is_graph_output() or any(use.node not in inside for use in v.uses())]
    if len(targets) == 1:  # what the line computes last; what others take, too, the exporter has merged with theirs
        return targets, left[-1:] if left[-1:] == values[-1:] else []
    if len(left) < len(targets):
        targets = tuple(name for name in targets if name != "_")
        left = _parts(left[0]) if len(left) == 1 < len(targets) else left
    return targets, left


def _parts(value: ir.Value) -> list[ir.Value]:
    """Return what a value is split into, if the exporter has not said which line does it."""
    nodes = [use.node for use in value.uses()]
    return [*nodes[0].outputs] if len(nodes) == 1 and nodes[0].op_type == "Split" and not _trace(nodes[0]) else [value]


def _becoming(value: ir.Value, inside: Collection[ir.Node]) -> Iterator[ir.Value]:
    """Yield what a line makes on the way to its value, from the last.

    It ends before arithmetic with other values and before layers, whose operand is something else.
    """
    while (node := value.producer()) in inside and node is not None and len(node.outputs) == 1:
        computed = [one for one in node.inputs if one is not None and one.const_value is None]
        weights = any(
            one is not None and one.const_value is not None and len(one.shape or ()) > 1 for one in node.inputs
        )
        if weights or len(computed) != 1 or len(computed[0].uses()) != 1 or computed[0].producer() not in inside:
            return
        value = computed[0]
        yield value
