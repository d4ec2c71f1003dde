"""`Builder` and `Arg`: what an operator's function gets, and what it may ask for and add.

    @op("Relu")
    def relu(b, X):
        return b("F.relu(x)", x=X)

An `Arg` is an input of an operator. A function returns the expression of its output; a list of expressions (None where
unused) for several outputs; or `b.unpack(expression)` if one expression yields a tuple of all outputs.

`lowered` calls a plugin's function for a node and checks what it does. Every mistake is reported as
a problem of the node.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.copied import helper_names
from onnxgen.code.module_def import Assign, Statement, User
from onnxgen.code.quote import MemberRef, Ref, call, computed, literal, quote, shortest
from onnxgen.common.names import FileText, ModulePath, local, printable, sentence
from onnxgen.errors import INFER, OnnxgenError, Problem, counted
from onnxgen.graph.annotations import SCOPE, is_trained
from onnxgen.graph.nodes import told
from onnxgen.lowering.from_sizes import Sized, elements
from onnxgen.lowering.parameter import NOISE
from onnxgen.passes.rewrite import names_of
from onnxgen.passes.roles import is_function_name
from onnxgen.plugins.loading import Plugin, why
from onnxgen.shapes.dims import Dim, Sym, TooComplex
from onnxgen.shapes.info import Info, Shape, info, shape_option
from onnxgen.weights.provenance import Source
from onnxgen.weights.stored import stored

if TYPE_CHECKING:
    from onnxgen.lowering.lower import Lowering


UNKNOWN_SHAPE = f"{INFER}; after an operator of a plugin, give the plugin an infer rule (docs/EXTENDING.md)"

MAX_WHOLE = 10_000  # a larger number keeps its point: it is a limit or a mask, not a count


class Arg:
    """An input: the known facts about it, and the expression that computes it.

    Attributes:
        name: the value's name in the file ("" for an attribute that later opsets made an input).
        info: dtype, shape and elements, as far as they are known.
        value: the graph's value (None for an attribute).
        index: its index among the node's inputs, if known.
    """

    def __init__(self, builder: Builder, info: Info, value: ir.Value | None = None, index: int | None = None) -> None:
        self.builder, self.info, self.value, self.index = builder, info, value, index
        self.name = (value.name or "") if value is not None else ""

    @property
    def dtype(self) -> ir.DataType | None:
        return self.info.dtype

    @property
    def shape(self) -> Shape | None:
        """The dims, ints or symbolic; None if the rank is unknown."""
        return self.info.shape

    @property
    def rank(self) -> int | None:
        return self.info.rank

    @property
    def known_rank(self) -> int:
        """The rank, for operators that need it. Raises `OnnxgenError` if it is unknown."""
        if self.info.rank is None:
            way_out = shape_option(self.value) or UNKNOWN_SHAPE
            raise self.builder.error(f"the rank of input {self.name} is unknown", way_out)
        return self.info.rank

    @property
    def is_float(self) -> bool:
        return self.dtype is not None and self.dtype.is_floating_point()

    @property
    def constant(self) -> NDArray[Any] | None:
        """The elements, if they are numbers known at generation; None for trainable tensors."""
        return self.info.constant if self.info.data is not None else self.builder.constant(self.value)

    @property
    def ints(self) -> list[Dim] | None:
        """The elements of a small integer tensor as dims (ints or symbolic), flattened; None if unknown."""
        if self.info.data is None:
            constant = self.constant
            return None if constant is None or constant.size > 4096 else [int(v) for v in constant.flat]
        return [v if isinstance(v, Sym) else int(v) for v in self.info.data.flat]

    def known_ints(self, what: str) -> list[int]:
        """Return the elements as plain ints, for operators that need them. Raises `OnnxgenError` if unknown."""
        numbers = self.ints
        if numbers is None or not all(isinstance(v, int) for v in numbers):
            help = "fold it into a constant, e.g. with onnx-simplifier"
            raise self.builder.error(f"{what} is computed at run time", help)
        return [v for v in numbers if isinstance(v, int)]

    @property
    def source(self) -> Source | None:
        """How this value is made of stored tensors, if it is an initializer or a view of initializers."""
        return self.builder.source(self.value)

    @property
    def is_trainable(self) -> bool:
        return self.value is not None and is_trained(self.value)

    @property
    def expr(self) -> ast.expr:
        """The expression for this input as a tensor."""
        return self.builder.tensor(self)

    @property
    def number(self) -> ast.expr | None:
        """A Python number if this is one element known at generation (a literal, or an int from shapes), else None."""
        if self.info.data is not None and self.info.data.dtype == object:
            return literal(self.info.data.flat[0]) if self.info.data.size == 1 else None
        scalar = self.scalar
        if scalar is None and (sized := self.builder.sized(self.value)) is not None and sized.one is not None:
            return quote("float(n)", n=sized.one) if self.is_float else sized.one
        return None if scalar is None else literal(scalar)

    @property
    def beside(self) -> ast.expr | None:
        """`number` as it stands beside a tensor of this type, which decides the result's: `x * 8`, not `x * 8.0`.

        A number that was computed is what its formula gives (`code.formula`).
        """
        scalar, sized = self.scalar, self.builder.sized(self.value)
        if sized is not None and sized.one is not None:
            return sized.one
        if not isinstance(scalar, float):
            return self.number
        if scalar.is_integer() and abs(scalar) <= MAX_WHOLE:
            return self.number if math.copysign(1, scalar) < 0 and not scalar else literal(int(scalar))
        return literal(computed(scalar)) if self.dtype == ir.DataType.FLOAT else self.number

    @property
    def uniform(self) -> float | None:
        """The float that all elements are, if they are known and equal, and the tensor has no name of its own."""
        is_nameless = NOISE.match(self.name) or "/" in self.name or is_function_name(self.name)
        constant = self.constant if is_nameless else None
        if constant is None or constant.size == 0 or constant.dtype.kind != "f":
            return None
        first = constant.reshape(-1)[0]
        is_one = bool((constant == first).all()) and bool((np.signbit(constant) == np.signbit(first)).all())
        return shortest(first.item(), self.dtype) if is_one else None

    @property
    def scalar(self) -> float | int | None:
        """The one element as a plain Python number, or None."""
        constant = self.constant
        if constant is None or constant.size != 1 or constant.dtype.kind not in "biuf":
            return None
        item = constant.reshape(-1)[0].item()
        return shortest(item, self.dtype) if isinstance(item, float) else item

    @property
    def is_sized(self) -> bool:
        """True if Python computes the elements from sizes (`lowering.from_sizes`)."""
        return self.builder.sized(self.value) is not None or self.info.data is not None and self.constant is None

    @property
    def sized(self) -> Sized | None:
        """The elements as Python computes them from sizes; also those that are known."""
        return self.builder.sized(self.value) or elements(self)

    @property
    def truth(self) -> ast.expr:
        """The condition that a tensor of one element is: Python's own if it is computed from sizes."""
        sized = self.builder.sized(self.value)
        return self.expr if sized is None or sized.one is None else sized.one

    def as_int(self) -> ast.expr:
        """Return a Python int: a literal, a size, or `.item()` of a tensor that is computed."""
        return self.number if self.number is not None else quote("x.item()", x=self.expr)

    def as_ints(self) -> ast.expr:
        """Return a Python sequence of ints: a tuple of literals and sizes, or `.tolist()` of the tensor."""
        ints = self.ints
        return literal(tuple(ints)) if ints is not None else quote("x.tolist()", x=self.expr)


class Unpack:
    """An expression that yields a tuple with one element for each of the node's outputs."""

    def __init__(self, value: ast.expr, count: int, form: str = "") -> None:
        self.value, self.count, self.form = value, count, form


class Builder:
    """Access to the generated code for an operator's function.

    Attributes:
        node: the ONNX node.
        opset: the opset whose schema the node follows.
        scope: the module path that the node was written in.
        plugin: the plugin that the operator's function comes from, if any.
    """

    def __init__(self, lowering: Lowering, node: ir.Node, opset: int) -> None:
        self._lowering, self.node, self.opset = lowering, node, opset
        self.scope = SCOPE.get(node)
        self.plugin: Plugin | None = None

    @property
    def nodes(self) -> tuple[FileText, ...]:
        """The names of the file's nodes that this node stands for."""
        return tuple(map(FileText, names_of(self.node)))

    def __call__(self, template: str, **values: Any) -> ast.expr:
        """Return the expression that `template` spells. Names that are in `values` stand for those values."""
        if self.plugin is not None:
            check_text(self, self.plugin, template, values)
        return quote(template, **values)

    def call(self, function: str | ast.expr, *args: Any, **kwargs: Any) -> ast.expr:
        """Return the call `function(...)`. Arguments that are `OMIT` are left out (see `code.quote.unless`)."""
        return call(function, *args, **kwargs)

    def out(self, index: int = 0) -> Info:
        """Return the known facts of an output: dtype, shape, elements."""
        return info(self.node.outputs[index]) if index < len(self.node.outputs) else Info()

    def inputs(self) -> list[Arg | None]:
        """Return the node's inputs in order."""
        return [None if v is None else Arg(self, info(v), v, i) for i, v in enumerate(self.node.inputs)]

    def wants(self, index: int) -> bool:
        """Return True if anything uses this output."""
        outputs = self.node.outputs[index : index + 1]
        return any(bool(output.name) and self._lowering.is_wanted(output) for output in outputs)

    def at(self, scope: tuple[str, ...] | None) -> Builder:
        """Return a builder for the same node that writes into another scope (None: the node's own)."""
        builder = copy(self)
        builder.scope = self.scope if scope is None else scope
        return builder

    @property
    def producer(self) -> str | None:
        """The name of the tool that exported the file."""
        return self._lowering.model.producer_name

    # values

    def fresh(self, hint: str, known: Info | None = None) -> str:
        """Return the id of a new value. `hint`: its name, as the file might have it."""
        return self._lowering.fresh(hint, known)

    def define(self, output: ir.Value) -> str:
        """Return the id under which an output of the node is assigned."""
        return self._lowering.define(output)

    def known(self, name: str) -> Info:
        """Return what is known of a value, by its id."""
        return self._lowering.infos[name]

    def constant(self, value: ir.Value | None) -> NDArray[Any] | None:
        """Return the elements of a stored tensor that is not trained, whatever its size."""
        tensor = stored(value)
        return None if tensor is None or value is None or is_trained(value) else tensor.numpy()

    def source(self, value: ir.Value | None) -> Source | None:
        """Return how a value is made of stored tensors alone, or None if it is not."""
        return self._lowering.views(value)

    def sized(self, value: ir.Value | None) -> Sized | None:
        """Return the elements of a value that Python computes from sizes, or None."""
        return None if value is None else self._lowering.sized.get(value)

    def tensor(self, arg: Arg) -> ast.expr:
        """Return the expression of an input as a tensor."""
        return self._lowering.tensor(arg)

    def local(self, hint: str = "", known: Info | None = None) -> str:
        """Return the id of a new local variable, which is named `hint` unless its use suggests a better name."""
        name = self.fresh(hint or "x", known)
        if hint:
            self._lowering.roles[name] = local(hint)
        return name

    def let(self, value: ast.expr, hint: str = "", known: Info | None = None) -> Ref:
        """Assign an intermediate value to a new local variable and return a reference to it."""
        name = self.local(hint, known)
        self.emit(Assign((name,), value, self.scope, self.nodes))
        return Ref(name)

    def role(self, arg: Arg | None, name: str) -> None:
        """Name an input's local variable by its role here ("mask"), unless it already has a role."""
        if arg is not None and isinstance(arg.expr, Ref):
            self._lowering.roles.setdefault(arg.expr.value, name)

    def emit(self, statement: Statement) -> None:
        """Append a statement to the current block."""
        self._lowering.block.append(statement)

    def writing(self, block: list[Statement]) -> AbstractContextManager[None]:
        """Inside the `with`, statements are appended to this block."""
        return self._lowering.writing(block)

    def unpack(self, value: ast.expr, count: int | None = None, form: str = "") -> Unpack:
        """Return one expression for all outputs. `count`: how many it yields (default: as many as the node has).

        `form`: how they are nested, `"{}, ({}, {})"`.
        """
        return Unpack(value, len(self.node.outputs) if count is None else count, form)

    def module(
        self, role: str, build: ast.expr, **keys: Source | Arg | tuple[Source, tuple[int, ...]] | None
    ) -> MemberRef | None:
        """Return a submodule such as `nn.Conv2d(...)`. `keys`: the stored tensors that its state-dict tensors are.

        Returns None if the tensors cannot belong to the module: one is computed, or is a parameter whose name in the
        file places it elsewhere. The caller then writes the functional form.
        """
        return self.module_at(None, role, build, keys)

    def module_at(
        self,
        home: ModulePath | None,
        role: str,
        build: ast.expr,
        keys: Mapping[str, Source | Arg | tuple[Source, tuple[int, ...]] | None],
    ) -> MemberRef | None:
        """Return a submodule as `module` does.

        `home`: its path, whatever the names of its tensors tell. `keys`: a tensor may be given with the indices of the
        inputs that it is made of.
        """
        sources: dict[str, Source] = {}
        users: dict[str, User] = {}
        for key, value in keys.items():
            if isinstance(value, tuple):
                sources[key], users[key] = value[0], (self.node, value[1])
                continue
            source = value.source if isinstance(value, Arg) else value
            if source is None and value is not None:
                return None
            if source is not None:
                sources[key] = source
                users[key] = self.node, self._inputs(value, source)
        return self._lowering.members.module(self.scope, role, build, sources, users, home)

    def _inputs(self, value: Source | Arg | None, source: Source) -> tuple[int, ...]:
        """Return the indices of the node's inputs that a stored tensor comes from."""
        if isinstance(value, Arg) and value.index is not None:
            return (value.index,)
        known = [self.source(v) for v in self.node.inputs]
        return tuple(i for i, s in enumerate(known) if s is not None and not {*s.names}.isdisjoint(source.names))

    def parameter(
        self, arg: Arg, label: str = "", transposed: bool = False, shape: tuple[int, ...] | None = None
    ) -> ast.expr:
        """Return a trained tensor as a parameter of its own. `label`: its name in the original network.

        `transposed`: the file stores the parameter transposed. `shape`: its shape before an axis of 1 was folded in.
        """
        return self._lowering.members.parameter(arg, label, transposed, shape)

    def buffer(self, array: NDArray[Any], hint: str = "constant", dtype: ir.DataType | None = None) -> ast.expr:
        """Return a constant tensor: a non-persistent buffer. Equal constants in one scope share a buffer."""
        if dtype == ir.DataType.STRING:
            return self._lowering.members.texts(self.scope, array, hint)
        return self._lowering.members.buffer(self.scope, array, hint, dtype or ir.DataType.from_numpy(array.dtype))

    def texts(self, items: list[str], hint: str = "words") -> ast.expr:
        """Return a vector of strings, written out if there are few, else read from the sidecar."""
        return self.buffer(np.array(items, dtype=object), hint, ir.DataType.STRING)

    def helper(self, name: str) -> ast.expr:
        """Return a function or class of the plugin. Its source is copied into the generated file.

        The source is read as text from the top level of the plugin's file, or of one file of its package, with what it
        uses of that file and its imports. So that file may import torch, and generating does not.
        """
        return self._lowering.own.copy(self._own_plugin(), name)

    def imported(self, module: str, name: str) -> ast.expr:
        """Import `name` from a module in the generated file, which then needs that module."""
        return self._lowering.own.take_import(self._own_plugin(), module, name)

    def _own_plugin(self) -> Plugin:
        if self.plugin is None:
            raise TypeError("only a plugin's function has code of its own")
        return self.plugin

    def block(self, graph: ir.Graph, inputs: list[ast.expr]) -> tuple[list[Statement], list[ast.expr]]:
        """Return the statements of a subgraph whose inputs are the given expressions, and its outputs' expressions."""
        return self._lowering.subgraph(graph, inputs)

    def numbers(self, *args: Arg, fills: bool = False) -> list[Any]:
        """Return operands of an elementwise operator, with one-element constants as Python numbers if that is the same.

        At least one operand stays a tensor, and a number never lowers the rank of the result, which is 0 or more where
        it is unknown. `fills`: a constant of equal elements is a number, too, if another operand has the shape of the
        result.
        """
        highest, kept = _highest_rank(args)
        shape = self.out().shape
        is_whole = fills and shape is not None and any(a.shape == shape and a.uniform is None for a in args)
        operands: list[Any] = []
        for i, arg in enumerate(args):
            number = arg.beside if arg.rank is not None and arg.rank <= highest and i != kept else None
            if number is None and is_whole and arg.uniform:  # zeros are what steps begin with, and stay a tensor
                number = literal(arg.uniform)
            operands.append(arg if number is None else number)
        return operands

    def note(self, text: str) -> None:
        """Add a note about the result to the summary."""
        if text not in self._lowering.notes:
            self._lowering.notes.append(text)

    def error(self, what: str, help: str = "") -> OnnxgenError:
        """Return an error about this node, to be raised. The errors of all nodes are reported together."""
        return OnnxgenError(self.problem(what, help))

    def problem(self, what: str, help: str = "") -> Problem:
        domain = f"{self.node.domain}." if self.node.domain else ""
        return Problem(sentence(what), told(self.node), printable(domain + self.node.op_type), self.opset, help)


def _highest_rank(args: Sequence[Arg]) -> tuple[int, int | None]:
    """Return the rank of the operands that are tensors, and which operand stays one if all are numbers."""
    highest = max((arg.rank or 0 for arg in args if arg.number is None), default=-1)
    ranks = [arg.rank for arg in args if arg.rank is not None]
    if highest >= 0 or len(ranks) < len(args):
        return highest, None
    highest = max(ranks)
    return highest, min((i for i, rank in enumerate(ranks) if rank == highest), key=lambda i: not args[i].is_sized)


WHAT_TO_RETURN = 'return b("..."), a list of such for several outputs, or b.unpack(...)'
# Names that a plugin's expression may use without giving them a value: every generated file has them.
FILE_NAMES = frozenset(
    """
    torch nn F Tensor np math re json Path self
    abs all any bool complex dict enumerate float int isinstance len list map max min range reversed round set slice
    sorted str sum tuple zip
    """.split()
)


def check_text(b: Builder, plugin: Plugin, template: str, values: Mapping[str, Any]) -> None:
    """Check an expression that a plugin writes: it must use all values that it is given, and no unknown names.

    Raises:
        OnnxgenError: it does not, or it is not an expression.
    """
    try:
        nodes = list(ast.walk(ast.parse(template, mode="eval")))
    except SyntaxError:
        raise b.error(f"plugin {plugin.name}: the text is not a Python expression: {template}") from None
    names = [n for n in nodes if isinstance(n, ast.Name)]
    read = {n.id for n in names if isinstance(n.ctx, ast.Load)}
    bound = {n.id for n in names if isinstance(n.ctx, ast.Store)} | {n.arg for n in nodes if isinstance(n, ast.arg)}
    if unknown := sorted(read - bound - values.keys() - FILE_NAMES - helper_names()):
        what = f"plugin {plugin.name}: the text uses {', '.join(unknown)} without a value: {template}"
        raise b.error(what, f"pass it: b(text, {unknown[0]}=...)")
    if unused := sorted(values.keys() - read):
        raise b.error(f"plugin {plugin.name}: the text does not use {', '.join(unused)}: {template}")


def lowered(b: Builder, plugin: Plugin, function: Callable[[], Any]) -> Any:
    """Call a plugin's function for a node and check the result for `Lowering`.

    Raises:
        OnnxgenError: the function fails, or its result is not an expression.
    """

    try:
        result = function()
    except (OnnxgenError, TooComplex):
        raise
    except Exception as error:
        raise b.error(f"plugin {plugin.name}: {why(error)}") from error
    if isinstance(result, Unpack):
        return result
    values = [_expression(b, plugin, value) for value in (result if isinstance(result, (list, tuple)) else [result])]
    if len(values) > len(b.node.outputs):
        there = counted(len(b.node.outputs), "output")
        raise b.error(f"plugin {plugin.name} returns {counted(len(values), 'value')} for {there}", WHAT_TO_RETURN)
    for i in range(len(b.node.outputs)):
        if b.wants(i) and (i >= len(values) or values[i] is None):
            raise b.error(f"plugin {plugin.name} returns None for output {i}, which is used", WHAT_TO_RETURN)
    return values


def _expression(b: Builder, plugin: Plugin, value: Any) -> ast.expr | None:
    tree = getattr(value, "expr", value)  # an input that is passed on
    if tree is None or isinstance(tree, ast.expr):
        return tree
    raise b.error(f"plugin {plugin.name} returns {type(value).__name__}, which is not an expression", WHAT_TO_RETURN)
