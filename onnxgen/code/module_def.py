"""A PyTorch module before it is text: what `__init__` registers and the statements of `forward`.

Lowering makes one flat `ModuleDef`, `structure` splits it into classes, and `render` writes them. `shown` finds the
first value that has a symbolic dim: statements that compute with the dim depend on that value. A `Stub` is a method
that a person is to fill in. `annotation` and `argument_annotation` write types of values in Python signatures.
"""

from __future__ import annotations

import ast
import builtins
import keyword
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code import printer
from onnxgen.code.copied import OwnCode, helper_names
from onnxgen.code.quote import Change, SizeOf, members, refs, rewrite, walk
from onnxgen.code.torch_api import dotted
from onnxgen.common.names import RESERVED, FileText, ModulePath, Variable, function_name
from onnxgen.shapes.dims import symbol, symbols
from onnxgen.shapes.info import Info
from onnxgen.weights.provenance import Source

User = tuple[ir.Node, tuple[int, ...]]


@dataclass
class Member:
    """One thing registered in `__init__`.

    Attributes:
        path: absolute module path and attribute name, e.g. `("layer1", "0", "conv1")`.
        build: the expression assigned to it.
        kind: "module", "parameter", "buffer" (a non-persistent constant) or "text" (strings, a plain attribute).
        keys: how each of its state-dict tensors is made, by "weight", ... (`""` for a parameter).
        frozen: the keys that are not trained.
        extra: state-dict tensors that are not made of ONNX tensors, such as a BatchNorm's counter.
        users: by key, the nodes that use the tensor, and the indices of their inputs that it is.
        named: the path is from the file; otherwise its last part is a role, and gets a number.
        scope: the module path of the node that it was made for.
        is_state: in the layer's own class, what is not trained is a buffer.
    """

    path: ModulePath
    build: ast.expr
    kind: str = "module"
    keys: dict[str, Source] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)
    named: bool = True
    extra: dict[str, NDArray[np.generic]] = field(default_factory=dict)
    users: dict[str, list[User]] = field(default_factory=dict)
    scope: ModulePath | None = None
    is_state: bool = False

    @property
    def layer(self) -> str:
        """The type in `build`: "nn.Linear", "nn.Sequential", "nn.Parameter"; "" for classes of the file."""
        return dotted(self.build.func if isinstance(self.build, ast.Call) else self.build)

    def is_buffer(self, key: str) -> bool:
        """Return True if one of its tensors is no parameter in the layer's own class."""
        return is_statistic(key) or self.is_state

    @property
    def frozen_parts(self) -> list[str]:
        """What of it is not trained: keys of parameters, or "" for all that a layer has."""
        own = [key for key in self.keys if not self.is_buffer(key)]
        parts = sorted(key for key in self.frozen if not self.is_buffer(key))
        return [""] if self.kind == "module" and own and self.frozen.issuperset(own) else parts

    def state_key(self, key: str) -> str:
        """Return the key of one of its tensors in the state dict of the whole network."""
        return ".".join((*self.path, key) if key else self.path)

    def state_keys(self) -> Iterator[tuple[str, Source]]:
        for key, source in self.keys.items():
            yield self.state_key(key), source


def is_statistic(key: str) -> bool:
    """Return True if a key of a layer is no weight: a statistic, or of a quantiser."""
    return key.startswith("running_") or key.endswith(("._u", "._v")) or is_rounding(key)


def is_rounding(key: str) -> bool:
    """Return True if a key of a layer is a quantisation parameter."""
    return key.rpartition(".")[2] in ("scale", "zero")


@dataclass
class Tie:
    """One tensor that is a weight in two places. It is stored as `kept`, and `tied` is the same parameter."""

    kept: Member
    kept_key: str
    tied: Member
    tied_key: str

    @property
    def names(self) -> tuple[str, str]:
        """The two state-dict keys."""
        return self.kept.state_key(self.kept_key), self.tied.state_key(self.tied_key)

    @property
    def copy(self) -> Source | None:
        """How `tied` is made, if the file has a copy of the tensor for it."""
        kept, tied = self.kept.keys[self.kept_key], self.tied.keys[self.tied_key]
        return None if tied == kept else tied


@dataclass
class Assign:
    """`targets = value`; several targets unpack a tuple. Without targets: a statement for its effect (`raise`).

    `form`: how the targets are written if the tuple is nested, `"{}, ({}, {})"`. `nodes`: the names of the ONNX nodes
    that it computes.
    """

    targets: tuple[str, ...]
    value: ast.expr
    scope: ModulePath = ()
    nodes: tuple[FileText, ...] = ()
    form: str = ""


@dataclass
class If:
    """A Python `if`. `targets`: the values that both branches assign.

    Without an `else`, they are variables that were assigned before it.
    """

    test: ast.expr
    then: list[Statement]
    orelse: list[Statement]
    targets: tuple[str, ...]
    scope: ModulePath = ()
    nodes: tuple[FileText, ...] = ()


@dataclass
class Loop:
    """A Python loop: `for turn in iterable` or, if `iterable` is None, `while True`.

    `stop`, if given, is evaluated before each iteration: the loop ends when it is false.
    `targets` are carried around the loop: assigned before it and again in it (or lists that grow in it).
    `form`: how the values in `turn` are written if they are nested, `"({}, {}), {}"`.
    """

    turn: tuple[str, ...]
    iterable: ast.expr | None
    stop: ast.expr | None
    body: list[Statement]
    targets: tuple[str, ...]
    scope: ModulePath = ()
    nodes: tuple[FileText, ...] = ()
    form: str = ""


@dataclass
class With:
    """`with context:`. `targets`: the values of its body that later statements use."""

    context: ast.expr
    body: list[Statement]
    targets: tuple[str, ...]
    scope: ModulePath = ()
    nodes: tuple[FileText, ...] = ()


Statement = Assign | If | Loop | With
_EXPRESSIONS = {Assign: ("value",), If: ("test",), Loop: ("iterable", "stop"), With: ("context",)}


def blocks(statement: Statement) -> list[list[Statement]]:
    """Return the nested blocks of a statement."""
    if isinstance(statement, If):
        return [statement.then, statement.orelse]
    return [] if isinstance(statement, Assign) else [statement.body]


def flattened(block: Iterable[Statement]) -> Iterator[Statement]:
    """Yield the statements of a block, each before the statements in its own blocks."""
    for statement in block:
        yield statement
        for inner in blocks(statement):
            yield from flattened(inner)


def expressions(statement: Statement) -> Iterator[ast.expr]:
    """Yield every expression of a statement, nested blocks included, in order of evaluation."""
    yield from own_expressions(statement)
    for block in blocks(statement):
        for inner in block:
            yield from expressions(inner)


def own_expressions(statement: Statement) -> list[ast.expr]:
    """Return a statement's own expressions, not those of its nested blocks."""
    return [tree for name in _EXPRESSIONS[type(statement)] if (tree := getattr(statement, name)) is not None]


def change_own(statement: Statement, change: Change) -> None:
    """Rewrite a statement's own expressions, not those of its nested blocks (see `quote.rewrite`)."""
    for name in _EXPRESSIONS[type(statement)]:
        if (tree := getattr(statement, name)) is not None:
            setattr(statement, name, rewrite(tree, change))


def members_of(statement: Statement) -> list[Member]:
    """Return the members that a statement uses, nested blocks included."""
    return [member for tree in expressions(statement) for member in members(tree)]


def spelled(statement: Assign, token: Callable[[ast.AST], str | None]) -> str:
    """Return what a statement does: equal texts for statements that differ only in nodes of one token.

    `token`: returns the text that stands for a node with all below it; None for a node that is written out.
    """

    def change(node: ast.AST) -> ast.expr | None:
        text = token(node)
        return None if text is None else ast.Name(text, ast.Load())

    return f"{len(statement.targets)} {statement.form} {ast.dump(rewrite(statement.value, change))}"


def assigned(statement: Statement) -> Iterator[str]:
    """Yield every value that a statement or its nested blocks assign."""
    yield from statement.targets
    if isinstance(statement, Loop):
        yield from statement.turn
    for block in blocks(statement):
        for inner in block:
            yield from assigned(inner)


def used(statement: Statement) -> list[str]:
    """Return the values that a statement needs from outside, in order of first use.

    A nested block may need a value that it assigns later, and an `if` needs a target that one of its sides leaves as it
    is. What a loop carries is assigned in it, but must exist before it.
    """
    values = {name: None for expression in own_expressions(statement) for name in refs(expression)}
    for block in blocks(statement):
        known = {*statement.turn} if isinstance(statement, Loop) else set[str]()
        for inner in block:
            values.update((name, None) for name in used(inner) if name not in known)
            known.update(inner.targets)
        carried = isinstance(statement, Loop)
        values.update((name, None) for name in statement.targets if carried or name not in known)
    return list(values)


@dataclass
class Input:
    """One argument of `forward`: a value and its annotation."""

    value: str
    annotation: str = "Tensor"
    default: ast.expr | None = None


@dataclass
class ModuleDef:
    """A whole network as one class, before structure.

    Attributes:
        name: the class's name.
        members: what `__init__` registers, by absolute path.
        inputs, outputs: arguments of `forward`, and the expressions it returns.
        body: the statements of `forward`.
        infos: what is known of each value (dtype, dims), for names and comments.
        hints: the name of each value in the file.
        results: the names of the outputs, by value. An Identity may give one to a value of another name.
        constants: arrays too large for source, by their key in the sidecar.
        ties: tensors that are a weight in two places.
        classes: class names that the exporter recorded, by module path; those of `found_classes` the graph tells.
        notes: for the report.
        roles: names that operators gave to values ("hidden").
        constants_prefix: prefix of the keys of `constants`.
        annotate: comments name the ONNX nodes of each line.
        own: what the code uses of plugins.
        stubs: methods that are left open.
        variables: what the author's source calls values, by value and by module.
        makers: the names of the layers that make values, by value.
        turns: the values that the graph's own loops make anew in each turn. Their number is not known.
        lengths: how many items the lists have that other loops fill, by value.
        items: the lists that hold values which have names beside them, and their numbers there, by value.
    """

    name: str
    members: list[Member] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    outputs: list[ast.expr] = field(default_factory=list)
    body: list[Statement] = field(default_factory=list)
    infos: dict[str, Info] = field(default_factory=dict)
    hints: dict[str, FileText] = field(default_factory=dict)
    constants: dict[str, NDArray[np.generic]] = field(default_factory=dict)
    ties: list[Tie] = field(default_factory=list)
    classes: dict[ModulePath, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    roles: dict[str, str] = field(default_factory=dict)
    constants_prefix: str = "constants."
    annotate: bool = False
    own: OwnCode = field(default_factory=OwnCode)
    stubs: list[Stub] = field(default_factory=list)
    makers: dict[str, str] = field(default_factory=dict)
    turns: frozenset[str] = frozenset()
    lengths: dict[str, int] = field(default_factory=dict)
    items: dict[str, tuple[str, int]] = field(default_factory=dict)
    found_classes: Set[ModulePath] = frozenset()
    results: dict[str, FileText] = field(default_factory=dict)
    variables: dict[str, Mapping[ModulePath, Variable]] = field(default_factory=dict)

    def hint(self, value: str) -> FileText:
        """Return the name of a value in the file."""
        return self.hints.get(value) or FileText(value)

    @property
    def function(self) -> str:
        """The name of the function that builds the network: `resnet18` for the class ResNet18."""
        words = function_name(self.name)
        taken = words in self._taken or words == self.name or hasattr(builtins, words) or keyword.iskeyword(words)
        return f"{words}_network" if taken else words

    @property
    def reserved(self) -> frozenset[str]:
        """Names that no class, argument or local variable may have."""
        return self._taken | {self.function}

    @property
    def _taken(self) -> frozenset[str]:
        return RESERVED | helper_names() | self.own.names | {stub.name for stub in self.stubs}


def shown(inputs: Iterable[Input], body: Iterable[Statement], infos: Mapping[str, Info]) -> dict[str, str]:
    """Return the first value that has each named dim as an axis, by the dim's name; not dims of the inputs."""
    sources: dict[str, str | None] = {}
    for argument in inputs:
        sources.update(dict.fromkeys(named_dims(infos, argument.value)))
    for statement in body:
        for value in assigned(statement):
            for name in named_dims(infos, value):
                sources.setdefault(name, value)
    return {name: value for name, value in sources.items() if value is not None}


def needed_dims(expressions: Iterable[ast.expr], where: Mapping[str, str]) -> set[str]:
    """Return the dims in these expressions that are read from a value (`where`: see `shown`)."""
    if not where:
        return set()
    sizes = (node for tree in expressions for node in walk(tree) if isinstance(node, SizeOf))
    return {name for size in sizes for name in symbols(size.dim) if name in where}


def makers(expressions: Iterable[ast.expr], where: Mapping[str, str]) -> set[str]:
    """Return the values that must exist before the sizes in these expressions are known."""
    return {where[name] for name in needed_dims(expressions, where)}


def named_dims(infos: Mapping[str, Info], value: str) -> list[str]:
    """Return the named dims that are axes of a tensor, alone and not in a sum or product."""
    facts = infos.get(value, Info())
    if facts.kind != "tensor" or facts.shape is None:
        return []
    return [name for dim in facts.shape for name in symbols(dim) if dim == symbol(name)]


MAX_NODES = 6  # named in a text


@dataclass
class Stub:
    """A method that is left open.

    Attributes:
        name: of the method.
        arguments, keywords: of the method.
        returns: the annotation of its result.
        about: the operator, printable.
        doc: lines of its docstring after the first.
        nodes: the names of the nodes that call it.
        calls: the calls in the network, which get its final name.
    """

    name: str
    arguments: list[ast.arg]
    keywords: list[ast.arg]
    returns: str
    about: str
    doc: list[str]
    nodes: list[str] = field(default_factory=list)
    calls: list[ast.Attribute] = field(default_factory=list)

    @property
    def tree(self) -> ast.FunctionDef:
        """The method, without its docstring."""
        arguments = ast.arguments(
            [], [ast.arg("self"), *self.arguments], None, self.keywords, [None for _ in self.keywords], None, []
        )
        error = ast.Call(ast.Name("NotImplementedError", ast.Load()), [ast.Constant(self._message)], [])
        return ast.FunctionDef(self.name, arguments, [ast.Raise(error)], [], printer.annotation(self.returns))

    @property
    def lines(self) -> list[str]:
        """The text of the method."""
        parameters = ["self", *map(printer.argument, self.arguments)]
        parameters += ["*", *map(printer.argument, self.keywords)] if self.keywords else []
        return [
            f"def {self.name}({', '.join(parameters)}) -> {self.returns}:",
            f'    """{printer.comment(f"{self.about}, left open: {named(self.nodes)}.")}',
            "",
            *(f"    {printer.comment(line)}" for line in self.doc),
            '    """',
            f'    raise NotImplementedError("{printer.between_quotes(self._message)}")',
        ]

    @property
    def _message(self) -> str:
        return f"{self.about} is left open: fill in {self.name}"


def named(nodes: list[str]) -> str:
    return f"{'node' if len(nodes) == 1 else 'nodes'} {listed(nodes)}"


def listed(nodes: list[str]) -> str:
    shown = ", ".join(node or "(unnamed)" for node in nodes[:MAX_NODES])
    return shown + (f" and {len(nodes) - MAX_NODES} more" if len(nodes) > MAX_NODES else "")


_KINDS = {"sequence": "list[Tensor]", "optional": "Tensor | None"}


def annotation(facts: Info) -> str:
    """Return the annotation of an argument or a result inside the network."""
    if facts.kind in ("map", "maps"):
        one = f"dict[{'str' if facts.key == ir.DataType.STRING else 'int'}, {_held(facts)}]"
        return one if facts.kind == "map" else f"list[{one}]"
    return _KINDS.get(facts.kind, "Tensor")


def argument_annotation(facts: Info) -> str:
    """Return the annotation of an argument that is given from outside, where text is a numpy array."""
    is_text = facts.dtype == ir.DataType.STRING and facts.kind == "tensor"
    return "np.ndarray" if is_text else annotation(facts)


def _held(facts: Info) -> str:
    """Return the type of a map's values. Numbers come as they are, and leave as tensors, for gradients."""
    if facts.dtype == ir.DataType.STRING:
        return "str"
    return "Tensor" if facts.kind == "maps" else "float | Tensor"
