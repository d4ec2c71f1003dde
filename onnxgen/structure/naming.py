"""Names of local variables.

Goes in: the body of a class, the clues about its values (`clues.py`), what makes them (`clues.py`) and what uses them
(`consumers.py`). Comes out: a local name for each value. `x` is reused along the main chain and `out` along a branch of
it; any other value gets the author's own name, or that of its role, its layer or its function.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass

from onnxgen.code.module_def import (
    Assign,
    If,
    Input,
    Loop,
    Member,
    Statement,
    With,
    blocks,
    expressions,
    flattened,
    used,
)
from onnxgen.code.quote import Ref, refs
from onnxgen.code.torch_api import PARTS, RECURRENT, SEVERAL
from onnxgen.common.names import UNUSED, LocalName, local, singular
from onnxgen.lowering.roles import STATE_ROLES, called, seen_through
from onnxgen.shapes.info import Info
from onnxgen.structure.clues import (
    ASIDE,
    EMBEDDINGS,
    GATE,
    NOUNS,
    OUTPUT,
    POOLED,
    PROBABILITIES,
    STAGES,
    Clues,
    Made,
    input_name,
    is_made_up,
    made_by,
    pools,
    says_what,
)
from onnxgen.structure.consumers import is_part, used_as
from onnxgen.structure.nesting import LINE, width
from onnxgen.structure.scopes import ClassRef, Scope, callee

SPARE = ("x", "y", "z")  # arguments without a name
MAIN, BRANCH = "x", "out"
CHAINS = frozenset((*SPARE, BRANCH))  # names of what comes next in a chain, whatever it is
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]*")
LETTERS = "abcd"  # of a few parts of something without a name
ATTN = "attn"  # the result of attention, of which `code/steps.py` splits what follows
FEATURES = "features"
HIDDEN = "hidden"  # what two layers of a branch have between them
WIDE = 120 - 8  # characters of the longest line of `forward`
SHORT = 10  # characters of a name that its parts can have with a number


@dataclass
class _Words:
    """What may name the result of a statement.

    Attributes:
        kept: the name of the value that it is, but for a view or an activation.
        names, layer, plain: the words that its line has room for: the best ones, its layer's, and its operation's.
        is_named: its layer or its function says what it is.
        continues: it uses up the main chain.
    """

    value: str
    statement: Assign
    origin: Made
    kept: str
    names: list[str]
    layer: list[str]
    plain: list[str]
    is_named: bool
    continues: bool = False


class Names:
    """Gives every value of one class body a local name. Two values share one only if they are never alive together."""

    def __init__(self, scope: Scope, infos: dict[str, Info], clues: Clues, reserved: frozenset[str]) -> None:
        self.scope, self.infos, self.clues = scope, infos, clues
        self.names: dict[str, LocalName] = {}
        self.busy: dict[str, str] = {}  # name -> the live value that has it
        self._free: dict[str, int] = {}  # base -> a number below which all are taken
        self._number_of: dict[str, tuple[str, int]] = {}  # name -> its base and number
        self.numbered: set[str] = set()  # bases of such names
        self.spent: set[str] = set()  # names with a number whose values are not used any more: no other value has them
        self.reserved = reserved
        self.arguments = {a.value for a in scope.inputs}
        self.returned = {o.value for o in scope.outputs if isinstance(o, Ref)}
        self.uses = used_as(scope, infos, clues.roles)
        self.at = {target: i for i, s in enumerate(scope.body) for target in s.targets}
        self.trees = scope.makers()
        self.carried = {t for s in flattened(scope.body) if not isinstance(s, Assign) for t in s.targets}
        self.has_main = False  # a value was given the name `x`
        self.main = ""  # what the main chain is now: `x`, or what has become of it
        self.pending = set(self.uses.fed)  # the arguments that a layer still waits for
        self.forked: set[str] = set()  # values of which another layer of the root has made a named one
        self.wishes: dict[str, str] = {}
        self._look_back()

    def run(self) -> dict[str, LocalName]:
        """Return the local name of every value."""
        sure = {argument.value: name for argument in self.scope.inputs if (name := self._sure_argument(argument))}
        plain = {value: self.clues.hint(value).uncounted().identifier() for value in sure}
        taken = Counter([*plain.values(), *(name for value, name in sure.items() if name != plain[value])])
        for value, name in sure.items():
            is_counted = self.scope.is_root and name == self.clues.hint(value).identifier()
            self._take(value, [plain[value] if is_counted and taken[plain[value]] == 1 else name])
        for argument in self.scope.inputs:
            if argument.value not in sure:
                self._take(argument.value, self._wanted_argument(argument.value))
        self._block(self.scope.body, [r for o in self.scope.outputs for r in refs(o)])
        self._number()
        return self.names

    def _look_back(self) -> None:
        """Name the values that an output with a name of its own is, but for views and activations."""
        for i, statement in reversed([*enumerate(self.scope.body)] if self.scope.is_root else []):
            if isinstance(statement, Assign) and len(statement.targets) == 1:
                wish = self.wishes.get(statement.targets[0]) or self._output_name(statement.targets[0])
                name, operands = called(statement.value)
                value = operands[0] if name == "sigmoid" and not wish.startswith("prob") else statement.value
                base = made_by(value).base if wish and not is_part(value) else ""
                if base and self.uses.places[base] in ([i], [self.uses.places[statement.targets[0]][0]]):
                    self.wishes[base] = wish

    def _output_name(self, value: str) -> str:
        """Return the graph's own name of an output, "" if it has none."""
        hint = self.clues.hint(value)
        return hint.identifier() if self.scope.is_root and value in self.returned and says_what(hint) else ""

    def _sure_argument(self, argument: Input) -> str:
        """Return the name of an argument that has one from the file, by its role or by its use, else ""."""
        value = argument.value
        sure = input_name(argument, self.scope.is_root, self.infos, self.clues.roles, self.clues.hints)
        name = self.clues.hint(value)
        by_use = self.uses.given.get(value, "")
        if by_use and (name.word() == "input" or (not sure and is_made_up(name))):
            return by_use
        if sure:
            return sure
        hint = name.identifier()
        several = len(self.clues.given & self.arguments) > 1  # inputs of the graph
        beside = len(self.arguments) > 1 and value in self.clues.own and value not in self.uses.roles
        is_own = _IDENTIFIER.fullmatch(hint) and not is_made_up(name)
        if value in self.clues.given and (several or beside) and is_own:
            return hint
        return "" if self.scope.is_root else self.uses.roles.get(value, "")

    def _wanted_argument(self, value: str) -> list[str]:
        if value in self.uses.parts:
            return [self.uses.parts[value], MAIN]
        if not self.has_main:
            return [*SPARE, MAIN]
        joined = self.uses.joined.get(value)
        maker = self.clues.own.get(value) or self.clues.makers.get(value, "")
        outside = self.clues.outside.get(value, "")
        if outside not in ("", *CHAINS, *self.reserved):
            return [outside, *SPARE[1:], MAIN]
        weak = [joined] if joined else [maker] if maker else []
        return [*weak, *SPARE[1:], *weak, MAIN]

    def _block(self, block: list[Statement], after: Iterable[str], kept: Container[str] = ()) -> None:
        """Name the values of a block. `after`: values used after it; `kept`: values from outside, which stay alive."""
        last: dict[str, int] = {}
        needs = [used(statement) for statement in block]
        for i, names in enumerate(needs):
            for name in names:
                last[name] = i
        for name in after:
            last[name] = len(block)
        for i, statement in enumerate(block):
            if not isinstance(statement, Assign):
                self._compound(statement)
            self.pending.difference_update(needs[i])
            ended = self._release(needs[i], last, i, kept)
            for target in statement.targets:
                if target not in self.names:
                    wanted: list[str] = self._wanted(target, statement, ended) if target in last else [UNUSED]
                    self._take(target, wanted, ended.values())
                    if target not in last:
                        self._set_free(self.names[target])

    def _compound(self, statement: If | Loop | With) -> None:
        """Name the values of nested blocks. Their names are free again after the block; values outside keep theirs."""
        for name in statement.targets:
            if name not in self.names:
                self._take(name, self._wanted(name, statement, {}))
        outside, spent = dict(self.busy), set(self.spent)
        if isinstance(statement, Loop):
            inside = {r for e in expressions(statement) for r in refs(e)}
            for name in statement.turn:
                if name in inside:
                    self._take(name, self._wanted(name, statement, {}))
                else:
                    self.names[name] = UNUSED
        for block in blocks(statement):
            before = dict(self.busy)
            self._block(block, statement.targets, set(before.values()))
            self.busy, self.spent = before, set(spent)
            self._free.clear()
        self.busy = outside
        self._free.clear()

    def _release(self, names: list[str], last: dict[str, int], now: int, kept: Container[str]) -> dict[str, str]:
        """Free the names of values that are not used any more. Return these values with their names."""
        ended: dict[str, str] = {}
        for name in names:
            if name not in kept and last.get(name) == now and self.busy.get(self.names.get(name, "")) == name:
                if name not in self.arguments or not self.scope.is_root or self.names[name] in (*SPARE, *STATE_ROLES):
                    ended[name] = self.names[name]
                    self._set_free(self.names[name])
        return ended

    def _set_free(self, name: str) -> None:
        del self.busy[name]
        base, n = self._number_of.get(name, (name, 2))
        if base in (*CHAINS, BRANCH):
            self._free[base] = min(n, self._free.get(base, 2))
        elif base in self.numbered:
            self.spent.add(name)

    def _take(self, value: str, wanted: list[str], ended: Collection[str] = ()) -> None:
        """Give a value the first wanted name that is free, or else the last one with a number.

        `ended`: names of values that this one uses up, and may have again.
        """
        again = [name for name in ended if self._number_of.get(name, ("", 0))[0] == wanted[-1]]
        names = [local(name) for name in (*wanted, *again)]
        gone = self.spent - {*ended} | self.reserved
        for name in names:
            if name not in self.busy and name not in gone:
                break
        else:
            base = wanted[-1]
            n = self._free.get(base, 2)
            while f"{base}{n}" in self.busy or f"{base}{n}" in gone:
                n += 1
            name = local(f"{base}{n}")
            self._free[base] = n + 1
            self._number_of[name] = base, n
            self.numbered.add(base)
        self.names[value] = name
        self.busy[name] = value
        if name == MAIN:
            self.has_main, self.main = True, value

    def _number(self) -> None:
        """Number the first of several equal names too: `skip1`, `skip2`."""
        taken = set(self.names.values())
        fixed = {self.names[a] for a in self.arguments}
        for base in dict.fromkeys(base for base, _ in self._number_of.values()):
            if base not in SPARE and base not in fixed and f"{base}1" not in taken | self.reserved:
                self.names = {v: local(f"{base}1") if name == base else name for v, name in self.names.items()}

    def _wanted(self, value: str, statement: Statement, ended: dict[str, str]) -> list[str]:
        """Return names for a value that a statement makes, best first. `ended`: the values that it uses up."""
        sure, variable = self._sure(value), self._told(value, statement)
        if sure or variable not in ("", MAIN, self.clues.becoming.get(value)):
            self._fork(used(statement))
        if sure:
            return [variable, sure] if variable == self.clues.assigned.get(value) not in (None, MAIN) else [sure]
        return [*filter(None, [variable]), *self._untold(value, statement, ended)]

    def _told(self, value: str, statement: Statement) -> str:
        """Return the variable that a value is in the author's source, or becomes there; "" if the graph names it."""
        becoming = self.clues.becoming.get(value, "") if isinstance(statement, Assign) else ""
        name = self.clues.assigned.get(value) or becoming
        return "" if name in self.reserved or self._output_name(value) else name

    def _untold(self, value: str, statement: Statement, ended: dict[str, str]) -> list[str]:
        """Return names for a value that nobody else has named, best first."""
        own = [self.clues.own[value]] if value in self.clues.own else []
        if isinstance(statement, Loop) and value in statement.turn:
            return [*own, self._of_turn(statement, statement.turn.index(value))]
        if not isinstance(statement, Assign):
            return [*[MAIN][: self.has_main], *own, BRANCH]
        if len(statement.targets) > 1:
            return self._of_several(value, statement, own, ended)
        return self._of_one(value, statement, own, ended)

    def _sure(self, value: str) -> str:
        """Return the name of a value with a role, or "": in the graph, by dataflow, or by what uses it."""
        name = self._output_name(value) or self.wishes.get(value, "")
        role = name or self.clues.roles.get(value, "x")
        if role != "x":
            return role
        collected = self.names.get(self.uses.lists.get(value, ""), "")
        item = singular(collected) if singular(collected) != collected else ""
        return self.uses.joined.get(value) or self.uses.roles.get(value) or item

    def _of_one(self, value: str, statement: Assign, own: list[str], ended: dict[str, str]) -> list[str]:
        """Return names for the first result of a statement.

        What uses up the main chain is what that becomes, or `x`; what uses up `out` is `out`, unless a function names
        its result.
        """
        words = self._words(value, statement, own, ended)
        if words.origin.result == GATE in words.names:
            return words.names
        if names := self._on_chain(words, ended):
            return names
        if words.is_named:
            self._fork(used(statement))
        if words.origin.result and words.origin.result in words.names:
            return words.names
        return self._beside(words, ended)

    def _words(self, value: str, statement: Assign, own: list[str], ended: dict[str, str]) -> _Words:
        origin = self._made(value, statement)
        kept = self._kept(origin.base, statement, ended)
        names = self._fitting([*own, kept, origin.result], statement)
        layer, plain = ([*self._fitting([name], statement)] for name in (origin.layer, origin.plain))
        words = _Words(value, statement, origin, kept, names, layer, plain, bool(layer) or origin.result in names)
        words.continues = MAIN in ended.values() or self.main in ended
        if words.continues and pools(statement.value, self.infos.get(value, Info()).rank):
            origin.result, words.names = POOLED, [*names, POOLED]
        return words

    def _on_chain(self, words: _Words, ended: dict[str, str]) -> list[str]:
        """Return names for what the main chain becomes or begins with; [] for a value beside it."""
        value, needs = words.value, used(words.statement)
        begins = words.origin.plain not in ASIDE and words.kept not in words.names and self._begins(needs)
        if not words.continues and not begins:
            return []
        if value not in self.carried and (stage := self._stage(words)):
            self.main = value
            return [stage, *words.names, MAIN]
        apart = value in self.returned and len(self.returned) > 1  # one of several results
        leaves = words.is_named and (apart or (len(needs) == 1 and needs[0] in self.forked))
        return [MAIN] if begins or not leaves else []

    def _stage(self, words: _Words) -> str:
        """Return what the main chain becomes by a value, "" if it is one more step."""
        known = (words.kept, words.origin.result, words.origin.layer)
        stage = next((word for word in known if word in STAGES and word in (*words.names, *words.layer)), "")
        if not stage and words.value in self.uses.features:
            return "".join(self._fitting([FEATURES], words.statement))
        return stage

    def _beside(self, words: _Words, ended: dict[str, str]) -> list[str]:
        value, layer = words.value, words.layer
        if self.has_main and MAIN not in self.busy and value in self.at and self._is_all(value):
            return [*words.names, *layer, MAIN]
        branch = [name for name in ended.values() if name.rstrip("0123456789") == BRANCH]
        aside = words.plain if words.origin.plain in ASIDE else []
        names = [*words.names, *aside, *[HIDDEN][: value in self.uses.hidden], *branch]
        if layer and (layer[0] not in STAGES or value not in self.carried or MAIN in self.busy):
            return [*names, *layer]
        names += [MAIN][: self._is_next(words)]
        if words.plain and not words.origin.is_features:
            return [*names, *words.plain]
        vague = self._fitting([words.origin.vague], words.statement)
        return [*names, *vague[: self._waits(value)], BRANCH, *vague, BRANCH]

    def _is_next(self, words: _Words) -> bool:
        """True if a value may be the main chain, which is nowhere else."""
        is_free = self.busy.get(self.names.get(self.main, "")) != self.main
        return self.has_main and is_free and bool(used(words.statement)) and words.origin.plain not in ASIDE

    def _is_all(self, value: str) -> bool:
        """True if nothing else is needed after the statement that makes a value: the branches have come together."""
        now = self.at[value]
        return all(self.uses.places.get(other, [0])[-1] <= now for other in self.busy.values())

    def _waits(self, value: str) -> bool:
        """True if a statement after the next one needs a value."""
        index = self.at.get(value)
        return index is not None and self.uses.places[value][-1] > index + 1

    def _fork(self, needs: list[str]) -> None:
        """Note that a named value is made of one value alone."""
        if self.scope.is_root and len(needs) == 1:
            self.forked.update(needs)

    def _begins(self, needs: list[str]) -> bool:
        """True if a statement with these operands begins the main chain: no argument waits for another one."""
        if not needs or self.main or self.pending:
            return False
        return len(self.uses.fed) < 2 or len(needs) > 1 or needs[0] not in self.arguments

    def _kept(self, base: str, statement: Assign, ended: dict[str, str]) -> str:
        """Return the name of the value that another one is, but for a view or an activation.

        If that value is still used, it is the last word of its name: `mask` for a view of `attention_mask`.
        """
        name = self.names.get(base, "")
        if base in ended:
            return name if name not in CHAINS or isinstance(statement.value, Ref) else ""
        word = name.rpartition("_")[2]
        return word if word != name and len(word) > 2 and word.isalpha() else ""

    def _are_several(self, result: str) -> bool:
        """True if several values have the same expression to name them."""
        return sum(made_by(tree, self.trees).result == result for tree in self.trees.values()) > 1

    def _made(self, value: str, statement: Assign) -> Made:
        """Return what the expression says about its value.

        A sigmoid is a gate only if it is a factor. Other probabilities are called like the layer that they come of.
        """
        origin = made_by(statement.value, self.trees)
        if origin.result == EMBEDDINGS and origin.layer and self._are_several(EMBEDDINGS):
            origin.result = ""  # each is called after its table
        name, operands = called(seen_through(statement.value))
        if origin.result == GATE and value not in self.uses.factors:
            origin.result = PROBABILITIES if name == "sigmoid" else ""
        if origin.result in (PROBABILITIES, "log_probs") and operands:
            head = made_by(operands[0])
            word = head.layer if head.is_features else self.names.get(head.base, "")
            ends = head.is_features or self.busy.get(word) != head.base  # its name is free again
            origin = head if ends and word not in ("", *CHAINS, *NOUNS.values()) else origin
        return origin

    def _fitting(self, names: list[str], statement: Assign) -> list[str]:
        """Return the names that the line has room for."""
        names = [name for name in names if name and name not in self.reserved]
        if not names:
            return names
        room = LINE - len(" = ") - width(statement.value, self.names, len(self.scope.path))
        return [name for name in names if len(name) <= room + (WIDE - LINE if name == ATTN else 0)]

    def _of_turn(self, loop: Loop, at: int) -> str:
        """Return the name of what a loop takes from its list: `frame` of `frames.unbind(1)`."""
        tree, back = loop.iterable, len(loop.turn) - at
        name, operands = called(tree) if tree is not None else ("", [])
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and back <= len(tree.args):
            tree = tree.args[-back]  # of `zip` or `range`
        elif loop.form:
            tree = None
        elif name in PARTS:
            tree = operands[0]
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "reversed":
            tree = tree.args[0]
        word = self.names[tree.value] if isinstance(tree, Ref) else ""
        return singular(word) if singular(word) != word else "item"

    def _of_several(self, value: str, statement: Assign, own: list[str], ended: dict[str, str]) -> list[str]:
        tree = seen_through(statement.value)
        (name, operands), layer, at = called(tree), callee(tree), statement.targets.index(value)
        if layer is not None and layer.layer == "nn.MultiheadAttention":
            return [("attn", "attn_weights")[at]]
        if (inside := _result(layer, at)) not in ("", *CHAINS):
            return [*own, *self._fitting([inside], statement), BRANCH]
        if name in SEVERAL:
            return [*own, *SEVERAL[name][at : at + 1], BRANCH]
        if name in PARTS and sum(target in self.uses.places for target in statement.targets) > 1:
            return [*own, *self._of_parts(at, operands[0], statement)]
        if at == 0 and layer is not None and layer.layer in RECURRENT:
            return [*own, OUTPUT, MAIN]
        if value == next((t for t in statement.targets if not self._sure(t)), ""):
            return self._of_one(value, statement, own, ended)
        return [*own, BRANCH]

    def _of_parts(self, at: int, whole: ast.expr, statement: Assign) -> list[str]:
        """Return names for one of the parts that a value is split into."""
        roles = [self.clues.roles.get(target, "") for target in statement.targets]
        if len(roles) == 3 and any(roles) and all(role in ("", its) for role, its in zip(roles, "qkv")):
            return ["qkv"[at]]
        origin = made_by(whole)
        word = singular(self.names.get(origin.base, "") or origin.layer or origin.plain)
        says = word in (MAIN, BRANCH) or (word not in ("", *CHAINS) and not word[-1].isdigit() and len(word) <= SHORT)
        if says and self.busy.get(f"{word}1", statement.targets[0]) == statement.targets[0]:
            return [f"{word}{at + 1}", word]
        return [LETTERS[at] if len(statement.targets) <= len(LETTERS) else f"part{at + 1}", "part"]


def _result(layer: Member | None, at: int) -> str:
    """Return the name that one result has inside the class of a layer, or ""."""
    results = layer.build.scope.results if layer is not None and isinstance(layer.build, ClassRef) else ()
    return "".join(results[at : at + 1])
