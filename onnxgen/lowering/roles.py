"""Finds the roles of values and constants (`q`, `mask`, `cos`, `positions`) from what makes and what uses them.

It works on the flat body, before structure, so that a value has the same name in all classes that it passes through.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from onnxgen.code.module_def import Assign, Member, Statement, assigned, flattened, own_expressions
from onnxgen.code.quote import MemberRef, Ref, walk
from onnxgen.code.torch_api import CELLS, RECURRENT, VIEWS, function_of
from onnxgen.shapes.info import Info

ROLE_OF_FUNCTION = {"cos": "cos", "sin": "sin", "arange": "positions"}
BACKWARD_ROLES = frozenset(
    "q k v qkv mask positions angles scores".split()
)  # go from results to operands of arithmetic
BUFFER_NAMES = {"positions": "position_ids", "angles": ""}  # usual names of buffers with a role
PAIR = {"sin", "cos"}  # of an angle
# what a layer takes beside its input; views of it have the same role
SIDE_INPUT_ROLES = frozenset("cos sin positions mask hidden cell".split())
# recurrent layers and helpers: they take states beside their input and return them beside their result
ALL_RECURRENT = RECURRENT | CELLS | {"onnx_lstm", "onnx_gru", "onnx_rnn"}
STATE_ROLES = ("hidden", "cell")
ALL_STATES = {"hidden": "hidden_states", "cell": "cell_states"}  # the states of several layers
INDEX_FUNCTIONS = frozenset("index_select gather take_along_dim".split())
MAX_STEPS = 8  # steps back from a softmax to look for the product of queries and keys


def called(tree: ast.AST) -> tuple[str, list[ast.expr]]:
    """Return a call's last name and operands, `x.cos()` as `torch.cos(x)`; ("", []) for other expressions."""
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Attribute):
        return "", []
    of = tree.func.value
    while isinstance(of, ast.Attribute):
        of = of.value
    is_function = isinstance(of, ast.Name) and of.id in ("F", "torch")
    return tree.func.attr, list(tree.args) if is_function else [tree.func.value, *tree.args]


def seen_through(tree: ast.AST) -> ast.AST:
    """Return the expression that another is a view of: `x` for `x.transpose(1, 2)[:, None]`."""
    while True:
        name, operands = called(tree)
        if name in VIEWS and operands:
            tree = operands[0]
        elif isinstance(tree, ast.Subscript):
            tree = tree.value
        else:
            return tree


def layer_of(tree: ast.AST) -> str:
    """Return the layer of torch that an expression calls, or ""."""
    match tree:
        case ast.Call(func=MemberRef(member=member)):
            return member.layer
    return ""


def is_number(tree: ast.AST) -> bool:
    """True for a number, which may be negative."""
    return isinstance(tree.operand if isinstance(tree, ast.UnaryOp) else tree, ast.Constant)


def scaled(tree: ast.BinOp) -> ast.expr:
    """Return the operand of arithmetic whose other one is a number; the tree itself if there is none."""
    return tree.right if is_number(tree.left) else tree.left if is_number(tree.right) else tree


def find_roles(
    body: list[Statement], infos: dict[str, Info], roles: dict[str, str], outputs: Iterable[ast.expr] = ()
) -> None:
    """Add to `roles`, and name constants without a name of their own by their role."""
    _Roles(body, infos, roles, outputs).run()


class _Roles:
    """Values and unnamed buffers, both by id. A buffer's id is made of its member's `id()`."""

    def __init__(
        self, body: list[Statement], infos: dict[str, Info], roles: dict[str, str], outputs: Iterable[ast.expr]
    ) -> None:
        self.infos, self.roles = infos, roles
        self.statements: list[Statement] = list(flattened(body))
        self.buffers: dict[str, Member] = {}
        self.assigned: set[str] = set()
        self.makers: dict[str, Assign] = {}
        self.uses: dict[str, list[Assign | None]] = defaultdict(list)  # None: a use that gives no role
        self.operands: dict[int, dict[str, None]] = {}
        self._collect(outputs)

    def _collect(self, outputs: Iterable[ast.expr]) -> None:
        seen = self.assigned
        for statement in self.statements:
            for name in assigned(statement):
                if name in seen:  # assigned again in a branch or a loop
                    self.makers.pop(name, None)
                elif isinstance(statement, Assign):
                    self.makers[name] = statement
                seen.add(name)
            trees = own_expressions(statement)
            if not isinstance(statement, Assign):
                trees += map(Ref, statement.targets)
            operands = dict.fromkeys(name for tree in trees for name in self._ids(tree))
            self.operands[id(statement)] = operands
            for name in operands:
                self.uses[name].append(statement if isinstance(statement, Assign) else None)
        for tree in outputs:
            for name in self._ids(tree):
                self.uses[name].append(None)

    def _ids(self, tree: ast.AST) -> Iterator[str]:
        return filter(None, map(self._id, walk(tree)))

    def _id(self, node: ast.AST) -> str:
        """Return the id of a value or an unnamed buffer; "" for anything else."""
        if isinstance(node, Ref):
            return node.value
        if isinstance(node, MemberRef) and node.member.kind == "buffer" and not node.member.named:
            name = f"buffer {id(node.member)}"
            self.buffers[name] = node.member
            return name
        return ""

    def _base(self, tree: ast.AST) -> str:
        return self._id(seen_through(tree))

    def run(self) -> None:
        for statement in self.statements:
            if isinstance(statement, Assign):
                self._note_result(statement)
                for node in walk(statement.value):
                    self._note_use(node)
        self._angles()
        self._back()
        for name, member in self.buffers.items():
            role = self.roles.pop(name, "")
            role = BUFFER_NAMES.get(role, role) or self._of_buffer(name, member)
            if role and member.path[-1] == "constant":
                member.path = (*member.path[:-1], role)

    def _state(self, names: Iterable[str]) -> str:
        """Return the role of values that are states of one kind, as of several layers, or ""."""
        roles = {self.roles.get(name, "") for name in names}
        return ALL_STATES.get(roles.pop(), "") if len(roles) == 1 else ""

    def _give(self, name: str, role: str) -> None:
        if name and role and self.roles.get(name, "x") == "x":
            self.roles[name] = role

    def _give_back(self, name: str, role: str) -> None:
        """Give a role to a value, and to the values that it is a view or a multiple of.

        It stops at parts of a value, layers' results, sums and the network's inputs, which may have another role.
        """
        for _ in range(MAX_STEPS):
            self._give(name, role)
            maker = self.makers.get(name)
            if maker is None or any(isinstance(n, ast.Subscript) for n in walk(maker.value)):
                return
            base = seen_through(maker.value)
            if isinstance(base, ast.BinOp):
                base = seen_through(scaled(base))
            name = self._id(base)
            maker = self.makers.get(name)
            if maker is None or len(maker.targets) > 1 or _has_layer(maker) or _is_sum(maker.value):
                return

    # ---- roles from the operation that makes or uses a value

    def _note_result(self, statement: Assign) -> None:
        if len(statement.targets) != 1:
            states = statement.targets[layer_of(statement.value) not in CELLS :] if _recurrent(statement.value) else ()
            for target, state in zip(states, STATE_ROLES):
                self._give(target, state)
        else:
            self._give(statement.targets[0], self._role_of_result(statement))

    def _role_of_result(self, statement: Assign) -> str:
        """Return the role that an operation gives to its one result, or ""."""
        base = seen_through(statement.value)
        name, operands = called(base)
        if layer_of(statement.value) in CELLS:
            return STATE_ROLES[0]
        if name in ("stack", "cat") and (state := self._state(self.operands[id(statement)])):
            return state
        if name in ROLE_OF_FUNCTION and (name not in PAIR or self._has_both(operands)):
            return ROLE_OF_FUNCTION[name]
        if self._id(base) and not any(isinstance(n, ast.Slice) for n in walk(statement.value)):
            role = self.roles.get(self._id(base), "")
            return role if role in SIDE_INPUT_ROLES else ""
        is_triangle = name in ("triu", "tril") and not self.operands[id(statement)]
        return "mask" if is_triangle or self._is_mask(statement.targets[0]) else ""

    def _is_mask(self, name: str) -> bool:
        facts = self.infos.get(name, Info())
        return facts.kind == "tensor" and facts.dtype == ir.DataType.BOOL and bool(facts.rank)

    def _has_both(self, operands: list[ast.expr]) -> bool:
        """True if an angle has its sine and its cosine. Other sines are activations."""
        users = self.uses[self._base(operands[0])] if operands else []
        return {called(node)[0] for user in users if user is not None for node in walk(user.value)} >= PAIR

    def _note_use(self, node: ast.AST) -> None:
        name, operands = called(node)
        if name == "scaled_dot_product_attention":
            self._attention(node, operands)
        elif name == "where" and len(operands) == 3 or name == "masked_fill" and len(operands) > 1:
            self._give(self._base(operands[name == "masked_fill"]), "mask")
        elif name == "softmax" and operands:
            self._softmax(self._base(operands[0]))
        elif matmul := _matmul(node):
            maker = self.makers.get(self._base(matmul.left))
            if maker is not None and called(seen_through(maker.value))[0] == "softmax" and self._of_scores(maker):
                self._give_back(self._base(matmul.right), "v")
        elif isinstance(node, ast.Call) and isinstance(node.func, MemberRef) and node.args:
            self._layer(node, node.func.member)

    def _attention(self, node: ast.AST, operands: Sequence[ast.AST]) -> None:
        for operand, role in zip(operands, "qkv"):
            self._give_back(self._base(operand), role)
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if keyword.arg == "attn_mask":
                self._give(self._base(keyword.value), "mask")

    def _layer(self, node: ast.Call, member: Member) -> None:
        """Note the states of a recurrent layer, and the positions of an embedding."""
        if _recurrent(node) and len(node.args) > 1:
            states = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else node.args[1:]
            for state, role in zip(states, STATE_ROLES):
                self._give(self._base(state), role)
        if member.layer == "nn.Embedding" and "pos" in member.path[-1].lower():
            self._give(self._base(node.args[0]), "positions")

    def _of_scores(self, softmax: Assign) -> bool:
        _, operands = called(seen_through(softmax.value))
        return bool(operands) and self.roles.get(self._base(operands[0])) == "scores"

    def _softmax(self, name: str) -> None:
        """Find the scores of attention before a softmax, the q and k that they are made of, and a mask or bias."""
        chain = self._product(name, MAX_STEPS)
        if not chain:
            return
        for value in chain:
            self._give(value, "scores")
        product = next(filter(None, map(_matmul, walk(self.makers[chain[-1]].value))))
        self._give_back(self._base(product.left), "q")
        self._give_back(self._base(product.right), "k")
        for value in chain:
            tree = self.makers[value].value
            if isinstance(tree, ast.BinOp) and isinstance(tree.op, (ast.Add, ast.Sub, ast.Mult)):
                for side in (self._base(tree.left), self._base(tree.right)):
                    if side and side not in chain and (self.infos.get(side, Info()).rank or 0) > 1:
                        self._give(side, "bias" if self._is_trained(side) else "mask")

    def _product(self, name: str, steps: int) -> list[str]:
        """Return the values from `name` back to a matrix product of two values, not of a layer; [] if there is none."""
        maker = self.makers.get(name)
        facts = self.infos.get(name, Info())
        if maker is None or len(maker.targets) != 1 or steps == 0 or (facts.rank or 0) < 3:
            return []
        if len(self.operands[id(maker)]) > 3:  # arithmetic on scores has fewer
            return []
        if any(isinstance(n, ast.Call) and isinstance(n.func, MemberRef) for n in walk(maker.value)):
            return []
        if matmul := next(filter(None, map(_matmul, walk(maker.value))), None):
            return [name] if self._base(matmul.left) and self._base(matmul.right) else []
        further = (self._product(operand, steps - 1) for operand in self.operands[id(maker)])
        path = next(filter(None, further), None)
        return [name, *path] if path else []

    def _is_trained(self, name: str) -> bool:
        for _ in range(MAX_STEPS):
            maker = self.makers.get(name)
            if maker is None:
                return False
            if _has_layer(maker):
                return True
            name = next(iter(self.operands[id(maker)]), "")
        return False

    def _angles(self) -> None:
        """Find values that are used only by cosine and sine."""
        for name, uses in self.uses.items():
            if {self.roles.get(s.targets[0]) if s is not None and s.targets else None for s in uses} == {"cos", "sin"}:
                if all(s is not None and self._base(called(seen_through(s.value))[1][0]) == name for s in uses):
                    self._give(name, "angles")

    # ---- from results to operands

    def _back(self) -> None:
        """Give a value's role to its operand if it has only one, but not through layers.

        If a value is split and joined again in between, the whole before the split gets the role, the parts none.
        """
        inside: dict[str, str] = {}
        for statement in reversed(self.statements):
            for target in statement.targets if isinstance(statement, Assign) else ():
                self._from_uses(target, inside)
        for name in self.buffers:
            self._from_uses(name, inside)
        for name in self.uses:
            if name not in self.buffers and name not in self.assigned:  # the network's inputs
                self._from_uses(name, inside)
                if self.roles.get(name) not in SIDE_INPUT_ROLES:
                    self.roles.pop(name, None)
        self._biases()

    def _biases(self) -> None:
        """Rename masks that a layer or a parameter makes, and views of them, to "bias"."""
        for statement in self.statements:
            if isinstance(statement, Assign) and [self.roles.get(t) for t in statement.targets] == ["mask"]:
                source = self._id(seen_through(statement.value))
                if self.roles.get(source) == "bias" or (not source and _has_layer(statement)):
                    self.roles[statement.targets[0]] = "bias"

    def _from_uses(self, name: str, inside: dict[str, str]) -> None:
        if self.roles.get(name, "x") != "x" or name not in self.uses:
            return
        roles, uses = set[str](), list[Assign]()
        for use in self.uses[name]:
            role = "" if use is None else self._role_of(use, inside)
            if use is None or not role or not self._goes_back(use):
                return
            roles.add(role)
            uses.append(use)
        if roles == {"q", "k", "v"}:
            self.roles[name] = "qkv"
        if len(roles) == 1:
            (role,) = roles
            is_whole = len(uses) > 1 or self._is_whole(name, role, uses[0])
            (self.roles if is_whole else inside)[name] = role

    def _is_whole(self, name: str, role: str, use: Assign) -> bool:
        """Return True if a value is all that a result with a role, or its three parts, are made of."""
        if any(other != name and other not in self.roles for other in self.operands[id(use)]):
            return False
        return all(self.roles.get(t) == role for t in use.targets) or (role == "qkv" and len(use.targets) == 3)

    def _role_of(self, use: Assign, inside: dict[str, str]) -> str:
        """Return the role of a statement's result if it is a backward role. Of q, k and v together it is `qkv`."""
        roles = [self.roles.get(t) or inside.get(t, "") for t in use.targets]
        if roles == ["q", "k", "v"]:
            return "qkv"
        return roles[0] if len(set(roles)) == 1 and roles[0] in BACKWARD_ROLES else ""

    @staticmethod
    def _goes_back(use: Assign) -> bool:
        return not _has_layer(use) and not any(isinstance(n, (ast.Compare, ast.MatMult)) for n in walk(use.value))

    # ---- constants

    def _of_buffer(self, name: str, member: Member) -> str:
        """Return the role of a constant in the statements that use it, if they agree."""
        roles = {self._in(name, use) if use is not None else "" for use in self.uses[name]}
        return roles.pop() if len(roles) == 1 else ""

    def _in(self, name: str, use: Assign) -> str:
        for node in walk(use.value):
            function, operands = called(node)
            if isinstance(node, ast.BinOp) and self._base(node.right) == name:
                of_input = self._base(node.left) not in self.makers
                if isinstance(node.op, ast.Sub):
                    return "mean" if of_input else "offset"
                if isinstance(node.op, (ast.Div, ast.Mult)):
                    if self.roles.get(use.targets[0]) == "angles":
                        return "inv_freq"
                    return "std" if of_input and isinstance(node.op, ast.Div) else "scale"
                if isinstance(node.op, ast.Add):
                    return "offset"
            indexes = (
                [node.slice] if isinstance(node, ast.Subscript) else operands[1:] if function in INDEX_FUNCTIONS else []
            )
            if name in map(self._base, indexes):
                return "index"
        return ""


def _has_layer(statement: Assign) -> bool:
    """Return True if a statement uses a layer or a parameter."""
    return any(isinstance(n, MemberRef) and n.member.kind != "buffer" for n in walk(statement.value))


def _recurrent(tree: ast.AST) -> bool:
    return (layer_of(tree) or function_of(tree)) in ALL_RECURRENT


def _matmul(tree: ast.AST) -> ast.BinOp | None:
    return tree if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.MatMult) else None


def _is_sum(tree: ast.AST) -> bool:
    return isinstance(tree, ast.BinOp) and isinstance(tree.op, (ast.Add, ast.Sub))
