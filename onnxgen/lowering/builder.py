"""`Builder`, all that an operator's function sees of the network: one for each node.

    @op("Relu")
    def relu(b, X):
        return b("F.relu(x)", x=X)

A function returns the expression of its output; a list of expressions (None where unused) for several outputs; or
`b.unpack(expression)` where one expression yields a tuple of all of them.
"""

from __future__ import annotations

import ast
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.module_def import Assign, Statement
from onnxgen.code.quote import MemberRef, Ref, call
from onnxgen.common.names import FileText, printable, sentence
from onnxgen.errors import OnnxgenError, Problem
from onnxgen.graph.nodes import told
from onnxgen.lowering.arg import Arg
from onnxgen.passes.rewrite import names_of
from onnxgen.shapes.info import Info, info
from onnxgen.weights.provenance import Source


class Unpack:
    """An expression that yields a tuple with one element for each of the node's outputs."""

    def __init__(self, value: ast.expr, count: int, form: str = "") -> None:
        self.value, self.count, self.form = value, count, form


class Builder(Protocol):
    """Everything an operator's function may ask for or add; `node_builder.py` has what touches the network's state.

    Attributes:
        node: the ONNX node.
        opset: the opset whose schema the node follows.
        scope: the module path that the node was written in.
    """

    node: ir.Node
    opset: int
    scope: tuple[str, ...]

    @property
    def nodes(self) -> tuple[FileText, ...]:
        """The nodes of the file that this one stands for, by name."""
        return tuple(map(FileText, names_of(self.node)))

    def __call__(self, template: str, **values: Any) -> ast.expr:
        """The expression that `template` spells; names that are in `values` stand for those values."""
        ...

    def call(self, function: str | ast.expr, *args: Any, **kwargs: Any) -> ast.expr:
        """`function(...)`, without the arguments that are `unless(value, default) -> OMIT`."""
        return call(function, *args, **kwargs)

    def out(self, index: int = 0) -> Info:
        """The known facts of an output: dtype, shape, elements."""
        return info(self.node.outputs[index]) if index < len(self.node.outputs) else Info()

    def wants(self, index: int) -> bool:
        """Whether anything uses this output."""
        ...

    def at(self, scope: tuple[str, ...] | None) -> Builder:
        """The builder of the same node as if it stood in another scope (None: where it does)."""
        ...

    @property
    def producer(self) -> str | None:
        """What exported the file."""
        ...

    # values

    def fresh(self, hint: str, known: Info | None = None) -> str:
        """The id of a new value, which is called by `hint` where it lies."""
        ...

    def define(self, output: ir.Value) -> str:
        """The id under which an output of the node is assigned."""
        ...

    def known(self, name: str) -> Info:
        """What is known of a value, by its id."""
        ...

    def constant(self, value: ir.Value | None) -> NDArray[Any] | None:
        """The elements of a stored tensor that is not trained, whatever its size."""
        ...

    def source(self, value: ir.Value | None) -> Source | None:
        """The way a value is made of stored tensors alone, or None."""
        ...

    def tensor(self, arg: Arg) -> ast.expr:
        """The expression of an input as a tensor."""
        ...

    def local(self, hint: str = "", known: Info | None = None) -> str:
        """A new local variable, which is called by `hint` where nothing else says what it is."""
        ...

    def let(self, value: ast.expr, hint: str = "", known: Info | None = None) -> Ref:
        """Assign an intermediate value to a local variable and return its name."""
        name = self.local(hint, known)
        self.emit(Assign((name,), value, self.scope, self.nodes))
        return Ref(name)

    def role(self, arg: Arg | None, name: str) -> None:
        """Call an input's local variable by the role it plays here ("mask"), unless it has one already."""
        ...

    def emit(self, statement: Statement) -> None:
        """Append a statement to the block that is being written."""
        ...

    def writing(self, block: list[Statement]) -> AbstractContextManager[None]:
        """Meanwhile statements go into this block."""
        ...

    def unpack(self, value: ast.expr, count: int | None = None, form: str = "") -> Unpack:
        """One expression for all outputs; `count`: how many it yields (default: as many as the node has).

        `form`: how they are nested, `"{}, ({}, {})"`.
        """
        return Unpack(value, len(self.node.outputs) if count is None else count, form)

    def module(self, role: str, build: ast.expr, **keys: Source | Arg | None) -> MemberRef | None:
        """A submodule such as `nn.Conv2d(...)`, whose state-dict tensors `keys` are made of stored tensors.

        Returns None where the tensors can't be the module's own: one of them is computed, or is a parameter whose
        name in the file says that it belongs elsewhere. The caller then writes the functional form.
        """
        ...

    def parameter(
        self, arg: Arg, label: str = "", transposed: bool = False, shape: tuple[int, ...] | None = None
    ) -> ast.expr:
        """A stored tensor that is trained, as a parameter of its own that the original called `label`.

        `transposed`: the parameter is the matrix turned back. `shape`: what it had before an axis of 1 was folded in.
        """
        ...

    def buffer(self, array: NDArray[Any], hint: str = "constant", dtype: ir.DataType | None = None) -> ast.expr:
        """A constant tensor: a non-persistent buffer, equal ones shared within one scope."""
        ...

    def texts(self, items: list[str], hint: str = "words") -> ast.expr:
        """A vector of strings: spelled out if they are few, else in the sidecar."""
        return self.buffer(np.array(items, dtype=object), hint, ir.DataType.STRING)

    def helper(self, name: str) -> ast.expr:
        """A function or class of the plugin, whose source is copied into the generated file.

        It is read as text from the top level of the plugin's file, or of one file of its package, with what it uses of
        that file and its imports; so the file may import torch without this one doing so.
        """
        ...

    def imported(self, module: str, name: str) -> ast.expr:
        """Import `name` from a module in the generated file, which then needs that module."""
        ...

    def block(self, graph: ir.Graph, inputs: list[ast.expr]) -> tuple[list[Statement], list[ast.expr]]:
        """The statements of a subgraph whose inputs are the given expressions, and its outputs' expressions."""
        ...

    def numbers(self, *args: Arg) -> list[Any]:
        """Operands of an elementwise operator: one-element constants as Python numbers where that changes nothing.

        At least one operand stays a tensor, and a number never lowers the rank of the result.
        """
        ranks = [a.rank for a in args]
        best = max((r for a, r in zip(args, ranks) if r is not None and a.number is None), default=-1)
        kept = None
        if best < 0 and None not in ranks:  # all are numbers: one of the highest rank stays a tensor
            best = max(r for r in ranks if r is not None)
            kept = ranks.index(best)
        operands: list[Any] = []
        for i, (arg, rank) in enumerate(zip(args, ranks)):
            number = arg.number if rank is not None and rank <= best and i != kept else None
            operands.append(arg if number is None else number)
        return operands

    def note(self, text: str) -> None:
        """Something a person should know about the result; shown in the summary."""
        ...

    def error(self, what: str, help: str = "") -> OnnxgenError:
        """A problem with this node, to be raised; all nodes' problems are reported together."""
        return OnnxgenError(self.problem(what, help))

    def problem(self, what: str, help: str = "") -> Problem:
        domain = f"{self.node.domain}." if self.node.domain else ""
        return Problem(
            sentence(what),
            told(self.node),
            printable(domain + self.node.op_type),
            self.opset,
            help,
        )
