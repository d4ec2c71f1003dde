"""A module in PyTorch's words: what `__init__` registers and what `forward` does.

Lowering makes one flat `ModuleDef`; `structure` splits it into a tree of classes; `render` writes it out.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.copied import helper_names
from onnxgen.code.own_code import OwnCode
from onnxgen.code.quote import refs, rewrite
from onnxgen.code.stub import Stub
from onnxgen.code.torch_api import dotted
from onnxgen.common.names import RESERVED, FileText, ModulePath
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
        keys: how each of its state-dict tensors is made; the key is `""` for a parameter, else "weight", ...
        frozen: the keys that are not trained.
        extra: state-dict tensors that no ONNX tensor makes, such as a BatchNorm's counter.
        users: for each key the nodes that asked for it, and the numbers of the inputs that it stands for.
        named: the path is the file's own; otherwise its last part is a role, to be numbered among its like.
    """

    path: ModulePath
    build: ast.expr
    kind: str = "module"
    keys: dict[str, Source] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)
    named: bool = True
    extra: dict[str, NDArray[np.generic]] = field(default_factory=dict)
    users: dict[str, list[User]] = field(default_factory=dict)

    @property
    def layer(self) -> str:
        """What makes it: "nn.Linear", "nn.Sequential", "nn.Parameter"; "" for classes of the file."""
        return dotted(self.build.func if isinstance(self.build, ast.Call) else self.build)

    def state_keys(self) -> Iterator[tuple[str, Source]]:
        for key, source in self.keys.items():
            yield ".".join((*self.path, key) if key else self.path), source


def is_statistic(key: str) -> bool:
    """Whether a key of a layer is what it measures or rounds by, rather than a weight."""
    return key.startswith("running_") or is_rounding(key)


def is_rounding(key: str) -> bool:
    """Whether a key of a layer is what it rounds by, rather than a weight or a statistic of its own."""
    return key.rpartition(".")[2] in ("scale", "zero")


@dataclass
class Tie:
    """One tensor that is a weight in two places: stored as `kept`, and `tied` is the very same parameter."""

    kept: Member
    kept_key: str
    tied: Member
    tied_key: str

    @property
    def names(self) -> tuple[str, str]:
        """The two state-dict keys."""
        kept, tied = (
            (*m.path, k) if k else m.path for m, k in ((self.kept, self.kept_key), (self.tied, self.tied_key))
        )
        return ".".join(kept), ".".join(tied)

    @property
    def copy(self) -> Source | None:
        """What `tied` is made of in the file, if that is a copy of its own."""
        kept, tied = self.kept.keys[self.kept_key], self.tied.keys[self.tied_key]
        return None if tied == kept else tied


@dataclass
class Assign:
    """`targets = value`; several targets unpack a tuple. No target: a statement for its effect (`raise`, `assert`).

    `form`: how the targets are written where the tuple is nested, `"{}, ({}, {})"`; `nodes`: the ONNX nodes whose work
    it does, as the file calls them.
    """

    targets: tuple[str, ...]
    value: ast.expr
    scope: ModulePath = ()
    nodes: tuple[FileText, ...] = ()
    form: str = ""


@dataclass
class If:
    """A Python `if`; the values that both branches assign are its results.

    Without an `else`, they are variables that have been assigned before and may be assigned again.
    """

    test: ast.expr
    then: list[Statement]
    orelse: list[Statement]
    targets: tuple[str, ...]
    scope: ModulePath = ()
    nodes: tuple[FileText, ...] = ()


@dataclass
class Loop:
    """A Python loop: `for turn in iterable` or, where `iterable` is None, `while True`.

    `stop`, if given, is evaluated before each turn: the loop ends where it is false.
    `targets` are the values carried around it: assigned before the loop and again in it (or lists that grow in it).
    `form`: how the values of a turn are written where they are nested, `"({}, {}), {}"`.
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
    """`with context:`, and the values that its body makes for what comes after."""

    context: ast.expr
    body: list[Statement]
    targets: tuple[str, ...]
    scope: ModulePath = ()
    nodes: tuple[FileText, ...] = ()


Statement = Assign | If | Loop | With


def blocks(statement: Statement) -> list[list[Statement]]:
    """The nested blocks of a statement."""
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
    """Every expression of a statement, nested blocks included, in order of evaluation."""
    if isinstance(statement, Assign):
        yield statement.value
        return
    if isinstance(statement, If):
        yield statement.test
    elif isinstance(statement, Loop):
        if statement.iterable is not None:
            yield statement.iterable
        if statement.stop is not None:
            yield statement.stop
    else:
        yield statement.context
    for block in blocks(statement):
        for inner in block:
            yield from expressions(inner)


def change_own(statement: Statement, change: Callable[[ast.AST], ast.expr | None]) -> None:
    """Rewrite a statement's own expressions, not those of the blocks in it (see `quote.rewrite`)."""
    if isinstance(statement, Assign):
        statement.value = rewrite(statement.value, change)
    elif isinstance(statement, If):
        statement.test = rewrite(statement.test, change)
    elif isinstance(statement, With):
        statement.context = rewrite(statement.context, change)
    else:
        statement.iterable = None if statement.iterable is None else rewrite(statement.iterable, change)
        statement.stop = None if statement.stop is None else rewrite(statement.stop, change)


def assigned(statement: Statement) -> Iterator[str]:
    """Every value that a statement or its nested blocks assign."""
    yield from statement.targets
    if isinstance(statement, Loop):
        yield from statement.turn
    for block in blocks(statement):
        for inner in block:
            yield from assigned(inner)


def used(statement: Statement) -> list[str]:
    """The values that a statement needs from outside itself, in order of first use."""
    inside = set(assigned(statement)) if blocks(statement) else set()
    found: dict[str, None] = {}
    for expression in expressions(statement):
        for name in refs(expression):
            if name not in inside:
                found.setdefault(name)
    if isinstance(statement, Loop) or (isinstance(statement, If) and not statement.orelse):
        # values carried around the loop, or past a branch, are assigned in it but must exist before it
        found.update(dict.fromkeys(statement.targets))
    return list(found)


@dataclass
class Input:
    """One argument of `forward`: a value, and the annotation that says what it is."""

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
        hints: for each value the name it has in the file.
        roles: for values that an operator named itself ("hidden"), that name.
        constants: arrays too large for source, by the key that they have in the sidecar.
        constants_prefix: what those keys begin with.
        annotate: the code says which ONNX nodes each line comes from.
        ties: tensors that are a weight in two places.
        classes: class names that the exporter recorded, by module path.
        own: what the code uses of plugins.
        stubs: methods that are left open.
        doc: lines of the header docstring about inputs, outputs and weights.
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

    def hint(self, value: str) -> FileText:
        """The name of a value in the file."""
        return self.hints.get(value) or FileText(value)

    @property
    def reserved(self) -> frozenset[str]:
        """What no class, argument or local variable may be called."""
        return RESERVED | helper_names() | self.own.names | {stub.name for stub in self.stubs}
