"""What is known about the names of values, alike in all scopes that may share a class."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnxgen.code.module_def import Input, ModuleDef, Statement, assigned, blocks, expressions
from onnxgen.code.quote import MemberRef, Ref, walk
from onnxgen.names import identifier
from onnxgen.propagate.info import Info
from onnxgen.structure.scopes import Scope

# what exporters call values that have no name: functions and operators, torch's and ONNX's
_OPERATIONS = frozenset("""
    abs add addmm all any arange argmax argmin as_strided avg_pool batch_norm bmm cast cat ceil chunk clamp clip clone
    concat constant contiguous conv conv1d conv2d convolution cos div dropout einsum elu embedding eq equal erf exp
    expand flatten floor full gather ge gelu gemm getitem group_norm gt hardswish identity index index_select input
    instance_norm layer_norm le leaky_relu linear log logsoftmax lt masked_fill matmul max max_pool maximum mean min
    minimum mul native_layer_norm ne neg ones out output pad permute pow prelu reciprocal reduce_mean reduce_sum
    reducemean reducesum relu repeat reshape result rsqrt scalar_tensor scaled_dot_product_attention select shape
    sigmoid silu sin slice softmax split sqrt squeeze stack sub sum sym_size tanh tensor tile to topk transpose tril
    triu unflatten unsqueeze val var view where zeros item detach alias copy expand_as size reshape_ type_as float
    """.split())
_MEANINGFUL = re.compile(r"^[a-z][a-z_]{2,23}$")


@dataclass
class Clues:
    """For one scope: what its values are, by id.

    Attributes:
        roles: what each is for sure ("q", "mask").
        hints: the name that each has in the file, whatever it looks like.
        own: that name, where it is one that a person gave.
    """

    roles: dict[str, str]
    hints: dict[str, str]
    own: dict[str, str]


def input_name(
    argument: Input, is_root: bool, infos: Mapping[str, Info], roles: Mapping[str, str], hints: Mapping[str, str]
) -> str:
    """What an argument is called for sure, or "": the graph's names at the root, those of token ids wherever they go.

    `roles`: what is known of values; `hints`: their names in the file.
    """
    value = argument.value
    hint = identifier(hints.get(value, value).removeprefix("size."))
    if is_root:
        return hint
    if roles.get(value, "x") != "x":
        return roles[value]
    dtype = infos.get(value, Info()).dtype
    is_index = dtype is not None and not dtype.is_floating_point() and hint.isidentifier() and hint.islower()
    return hint if argument.annotation != "Tensor" or is_index else ""


def own_name(name: str) -> str:
    """A value's name in the file, if it is an identifier that no exporter made of an operator's name; else ""."""
    plain = name.strip("_")
    is_made = plain in _OPERATIONS or any(part == "val" for part in plain.split("_"))
    return name if _MEANINGFUL.match(name) and len(plain) > 2 and not is_made else ""


def agree(module: ModuleDef, scopes: list[Scope]) -> dict[int, Clues]:
    """The clues of each scope, by `id(scope)`; what equal bodies know differently is settled by the majority."""
    alike: dict[str, list[tuple[Scope, list[str]]]] = defaultdict(list)
    for scope in scopes:
        text, values = _signature(scope)
        alike[text].append((scope, values))
    found: dict[int, Clues] = {}
    for group in alike.values():
        columns = [
            (
                _commonest(module.roles.get(v, "") for v in column),
                _commonest(module.hints.get(v, v) for v in column),
            )
            for column in zip(*(values for _, values in group))
        ]
        for scope, values in group:
            pairs = list(zip(values, columns))
            found[id(scope)] = Clues(
                {v: role for v, (role, _) in pairs if role},
                {v: hint for v, (_, hint) in pairs},
                {v: own_name(hint) for v, (_, hint) in pairs if own_name(hint)},
            )
    return found


def _commonest(texts: Iterator[str]) -> str:
    return Counter(texts).most_common(1)[0][0]


def _signature(scope: Scope) -> tuple[str, list[str]]:
    """A scope's code without names of values and numbers, and its values in the order in which they stand there."""
    made = _Signature(len(scope.path), {a.value: i for i, a in enumerate(scope.inputs)}, [str(len(scope.inputs))])
    made.block(scope.body)
    for output in scope.outputs:
        made.tree(output)
    return " ".join(made.parts), list(made.values)


@dataclass
class _Signature:
    level: int
    values: dict[str, int]
    parts: list[str]

    def block(self, body: list[Statement]) -> None:
        for statement in body:
            nested = blocks(statement)
            inner = {id(e) for block in nested for s in block for e in expressions(s)}
            for expression in expressions(statement):
                if id(expression) not in inner:
                    self.tree(expression)
            for block in nested:
                self.block(block)
            self.parts.append("=" + ",".join(self._number(v) for v in assigned(statement)))

    def _number(self, value: str) -> str:
        return str(self.values.setdefault(value, len(self.values)))

    def tree(self, root: ast.expr) -> None:
        for node in walk(root):
            if isinstance(node, Ref):
                self.parts.append(self._number(node.value))
            elif isinstance(node, MemberRef):
                self.parts.append(".".join(node.member.path[self.level :]))
            elif isinstance(node, ast.Attribute):
                self.parts.append(node.attr)
            elif isinstance(node, ast.Name):
                self.parts.append(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, (str, bool)):
                self.parts.append(repr(node.value))
            else:
                self.parts.append(type(node).__name__)
