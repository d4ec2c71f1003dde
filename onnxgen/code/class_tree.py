"""A class of a generated file as syntax trees, and what is done with them at the end.

The trees are checked against the allow-list. They are printed for the templates (`ClassSource`). The finished file is
compared with them (`hold`): a mistake in printing, formatting or a template is then an error instead of wrong code.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from onnxgen.code import printer
from onnxgen.code.allowed import BUILTINS, HANDED_OVER, MODULES, Refused, bound, check, check_bound, check_names
from onnxgen.code.copied import Definition, defined_name, helper_names
from onnxgen.code.module_def import Stub
from onnxgen.code.printer import ANNOTATION, GLANCE, INDENT, LINE_LENGTH, comment
from onnxgen.code.quote import quote, walk
from onnxgen.code.torch_api import function_of
from onnxgen.common.names import RESERVED
from onnxgen.record.base import is_docstring, without_docstring

if TYPE_CHECKING:
    from onnxgen.structure.parameters import Parameter


_SELF = ast.Name("self", ast.Load())
_NO_ARGUMENTS = ast.arguments([], [ast.arg("self")], None, [], [], None, [])
_TIE = "tie_weights"
_INIT = frozenset(("constant", "super"))  # functions that only `__init__` calls


@dataclass
class ClassTree:
    """One class.

    Attributes:
        name: its final name.
        paths: the module paths of its instances ("" is the root).
        setup, body: the statements of `__init__` after `super().__init__(...)`, and of `forward`.
        inputs, result: the arguments of `forward`, and the annotation of its result, if it has one.
        items: the layers, if the class is an `nn.Sequential`.
        ties: of the root, pairs of attributes that share one parameter: (kept, tied).
        parameters: of the constructor.
        stubs: methods that are left open.
        own: methods that `forward` calls.
        about: what it computes, in a few words.
        says_none: methods that return nothing say so.
    """

    name: str
    paths: list[str] = field(default_factory=list)
    setup: list[ast.stmt] = field(default_factory=list)
    body: list[ast.stmt] = field(default_factory=list)
    inputs: list[ast.arg] = field(default_factory=list)
    result: ast.expr | None = field(default_factory=lambda: printer.annotation("Tensor"))
    items: list[ast.expr] = field(default_factory=list)
    ties: list[tuple[ast.expr, ast.expr]] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    stubs: list[Stub] = field(default_factory=list)
    own: list[ast.FunctionDef] = field(default_factory=list)
    about: str = ""
    says_none: bool = True

    @property
    def base(self) -> str:
        return "nn.Sequential" if self.items else "nn.Module"

    @property
    def is_row(self) -> bool:
        """True if `forward` is that of `nn.Sequential`, and need not be written. The root's says what it takes."""
        if not self.items or self.paths == [""] or len(self.inputs) != 1 or not isinstance(self.body[0], ast.Return):
            return False
        inherited = quote("super().forward(x)", x=ast.Name(self.inputs[0].arg, ast.Load()))
        return ast.dump(self.body[0].value or ast.Constant(None)) == ast.dump(inherited)

    @cached_property
    def methods(self) -> list[ast.FunctionDef]:
        """The methods in order, except those that only the templates have."""
        methods = [self._init()]
        if self.ties:
            ties: list[ast.stmt] = [printer.assigned(tied, kept) for kept, tied in self.ties]
            methods.append(ast.FunctionDef(_TIE, _NO_ARGUMENTS, ties, [], self._nothing))
        methods += self.own
        if not self.is_row:
            arguments = ast.arguments([], [ast.arg("self"), *self.inputs], None, [], [], None, [])
            methods.append(ast.FunctionDef("forward", arguments, self.body, [], self.result))
        return [*methods, *(stub.tree for stub in self.stubs)]

    @cached_property
    def called(self) -> frozenset[str]:
        """The names of the functions and layers that `__init__` calls."""
        return frozenset(function_of(node) for tree in (*self.setup, *self.items) for node in walk(tree))

    def _init(self) -> ast.FunctionDef:
        begin = ast.Attribute(ast.Call(ast.Name("super", ast.Load()), [], []), "__init__", ast.Load())
        body: list[ast.stmt] = [ast.Expr(ast.Call(begin, self.items, [])), *self.setup]
        if self.ties:
            body.append(ast.Expr(ast.Call(ast.Attribute(_SELF, _TIE, ast.Load()), [], [])))
        arguments_given = [parameter.tree for parameter in self.parameters]
        defaults = [d for parameter in self.parameters if (d := parameter.default_tree) is not None]
        arguments = ast.arguments([], [ast.arg("self"), *arguments_given], None, [], [], None, defaults)
        return ast.FunctionDef("__init__", arguments, body, [], self._nothing)

    @property
    def _nothing(self) -> ast.expr | None:
        return ast.Constant(None) if self.says_none else None

    @cached_property
    def source(self) -> ClassSource:
        """The text of the class, once it has its final name."""
        return ClassSource(
            self.name,
            self.base,
            self.paths,
            printer.lines(self.setup),
            [] if self.is_row else printer.lines(self.body),
            list(map(printer.argument, self.inputs)),
            "" if self.result is None else ast.unparse(self.result),
            [(ast.unparse(kept), ast.unparse(tied)) for kept, tied in self.ties],
            self.parameters,
            list(map(ast.unparse, self.items)),
            [stub.lines for stub in self.stubs],
            list(map(_method_lines, self.own)),
            self.about,
            self.says_none,
        )


def _method_lines(method: ast.FunctionDef) -> list[str]:
    parameters = ", ".join(map(printer.argument, method.args.args))
    result = "" if method.returns is None else f" -> {ast.unparse(method.returns)}"
    return [f"def {method.name}({parameters}){result}:", *printer.lines(method.body, 1)]


def names_of(classes: Sequence[ClassTree]) -> set[str]:
    """Return the names that the code of classes has: it may need a helper or an import."""
    nodes = (node for tree in classes for method in tree.methods for node in walk(method))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def refuse_others(classes: Sequence[ClassTree], own: frozenset[str], with_plugins: bool) -> None:
    """Check classes against the allow-list. Raises `Refused`.

    Args:
        classes: of one file.
        own: the names that are copied and imported for plugins.
        with_plugins: a plugin wrote some of the code. Users may write what they like, so only names are checked.
    """
    names = {tree.name for tree in classes}
    functions = BUILTINS | helper_names() | own | names | RESERVED | _INIT
    called = functions | HANDED_OVER
    taken = (helper_names() | own | names | RESERVED) - {"self"}
    for tree in classes:
        check_names((tree.name, *(method.name for method in tree.methods)))
        left_open = {stub.name for stub in tree.stubs}  # they have no code that their arguments could hide names from
        for method in tree.methods:
            hidden = taken | _INIT if method.name == "__init__" else taken
            hidden = frozenset() if method.name in left_open else hidden
            if with_plugins:
                check_bound(_names(method), hidden)
            else:
                check(method, functions, called, hidden)


def _names(method: ast.FunctionDef) -> set[str]:
    """Return the names that a method binds. Checks that all its names are identifiers, perhaps not in ASCII."""
    nodes = list(walk(method))
    texts = (getattr(node, field, None) for node in nodes for field in ("id", "attr", "arg"))
    check_names((text for text in texts if isinstance(text, str)), in_ascii=False)
    targets = [t for n in nodes if isinstance(n, ast.Assign) for t in n.targets]
    targets += [n.target for n in nodes if isinstance(n, ast.For)]
    return {name for part in (method.args, *targets) for node in walk(part) for name in bound(node)}


_NODES = re.compile(f"(?:  #|;) {ANNOTATION}")  # `--annotate` changes no choice
_HEADS = 4  # lines: of the class, `__init__`, `super().__init__()`, `forward`
_ROOM = GLANCE - 2 * len(INDENT)


@dataclass
class ClassSource:
    """The text of a `ClassTree`; docs/TEMPLATES.md describes the attributes."""

    name: str
    base: str = "nn.Module"
    paths: list[str] = field(default_factory=list)
    init: list[str] = field(default_factory=list)
    forward: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    returns: str = "Tensor"
    ties: list[tuple[str, str]] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    stubs: list[list[str]] = field(default_factory=list)
    methods: list[list[str]] = field(default_factory=list)
    about: str = ""
    says_none: bool = True

    @property
    def doc(self) -> str:
        """The docstring: what the class computes; "" for the root."""
        if self.paths == [""] or not self.about:
            return ""
        text = comment(f"{self.about}.")
        if len(text) <= LINE_LENGTH - len(f'{INDENT}""""""'):
            return text
        width = LINE_LENGTH - len('"""')  # black leaves the quotes of a text of one line where they are
        lines = textwrap.wrap(f'{INDENT}"""{text}', width, subsequent_indent=INDENT)
        return "\n".join([*lines, INDENT])[7:]


def length(source: ClassSource) -> int:
    """Return the number of lines of a class, about: the formatter breaks those that are too long."""
    texts = [*source.init, *source.forward, *source.layers, *(line for method in source.methods for line in method)]
    lines = [_NODES.split(text)[0] for text in texts if not text.lstrip().startswith(f"# {ANNOTATION}")]
    unnamed = sum(line.count("nn.Module()") for line in lines)  # a class that nobody wrote
    return _HEADS * (1 + unnamed) + sum(map(_height, lines))


def forward_length(source: ClassSource) -> int:
    """Return the number of lines of `forward`, about, without comments and empty lines."""
    lines = (text.partition("  # ")[0] for text in source.forward)
    return 1 + sum(_height(line) for line in lines if line.strip() and not line.lstrip().startswith("#"))


def _height(line: str) -> int:
    """Return how many lines the formatter makes of a statement; of a long one, each item in brackets is a line."""
    if len(line) <= _ROOM:
        return 1
    depth, begin, items, apart = 0, 0, 1, 1
    for i, letter in enumerate(line):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 1 and letter in "([{":
            begin, items = i, 1
        items += letter == "," and depth == 1
        apart += letter == "," and depth == 0
    if apart > 1:  # a tuple without brackets
        return 2 + apart
    inside = len(line) - begin
    return 3 if inside <= _ROOM - 2 else 2 + max(items, inside // _ROOM + 1)


# names that the templates define
FUNCTIONS = {"constant", "from_pretrained", "load_weights"}
CONSTANTS = {"WEIGHTS", "FINGERPRINT", "Model"}
ALIAS = ast.parse("Model.from_pretrained = classmethod(from_pretrained)").body[0]
# names that the templates and helpers import from these modules
PARTS = {
    "torch": {"Tensor", "nn"},
    "safetensors": {"SafetensorError", "safe_open"},
    "safetensors.torch": {"load"},
    "pathlib": {"Path"},
    "warnings": {"warn"},
}
_IGNORED = {"ctx", "kind", "type_comment", "type_ignores", "type_params"}
_FIELDS: dict[type, tuple[str, ...]] = {}


@dataclass(frozen=True)
class Meant:
    """The expected content of a file.

    Attributes:
        classes: those of the network.
        copied: helpers and definitions of plugins, by name.
        modules: the modules that plugins import from.
        function: the one that builds the network.
    """

    classes: Sequence[ClassTree]
    copied: Mapping[str, Definition]
    modules: frozenset[str] = frozenset()
    function: str = ""


def hold(tree: ast.Module, meant: Meant, is_ours: bool) -> None:
    """Check that a file has what was meant and, if its templates are onnxgen's own (`is_ours`), nothing else.

    Raises:
        Refused: it has not. The message says where.
    """
    defined: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        defined.setdefault(defined_name(node), []).append(node)
    for name, copy in meant.copied.items():
        if not any(same(copy.tree, node) for node in defined.get(name, ())):
            raise Refused(f"{name} is not as it was copied")
    for each in meant.classes:
        nodes = defined.get(each.name, [])
        if len(nodes) != 1 or not isinstance(nodes[0], ast.ClassDef):
            raise Refused(f"there is no class {each.name}, or another")
        _hold_class(nodes[0], each, is_ours)
    if is_ours:
        _hold_frame(tree, meant)


def _hold_class(node: ast.ClassDef, meant: ClassTree, is_ours: bool) -> None:
    body = without_docstring(node.body)
    for method in meant.methods:
        there = [n for n in body if isinstance(n, ast.FunctionDef) and n.name == method.name]
        if len(there) != 1 or not _same_method(method, there[0], is_ours):
            raise Refused(f"{meant.name}.{method.name} is not as it was meant")
    if is_ours:
        names = list(map(defined_name, body))
        if names != [m.name for m in meant.methods] or list(map(ast.unparse, node.bases)) != [meant.base]:
            raise Refused(f"the class {meant.name} has what nobody meant")


def _same_method(meant: ast.FunctionDef, parsed: ast.FunctionDef, is_ours: bool) -> bool:
    """Compare methods, except docstrings. A user's template may decorate a method."""
    return (
        same(meant.args, parsed.args)
        and same(meant.returns, parsed.returns)
        and same(without_docstring(meant.body), without_docstring(parsed.body))
        and not (is_ours and parsed.decorator_list)
    )


def _hold_frame(tree: ast.Module, meant: Meant) -> None:
    """Check that a file has, besides classes and copies, only a docstring, imports, and names of the templates."""
    names = {*meant.copied, *(each.name for each in meant.classes), meant.function}
    if not tree.body or not is_docstring(tree.body[0]):
        raise Refused("the file does not begin with its docstring")
    for node in tree.body[1:]:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = {a.name for a in node.names} if isinstance(node, ast.Import) else {node.module or ""}
            if not modules <= MODULES | meant.modules:
                raise Refused(f"the file has {ast.unparse(node)!a}")
            _hold_parts(node, meant)
            continue
        if is_alias(node):
            continue
        allowed = CONSTANTS if isinstance(node, ast.Assign) else FUNCTIONS if isinstance(node, ast.FunctionDef) else ()
        if defined_name(node) not in {*names, *allowed}:
            raise Refused(f"the file has a statement that nobody meant, line {node.lineno}")


def _hold_parts(node: ast.Import | ast.ImportFrom, meant: Meant) -> None:
    parts = PARTS.get(node.module or "") if isinstance(node, ast.ImportFrom) else None
    if parts is not None and not meant.modules and not {alias.name for alias in node.names} <= parts:
        raise Refused(f"the file has {ast.unparse(node)!a}, and the module has no such name")


def is_alias(node: ast.stmt) -> bool:
    """Return True for the statement that gives the network's class the name of the function that loads weights."""
    return same(ALIAS, node)


def same(meant: object, parsed: object) -> bool:
    """Return True if two trees are equal except for positions. `parsed` comes from Python's parser."""
    if isinstance(meant, ast.AST):
        kind = type(meant)
        if type(parsed) is not kind:
            return False
        fields = _FIELDS.get(kind)
        if fields is None:
            fields = _FIELDS[kind] = tuple(name for name in kind._fields if name not in _IGNORED)
        return all(same(getattr(meant, name, None), getattr(parsed, name, None)) for name in fields)
    if isinstance(meant, (list, tuple)):
        return isinstance(parsed, list) and len(meant) == len(parsed) and all(map(same, meant, parsed))
    return isinstance(meant, type(parsed)) and meant == parsed  # a `NiceFloat` is found as a float
