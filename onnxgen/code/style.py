"""How a file is written where PyTorch leaves the choice: the styles, and the stage that follows one.

Goes in: the classes of a file, as short as they can be. Comes out: classes that compute the same,
in the same order, written as the authors of that style mostly write them.

Some styles split and merge the heads of attention with sizes: `B, N, C = x.shape`, `q.view(B, N, heads, C // heads)`.
Goes in: a class that writes `q.unflatten(-1, (self.num_heads, -1))`, which `arguments/counts.py` writes of three axes
alone, and `flatten(2)` behind the attention. Comes out: the class with views of the sizes of its input. It is changed
only where q, k and v are of the size of one argument, for numbers of every size: layers that keep all axes make them.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from onnxgen.code.class_tree import ClassTree
from onnxgen.code.quote import quote, rewrite, walk
from onnxgen.code.steps import Steps, in_phases
from onnxgen.code.torch_api import ACTIVATIONS, DROPOUTS, NORMS, SIGNATURES, dotted

PARTS = {*DROPOUTS, *ACTIVATIONS.values(), "LearnableAffine"}
ROOT = [""]
MANY_NUMBERS = 3  # arguments of a class of the file that say what they are
TENSOR = "Tensor"


@dataclass(frozen=True)
class Style:
    """One way to write.

    Attributes:
        says_none: `-> None` behind the methods that return nothing.
        types_arguments: constructors say the types of their arguments.
        types_forward: the `forward` of every class says its types; otherwise only that of the network does, and an
            argument that is not a tensor has its type, since TorchScript asks for it.
        keywords: arguments of layers and functions that are given by name if they are numbers.
        nested: how many calls are nested in one statement, but for a layer with its norm and activation.
        lines_of_shape: at most one statement in so many has its result's shape in a comment, at the end of a phase.
        phase: the least number of statements between two empty lines in `forward`.
        names_result: `forward` returns a name if it has so many statements; 0: it returns what it computes last.
    """

    says_none: bool = False
    types_arguments: bool = False
    types_forward: bool = False
    keywords: frozenset[str] = frozenset(("kernel_size",))
    nested: int = 3
    lines_of_shape: int = 8
    phase: int = 3
    names_result: int = 0


STYLES = {
    "plain": Style(),
    "torchvision": Style(says_none=True, types_arguments=True, types_forward=True, nested=2, names_result=3),
    "timm": Style(types_arguments=True, keywords=frozenset(("kernel_size", "stride")), nested=2, names_result=3),
}


def by_name(classes: Sequence[ClassTree], style: Style) -> list[ClassTree]:
    """Return classes whose layers are given some numbers by name."""
    return [
        replace(
            tree,
            setup=_named(tree.setup, style.keywords),
            items=[rewrite(item, lambda node: _keywords(node, style.keywords)) for item in tree.items],
        )
        for tree in classes
    ]


def styled(classes: Sequence[ClassTree], style: Style) -> list[ClassTree]:
    """Return classes in a style."""
    writer = _Writer(style, has_sizes={tree.name for tree in classes}.isdisjoint(SIZES))
    arguments = {tree.name: [one.name for one in tree.parameters] for tree in classes if tree.paths != ROOT}
    return [writer.written(_with_keywords(tree, arguments)) for tree in classes]


def _with_keywords(tree: ClassTree, arguments: Mapping[str, Sequence[str]]) -> ClassTree:
    """Return a class that says what numbers it gives to others, where those would be several that are no widths."""

    def named(node: ast.AST) -> ast.expr | None:
        known = (
            arguments.get(node.func.id, ()) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ()
        )
        if not known or not isinstance(node, ast.Call) or any(isinstance(one, ast.Starred) for one in node.args):
            return None
        numbers = [i for i, one in enumerate(node.args) if isinstance(one, ast.Constant) and type(one.value) is int]
        at = next((i for i in numbers if not known[i].endswith("channels")), None)
        if at is None or len(numbers) < MANY_NUMBERS:
            return None
        keywords = [ast.keyword(name, value) for name, value in zip(known[at:], node.args[at:])]
        return ast.Call(node.func, node.args[:at], [*keywords, *node.keywords])

    return replace(
        tree, setup=[rewrite(s, named) for s in tree.setup], items=[rewrite(one, named) for one in tree.items]
    )


class _Writer:
    """Writes classes in a style. `has_sizes`: no class has the name of a size, so that methods may have variables."""

    def __init__(self, style: Style, has_sizes: bool) -> None:
        self.style, self.has_sizes = style, has_sizes

    def written(self, tree: ClassTree) -> ClassTree:
        """Return a class in the style."""
        is_typed = self.style.types_forward or tree.paths == ROOT
        parameters = tree.parameters
        norms, parts = (_attributes(tree.setup, layers) for layers in (NORMS, PARTS))
        steps = Steps(self.style.nested, self.style.names_result, norms, parts)
        inputs = [one.arg for one in tree.inputs]
        body = with_sizes(tree.body, tree.setup, inputs) if self.has_sizes else tree.body
        return replace(
            tree,
            body=tree.body if tree.is_row else self._body(body, steps),
            own=[self._method(method, steps) for method in tree.own],
            inputs=tree.inputs if is_typed else [_untyped(argument) for argument in tree.inputs],
            result=tree.result if is_typed else None,
            parameters=parameters
            if self.style.types_arguments
            else [replace(one, annotation="") for one in parameters],
            says_none=self.style.says_none,
        )

    def _method(self, method: ast.FunctionDef, steps: Steps) -> ast.FunctionDef:
        parameters, arguments, result = method.args.args, method.args, method.returns
        if not self.style.types_forward:
            arguments = ast.arguments([], [_untyped(one) for one in parameters], None, [], [], None, [])
            result = None
        return ast.FunctionDef(method.name, arguments, self._body(method.body, steps), [], result)

    def _body(self, body: list[ast.stmt], steps: Steps) -> list[ast.stmt]:
        steps_of_body = steps.of(_named(body, self.style.keywords))
        return in_phases(steps_of_body, self.style.phase, self.style.lines_of_shape)


def _named(block: Sequence[ast.stmt], names: Collection[str]) -> list[ast.stmt]:
    """Return statements whose calls give some numbers by name."""
    return [rewrite(statement, lambda node: _keywords(node, names)) for statement in block]


def _keywords(node: ast.AST, names: Collection[str]) -> ast.expr | None:
    if not isinstance(node, ast.Call):
        return None
    known = SIGNATURES.get(dotted(node.func), ())
    at = next((i for i, name in enumerate(known[: len(node.args)]) if name in names), None)
    if at is None or any(isinstance(one, ast.Starred) for one in node.args):
        return None
    if any(isinstance(one, (ast.Name, ast.Attribute)) for one in node.args[at:]):  # the name says what it is
        return _in_place(node, known)
    inner = [rewrite(one, lambda node: _keywords(node, names)) for one in node.args]
    others = [ast.keyword(one.arg, rewrite(one.value, lambda node: _keywords(node, names))) for one in node.keywords]
    keywords = [ast.keyword(name, value) for name, value in zip(known[at:], inner[at:])]
    return ast.Call(node.func, inner[:at], [*keywords, *others])


def _in_place(node: ast.Call, known: Sequence[str]) -> ast.Call | None:
    """Return a call that does not say `stride=stride`, where the place of the argument says it."""
    args, others = list(node.args), list(node.keywords)
    while others and len(args) < len(known) and others[0].arg == known[len(args)]:
        value = others[0].value
        if not isinstance(value, ast.Name) or value.id != others[0].arg:
            break
        args.append(others.pop(0).value)
    return ast.Call(node.func, args, others) if len(args) > len(node.args) else None


def _attributes(setup: Sequence[ast.stmt], layers: Collection[str]) -> set[str]:
    """Return the attributes that are such layers."""
    names = set()
    for node in (node for statement in setup for node in ast.walk(statement)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            layer = dotted(node.value.func if isinstance(node.value, ast.Call) else node.value)
            if layer in layers:
                names.add(node.targets[0].attr)
    return names


def _untyped(argument: ast.arg) -> ast.arg:
    of = argument.annotation
    return ast.arg(argument.arg, None if isinstance(of, ast.Name) and of.id == TENSOR else of)


ATTENTION = "F.scaled_dot_product_attention"
ALIKE = ("nn.LayerNorm", "nn.RMSNorm", *DROPOUTS)  # layers that keep all sizes
LINEAR = "nn.Linear"
SIZES = ("B", "N", "C")
SPLIT, PACKED = "(-1, (self.num_heads, -1))", "(-1, (3, self.num_heads, -1))"
HEADED, MERGED = "headed", "merged"


def with_sizes(body: list[ast.stmt], setup: Sequence[ast.stmt], inputs: Iterable[str]) -> list[ast.stmt]:
    """Return the statements of `forward` with the sizes of what they split into heads.

    Args:
        body: the statements.
        setup: those of `__init__`.
        inputs: the arguments of `forward`.
    """
    nodes = [node for statement in body for node in walk(statement)]
    if not any(map(_parts, nodes)) or any(isinstance(node, ast.Name) and node.id in SIZES for node in nodes):
        return body
    sizes = _Sizes(setup, inputs)
    sized = [sizes.of(statement) for statement in body]
    if len(sizes.split) != 1 or "" in sizes.split:
        return body
    target = ast.Tuple([ast.Name(name, ast.Store()) for name in SIZES], ast.Store())
    return [ast.Assign([target], quote("x.shape", x=ast.Name(sizes.split.pop(), ast.Load()))), *sized]


def _parts(tree: ast.AST) -> int:
    """Return in how many parts a value is split, each of which has heads: 0 if it is no such split."""
    if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Attribute) and tree.func.attr == "unflatten"):
        return 0
    return {SPLIT: 1, PACKED: 3}.get(_text(tree.args), 0)


class _Sizes:
    """Follows the sizes of arguments through a method.

    Attributes:
        alike: by name, the argument whose sizes it has, or "".
        split: of all values that are split, the argument that has their sizes.
    """

    def __init__(self, setup: Sequence[ast.stmt], inputs: Iterable[str]) -> None:
        assigned = [(one.targets[0], one.value) for one in setup if isinstance(one, ast.Assign)]
        self.layers = {ast.unparse(target): value for target, value in assigned if isinstance(value, ast.Call)}
        self.alike = {name: name for name in inputs}
        self.attended: dict[str, str] = {}  # by name, `HEADED` or `MERGED`: what the attention gives, and its turn
        self.split: set[str] = set()

    def of(self, statement: ast.stmt) -> ast.stmt:
        """Return a statement with views of sizes."""
        if not isinstance(statement, (ast.Assign, ast.Return)) or statement.value is None:
            nodes = [*walk(statement)]
            self.split |= {"" for node in nodes if _parts(node)}
            self._forget(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
            return statement
        sized: ast.stmt = rewrite(statement, self._call)
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        alike, attended = self._like(statement.value), self._attended(statement.value)
        for node in (node for target in targets for node in walk(target)):
            if isinstance(node, ast.Name):
                self.alike[node.id], self.attended[node.id] = alike, attended
        return sized

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self.alike[name] = self.attended[name] = ""

    def _call(self, node: ast.AST) -> ast.expr | None:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return None
        of = node.func.value
        if parts := _parts(node):
            self.split.add(self._like(of, parts))
            written = "x.view(B, N, 3, h, C // h)" if parts > 1 else "x.view(B, N, h, C // h)"
            return quote(written, x=rewrite(of, self._call), h=quote("self.num_heads"), **_names())
        if node.func.attr == "flatten" and _text(node.args) == "(2,)" and self._attended(of) == MERGED:
            return quote("x.reshape(B, N, C)", x=rewrite(of, self._call), **_names())
        return None

    def _like(self, tree: ast.expr, parts: int = 1) -> str:
        """Return the argument that has the sizes of an expression, if its last axis were one of some equal parts."""
        if isinstance(tree, ast.Name):
            return self.alike.get(tree.id, "") if parts == 1 else ""
        if not isinstance(tree, ast.Call):
            return ""
        if isinstance(tree.func, ast.Attribute) and tree.func.attr == "chunk":
            count = _chunks(tree)
            return self._like(tree.func.value, parts * count) if count else ""
        layer = self.layers.get(ast.unparse(tree.func))
        if layer is None or len(tree.args) != 1 or tree.keywords:
            return ""
        name = dotted(layer.func)
        if name == LINEAR and len(layer.args) == 2:
            before, after = map(ast.unparse, layer.args)
            return self._like(tree.args[0]) if after == (before if parts == 1 else f"{parts} * {before}") else ""
        return self._like(tree.args[0], parts) if name in ALIKE else ""

    def _attended(self, tree: ast.expr) -> str:
        """Return `HEADED` for what attention gives, `MERGED` once its heads are the third axis, else ""."""
        if isinstance(tree, ast.Name):
            return self.attended.get(tree.id, "")
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Attribute):
            return ""
        if dotted(tree.func) == ATTENTION:
            return HEADED
        is_turned = tree.func.attr == "transpose" and _text(tree.args) == "(1, 2)"
        return MERGED if is_turned and self._attended(tree.func.value) == HEADED else ""


def _chunks(call: ast.Call) -> int:
    """Return the number of parts of `x.chunk(3, dim=-1)`, 0 if they are of another axis or not known."""
    is_last = [(k.arg, ast.unparse(k.value)) for k in call.keywords] == [("dim", "-1")]
    count = call.args[0] if len(call.args) == 1 and is_last else None
    return count.value if isinstance(count, ast.Constant) and isinstance(count.value, int) else 0


def _text(trees: Sequence[ast.expr]) -> str:
    return ast.unparse(ast.Tuple([*trees], ast.Load()))


def _names() -> dict[str, ast.expr]:
    return {name: ast.Name(name, ast.Load()) for name in SIZES}
