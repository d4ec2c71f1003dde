"""Names of local variables.

Goes in: the body of a class, and the clues about its values (`clues.py`). Comes out: a local name for each value. `x`
is reused along a chain; a value that is alive at the same time gets the name of its role, its layer or its function.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable

from onnxgen.code.module_def import Assign, If, Input, Loop, Statement, With, assigned, blocks, expressions, used
from onnxgen.code.quote import MemberRef, Ref, refs, walk
from onnxgen.code.torch_api import ACTIVATIONS, PARTS, SEVERAL
from onnxgen.common.names import UNUSED, LocalName, identifier, local
from onnxgen.lowering.roles import called, seen_through
from onnxgen.shapes.info import Info
from onnxgen.structure.clues import Clues, input_name, is_made_up, is_operation
from onnxgen.structure.nesting import LINE, width
from onnxgen.structure.scopes import ClassRef, Scope, callee

SPARE = ("x", "y", "z")
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]*")
# functions whose result has the name of their operand; a hardsigmoid makes a gate
SAME_NAME = {name.rpartition(".")[2] for name in ACTIVATIONS} - {"hardsigmoid"} | {"dropout", "clamp"}
GATE, PROBABILITIES = "gate", "probs"  # the result of a sigmoid that is a factor of a product, and of any other
# names of the results of functions
RESULTS = {
    "mean": "mean", "var": "var", "std": "std", "vector_norm": "norm", "rsqrt": "scale", "sigmoid": GATE,
    "softmax": "probs", "log_softmax": "log_probs", "argmax": "index", "argmin": "index", "nonzero": "index",
    "argsort": "order", "cumsum": "total", "adaptive_avg_pool1d": "pooled", "adaptive_avg_pool2d": "pooled",
    "adaptive_avg_pool3d": "pooled", "adaptive_max_pool2d": "pooled",
}  # fmt: skip
# names of layers that say nothing about their result
VAGUE = frozenset(
    "conv fc linear dense norm bn ln gn layer block module model net act relu gelu proj lin op stage body head dropout "
    "constant self attn self_attn mlp ffn out output input features part seq sequential h".split()
)
SHORTCUTS = frozenset("downsample down_sample shortcut identity residual res_conv skip_conv proj_shortcut".split())


class Names:
    """Gives every value of one class body a local name. Two values share one only if they are never alive together."""

    def __init__(self, scope: Scope, infos: dict[str, Info], clues: Clues, reserved: frozenset[str]) -> None:
        self.scope, self.infos, self.clues = scope, infos, clues
        self.names: dict[str, LocalName] = {}
        self.busy: dict[str, str] = {}  # name -> the live value that has it
        self._free: dict[str, int] = {}  # base -> a number below which all are taken
        self._number_of: dict[str, tuple[str, int]] = {}  # name -> its base and number
        self.reserved = reserved
        self.arguments = {a.value for a in scope.inputs}
        self.returned = {o.value for o in scope.outputs if isinstance(o, Ref)}
        self.joined = joined(scope, infos)
        self.parts = parts(scope)
        self.factors = factors(scope)
        self.used = {name for s in scope.body for name in used(s)} | {r for o in scope.outputs for r in refs(o)}

    def run(self) -> dict[str, LocalName]:
        """Return the local name of every value."""
        has_main = False
        for argument in self.scope.inputs:
            wanted = self._wanted_argument(argument, has_main)
            self._take(argument.value, wanted)
            has_main = has_main or wanted[0] == "x"
        self._block(self.scope.body, [r for o in self.scope.outputs for r in refs(o)])
        self._number()
        return self.names

    def _wanted_argument(self, argument: Input, has_main: bool) -> list[str]:
        value = argument.value
        sure = input_name(argument, self.scope.is_root, self.infos, self.clues.roles, self.clues.hints)
        if sure:
            return [sure]
        name = self.clues.hint(value)
        hint = name.identifier()
        several = value in self.clues.given and len(self.clues.given & self.arguments) > 1
        if several and _IDENTIFIER.fullmatch(hint) and not is_made_up(name):
            return [hint]  # one of several inputs of the graph
        if value in self.parts:
            return [self.parts[value], "x"]
        if not has_main:
            return [*SPARE, "x"]
        joined = self.joined.get(value)
        weak = [joined] if joined else [self.clues.own[value]] if value in self.clues.own else []
        return [*weak, *SPARE[1:], *weak, "x"]

    def _block(self, block: list[Statement], after: Iterable[str], kept: Container[str] = ()) -> None:
        """Name the values of a block. `after`: values used after it; `kept`: values from outside, which stay alive."""
        last: dict[str, int] = {}
        for i, statement in enumerate(block):
            for name in used(statement):
                last[name] = i
        for name in after:
            last[name] = len(block)
        for i, statement in enumerate(block):
            if not isinstance(statement, Assign):
                self._compound(statement)
            self._release(used(statement), last, i, kept)
            for target in statement.targets:
                if target not in self.names:
                    self._take(target, self._wanted(target, statement, target in last))
                    if target not in last:
                        self._set_free(self.names[target])

    def _compound(self, statement: If | Loop | With) -> None:
        """Name the values of nested blocks. Their names are free again after the block; values outside keep theirs."""
        for name in statement.targets:
            if name not in self.names:
                self._take(name, self._wanted(name, statement, True))
        outside = dict(self.busy)
        if isinstance(statement, Loop):
            inside = {r for e in expressions(statement) for r in refs(e)}
            for name in statement.turn:
                if name in inside:
                    self._take(name, self._wanted(name, statement, True))
                else:
                    self.names[name] = UNUSED
        for block in blocks(statement):
            before = dict(self.busy)
            self._block(block, statement.targets, set(before.values()))
            self.busy = before
            self._free.clear()
        self.busy = outside
        self._free.clear()

    def _release(self, names: list[str], last: dict[str, int], now: int, kept: Container[str]) -> None:
        for name in names:
            if name not in kept and last.get(name) == now and self.busy.get(self.names.get(name, "")) == name:
                if name not in self.arguments or not self.scope.is_root or self.names[name] in SPARE:
                    self._set_free(self.names[name])

    def _set_free(self, name: str) -> None:
        if self.busy.pop(name, None) is not None and name in self._number_of:
            base, n = self._number_of[name]
            self._free[base] = min(n, self._free.get(base, 2))

    def _take(self, value: str, wanted: list[str]) -> None:
        """Give a value the first wanted name that is free, or else the last one with a number."""
        names = [local(name) for name in wanted]
        for name in names:
            if name not in self.busy and name not in self.reserved:
                break
        else:
            base = names[-1]
            n = self._free.get(base, 2)
            while f"{base}{n}" in self.busy or f"{base}{n}" in self.reserved:
                n += 1
            name = local(f"{base}{n}")
            self._free[base] = n + 1
            self._number_of[name] = base, n
        self.names[value] = name
        self.busy[name] = value

    def _number(self) -> None:
        """Number the first of several equal names too: `skip1`, `skip2`."""
        taken = set(self.names.values())
        fixed = {self.names[a] for a in self.arguments}
        for base in dict.fromkeys(base for base, _ in self._number_of.values()):
            if base not in SPARE and base not in fixed and f"{base}1" not in taken | self.reserved:
                self.names = {v: local(f"{base}1") if name == base else name for v, name in self.names.items()}

    def _wanted(self, value: str, statement: Statement, is_used: bool) -> list[str]:
        """Return names for a value that a statement makes, best first."""
        if not is_used:
            return ["_"]
        hint = self.clues.hint(value)
        if self.scope.is_root and value in self.returned and 0 < len(hint.word()) <= 24:
            if not is_made_up(hint) and not is_operation(hint):
                return [hint.identifier()]
        role = self.clues.roles.get(value, "x")
        if role != "x":
            return [role]
        if value in self.joined:
            return [self.joined[value]]
        if isinstance(statement, Assign) and called(seen_through(statement.value))[0] in PARTS:
            if sum(t in self.used for t in statement.targets) > 1:
                return [f"x{statement.targets.index(value) + 1}", "y", "z", "x"]
        weak, vague = ([n for n in names if self._fits(n, statement)] for names in self._weak(value, statement))
        first = [*weak, "x"] if isinstance(statement, Assign) and not used(statement) else ["x", *weak]
        return [*first, "y", *vague, "z", *(weak or ["x"])]

    def _fits(self, name: str, statement: Statement) -> bool:
        """True if the line has room for this name."""
        if not isinstance(statement, Assign):
            return True
        return len(name) + len(" = ") + width(statement.value, self.names, len(self.scope.path)) <= LINE

    def _weak(self, value: str, statement: Statement) -> tuple[list[str], list[str]]:
        """Return names for a value if `x` is taken, and names that say little about it."""
        own = [self.clues.own[value]] if value in self.clues.own else []
        if not isinstance(statement, Assign):
            return own, []
        if len(statement.targets) > 1:
            names = SEVERAL.get(called(seen_through(statement.value))[0], ())
            at = statement.targets.index(value)
            return [*own, *names[at : at + 1]], []
        says, vague = _of_expression(statement.value, own)
        if called(seen_through(statement.value))[0] == "sigmoid" and value not in self.factors:
            says = [PROBABILITIES if name == GATE else name for name in says]
        return says, vague


def _of_expression(tree: ast.expr, weak: list[str]) -> tuple[list[str], list[str]]:
    """Return names for the result of an expression, by the layer or function that makes it."""
    node = seen_through(tree)
    while True:
        name, operands = called(node)
        if name == "mean" and isinstance(operands[0], ast.BinOp) and isinstance(operands[0].op, ast.Pow):
            return [*weak, "variance"], []
        if name in RESULTS:
            return [*weak, RESULTS[name]], []
        if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant):
            node = seen_through(node.left)
        elif name in SAME_NAME and operands:
            node = seen_through(operands[0])
        else:
            break
    member = node.func if isinstance(node, ast.Call) else node
    path = member.member.path if isinstance(member, MemberRef) else ()  # also () for a root that is an nn.Sequential
    if not path or path[-1].isdigit():
        return weak, []
    last = identifier(path[-1])
    if last in SHORTCUTS:
        return [*weak, "identity" if last.startswith("down") else last.removesuffix("_conv")], []
    word = re.sub(r"(_proj|_layer|_linear|_conv|_fc)?_?\d*$", "", last)
    if len(word) < 2 or word.split("_")[-1] in VAGUE or len(last) > 24:
        return weak, [last] if re.search(r"[a-z]\d+$", last) and len(last) <= 24 else []
    return [*weak, last if last[-1].isdigit() else word], []


def joined(scope: Scope, infos: dict[str, Info]) -> dict[str, str]:
    """Name values that are joined with a later one: `skip` past a change of size, `residual` for added arguments."""
    made: dict[str, int] = {}
    uses: dict[str, list[int]] = {}
    for i, statement in enumerate(scope.body):
        made.update(dict.fromkeys(assigned(statement), i))
        for name in used(statement):
            uses.setdefault(name, []).append(i)
    end = len(scope.body)
    for name in (r for o in scope.outputs for r in refs(o)):
        uses.setdefault(name, []).append(end)
    trees = [list(expressions(s)) for s in scope.body] + [scope.outputs]
    joins = [_joins(tree) for tree in trees]
    found: dict[str, str] = {}
    for name, at in uses.items():
        how = joins[at[-1]].get(name, "")
        if name not in made:
            if how and len(at) == 1:
                found[name] = how
        elif how == "skip" and at[0] < min(at[-1], end) and _changes(name, scope.body[at[0]], infos):
            found[name] = how
    return found


def parts(scope: Scope) -> dict[str, str]:
    """Name arguments that are only concatenated with each other: `x1`, `x2`, `x3`."""
    arguments = {a.value for a in scope.inputs}
    uses = scope.uses()
    for node in (n for tree in scope.expressions() for n in walk(tree) if called(n)[0] == "cat"):
        items = called(node)[1][0] if called(node)[1] else None
        found = [i.value for i in items.elts if isinstance(i, Ref)] if isinstance(items, ast.List) else []
        found = [value for value in found if value in arguments and uses[value] == 1]
        if len(found) > 1:
            return {value: f"x{i}" for i, value in enumerate(found, 1)}
    return {}


def factors(scope: Scope) -> frozenset[str]:
    """Return the values that are factors of a product, here or perhaps in a submodule that they are passed to."""
    sides: list[ast.AST] = []
    for node in (n for tree in scope.expressions() for n in walk(tree)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            sides += [node.left, node.right]
        elif isinstance(node, ast.Call) and _calls_class(node):
            sides += node.args
    return frozenset(side.value for side in map(seen_through, sides) if isinstance(side, Ref))


def _changes(name: str, statement: Statement, infos: dict[str, Info]) -> bool:
    """True if the result of a statement has another spatial size than this value."""
    mine = infos.get(name, Info()).shape
    other = infos.get(statement.targets[0], Info()).shape if statement.targets else None
    return mine is not None and other is not None and len(mine) > 2 and mine[2:] != other[2:]


def _joins(trees: list[ast.expr]) -> dict[str, str]:
    """Return how values are joined with others: "skip" by concatenation or a call, "residual" by a sum."""
    found: dict[str, str] = {}
    for node in (n for tree in trees for n in walk(tree)):
        items: Iterable[ast.AST] = ()
        if called(node)[0] == "cat" and isinstance(node, ast.Call) and node.args:
            items = ast.iter_child_nodes(node.args[0])
        elif isinstance(node, ast.Call) and _calls_class(node):
            items = node.args[1:]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            for side in (node.left, node.right):
                if isinstance(side, Ref) and set(refs(node)) != {side.value}:
                    found.setdefault(side.value, "residual")
        for item in items:
            if isinstance(item, Ref):
                found.setdefault(item.value, "skip")
    return found


def _calls_class(tree: ast.AST) -> bool:
    """True for a call of a submodule whose class is in the file."""
    member = callee(tree)
    return member is not None and isinstance(member.build, ClassRef)
