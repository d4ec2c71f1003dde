"""Roles of values and constants (`q`, `mask`, `cos`, `positions`), found by what makes and what uses them.

It looks at the flat body, before structure: what a value is called then agrees through all the classes it passes.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from onnxgen.code.module_def import Assign, Member, Statement, assigned, blocks, expressions, flattened
from onnxgen.code.quote import MemberRef, Ref, walk
from onnxgen.code.torch_api import VIEWS, function_of
from onnxgen.shapes.info import Info

# what the result of a function is, and whether its operands are that too before
MADE = {"cos": "cos", "sin": "sin", "arange": "positions"}
BACK = frozenset("q k v qkv mask positions angles scores".split())  # roles that go back through arithmetic
OF_BUFFER = {"positions": "position_ids", "angles": ""}  # as authors call a buffer that is one
# what a layer reads beside its input; views of it have the role, too
BESIDE = frozenset("cos sin positions mask h c".split())
# recurrent layers, and helpers that are one: they take states beside their input, and hand them out beside their result
RECURRENT = frozenset("nn.LSTM nn.GRU nn.RNN onnx_lstm onnx_gru onnx_rnn".split())
STATES = ("h", "c")
INDEXED = frozenset("index_select gather take_along_dim".split())
STEPS = 8  # how far back from a softmax its product of queries and keys is looked for


def called(tree: ast.AST) -> tuple[str, list[ast.expr]]:
    """A call's last name and operands, `x.cos()` as `torch.cos(x)`; ("", []) for other expressions."""
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Attribute):
        return "", []
    of = tree.func.value
    while isinstance(of, ast.Attribute):
        of = of.value
    is_function = isinstance(of, ast.Name) and of.id in ("F", "torch")
    return tree.func.attr, list(tree.args) if is_function else [tree.func.value, *tree.args]


def seen_through(tree: ast.AST) -> ast.AST:
    """The variable that an expression is a view of: `x` for `x.transpose(1, 2)[:, None]`."""
    while True:
        name, operands = called(tree)
        if name in VIEWS and operands:
            tree = operands[0]
        elif isinstance(tree, ast.Subscript):
            tree = tree.value
        else:
            return tree


def find_roles(
    body: list[Statement], infos: dict[str, Info], roles: dict[str, str], outputs: Iterable[ast.expr] = ()
) -> None:
    """Add to `roles`, and give constants that have no name of their own one by their role."""
    _Roles(body, infos, roles, outputs).run()


class _Roles:
    """Values and unnamed buffers alike, by id; a buffer's is made of its member's."""

    def __init__(
        self, body: list[Statement], infos: dict[str, Info], roles: dict[str, str], outputs: Iterable[ast.expr]
    ) -> None:
        self.infos, self.roles = infos, roles
        self.statements: list[Statement] = list(flattened(body))
        self.buffers: dict[str, Member] = {}
        self.assigned: set[str] = set()
        self.made: dict[str, Assign] = {}
        self.uses: dict[str, list[Assign | None]] = defaultdict(list)  # None: a use that says nothing
        self.operands: dict[int, dict[str, None]] = {}
        self._collect(outputs)

    def _collect(self, outputs: Iterable[ast.expr]) -> None:
        seen = self.assigned
        for statement in self.statements:
            for name in assigned(statement):
                if name in seen:  # a branch or a loop assigns it too
                    self.made.pop(name, None)
                elif isinstance(statement, Assign):
                    self.made[name] = statement
                seen.add(name)
            trees = [statement.value] if isinstance(statement, Assign) else _own(statement)
            found = dict.fromkeys(name for tree in trees for name in self._ids(tree))
            self.operands[id(statement)] = found
            for name in found:
                self.uses[name].append(statement if isinstance(statement, Assign) else None)
        for tree in outputs:
            for name in self._ids(tree):
                self.uses[name].append(None)

    def _ids(self, tree: ast.AST) -> Iterator[str]:
        for node in walk(tree):
            name = self._id(node)
            if name:
                yield name

    def _id(self, node: ast.AST) -> str:
        """The id of a value or an unnamed buffer; "" for anything else."""
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
                self._made(statement)
                for node in walk(statement.value):
                    self._used(node)
        self._angles()
        self._back()
        for name, member in self.buffers.items():
            role = self.roles.pop(name, "")
            role = OF_BUFFER.get(role, role) or self._of_buffer(name, member)
            if role and member.path[-1] == "constant":
                member.path = (*member.path[:-1], role)

    def _give(self, name: str, role: str) -> None:
        if name and self.roles.get(name, "x") == "x":
            self.roles[name] = role

    def _give_back(self, name: str, role: str) -> None:
        """Give a role to a value, and to what it is a view or a multiple of.

        A cached key is used for more than scores. It stops at what may be anything: a part of a value, a layer's
        result, a sum, or the network's input.
        """
        for _ in range(STEPS):
            self._give(name, role)
            made = self.made.get(name)
            if made is None or any(isinstance(n, ast.Subscript) for n in walk(made.value)):
                return
            base = seen_through(made.value)
            if isinstance(base, ast.BinOp) and isinstance(base.right, ast.Constant):
                base = seen_through(base.left)
            name = self._id(base)
            made = self.made.get(name)
            if made is None or len(made.targets) > 1 or _has_layer(made) or _is_sum(made.value):
                return

    # ---- what makes a value, and what it is used for

    def _made(self, statement: Assign) -> None:
        if len(statement.targets) != 1:
            if _recurrent(statement.value):
                for target, state in zip(statement.targets[1:], STATES):
                    self._give(target, state)
            return
        target = statement.targets[0]
        facts = self.infos.get(target, Info())
        base = seen_through(statement.value)
        name, _ = called(base)
        if name in MADE:
            self._give(target, MADE[name])
        elif self._id(base) and not any(isinstance(n, ast.Slice) for n in walk(statement.value)):
            role = self.roles.get(self._id(base))
            if role in BESIDE:
                self._give(target, role)
        else:
            says = facts.kind == "tensor" and facts.dtype == ir.DataType.BOOL and bool(facts.rank)
            if says or (name in ("triu", "tril") and not self.operands[id(statement)]):
                self._give(target, "mask")

    def _used(self, node: ast.AST) -> None:
        name, operands = called(node)
        if name == "scaled_dot_product_attention":
            for operand, role in zip(operands, "qkv"):
                self._give_back(self._base(operand), role)
            for keyword in node.keywords if isinstance(node, ast.Call) else ():
                if keyword.arg == "attn_mask":
                    self._give(self._base(keyword.value), "mask")
        elif name == "where" and len(operands) == 3 or name == "masked_fill" and len(operands) > 1:
            self._give(self._base(operands[name == "masked_fill"]), "mask")
        elif name == "softmax" and operands:
            self._softmax(self._base(operands[0]))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            made = self.made.get(self._base(node.left))
            if made is not None and called(seen_through(made.value))[0] == "softmax" and self._of_scores(made):
                self._give_back(self._base(node.right), "v")
        elif isinstance(node, ast.Call) and isinstance(node.func, MemberRef) and node.args:
            member = node.func.member
            if _recurrent(node) and len(node.args) > 1:
                states = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else node.args[1:]
                for state, role in zip(states, STATES):
                    self._give(self._base(state), role)
            if member.layer == "nn.Embedding" and "pos" in member.path[-1].lower():
                self._give(self._base(node.args[0]), "positions")

    def _of_scores(self, softmax: Assign) -> bool:
        _, operands = called(seen_through(softmax.value))
        return bool(operands) and self.roles.get(self._base(operands[0])) == "scores"

    def _softmax(self, name: str) -> None:
        """Attention written out: the scores, what they are the product of, and what is added to them."""
        chain = self._product(name, STEPS)
        if not chain:
            return
        for value in chain:
            self._give(value, "scores")
        for node in walk(self.made[chain[-1]].value):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
                self._give_back(self._base(node.left), "q")
                self._give_back(self._base(node.right), "k")
                break
        for value in chain:
            tree = self.made[value].value
            if isinstance(tree, ast.BinOp) and isinstance(tree.op, (ast.Add, ast.Sub, ast.Mult)):
                for side in (self._base(tree.left), self._base(tree.right)):
                    if side and side not in chain and (self.infos.get(side, Info()).rank or 0) > 1:
                        self._give(side, "bias" if self._is_trained(side) else "mask")

    def _product(self, name: str, steps: int) -> list[str]:
        """The values from `name` back to a matrix product of two values that is no layer; [] if there is none."""
        made = self.made.get(name)
        facts = self.infos.get(name, Info())
        if made is None or len(made.targets) != 1 or steps == 0 or (facts.rank or 0) < 3:
            return []
        if len(self.operands[id(made)]) > 3:  # no arithmetic on scores has as many
            return []
        if any(isinstance(n, ast.Call) and isinstance(n.func, MemberRef) for n in walk(made.value)):
            return []
        for node in walk(made.value):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
                is_product = bool(self._base(node.left) and self._base(node.right))
                return [name] if is_product else []
        for operand in self.operands[id(made)]:
            further = self._product(operand, steps - 1)
            if further:
                return [name, *further]
        return []

    def _is_trained(self, name: str) -> bool:
        for _ in range(STEPS):
            made = self.made.get(name)
            if made is None:
                return False
            if _has_layer(made):
                return True
            name = next(iter(self.operands[id(made)]), "")
        return False

    def _angles(self) -> None:
        """What only cosine and sine are taken of."""
        for name, uses in self.uses.items():
            if {self.roles.get(s.targets[0]) if s is not None and s.targets else None for s in uses} == {"cos", "sin"}:
                if all(s is not None and self._base(called(seen_through(s.value))[1][0]) == name for s in uses):
                    self._give(name, "angles")

    # ---- back to what it is made of

    def _back(self) -> None:
        """A role goes back to what its value is made of, and of nothing else; not through layers.

        Where a value is split and joined again in between, what comes before has the role, the parts have none.
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
                if self.roles.get(name) not in BESIDE:
                    self.roles.pop(name, None)
        self._biases()

    def _biases(self) -> None:
        """What a layer or a parameter makes to be added to scores is a bias, and so are views of it."""
        for statement in self.statements:
            if isinstance(statement, Assign) and [self.roles.get(t) for t in statement.targets] == ["mask"]:
                source = self._id(seen_through(statement.value))
                if self.roles.get(source) == "bias" or (not source and _has_layer(statement)):
                    self.roles[statement.targets[0]] = "bias"

    def _from_uses(self, name: str, inside: dict[str, str]) -> None:
        if self.roles.get(name, "x") != "x" or name not in self.uses:
            return
        found: dict[str, None] = {}
        for use in self.uses[name]:
            role = "" if use is None else self._role_of(use, inside)
            if use is None or not role or not self._goes_back(use):
                return
            found[role] = None
        if set(found) == {"q", "k", "v"}:
            self.roles[name] = "qkv"
        if len(found) != 1:
            return
        role, uses = next(iter(found)), self.uses[name]
        others = [o for o in self.operands[id(uses[0])] if o != name and o not in self.roles]
        first = uses[0].targets if uses[0] is not None else ()
        whole = all(self.roles.get(t) == role for t in first) or (role == "qkv" and len(first) == 3)
        if len(uses) > 1 or (whole and not others):
            self.roles[name] = role
        else:
            inside[name] = role

    def _role_of(self, use: Assign, inside: dict[str, str]) -> str:
        """The role of what a statement makes, if it is one that goes back; of all three projections it is `qkv`."""
        roles = [self.roles.get(t) or inside.get(t, "") for t in use.targets]
        if roles == ["q", "k", "v"]:
            return "qkv"
        return roles[0] if len(set(roles)) == 1 and roles[0] in BACK else ""

    @staticmethod
    def _goes_back(use: Assign) -> bool:
        return not _has_layer(use) and not any(isinstance(n, (ast.Compare, ast.MatMult)) for n in walk(use.value))

    # ---- constants

    def _of_buffer(self, name: str, member: Member) -> str:
        """What a constant is in the statements that use it, if they agree."""
        roles = {self._in(name, use) if use is not None else "" for use in self.uses[name]}
        return roles.pop() if len(roles) == 1 else ""

    def _in(self, name: str, use: Assign) -> str:
        for node in walk(use.value):
            function, operands = called(node)
            if isinstance(node, ast.BinOp) and self._base(node.right) == name:
                of_input = self._base(node.left) not in self.made
                if isinstance(node.op, ast.Sub):
                    return "mean" if of_input else "offset"
                if isinstance(node.op, (ast.Div, ast.Mult)):
                    if self.roles.get(use.targets[0]) == "angles":
                        return "inv_freq"
                    return "std" if of_input and isinstance(node.op, ast.Div) else "scale"
                if isinstance(node.op, ast.Add):
                    return "offset"
            indexes = [node.slice] if isinstance(node, ast.Subscript) else operands[1:] if function in INDEXED else []
            if name in map(self._base, indexes):
                return "index"
        return ""


def _has_layer(statement: Assign) -> bool:
    """Whether a layer or a parameter takes part in what a statement computes."""
    return any(isinstance(n, MemberRef) and n.member.kind != "buffer" for n in walk(statement.value))


def _recurrent(tree: ast.AST) -> bool:
    """Whether an expression calls a recurrent layer, or a helper that is one."""
    if isinstance(tree, ast.Call) and isinstance(tree.func, MemberRef):
        return tree.func.member.layer in RECURRENT
    return function_of(tree) in RECURRENT


def _is_sum(tree: ast.AST) -> bool:
    return isinstance(tree, ast.BinOp) and isinstance(tree.op, (ast.Add, ast.Sub))


def _own(statement: Statement) -> list[ast.expr]:
    """The expressions of a compound statement itself, and what it hands on under another name."""
    inner = {id(e) for block in blocks(statement) for s in block for e in expressions(s)}
    return [e for e in expressions(statement) if id(e) not in inner] + [Ref(t) for t in statement.targets]
