"""What the values of a class are called after the expressions that use them.

Goes in: a scope. Comes out: `Used`: what a value is joined with, an index of, a factor in, or collected as.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxgen.code.module_def import Assign, If, Loop, Member, Statement, assigned, expressions, flattened
from onnxgen.code.quote import Ref, refs, walk
from onnxgen.code.torch_api import ACTIVATIONS, NORMS
from onnxgen.common.names import singular
from onnxgen.lowering.roles import called, scaled, seen_through
from onnxgen.shapes.info import Info
from onnxgen.structure.clues import NOUNS, weights_of
from onnxgen.structure.scopes import ClassRef, Scope, callee

# operands of functions by their place, as what they are used
OPERANDS = {
    "grid_sample": {1: "grid"}, "affine_grid": {0: "theta"}, "gather": {2: "index"}, "index_select": {2: "index"},
    "take_along_dim": {1: "index"}, "scatter_add": {2: "index"}, "index_add": {2: "index"},
}  # fmt: skip
POOLING = frozenset(("mean", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"))
BOUNDED = frozenset(("sigmoid", "hardsigmoid", "softmax", "tanh", "clamp"))
PROBABILITIES = frozenset(("softmax", "log_softmax", "sigmoid"))
ACTIVATED = {name.rpartition(".")[2] for name in ACTIVATIONS}
LINEAR = "nn.Linear"
HEADS = ("nn.Linear", "nn.Conv1d", "nn.Conv2d")
CORNERS = ("lt", "rb")
WORD_IDS = ("word_ids", "token_ids", "tok_ids")
PLAIN_IDS = ("ids", "input_ids")  # what a table without a name of its own is looked up with; of sequences
INTEGERS = frozenset((ir.DataType.INT32, ir.DataType.INT64))


@dataclass
class Used:
    """How the values of a scope are used, by id.

    Attributes:
        joined: `skip` past a change of size and `residual` for added arguments, if a later value is joined with them.
        parts: `x1`, `x2` for arguments that are only concatenated with each other.
        factors: the values that are factors of a product, here or perhaps in a submodule that they are passed to.
        roles: what one operand of a function or layer is ("index").
        lists: the list that a value is appended to.
        places: the statements that use each value.
        fed: the arguments that are the only operand of a layer.
        hidden: what one linear layer makes, and an activation behind it, for another one alone.
        features: what a part of a network makes for its last layers.
        given: names of arguments by what all their uses are: `input_ids`, `edge_index`, `attention_mask`.
    """

    joined: dict[str, str] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    factors: set[str] = field(default_factory=set)
    roles: dict[str, str] = field(default_factory=dict)
    lists: dict[str, str] = field(default_factory=dict)
    places: dict[str, list[int]] = field(default_factory=dict)
    fed: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)
    features: set[str] = field(default_factory=set)
    given: dict[str, str] = field(default_factory=dict)


def used_as(scope: Scope, infos: Mapping[str, Info], roles: Mapping[str, str]) -> Used:
    """Return how the values of a scope are used. `roles`: those that dataflow has found."""
    return _Reader(scope, infos, roles).run()


class _Reader:
    """Looks at every expression of a scope once.

    Attributes:
        joins: how values are joined with others in the present statement: "skip" by concatenation or a call,
            "residual" by a sum.
    """

    def __init__(self, scope: Scope, infos: Mapping[str, Info], roles: Mapping[str, str]) -> None:
        self.scope, self.infos, self.roles, self.found = scope, infos, roles, Used()
        self.arguments = {a.value for a in scope.inputs}
        self.later = {a.value for a in scope.inputs[1:]}
        self.made = scope.makers()
        self.joins: dict[str, str] = {}
        self.rows: list[list[str]] = []  # concatenated arguments
        self.products: list[tuple[str, str]] = []
        self.factors: list[tuple[ast.expr, ast.expr]] = []
        self.tables: dict[str, list[str]] = {}  # by argument, the tables of embeddings that it is looked up in
        self.compared: Counter[str] = Counter()  # how often an argument is compared with a number
        self.picked: Counter[str] = Counter()  # how often rows of an argument are picked that an index says

    def run(self) -> Used:
        defined: set[str] = set()
        joins: list[dict[str, str]] = []
        for i, statement in enumerate([*self.scope.body, Assign((), ast.Tuple(self.scope.outputs, ast.Load()))]):
            defined.update(assigned(statement))
            self.joins = {}
            here = [node for tree in expressions(statement) for node in walk(tree)]
            for node in here:
                self._see(node)
            carried = statement.targets if isinstance(statement, (Loop, If)) else ()
            for name in dict.fromkeys([*(n.value for n in here if isinstance(n, Ref)), *carried]):
                self.found.places.setdefault(name, []).append(i)
            joins.append(self.joins)
        self._heads()
        self._features()
        self._join(defined, joins)
        self._past()
        self._look_back()
        self._pair_indices()
        self._gates()
        self._scales()
        self._number_parts()
        self._given()
        return self.found

    def _see(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, ast.BinOp):
            self._arithmetic(node)
        elif isinstance(node, ast.Subscript):
            name, operands = called(node.slice)
            self._give(operands[0] if name == "unbind" else node.slice, "index")
            if isinstance(node.value, Ref) and self.found.roles.get(self._base(node.slice)) == "index":
                self.picked[node.value.value] += 1
        elif isinstance(node, ast.Compare) and all(isinstance(one, ast.Constant) for one in node.comparators):
            self.compared[self._base(node.left)] += 1

    def _call(self, node: ast.Call) -> None:
        name, operands = called(node)
        if (member := callee(node)) is not None:
            self._layer(node, member)
        elif name == "cat":
            items = _concatenated(node)
            self._corners(items)
            self._joined(items, "skip")
            self.rows.append([i.value for i in items if isinstance(i, Ref) and i.value in self.arguments])
        elif name == "append" and isinstance(operands[0], Ref) and isinstance(operands[-1], Ref):
            self.found.lists.setdefault(operands[-1].value, operands[0].value)
        for at, role in OPERANDS.get(name, {}).items():
            if at < len(operands):
                self._give(seen_through(operands[at]), role)

    def _layer(self, node: ast.Call, member: Member) -> None:
        if len(node.args) == 1:
            self._fed(node.args[0], member)
        if isinstance(member.build, ClassRef):
            self._joined(node.args[1:], "skip")
            self._multiplied(node.args)
            for argument, name in [*zip(node.args, member.build.scope.given)][1:]:
                if isinstance(argument, Ref) and argument.value in self.later and len(name) > 1:
                    self.found.roles.setdefault(argument.value, name.rstrip("0123456789"))  # as it is called inside
        elif member.layer == "nn.MultiheadAttention" and len(node.args) > 2:
            query, key, value = node.args[:3]
            if isinstance(key, Ref) and isinstance(value, Ref) and key.value == value.value not in refs(query):
                self._give(key, "memory")

    def _fed(self, operand: ast.expr, layer: Member) -> None:
        """Note the only operand of a layer."""
        base = self._base(operand)
        self.found.fed.update({base} & self.arguments)
        if layer.layer == "nn.Embedding":
            self.tables.setdefault(base, []).append("".join(layer.path[-1:]))
        if layer.layer == LINEAR and isinstance(operand, Ref) and self._is_activated(base):
            self.found.hidden.add(base)

    def _corners(self, items: list[ast.expr]) -> None:
        """Name the distances from a point to a box's left and top, and to its right and bottom."""
        if len(items) != 2 or not all(isinstance(item, ast.BinOp) for item in items):
            return
        first, second = (item for item in items if isinstance(item, ast.BinOp))
        is_pair = isinstance(first.op, ast.Sub) and isinstance(second.op, ast.Add)
        if is_pair and ast.dump(first.left) == ast.dump(second.left):
            values = tuple(end.value for end in (first.right, second.right) if isinstance(end, Ref))
            if any(values == statement.targets for statement in self.scope.body):
                self.found.roles.update(zip(values, CORNERS))

    def _arithmetic(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Mult):
            self._multiplied([node.left, node.right])
            self.products.append((self._base(node.left), self._base(node.right)))
            self.factors.append((node.left, node.right))
        elif isinstance(node.op, ast.Add):
            for side in (node.left, node.right):
                if isinstance(side, Ref) and set(refs(node)) != {side.value}:
                    self.joins.setdefault(side.value, "residual")
        elif isinstance(node.op, ast.Div) and (weights := weights_of(node)) and self._is_of_integers(weights):
            self.found.roles.setdefault(weights, "mask")

    def _is_activated(self, value: str) -> bool:
        """True for what a linear layer makes with an activation behind it."""
        name, operands = called(self.made.get(value, ast.Tuple([])))
        layer = callee(operands[0]) if name in ACTIVATED and operands else None
        return layer is not None and layer.layer == LINEAR

    def _is_of_integers(self, value: str) -> bool:
        """True for a value that is made of integers or truth values alone, which it is but for its type."""
        tree = self.made.get(value)
        values = [value] if tree is None else refs(tree)
        return bool(values) and all(self.infos.get(v, Info()).dtype in (*INTEGERS, ir.DataType.BOOL) for v in values)

    @staticmethod
    def _base(tree: ast.AST) -> str:
        base = seen_through(tree)
        return base.value if isinstance(base, Ref) else ""

    def _joined(self, items: Iterable[ast.AST], how: str) -> None:
        for item in items:
            if isinstance(item, Ref):
                self.joins.setdefault(item.value, how)

    def _multiplied(self, sides: Iterable[ast.AST]) -> None:
        self.found.factors.update(map(self._base, sides))

    def _give(self, node: ast.AST, role: str) -> None:
        """Give a role to a value. An index is a tensor of integers."""
        if not isinstance(node, Ref):
            return
        facts = self.infos.get(node.value, Info())
        is_index = facts.dtype in INTEGERS and bool(facts.rank)
        if is_index == (role == "index"):
            self.found.roles.setdefault(node.value, role)

    def _join(self, defined: set[str], joins: list[dict[str, str]]) -> None:
        """Name the values that are joined with a later one."""
        end = len(self.scope.body)
        for name, at in self.found.places.items():
            how = joins[at[-1]].get(name, "")
            if name not in defined:
                if how and len(at) == 1 and (how == "residual" or self._has_places(name)):
                    self.found.joined[name] = how
            elif how == "skip" and at[0] < min(at[-1], end) and self._changes(name, at[0]):
                self.found.joined[name] = how

    def _heads(self) -> None:
        """Call that `logits` of which a network makes probabilities in its last step."""
        results = {o.value for o in self.scope.outputs if isinstance(o, Ref)}
        last = [s.value for s in self.scope.body if isinstance(s, Assign) and results.intersection(s.targets)]
        for tree in [*self.scope.outputs, *last] if self.scope.is_root else ():
            name, operands = called(seen_through(tree))
            base = self._base(operands[0]) if name in PROBABILITIES else ""
            if base not in ("", *self.arguments, *results) and len(self.found.places[base]) == 1:
                self.found.roles.setdefault(base, "logits")

    def _features(self) -> None:
        """Find that of which the last layers of a network make its only result, if a part of the network makes it."""
        if not self.scope.is_root or len(self.scope.outputs) != 1:
            return
        output = self.scope.outputs[0]
        base, layers = _below_heads(self.made.get(output.value, output) if isinstance(output, Ref) else output)
        maker = seen_through(self.made.get(base.value, base)) if base is not None else None
        if (norm := callee(maker)) is not None and norm.layer in NORMS and isinstance(maker, ast.Call):
            maker = seen_through(maker.args[0])
        member = callee(maker)
        is_part = member is not None and (isinstance(member.build, ClassRef) or member.layer == "nn.Sequential")
        if base is not None and layers and is_part and member is not None and singular(member.path[-1]) not in NOUNS:
            self.found.features.add(base.value)

    def _past(self) -> None:
        """Name the keys and values of earlier calls, to which new ones are joined."""
        for statement in self.scope.body:
            role = self.roles.get(statement.targets[0], "") if len(statement.targets) == 1 else ""
            if role in ("k", "v") and isinstance(statement, Assign):
                items = _concatenated(statement.value)
                if len(items) == 2 and isinstance(items[0], Ref) and self.roles.get(items[0].value, role) == role:
                    self.found.roles.setdefault(items[0].value, f"past_{role}")

    def _look_back(self) -> None:
        """Give the role of a value to the one that it is a view of, if that is used for nothing else."""
        for statement in reversed(self.scope.body):
            role = self.found.roles.get(statement.targets[0], "") if len(statement.targets) == 1 else ""
            if not role or not isinstance(statement, Assign) or is_part(statement.value):
                continue
            base = self._base(statement.value)
            if base and len(self.found.places[base]) == 1:
                self.found.roles.setdefault(base, role)

    def _gates(self) -> None:
        """Leave the factors out of products of sigmoids only, which are probabilities."""
        for product in self.products:
            if all(name in self.made and called(seen_through(self.made[name]))[0] == "sigmoid" for name in product):
                self.found.factors.difference_update(product)

    def _scales(self) -> None:
        """Call what is pooled and bounded `scale`, if a product takes nothing else of it, on its whole way there."""
        for side in (side for product in self.factors for side in product):
            steps, way = set[str](), list[str]()
            tree: ast.AST = side
            while True:
                functions, tree = _unary(tree)
                steps |= functions
                if not isinstance(tree, Ref) or tree.value not in self.made or len(self.found.places[tree.value]) > 1:
                    break
                way.append(tree.value)
                tree = self.made[tree.value]
            if steps & POOLING and steps & BOUNDED:
                self.found.roles.update({value: "scale" for value in way if value not in self.found.roles})

    def _pair_indices(self) -> None:
        """Call two indices that come together `i` and `j`."""
        together = [s.targets for s in self.scope.body] + [tuple(a.value for a in self.scope.inputs)]
        for values in together:
            pair = [value for value in values if self.found.roles.get(value) == "index"]
            if len(pair) == 2:
                self.found.roles.update(zip(pair, "ij"))
        for statement in self.scope.body:
            if isinstance(statement, Assign) and self.found.roles.get("".join(statement.targets)) == "index":
                role = self.found.roles.get(self._base(statement.value), "")
                self.found.roles[statement.targets[0]] = role or "index"

    def _has_places(self, name: str) -> bool:
        """True unless a value is known to be vectors, which skip no layers."""
        shape = self.infos.get(name, Info()).shape
        return shape is None or len(shape) > 2

    def _changes(self, name: str, at: int) -> bool:
        """True if the result of the statement at `at` has another spatial size than this value."""
        user: Statement = self.scope.body[at]
        if isinstance(user, Assign) and isinstance(user.value, Ref) and len(user.targets) == 1:  # carried into a loop
            carried = user.targets[0]
            inside = (s for s in flattened(self.scope.body[at + 1 :]) if isinstance(s, Assign))
            user = next((s for s in inside if carried in refs(s.value)), user)
        mine = self.infos.get(name, Info()).shape
        other = self.infos.get(user.targets[0], Info()).shape if user.targets else None
        if user is not self.scope.body[at] and other is None:  # each turn has another size
            return mine is not None and len(mine) > 2
        return mine is not None and other is not None and len(mine) > 2 and mine[2:] != other[2:]

    def _given(self) -> None:
        """Name the arguments that are integers, or picked by them, if all their uses say the same."""
        uses = self.scope.uses()
        kinds = {value: self._of_integers(value, uses[value]) for value in self.arguments}
        names = {value: name for value, name in kinds.items() if name}
        ids = [value for value, name in names.items() if name.endswith("ids")]
        if len(ids) == 1 and names[ids[0]] in WORD_IDS:
            names[ids[0]] = PLAIN_IDS[1]
        counts = Counter(_kind_of(name) for name in names.values())
        self.found.given = {value: name for value, name in names.items() if counts[_kind_of(name)] == 1}
        points = [value for value in self.arguments if self._is_point(value) and self.picked[value] == uses[value]]
        self.found.given.update(dict.fromkeys(points if "edge_index" in counts else (), "pos"))

    def _is_point(self, value: str) -> bool:
        shape = self.infos.get(value, Info()).shape
        return shape is not None and shape[-1:] in ((2,), (3,))

    def _of_integers(self, value: str, uses: int) -> str:
        """Return what all uses of an argument of integers say, or ""."""
        facts, tables = self.infos.get(value, Info()), self.tables.get(value, [])
        if facts.dtype not in INTEGERS:
            return ""
        if tables and len(tables) + self.compared[value] == uses:
            return _ids_of(tables, facts.rank)
        if self._is_of_edges(value, facts.shape):
            return "edge_index"
        return "attention_mask" if self.compared[value] and self._is_mask(value, uses) else ""

    def _is_of_edges(self, value: str, shape: Sequence[object] | None) -> bool:
        """True for two rows of integers that are only indices: where each edge of a graph begins and ends."""
        ends = [s.targets for s in self.scope.body if isinstance(s, Assign) and value in refs(s.value)]
        if shape is None or len(shape) != 2 or shape[0] != 2 or len(self.found.places.get(value, ())) != 1 or not ends:
            return False
        return len(ends[0]) == 2 and all(self.found.roles.get(end) in ("i", "j") for end in ends[0])

    def _is_mask(self, value: str, uses: int) -> bool:
        """True if an argument is compared with a number, and is else the mask of a mean."""
        views = [name for name, tree in self.made.items() if set(refs(tree)) == {value}]
        masks = [name for name in views if self.found.roles.get(name) == "mask"]
        return bool(masks) and len(masks) + self.compared[value] == uses

    def _number_parts(self) -> None:
        """Name arguments that are only concatenated with each other: `x1`, `x2`, `x3`."""
        uses = self.scope.uses() if any(len(row) > 1 for row in self.rows) else Counter[str]()
        for row in self.rows:
            parts = [value for value in row if uses[value] == 1]
            if len(parts) > 1:
                self.found.parts = {value: f"x{i}" for i, value in enumerate(parts, 1)}
                return


def _kind_of(name: str) -> str:
    """Return a name, "" for all plain ids."""
    return "" if name in PLAIN_IDS else name


def _below_heads(tree: ast.AST) -> tuple[Ref | None, int]:
    """Return the value that the last layers of a network take, and how many these are; None if there is more there."""
    layers = 0
    while not isinstance(tree := seen_through(tree), Ref):
        member, (name, operands) = callee(tree), called(tree)
        if member is not None and member.layer in HEADS and isinstance(tree, ast.Call):
            layers, tree = layers + 1, tree.args[0]
        elif name in ACTIVATED | PROBABILITIES:
            tree = operands[0]
        else:
            return None, 0
    return tree, layers


def _ids_of(tables: Sequence[str], rank: int | None) -> str:
    """Return the name of what tables of embeddings are looked up with: `word_ids` for `word_embeddings`."""
    words = {re.sub(r"_?(embedding|embed|emb)s?$", "", table) for table in tables}
    word = words.pop() if len(words) == 1 else ""
    if len(word) > 2 and word != tables[0] and word.isidentifier():
        return f"{word}_ids"
    return PLAIN_IDS[rank == 2]


def _unary(tree: ast.AST) -> tuple[set[str], ast.AST]:
    """Return the functions that an expression applies in turn, and to what: layers too, and arithmetic with numbers."""
    functions = set[str]()
    while not isinstance(tree, Ref):
        name, operands = called(tree)
        functions.add(name)
        member = callee(tree)
        if isinstance(tree, ast.BinOp):
            inner: ast.AST = scaled(tree)
        elif isinstance(tree, ast.Call) and member is not None and len(tree.args) == 1:
            inner = tree.args[0]
        else:
            inner = operands[0] if operands else tree
        if inner is tree:
            break
        tree = inner
    return functions, tree


def is_part(tree: ast.AST) -> bool:
    """True if an expression takes a part of a value."""
    return any(isinstance(node, ast.Subscript) for node in walk(tree))


def _concatenated(tree: ast.AST) -> list[ast.expr]:
    """Return what an expression concatenates, if it only does that."""
    name, operands = called(tree)
    return operands[0].elts if name == "cat" and operands and isinstance(operands[0], ast.List) else []
