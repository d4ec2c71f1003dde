"""Constants in the flat body, as expressions that make exactly their elements, or as parts of others.

- `written` writes a constant as an expression. `validate/constants.py` computes it again.
- `share_beginnings`: of several tables of a module, the longest stands for those that begin it,
  `self.positions[:7]`, since an exporter folded slices of one table.
- `write_fills`: a small constant of one number is no buffer. A statement before its use makes the tensor, of the type
  and on the device of another operand, as an author writes it: `x.new_zeros(4, 1)`.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.literals import tensor_literal, text_literal
from onnxgen.code.module_def import Assign, Loop, Member, Statement, blocks, change_own, flattened, own_expressions
from onnxgen.code.quote import OMIT, DeviceOf, MemberRef, Ref, call, literal, quote, refs, rewrite, walk
from onnxgen.code.torch_api import function_of
from onnxgen.common.names import ModulePath
from onnxgen.errors import WrongTranslation
from onnxgen.passes.roles import FILL
from onnxgen.shapes.info import Info, Shape
from onnxgen.validate.constants import checked

CPU = ast.Constant("cpu")


def written(array: NDArray[Any], dtype: ir.DataType, is_loaded: bool = False) -> ast.expr | None:
    """Return an expression that makes a constant, and check it. None if the constant is large and has no form.

    A form that does not make the very elements is none: they are listed, or stored. A constant that no file has (not
    `is_loaded`) is made on the CPU also where parameters are made on the meta device.
    """
    how = array, dtype, OMIT if is_loaded else CPU, is_loaded
    try:
        return _checked(tensor_literal(*how), array, dtype, is_loaded)
    except WrongTranslation:
        return _checked(tensor_literal(*how, has_form=False), array, dtype, is_loaded)


def _checked(expression: ast.expr | None, array: NDArray[Any], dtype: ir.DataType, is_loaded: bool) -> ast.expr | None:
    return None if expression is None else checked(expression, array, dtype, is_loaded)


def written_text(items: list[str], shape: tuple[int, ...]) -> ast.expr | None:
    """Return an expression that makes an array of strings, and check it; None if there are many."""
    array = np.array(items, dtype=object).reshape(shape)
    return _checked(text_literal(items, shape), array, ir.DataType.STRING, False)


def share_beginnings(body: list[Statement], members: Iterable[Member], tables: Mapping[int, NDArray[Any]]) -> None:
    """Replace each such buffer in the statements. `tables`: the elements of buffers, by the `id` of the member."""
    alike: dict[object, list[Member]] = {}
    for member in members:
        array = tables.get(id(member))
        if array is not None and member.kind == "buffer" and array.ndim > 1:
            kind = member.path[:-1], array.dtype, array.shape[1:], array[:1].tobytes()
            alike.setdefault(kind, []).append(member)
    beginnings: dict[int, tuple[Member, int]] = {}
    for group in alike.values():
        longest = max(group, key=lambda member: len(tables[id(member)]))
        whole = tables[id(longest)]
        for member in group:
            rows = len(array := tables[id(member)])
            if rows < len(whole) and array.tobytes() == whole[:rows].tobytes():
                beginnings[id(member)] = longest, rows
    for statement in flattened(body) if beginnings else ():
        change_own(statement, lambda n: _beginning(n, beginnings))


def _beginning(tree: Any, beginnings: Mapping[int, tuple[Member, int]]) -> Any:
    if not isinstance(tree, MemberRef) or id(tree.member) not in beginnings:
        return None
    table, rows = beginnings[id(tree.member)]
    return quote("t[:n]", t=MemberRef(table), n=rows)


NEAR = 32  # so many values before a layer are asked for their type
UNNAMED = "constant"  # what `Members` calls a buffer without a name
MAX_ELEMENTS = 1 << 14  # a larger constant is kept, and not made in every call
EMPTY = "torch.empty"  # a constant without elements: optimum fills a branch's missing outputs with them
FILLS = {"torch.zeros": "x.new_zeros", "torch.ones": "x.new_ones", "torch.full": "x.new_full", EMPTY: "x.new_empty"}


def write_fills(
    block: list[Statement],
    fills: Mapping[int, tuple[ir.DataType, Shape]],
    infos: dict[str, Info],
    fresh: Callable[[str, Info], str],
    inputs: list[str],
) -> None:
    """Replace the buffers that are fills in a block, its nested blocks included.

    Args:
        block: the statements; changed in place.
        fills: dtype and shape of the constants, by the `id` of the buffer that holds them.
        infos: what is known of each value.
        fresh: returns the id of a new value.
        inputs: the values that exist before the block.
    """
    numbers: dict[tuple[ModulePath, object], set[str]] = {}
    for statement in flattened(block):
        for member in _fills(statement, fills):
            numbers.setdefault((statement.scope, fills[id(member)]), set()).add(ast.unparse(_number(member.build)))
    _Fills(fills, infos, fresh, numbers).write(block, [*inputs])


class _Fills:
    """`numbers`: the numbers of the fills of one type and shape in a scope. The calls of one module may differ in them,
    and are then written alike, as `new_full`."""

    def __init__(
        self,
        fills: Mapping[int, tuple[ir.DataType, Shape]],
        infos: dict[str, Info],
        fresh: Callable[[str, Info], str],
        numbers: Mapping[tuple[ModulePath, object], set[str]],
    ) -> None:
        self.constants, self.infos, self.fresh, self.numbers = fills, infos, fresh, numbers

    def write(self, block: list[Statement], before: list[str]) -> None:
        """Write the fills of a block. `before`: the values that exist before it."""
        changed: list[Statement] = []
        known: dict[object, str] = {}  # of the root, which is called once: a module's calls share no values
        for statement in block:
            for inner in blocks(statement):
                self.write(inner, [*before])
            for member in _fills(statement, self.constants):
                scope = self._scope(statement)
                key = self.constants[id(member)], ast.unparse(member.build)
                if not scope and key in known:
                    _replace(statement, member, known[key])
                    continue
                value = self._written(member, statement, before)
                if value is not None:
                    name = self.fresh(member.path[-1], Info(*self.constants[id(member)]))
                    _replace(statement, member, name)
                    changed.append(Assign((name,), value, scope))
                    if not scope:
                        known[key] = name
            changed.append(statement)
            before += statement.targets
        block[:] = changed

    def _scope(self, statement: Statement) -> ModulePath:
        """Return the module that makes the fills of a statement: for a layer that is given nothing else, the caller."""
        return statement.scope if any(map(refs, own_expressions(statement))) else statement.scope[:-1]

    def _written(self, member: Member, statement: Statement, before: list[str]) -> ast.expr | None:
        """Return the expression that makes the constant; None for floats if no operand has their type.

        A module may be converted to another type of floats. A buffer would be converted with it.
        """
        (dtype, shape), build = self.constants[id(member)], member.build
        assert isinstance(build, ast.Call)
        if not dtype.is_floating_point():
            cpu = [k.value for k in build.keywords if k.arg == "device"]
            on_same_device: ast.expr = rewrite(build, lambda node: DeviceOf() if node in cpu else None)
            return on_same_device
        alike = self._operands(statement, before, dtype)
        if not alike:
            return None
        kind, args = function_of(build), build.args
        differ = len(self.numbers[statement.scope, self.constants[id(member)]]) > 1
        if differ and self._scope(statement) and kind != "torch.full":
            kind, args = "torch.full", [literal(tuple(shape)), _number(build)]
        name = next((n for n in alike if self.infos[n].shape == shape), None)
        if name is not None:
            return call(f"{kind}_like", Ref(name), *args[1:] if kind == "torch.full" else ())
        return ast.Call(quote(FILLS[kind], x=Ref(alike[0])), args, [])

    def _operands(self, statement: Statement, before: list[str], dtype: ir.DataType) -> list[str]:
        """Return the tensors of a type that a statement takes; if it takes none, those before it."""
        operands = [name for tree in own_expressions(statement) for name in refs(tree)]
        if not operands and not self._scope(statement):
            operands = before[:-NEAR:-1]
        return [n for n in operands if self.infos[n].kind == "tensor" and self.infos[n].dtype == dtype]


def _number(build: ast.expr) -> ast.expr:
    assert isinstance(build, ast.Call)
    kind = function_of(build)
    return build.args[1] if kind == "torch.full" else literal(1.0 if kind == "torch.ones" else 0.0)


def _fills(statement: Statement, fills: Mapping[int, tuple[ir.DataType, Shape]]) -> list[Member]:
    if isinstance(statement, Loop):  # its expressions are evaluated in each turn
        return []
    members: dict[int, Member] = {}
    for tree in own_expressions(statement):
        for node in walk(tree):
            if isinstance(node, MemberRef) and id(node.member) in fills and _is_fill(node.member):
                members[id(node.member)] = node.member
    return [m for m in members.values() if _size(fills[id(m)][1]) <= MAX_ELEMENTS]


def _is_fill(member: Member) -> bool:
    """True for a constant of one number that no person gave a name, and for one without elements."""
    name, kind = member.path[-1], function_of(member.build)
    return kind == EMPTY or (kind in FILLS and (name == UNNAMED or FILL.fullmatch(name) is not None))


def _size(shape: Shape) -> int:
    return math.prod(dim if isinstance(dim, int) else MAX_ELEMENTS for dim in shape)


def _replace(statement: Statement, member: Member, name: str) -> None:
    change_own(statement, lambda n: Ref(name) if isinstance(n, MemberRef) and n.member is member else None)
