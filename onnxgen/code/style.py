"""How a file is written where PyTorch leaves the choice: one record for each style, and the stage that follows it.

Goes in: the classes of a file, as short as they can be. Comes out: classes that compute the same, in the same order,
written as the authors of that style mostly write them.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from onnxgen.code.class_tree import ClassTree
from onnxgen.code.headed import SIZES, with_sizes
from onnxgen.code.phases import in_phases
from onnxgen.code.quote import rewrite
from onnxgen.code.steps import Steps
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
    return [writer.written(_told(tree, arguments)) for tree in classes]


def _told(tree: ClassTree, arguments: Mapping[str, Sequence[str]]) -> ClassTree:
    """Return a class that says what numbers it gives to others, where those would be several that are no widths."""

    def told(node: ast.AST) -> ast.expr | None:
        known = (
            arguments.get(node.func.id, ()) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ()
        )
        if not known or not isinstance(node, ast.Call) or any(isinstance(one, ast.Starred) for one in node.args):
            return None
        numbers = [i for i, one in enumerate(node.args) if isinstance(one, ast.Constant) and type(one.value) is int]
        at = next((i for i in numbers if not known[i].endswith("channels")), None)
        if at is None or len(numbers) < MANY_NUMBERS:
            return None
        given = [ast.keyword(name, value) for name, value in zip(known[at:], node.args[at:])]
        return ast.Call(node.func, node.args[:at], [*given, *node.keywords])

    return replace(tree, setup=[rewrite(s, told) for s in tree.setup], items=[rewrite(one, told) for one in tree.items])


class _Writer:
    """Writes classes in a style. `has_sizes`: no class has the name of a size, so that methods may have variables."""

    def __init__(self, style: Style, has_sizes: bool) -> None:
        self.style, self.has_sizes = style, has_sizes

    def written(self, tree: ClassTree) -> ClassTree:
        """Return a class in the style."""
        is_typed = self.style.types_forward or tree.paths == ROOT
        given = tree.parameters
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
            parameters=given if self.style.types_arguments else [replace(one, annotation="") for one in given],
            says_none=self.style.says_none,
        )

    def _method(self, method: ast.FunctionDef, steps: Steps) -> ast.FunctionDef:
        given, arguments, result = method.args.args, method.args, method.returns
        if not self.style.types_forward:
            arguments = ast.arguments([], [_untyped(one) for one in given], None, [], [], None, [])
            result = None
        return ast.FunctionDef(method.name, arguments, self._body(method.body, steps), [], result)

    def _body(self, body: list[ast.stmt], steps: Steps) -> list[ast.stmt]:
        made = steps.of(_named(body, self.style.keywords))
        return in_phases(made, self.style.phase, self.style.lines_of_shape)


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
    given = [ast.keyword(name, value) for name, value in zip(known[at:], inner[at:])]
    return ast.Call(node.func, inner[:at], [*given, *others])


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
    found = set()
    for node in (node for statement in setup for node in ast.walk(statement)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            layer = dotted(node.value.func if isinstance(node.value, ast.Call) else node.value)
            if layer in layers:
                found.add(node.targets[0].attr)
    return found


def _untyped(argument: ast.arg) -> ast.arg:
    of = argument.annotation
    return ast.arg(argument.arg, None if isinstance(of, ast.Name) and of.id == TENSOR else of)
