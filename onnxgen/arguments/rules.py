"""How the sizes of values and members depend on each other.

Goes in: the flat module. Comes out: its sizes, `Related`. Each layer and function has a rule that ties the sizes of its
operands and its result. What has no rule fixes all sizes that it sees. A rule whose result does not have the shape that
is known of the value does not count either.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from typing import Any

from onnxgen.arguments.counts import is_map, part_of
from onnxgen.arguments.sizes import Operands, Related, Shapes, Size, Sizes, Unknown, is_integer, number, slot
from onnxgen.code.module_def import Assign, If, Member, ModuleDef, Statement, assigned, blocks, expressions
from onnxgen.code.quote import MemberRef, Ref, value_of
from onnxgen.code.style import PARTS as PARTS_OF_ONE
from onnxgen.code.torch_api import ACTIVATIONS, CELLS, CONVOLUTIONS, NORMS, PARTS, RECURRENT, TRANSPOSED, function_of
from onnxgen.lowering.roles import called
from onnxgen.structure.consumers import INTEGERS
from onnxgen.structure.literals import is_literal

# functions of one tensor, by their last names, whose result has its shape
SAME = {name.rpartition(".")[2] for name in ACTIVATIONS} | set(
    "clamp exp log log10 log2 sqrt rsqrt abs neg sin cos erf square reciprocal float to half bool long softmax "
    "log_softmax normalize dropout logsigmoid softsign contiguous clone cumsum sign floor ceil round log1p expm1 "
    "relu6 logical_not".split()
)
BROADCAST = frozenset("where maximum minimum pow logical_and logical_or atan2 masked_fill".split())
REDUCING = frozenset("mean sum amax amin std var logsumexp vector_norm prod all any argmax argmin".split())
POOLING = {"interpolate", *(f"{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_avg") for n in (1, 2, 3))}


def relate(module: ModuleDef) -> Related:
    """Return how the sizes of a network depend on each other."""
    rules = Rules(module)
    rules.block(module.body)
    for tie in module.ties:
        pair = [(tie.kept, tie.kept_key), (tie.tied, tie.tied_key)]
        try:
            if tie.kept.layer == tie.tied.layer and tie.kept_key == tie.tied_key:
                rules.tie(rules.of_call(tie.kept), rules.of_call(tie.tied))
            else:
                rules.tie(*(rules.weight(member, key) for member, key in pair))
        except (Unknown, ValueError):
            rules.related.fix(size for member, _ in pair for size in rules.of_call(member))
    return rules.related


class Rules(Shapes):
    """The rules, for one network. A method that knows none raises one of the errors that `relate` expects."""

    def block(self, body: Sequence[Statement]) -> None:
        """Relate the sizes of some statements. Both branches of an `if` assign values of the same names."""
        for statement in body:
            if isinstance(statement, If):
                self.fix([statement.test])
                for branch in blocks(statement):
                    self.block(branch)
                continue
            try:
                if not isinstance(statement, Assign):
                    raise Unknown
                for result, target in zip(self.results(statement), statement.targets, strict=True):
                    if target in self.used:  # of a last state, which is not, the shape may be unknown
                        sizes = self.of_value(target)
                        self.tie(result or (None,) * len(sizes), sizes)
            except (Unknown, ValueError, IndexError, KeyError, TypeError, AttributeError):
                self.fix([*expressions(statement), *map(Ref, assigned(statement))])

    def results(self, statement: Assign) -> Sequence[Sizes | None]:
        """Return the sizes of what a statement assigns."""
        tree = statement.value
        if len(statement.targets) == 1:
            return [self.sizes(tree)]
        if isinstance(tree, ast.Call) and called(tree)[0] in PARTS:
            return self._parts(tree, len(statement.targets))
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, MemberRef):
            raise Unknown
        self.fix([keyword.value for keyword in tree.keywords])
        return self._several(tree.func.member, tree.args)[: len(statement.targets)]

    def sizes(self, tree: ast.expr) -> Sizes:
        """Return the sizes of a tensor, or () of a number."""
        match tree:
            case Ref():
                return self.of_value(tree.value)
            case MemberRef():
                return self.of_tensor(tree.member)
            case ast.Attribute(inner, "T"):
                return self.sizes(inner)[::-1]
            case ast.Attribute(MemberRef() as layer, key):
                return self.weight(layer.member, key)
            case ast.Constant():
                return ()
            case ast.UnaryOp(_, inner):
                return self.sizes(inner)
            case ast.Compare(left, _, others):
                return self.broadcast([self.sizes(left), *map(self.sizes, others)])
            case ast.BinOp(left, ast.MatMult(), right):
                return self._matmul(self.sizes(left), self.sizes(right))
            case ast.BinOp(left, _, right):
                return self.broadcast([self.sizes(left), self.sizes(right)])
            case ast.Subscript():
                return self._item(tree)
        if function_of(getattr(tree, "value", tree)) == "torch.finfo":
            return ()
        if not isinstance(tree, ast.Call):
            raise Unknown
        if not isinstance(tree.func, MemberRef):
            return self._function(tree)
        if tree.func.member.layer not in CELLS:
            self.fix(tree.args[1:])
        return self._layer(tree.func.member, tree.args)

    def _item(self, tree: ast.Subscript) -> Sizes:
        """`x[:, 0, None]`, where a part of an axis is always the same part."""
        if isinstance(tree.value, ast.Call) and isinstance(tree.value.func, MemberRef):
            return self._several(tree.value.func.member, tree.value.args)[value_of(tree.slice)]  # type: ignore
        left = list(self.sizes(tree.value))
        axes: list[Size | None] = []
        indices = tree.slice.elts if isinstance(tree.slice, ast.Tuple) else [tree.slice]
        for i, index in enumerate(indices):
            match index:
                case ast.Constant(None):
                    axes.append(self.fixed(1))
                case ast.Constant(value) if value is ...:
                    behind = sum(map(_takes_axis, indices[i + 1 :]))
                    axes += left[: len(left) - behind]
                    left = left[len(left) - behind :]
                case ast.Slice(None, None, None):
                    axes.append(left.pop(0))
                case ast.Slice():
                    self.related.fix([left.pop(0)])
                    axes.append(None)
                case _ if is_integer(index) or isinstance(index, ast.UnaryOp):
                    axis = left.pop(0)
                    self.related.fix([axis] if value_of(index) not in (0, -1) else [])
                case Ref() if len(indices) == 1 and self.infos[index.value].dtype in INTEGERS:
                    left = [*self.of_value(index.value), *left[1:]]  # rows of a table
                case _:
                    raise Unknown
        return (*axes, *left)

    def _matmul(self, a: Sizes, b: Sizes) -> Sizes:
        self.tie(a[-1:], b[-2:-1])
        return (*self.broadcast([a[:-2], b[:-2]]), a[-2], b[-1]) if len(a) > 2 or len(b) > 2 else (a[-2], b[-1])

    def _parts(self, tree: ast.Call, count: int) -> list[Sizes]:
        """`x.chunk(3, dim=-1)`, `x.unbind(0)`."""
        name, operands = called(tree)
        sizes, options = self.sizes(operands[0]), _literals(tree)
        if name == "unbind":
            axis = options.get("dim", value_of(operands[1]) if operands[1:] else 0)
            self.related.fix([sizes[axis]])
            return [(*sizes[:axis], *sizes[axis % len(sizes) + 1 :])] * count
        if name == "split":
            return self._split(sizes, value_of(operands[1]), options.get("dim", 0) % len(sizes))
        if name != "chunk" or value_of(operands[1]) != count:
            raise Unknown
        axis = options.get("dim", value_of(operands[2]) if operands[2:] else 0) % len(sizes)
        return [_with(sizes, axis, self._share(sizes[axis], count))] * count

    def _split(self, sizes: Sizes, numbers: list[int], axis: int) -> list[Sizes]:
        """`x.split([64, 18], dim=1)`: what a value has is the sum of the parts."""
        parts = [self.related.add(part_of(numbers, i), each) for i, each in enumerate(numbers)]
        whole = self.related.add(("split", *parts), sum(numbers))
        self.related.sums[whole] = parts
        self.tie((whole,), (sizes[axis],))
        return [_with(sizes, axis, part) for part in parts]

    def _share(self, size: Size, count: int) -> Size:
        whole = self.related.value[size]
        if not isinstance(whole, int) or whole % count:
            raise Unknown
        return self.related.add_tied(("part", count, size), whole // count, size)

    # ------------------------------------------------------------------------------------------ layers

    def _layer(self, member: Member, args: list[ast.expr]) -> Sizes:
        layer, x = member.layer, self.sizes(args[0])
        one, two = slot(member, 0), slot(member, 1)
        if layer == "nn.Linear":
            self.tie(x[-1:], (one,))
            return (*x[:-1], two)
        if layer in CONVOLUTIONS | TRANSPOSED:
            return self._convolution(member, x)
        if layer == "nn.Embedding":
            return (*x, two)
        if layer in ("nn.LayerNorm", "nn.RMSNorm"):
            sizes = tuple(s for s in self.of_call(member) if s[2] == 0)
            self.tie(x[-len(sizes) :], sizes)
        elif layer == "nn.GroupNorm":
            self.tie(x[1:2], (two,))
            if self.related.value[one] == self.related.value[two]:
                self.related.tie(two, one)
        elif layer in NORMS or (layer == "nn.PReLU" and self.related.value[one] != 1):
            self.tie(x[1:2], (one,))
        elif layer in CELLS:
            self._carry(args[1:], two)
            self.tie(x[-1:], (one,))
            return (*x[:-1], two)
        elif layer != "nn.PReLU" and layer not in PARTS_OF_ONE:
            raise Unknown
        return x

    def _convolution(self, member: Member, x: Sizes) -> Sizes:
        rank = int(member.layer[-2])
        axis = len(x) - rank - 1
        one, two, groups = slot(member, 0), slot(member, 1), slot(member, "groups")
        self.tie((x[axis],), (one,))
        self.related.fix(x[axis + 1 :])
        number = self.related.value.get(groups, 1)
        if number != 1 and number != self.related.value[one]:
            self.related.fix([one, two])
        elif number != 1:
            self.related.tie(one, groups)
            self.related.tie(one, two)
        return (*x[:axis], two, *[None] * rank)

    def _several(self, member: Member, args: list[ast.expr]) -> Sequence[Sizes | None]:
        """Return the results of a layer that has several; None for one of which little is known."""
        one, two, options = slot(member, 0), slot(member, 1), {keyword.arg for keyword in member.build.keywords}  # type: ignore[attr-defined]
        x = self.sizes(args[0])
        if member.layer in CELLS:
            return [self._layer(member, args)] * 2
        if member.layer == "nn.MultiheadAttention":
            if options & {"kdim", "vdim"}:
                raise Unknown
            for sizes in map(self.sizes, args[:3]):
                self.tie(sizes[-1:], (one,))
            return [x, None]
        if member.layer not in RECURRENT or "proj_size" in options:
            raise Unknown
        self.tie(x[-1:], (one,))
        self._carry(args[1:], two)
        wide = two
        if "bidirectional" in options:
            wide = self.related.add_tied(("both", two), 2 * self.related.value[two], two)
        state = (None, None, two) if len(x) == 3 else (None, two)
        return [(*x[:-1], wide), state, state]

    def _carry(self, states: Sequence[ast.expr], width: Size) -> None:
        """The state that a recurrent layer is given has its width."""
        for state in (part for one in states for part in (one.elts if isinstance(one, ast.Tuple) else [one])):
            sizes = self.sizes(state)
            self.related.fix(sizes[:-1])
            self.tie(sizes[-1:], (width,))

    # ------------------------------------------------------------------------------------------ functions

    def _function(self, tree: ast.Call) -> Sizes:
        name, operands = called(tree)
        options = _literals(tree)
        self.fix([keyword.value for keyword in tree.keywords])
        if name in BROADCAST:
            return self.broadcast([*map(self.sizes, operands)])
        if name in ("cat", "stack"):
            items = operands[0].elts if isinstance(operands[0], ast.List) else []
            return self._joined(name, [*map(self.sizes, items)], options.get("dim", 0))
        if name in ("scaled_dot_product_attention", "matmul", "bmm", "linear", "expand_as"):
            return self._of_tensors(name, [*map(self.sizes, operands)])
        x = self.sizes(operands[0])
        if name in SAME:
            self.fix(operands[1:])
            return x
        if name == "unflatten" and not is_literal(operands[2]):
            return self._opened(x, value_of(operands[1]), operands[2])
        if name in POOLING:
            return self._resized(x, 2)
        if name == "expand":
            return self._expanded(x, operands[1:])
        numbers = [*map(value_of, operands[1:])]
        if name in REDUCING:
            return self._reduced(x, options.get("dim", numbers[0] if numbers else None), options.get("keepdim", False))
        if name == "pad":
            return self._resized(x, len(x) - len(numbers[0]) // 2)
        return self._moved(name, x, numbers)

    def _resized(self, x: Sizes, kept: int) -> Sizes:
        """The last axes get other sizes."""
        self.related.fix(x[kept:])
        return (*x[:kept], *[None] * (len(x) - kept))

    def _moved(self, name: str, x: Sizes, numbers: list[Any]) -> Sizes:
        """Functions that arrange axes in another way."""
        match name, numbers:
            case "permute", order:
                return tuple(x[i] for i in order)
            case "transpose" | "swapaxes", [a, b, *_]:
                order = [*range(len(x))]
                order[a], order[b] = order[b], order[a]
                return tuple(x[i] for i in order)
            case "squeeze", [axis, *_]:
                self.related.fix([x[axis]])
                return tuple(size for i, size in enumerate(x) if i != axis % len(x))
            case "unsqueeze", [axis, *_]:
                at = axis % (len(x) + 1)
                return (*x[:at], self.fixed(1), *x[at:])
            case "flatten", [begin, *more]:
                start, end = begin % len(x), (more[0] if more else -1) % len(x) + 1
                return (*x[:start], self.product(x[start:end]), *x[end:])
            case "reshape", _ if len(x) == 2 and is_map(numbers):
                channels = self.related.add_tied(part_of(numbers, 0), numbers[1], x[1])
                return (x[0], channels, *map(self.fixed, numbers[2:]))
            case "unflatten", [axis, parts, *_]:
                return self._unflattened(x, axis % len(x), parts)
        raise Unknown

    def _unflattened(self, x: Sizes, at: int, parts: Sequence[int]) -> Sizes:
        rest = [n for n in parts if n != -1]
        if len(rest) == len(parts):
            self.related.fix([x[at]])
        inner = (self.fixed(n) if n != -1 else self._share(x[at], math.prod(rest)) for n in parts)
        return (*x[:at], *inner, *x[at + 1 :])

    def _opened(self, x: Sizes, axis: int, parts: ast.expr) -> Sizes:
        """`x.unflatten(0, (-1, y.shape[0]))`: an axis becomes several, whose sizes are those of an input."""
        if not isinstance(parts, ast.Tuple):
            raise Unknown
        self.related.fix([x[axis]])
        inner = [self.fixed(number(part)) if is_integer(part) else None for part in parts.elts]
        at = axis % len(x)
        return (*x[:at], *inner, *x[at + 1 :])

    def _reduced(self, x: Sizes, dims: Any, keeps: bool) -> Sizes:
        axes = {i % len(x) for i in (dims if isinstance(dims, (tuple, list)) else [dims])} if dims is not None else None
        if axes is None:
            return ()
        return tuple(self.fixed(1) if i in axes else s for i, s in enumerate(x) if keeps or i not in axes)

    def _expanded(self, x: Sizes, operands: list[ast.expr]) -> Sizes:
        """`x.expand(2, -1, -1)`: a number is written, so its axis can't change."""
        axes: list[Size | None] = []
        for i, operand in enumerate(operands, len(x) - len(operands)):
            is_kept = isinstance(operand, ast.UnaryOp)
            if not is_kept and i >= 0:
                self.related.fix([x[i]])
            axes.append(x[i] if is_kept else self.fixed(number(operand)) if is_integer(operand) else None)
        return tuple(axes)

    def _joined(self, name: str, items: Operands, axis: int) -> Sizes:
        first = items[0]
        if name == "stack":
            for other in items[1:]:
                self.tie(first, other)
            at = axis % (len(first) + 1)
            return (*first[:at], self.fixed(len(items)), *first[at:])
        at = axis % len(first)
        for other in items[1:]:
            self.tie(_with(first, at, self.fixed(0)), _with(other, at, self.fixed(0)))
        parts = [item[at] for item in items]
        numbers = [self.related.value[part] for part in parts]
        total = self.related.add(("sum", *parts), sum(numbers))
        if len({*numbers}) > 1:
            if all(isinstance(number, int) for number in numbers):
                self.related.fix(part for part in parts if part[0] in self.given)  # what the network takes stays
                self.related.sums[total] = parts
            else:
                self.related.fix([*parts, total])
            return _with(first, at, total)
        for part in parts:  # they change together, so that the sum is in proportion to each
            self.related.tie(total, part)
        return _with(first, at, total)

    def _of_tensors(self, name: str, operands: Operands) -> Sizes:
        if name == "expand_as":
            return self.broadcast(operands)
        if name == "linear":
            x, weight, *bias = operands
            self.tie(x[-1:], weight[1:])
            for sizes in bias:
                self.tie(sizes, weight[:1])
            return (*x[:-1], weight[0])
        if name != "scaled_dot_product_attention":
            return self._matmul(*operands)
        q, k, v, *mask = operands
        self.related.fix(size for sizes in mask for size in sizes)
        self.tie(q[-1:], k[-1:])
        self.tie(k[-2:-1], v[-2:-1])
        return (*self.broadcast([q[:-2], k[:-2], v[:-2]]), q[-2], v[-1])


def _takes_axis(index: ast.expr) -> bool:
    """True unless an index adds an axis."""
    return not isinstance(index, ast.Constant) or index.value is not None


def _literals(tree: ast.Call) -> dict[str | None, Any]:
    return {k.arg: value_of(k.value) for k in tree.keywords if is_literal(k.value)}


def _with(sizes: Sizes, axis: int, size: Size) -> Sizes:
    return (*sizes[:axis], size, *sizes[axis + 1 :])
