"""The scope of each node: the path of the module that it came from, if the file has it.

Three kinds of evidence, the strongest first:

1. *Parameter names.* A node that takes `encoder.layer.0.conv1.weight` (perhaps through a Transpose) belongs to
   `encoder.layer.0.conv1`. Exporters keep these names when they fold or fuse nodes. But a weight that is used by its
   own module does not move other nodes into it (an embedding tied to the output layer).
2. *Node names.* PyTorch's TorchScript exporter writes `/encoder/layer.0/conv1/Conv`, TensorFlow
   `model/block/conv/Conv2D`.
3. *Exporter metadata.* PyTorch's dynamo exporter writes module paths and class names on every node. They are wrong for
   nodes that it fused. (Of its `stack_trace` only names of variables are read, by `recorded.py`.)

A node with no evidence gets no scope here (see `scopes.between`). Scopes are raw text; `names.module_part` cleans it.

*Calls whose names are not the modules' paths.* PyTorch's TorchScript exporter names the second call of `shared`
`shared_1`. A module may also really be called `shared_1`. So the suffix is only removed if every weight used under
`shared_1` is used under `shared` too (an activation has none), and no parameter is called `shared_1.something`. A
module whose parts are called without it (`self.model.decoder(x)`) is in the names of parameters, and in no name of a
node: `/decoder/layers.0/fc1/MatMul` takes `model.decoder.layers.0.fc1.weight`.

*Other frameworks.* Keras, Paddle, MATLAB and their converters name a weight after its layer (`conv2_expand_weights`,
`dense/kernel:0`, `fc_0.w_0`, `conv_1_W`), and write groups of layers with underscores (`block_1_expand`).

*Readings.* Names are evidence, not orders. An author's names say which modules the layers were in (`layer1.0.conv1`). A
counter over the whole file (`conv2d_57`), a converter's prefix or the name of a function call say nothing, and a source
that obeyed them would have a class for each layer, or none. No list of exporters tells one from the other. But true
modules save source, since they repeat: so each reading is written, and `shortest` takes the one with the shorter
source. Keys of a PyTorch state dict are always obeyed, whichever tool wrote the file: someone may load them. Keys of
less than half of the tensors are none: where an exporter folded norms, the others are `onnx::Conv_110`, and no state
dict fits.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

import onnx_ir as ir

from onnxgen.common.names import ModulePath, common_scope, unscoped
from onnxgen.graph.annotations import CALLS, CLASSES, FOUND, NAMELESS, PRODUCER, SCOPE
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import SAME, VIEW
from onnxgen.options import Options
from onnxgen.weights.stored import folded_from

Recorded = dict[ir.Node, ModulePath | None]  # the scope that the file has of each node

_MAX_PARTS = 64  # longer paths are not module paths
MERGED = re.compile(r"_merged_\d+$")  # what optimum adds to the name of a tensor that two merged graphs share
# Paddle's names of tensors, `conv2d_1.w_0_deepcopy_57`, and its converter's, `p2o.helper.constant.1`
_PADDLE = re.compile(r"\w+_\d+\.([wb]|tmp)_\d+(_\w+)?|p2o\..*")
_SPELLED = re.compile(r"\w\.(weight|bias)$")
_SCOPES, _CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"
_CONTAINERS = "torch.nn.modules.container."  # their names say nothing about what is in them


def users(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes that use what a node makes."""
    return (use.node for output in node.outputs for use in output.uses())


def param_path(name: str) -> tuple[str, ...] | None:
    """Return the parts of a PyTorch parameter name, `("a", "b", "weight")` for `a.b.weight`; None for other names.

    A name without a dot is None too: `w` and an exporter's `val_14` cannot be told apart.
    """
    name = MERGED.sub("", unscoped(name))
    if not re.fullmatch(r"[^\s/:'\"\\;,()]+", name) or _PADDLE.fullmatch(name):
        return None
    parts = tuple(name.split("."))
    if not 2 <= len(parts) <= _MAX_PARTS or not all(parts) or all(part.isdigit() for part in parts):
        return None
    return parts


def parameter_name(name: str) -> tuple[str, ...] | None:
    """As `param_path`; of a parameter's name that a tool has put anything before only the last part.

    Merging two files puts a prefix before names: `encoder/norm.weight` is a parameter, at a path that nobody knows.
    """
    spelled = _SPELLED.search(name)
    return param_path(name) or ((spelled[1],) if spelled else None)


def siblings(a: ModulePath, b: ModulePath) -> bool:
    """True if two paths differ in numbers only (`layers.0.attn`, `layers.1.attn`).

    A weight that such modules share was equal in both before training (copied layers), and merged by the exporter. It
    is not tied: tied weights belong to one module that is called twice, or to two modules with different names.
    """
    return a != b and len(a) == len(b) and all(x == y or (x.isdigit() and y.isdigit()) for x, y in zip(a, b))


def seen_from(scope: ModulePath, path: ModulePath) -> ModulePath:
    """Return a sibling's path as the scope's own: `layers.0.attn.out.weight` as `layers.1.attn.out.weight`."""
    n = min(len(scope), len(path) - 1)
    return (*scope[:n], *path[n:]) if siblings(scope[:n], path[:n]) else path


def note_origin(model: ir.Model) -> None:
    """Set the `SCOPE` of every node for which the file has one, and the model's `CLASSES`."""
    nodes = all_nodes(model.graph)
    classes: dict[ModulePath, str] = {}
    params = {node: _params(node) for node in nodes}
    parents = {path[:-1] for paths in params.values() for path in paths}
    known = {parent[:i] for parent in parents for i in range(len(parent) + 1)}  # modules that certainly exist
    recorded = _without_root({node: _recorded(node, known, classes) for node in nodes}, params)
    recorded = _in_full(_by_first_call(recorded, known), params, parents, known)
    by_torch = parents or classes or any(map(_has_path, nodes))
    if not by_torch and model.producer_name != "pytorch":
        recorded = _by_other_conventions(recorded)
    _set_scopes(recorded, params)
    CLASSES.set(model, classes)


def _set_scopes(recorded: Recorded, params: dict[ir.Node, list[ModulePath]]) -> None:
    """Set the scopes by what is recorded, and by the paths of the parameters that the nodes take."""
    uses = {(path, recorded[node]) for node, paths in params.items() for path in paths}
    takers = Counter(path for paths in params.values() for path in paths)
    for node, paths in params.items():
        scope = recorded[node] or ()
        mine = [seen_from(scope, path) if takers[path] > 1 else path for path in paths]
        if _has_path(node):
            mine = [path for path in mine if not is_alias(scope, path[:-1])]
        if recorded[node] is not None or mine:
            SCOPE.set(node, _choose(recorded[node], mine, uses))


def _has_path(node: ir.Node) -> bool:
    """True for a node that PyTorch's TorchScript exporter has named after its module."""
    return (node.name or "").startswith("/")


def _recorded(node: ir.Node, known: set[ModulePath], classes: dict[ModulePath, str]) -> ModulePath | None:
    """Return the scope in a node's name or in its metadata; add the recorded class names to `classes`."""
    prefix = tuple(part for name in CALLS.get(node) for part in _call_scope(name, known))
    scope = torch_path(node.name or "", known)
    if scope is None:
        scope = _metadata_scope(node, classes)
    if scope is None:
        scope = _slash_path(node.name or "")
    return prefix + (scope or ()) if prefix else scope


def _by_first_call(recorded: Recorded, known: set[ModulePath]) -> Recorded:
    """Return the scopes, those of all calls of a module as one."""
    # the legacy exporter's names of constants begin with a slash, and each call of a module has its own
    calls: dict[Hashable, tuple[ModulePath, frozenset[str]]] = {
        node: (scope, frozenset(name for name in _roots(node) if not name.startswith("/")))
        for node, scope in recorded.items()
        if scope and _has_path(node)
    }
    renamed = one_module(calls, known)
    return {node: renamed.get(scope, scope) if scope else scope for node, scope in recorded.items()}


def _in_full(
    recorded: Recorded, params: dict[ir.Node, list[ModulePath]], parents: set[ModulePath], known: set[ModulePath]
) -> Recorded:
    """Return the scopes with the modules that the names of nodes pass over."""
    named = (node for node, scope in recorded.items() if scope and _has_path(node))
    full = passed_over(((recorded[node] or (), path[:-1]) for node in named for path in params[node]), known)
    if root := _only_module(full, parents, recorded.values()):
        recorded = {node: None if scope is None else root + scope for node, scope in recorded.items()}
    return {node: spelled_out(scope, full) if full and scope else scope for node, scope in recorded.items()}


def _without_root(recorded: Recorded, params: dict[ir.Node, list[ModulePath]]) -> Recorded:
    """Return the scopes without those that only say "the root", in graphs whose parameters are all of other modules.

    The dynamo exporter loses the modules of what is in `torch.cond`.
    """
    taking: dict[ir.Graph | ir.Function | None, list[bool]] = {}
    for node, paths in params.items():
        if paths:
            taking.setdefault(node.graph, []).append(recorded[node] in ((), None) and all(len(p) > 2 for p in paths))
    lost = {graph for graph, flags in taking.items() if len(flags) > 1 and all(flags)}
    return {node: None if scope == () and node.graph in lost else scope for node, scope in recorded.items()}


def _only_module(
    full: Mapping[ModulePath, ModulePath], parents: set[ModulePath], recorded: Iterable[ModulePath | None]
) -> ModulePath:
    """Return the module that has all parameters, if it is not called itself: then the file is its forward; else ().

    So it is in what people write to export a part of a network: `self.m.out(self.m.decoder(x))`. `full`: what
    `passed_over` returns.
    """
    around = {path[: len(path) - len(scope)] for scope, path in full.items()}
    root = around.pop() if len(around) == 1 else ()
    has_all = all(len(path) > len(root) and path[: len(root)] == root for path in parents)
    return root if has_all and not any(s is not None and s[: len(root)] == root for s in recorded) else ()


def _by_other_conventions(recorded: Recorded) -> Recorded:
    """Return the scopes of a file that is not PyTorch's: also by the names of weights, and with groups of layers."""
    layers = dict(recorded)
    for node, scope in recorded.items():
        names = [layer_of(name, node.op_type) for name in _roots(node)] if not scope else []
        if names and names[0] is not None and len(set(names)) == 1:
            layers[node] = names[0]
    groups = regrouped(scope for scope in layers.values() if scope)
    return {node: groups.get(scope, scope) if scope else scope for node, scope in layers.items()}


def _choose(
    recorded: ModulePath | None, params: list[ModulePath], uses: set[tuple[ModulePath, ModulePath | None]]
) -> ModulePath:
    """Return the scope of a node. `uses`: all parameters, each with the scopes that use it."""
    if recorded is not None:  # a parameter that its own module uses does not move a node of another module
        params = [path for path in params if path[:-1] == recorded or (path, path[:-1]) not in uses]
    parents = {path[:-1] for path in params}
    if not parents or recorded in parents:
        return recorded or ()
    return common_scope(parents) or ()


def is_alias(recorded: ModulePath, parent: ModulePath) -> bool:
    """True if the module that was called is not the parent module in its weight's name.

    T5's `encoder.embed_tokens` takes `shared.weight`, since PyTorch's TorchScript exporter gives a tensor the first of
    its names. The last names must differ, since the path in a node's name can be read in more than one way.
    """
    n = min(len(recorded), len(parent))
    return n > 0 and recorded[:n] != parent[:n] and recorded[-1] != parent[-1]


def _constants(node: ir.Node) -> list[list[str]]:
    """Return, for each constant input of a node, its names: as an input, then those of the values that it is a view
    of, and last the parameter that the exporter folded it from ("" if none)."""
    constants = []
    for value in node.inputs:
        names: list[str] = []
        while value is not None:
            names.append(value.name or "")
            producer = value.producer()
            if producer is None or producer.op_type == "Constant":
                if producer is not None or value.is_initializer():
                    constants.append([*names, folded_from(value)])
                break
            if not is_a(producer, VIEW, SAME) or not producer.inputs:
                break
            value = producer.inputs[0]
    return constants


def _params(node: ir.Node) -> list[ModulePath]:
    """Return the paths of the parameters that a node takes, by the name nearest to the node. (Exporters share equal
    tensors through an Identity with the other parameter's name.)"""
    paths = ((param_path(name) for name in names) for names in _constants(node))
    return [path for path in (next(filter(None, candidates), None) for candidates in paths) if path]


def _roots(node: ir.Node) -> list[str]:
    """Return the weights that a node takes, by parameter name or else by the initializer's."""
    return [next((n for n in names if param_path(n)), names[-2]) for names in _constants(node)]


def torch_path(name: str, known: set[ModulePath]) -> ModulePath | None:
    """Return the scope in a node name of PyTorch's TorchScript exporter: `/enc/layer.0/conv/Conv` is enc.layer.0.conv.

    A component is a module's attribute name, with the name of the container before a number (`layer.0`). A container
    that is itself called (`nn.Sequential`) is a component of its own too: `/seq/seq.2/seq.2.0/Conv` is seq.2.0. So a
    component that begins with the previous one and a dot continues it, unless the `known` modules say that it is a
    container inside a module of the same name.
    """
    if not name.startswith("/"):
        return None
    components = name.split("/")[1:-1]
    if not all(components) or len(components) > _MAX_PARTS:
        return None
    scope: ModulePath = ()
    previous: str | None = None
    for component in components:
        inside = scope + tuple(component.split("."))
        if previous is not None and component.startswith(previous + "."):
            onwards = scope + tuple(component[len(previous) + 1 :].split("."))
            scope = inside if inside in known and onwards not in known else onwards
        else:
            scope = inside
        previous = component
    return scope if all(scope) and len(scope) <= _MAX_PARTS else None


def _slash_path(name: str) -> ModulePath | None:
    """Return the scope in a name such as TensorFlow's `model/block_3/conv/Conv2D`; None for other names.

    TFLite joins the names of what it fused, the last first: `act/Relu;norm/FusedBatchNormV3;conv/BiasAdd;conv/Conv2D`.
    The one that has a bias is the layer.
    """
    fused = name.split(";")
    parts = next((one for one in fused if re.search(r"/BiasAdd\d*$", one)), fused[0]).split("/")[:-1]
    while parts and re.fullmatch(r"(Stateful)?PartitionedCall(_\d+)?(:\d+)?", parts[0]):
        parts = parts[1:]  # TensorFlow's name for a whole function
    if not 1 <= len(parts) <= _MAX_PARTS or not all(re.fullmatch(r"[A-Za-z0-9_.\-]+", part) for part in parts):
        return None
    return tuple(parts)


def _call_scope(name: str, known: set[ModulePath]) -> ModulePath:
    """Return the module that a call of a local function stands for, by the call's name."""
    if name.startswith("/"):
        return torch_path(name + "/", known) or ()
    return _slash_path(name + "/") or ()


def recorded_scope(node: ir.Node) -> ModulePath | None:
    """Return the scope that PyTorch's dynamo exporter recorded on a node, or None."""
    return _metadata_scope(node, {})


def recorded_modules(node: ir.Node) -> list[ModulePath]:
    """Return the modules that PyTorch's dynamo exporter recorded around a node, outermost first; [] if it did not."""
    # Full dotted paths, from the root ("") to the operation; "@1" marks a second call of the module.
    paths = _strings(node.metadata_props.get(_SCOPES))[:-1]
    scopes = [tuple(re.sub(r"@\d+", "", path).split(".")) if path else () for path in paths]
    return [] if any(len(scope) > _MAX_PARTS or not all(scope) for scope in scopes) else scopes


def _metadata_scope(node: ir.Node, classes: dict[ModulePath, str]) -> ModulePath | None:
    """Return the scope that PyTorch's dynamo exporter recorded on a node; add the recorded class names to `classes`."""
    paths = _strings(node.metadata_props.get(_SCOPES))
    if not paths:
        return None
    scopes = recorded_modules(node)
    if len(scopes) < len(paths) - 1:
        return None
    kinds = _strings(node.metadata_props.get(_CLASSES))
    if len(kinds) == len(paths):
        for scope, kind in zip(scopes, kinds, strict=False):
            if not kind.startswith(_CONTAINERS):
                classes.setdefault(scope, kind.rpartition(".")[2])
    return scopes[-1] if scopes else ()


def _strings(text: str | None) -> list[str]:
    """Return the list of strings in a Python literal; [] for any other text."""
    if text is None or len(text) > 65_536:
        return []
    try:
        literal = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    return literal if isinstance(literal, list) and all(isinstance(item, str) for item in literal) else []


def one_module(
    calls: Mapping[Hashable, tuple[ModulePath, frozenset[str]]], known: set[ModulePath]
) -> dict[ModulePath, ModulePath]:
    """Return, for each recorded scope, the scope of the module's first call.

    Args:
        calls: for each node, its recorded scope and the weights that it takes.
        known: the modules that certainly exist, by parameter names.
    """
    weights: dict[ModulePath, set[str]] = defaultdict(set)  # of all nodes in a scope
    for scope, names in calls.values():
        for i in range(len(scope) + 1):
            weights[scope[:i]] |= names
    first: dict[ModulePath, ModulePath] = {(): ()}  # parents come before children: sorted by length
    for scope in sorted(weights, key=lambda s: (len(s), s)):
        if scope:
            parent = first[scope[:-1]]
            match = re.fullmatch(r"(.+)_[1-9][0-9]*", scope[-1])
            earlier = (*parent, match[1] if match and scope not in known else scope[-1])
            is_one = earlier in weights and weights[scope] <= weights[earlier]
            first[scope] = earlier if is_one else (*parent, scope[-1])
    return first


def passed_over(pairs: Iterable[tuple[ModulePath, ModulePath]], known: set[ModulePath]) -> dict[ModulePath, ModulePath]:
    """Return the full paths of the modules that are called without the module around them, by their recorded paths.

    Args:
        pairs: recorded scopes of nodes, each with the module of a parameter that the node takes.
        known: the modules that certainly exist, by parameter names.
    """
    full: dict[ModulePath, set[ModulePath]] = defaultdict(set)
    for scope, parent in pairs:
        n = 0
        while n < min(len(scope), len(parent)) and scope[-1 - n] == parent[-1 - n]:
            n += 1
        around = scope[: len(scope) - n]
        if n and len(parent) > len(scope) and parent[: len(around)] == around:
            full[scope[: len(around) + 1]].add(parent[: len(parent) - n + 1])
    return {scope: paths.pop() for scope, paths in full.items() if len(paths) == 1 and scope not in known}


def spelled_out(scope: ModulePath, full: Mapping[ModulePath, ModulePath]) -> ModulePath:
    """Return a recorded scope with the modules that its name passes over."""
    at = next((n for n in range(1, len(scope) + 1) if scope[:n] in full), 0)
    return full[scope[:at]] + scope[at:] if at else scope


_WEIGHT = re.compile(
    r"(?P<layer>[^A-Za-z]*[A-Za-z].*?)[_/.]"
    r"(weights?|(recurrent_|depthwise_|pointwise_)?kernel|embeddings|bias(es)?|offset|scale|gamma|beta|alpha"
    r"|((moving|running)_)?(mean|var|variance)|[WRBwb]|[wb]_\d+)"
    r"(_new|_?\d+)?"  # converters add this to a name that they change or have used before
)
_LAYER = re.compile(r"[A-Za-z0-9_\-/]+")
_MAX_LENGTH = 200


def layer_of(name: str, op_type: str) -> ModulePath | None:
    """Return the layer in the name of a weight of a node: `("fc_1",)` of `fc_1_MatMul_W`; None if there is none."""
    match = _WEIGHT.fullmatch(name.split(";")[0].split(":")[0]) if len(name) <= _MAX_LENGTH else None
    if match is None or not _LAYER.fullmatch(match["layer"]):
        return None
    parts = [part for part in match["layer"].removesuffix(f"_{op_type}").split("/") if part]
    return tuple(parts) or None


def regrouped(scopes: Iterable[ModulePath]) -> dict[ModulePath, ModulePath]:
    """Return new scopes for those of one file: without a common root, and with groups by the numbers in names.

    `model/block_1_expand` becomes `("block_1", "expand")` if at least two such groups, which differ only in that
    number, have at least two layers each.
    """
    known = {scope for scope in scopes if scope}
    shared = 1 if len(known) > 1 and len({scope[0] for scope in known}) == 1 else 0
    children: dict[ModulePath, set[str]] = {}
    for scope in known:
        for i in range(shared, len(scope)):
            children.setdefault(scope[:i], set()).add(scope[i])
    parts = {(parent, name): new for parent, names in children.items() for name, new in _groups(names).items()}
    return {
        scope: tuple(part for i in range(shared, len(scope)) for part in parts[scope[:i], scope[i]]) for scope in known
    }


def _groups(names: set[str]) -> dict[str, ModulePath]:
    """Return the names of siblings as paths, divided after their numbered beginnings."""
    members: dict[str, set[str]] = {}
    for name in names:
        for group in _beginnings(name):
            members.setdefault(group, set()).add(name[len(group) + 1 :])
    alike: dict[str, list[str]] = {}
    for group, rests in members.items():
        if group not in names and not group.isdigit() and len(rests) > 1 and not any(map(str.isdigit, rests)):
            alike.setdefault(re.sub(r"\d+$", "#", group), []).append(group)
    inner = {group: _groups(members[group]) for similar in alike.values() if len(similar) > 1 for group in similar}
    return {name: _divided(name, inner) for name in names}


def _divided(name: str, inner: Mapping[str, Mapping[str, ModulePath]]) -> ModulePath:
    """Return the path of a name. `inner`: those of the names within each group."""
    within = next((group for group in _beginnings(name) if group in inner), "")
    path = (within, *inner[within][name[len(within) + 1 :]]) if within else (name,)
    return (*path[:-1], re.sub(r"^(\d+)_(.+)$", r"\2_\1", path[-1]))  # an attribute cannot begin with a digit


def _beginnings(name: str) -> Iterator[str]:
    """Yield what stands before each underscore behind a number."""
    return (name[: end.start()] for end in re.finditer(r"(?<=\d)_", name))


_KEY = re.compile(r"weight|bias|running_")
_SMALLEST = 5  # elements of a tensor that is no operand which the author typed
LONGER = 1.05  # than without names: what a source may be, since names help its reader


class Readable(Protocol):
    """The result of a reading."""

    @property
    def length(self) -> int: ...


Made = TypeVar("Made", bound=Readable)


def shortest(model: ir.Model, options: Options, make: Callable[[], Made]) -> Made:
    """Return what `make` makes of the reading with the shorter source, and leave that reading's scopes in the model."""
    names, are_keys = _scopes(model), _are_keys(model)
    named = make()
    if options.flat or are_keys or not any(scope for scope, _ in names[0].values()):
        return named
    obeyed = _scopes(model)
    _set(model, (dict.fromkeys(names[0], ((), False)), {}), nameless=True)
    other = make()
    if named.length > LONGER * other.length:
        return other
    _set(model, obeyed, nameless=False)
    return named


def _are_keys(model: ir.Model) -> bool:
    """True if names are PyTorch's: of nodes (`/layers.0/fc/MatMul`), of classes, or of most tensors (`fc.weight`)."""
    if any(map(_has_path, model.graph)) or CLASSES.get(model):
        return True
    graph = model.graph
    paths = {name: path for name in graph.initializers if (path := param_path(name))}
    keys = {name for name, path in paths.items() if _KEY.match(path[-1])}
    if PRODUCER.get(graph) != "pytorch":
        return bool(keys) and 2 * len(keys) >= len(paths)
    weights = {name for name, value in graph.initializers.items() if _is_weight(value)}
    return 2 * len(weights & paths.keys()) >= len(weights)


def _is_weight(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and tensor.dtype.is_floating_point() and tensor.size >= _SMALLEST


Scopes = tuple[dict[ir.Node, tuple[ModulePath, bool]], dict[ModulePath, str]]


def _scopes(model: ir.Model) -> Scopes:
    nodes = {node: (SCOPE.get(node), FOUND.get(node)) for node in all_nodes(model.graph)}
    return nodes, dict(CLASSES.get(model))


def _set(model: ir.Model, scopes: Scopes, nameless: bool) -> None:
    nodes, classes = scopes
    for node, (scope, is_found) in nodes.items():
        SCOPE.set(node, scope)
        FOUND.set(node, is_found)
    CLASSES.set(model, classes)
    NAMELESS.set(model.graph, nameless)
