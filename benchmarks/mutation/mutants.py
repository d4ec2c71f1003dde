"""What can be wrong in a line: small changes of a module's syntax tree, one at a time."""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("structure", "code", "passes", "microsoft")
# what cleans text of the file: passing it by is what an attack hopes for
CLEANERS = set(
    """
    identifier printable module_part class_name safe clean repr str sorted reversed set list tuple abs min max
    """.split()
)
UNORDERED_ARGUMENTS = {"isinstance", "issubclass", "startswith", "endswith"}  # the last one, if it is a tuple
OTHER_COMPARISON: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OTHER_OPERATOR: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.Mod: ast.FloorDiv, ast.Div: ast.Mult,
}  # fmt: skip
UNREAD = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)
UNREAD_FIELDS = ("annotation", "returns", "decorator_list", "bases")
Change = tuple[str, ast.AST]  # what kind of mistake, and what stands in the node's place


@dataclass(frozen=True)
class Mutant:
    """One mistake in one file.

    Attributes:
        file: relative to the package, as `structure/loops.py`.
        line, kind: where, and what kind of mistake.
        before, after: the text of the part that is wrong.
        node, number: which change it is: of `changes`, of the node that `ast.walk` gives at that place.
    """

    file: str
    line: int
    kind: str
    before: str
    after: str
    node: int
    number: int

    def tree(self, text: str) -> ast.Module:
        """The file's tree with the mistake."""
        tree = ast.parse(text)
        for i, node in enumerate(ast.walk(tree)):
            if i == self.node:
                changed = list(changes(node, strings(tree)))[self.number][1]
                break
        _Replaced(node, ast.copy_location(changed, node)).visit(tree)
        return ast.fix_missing_locations(tree)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.kind}: `{self.before}` -> `{self.after}`"


class _Replaced(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def drawn(package: Path, covered: Mapping[str, set[int]], seed: int) -> Iterator[tuple[Mutant, range]]:
    """Mutants, each of a statement that is as likely as any other of those that the corpus runs, and its lines."""
    numbers, statements = random.Random(seed), []
    for folder in FOLDERS:
        for path in sorted((package / folder).rglob("*.py")):
            file = path.relative_to(package).as_posix()
            groups = by_statement(file, path.read_text(encoding="utf-8")) if file in covered else []
            statements += [found for found in groups if covered[file] & set(found[0])]
    seen: set[Mutant] = set()
    while len(seen) < sum(len(group) for _, group in statements):
        lines, group = numbers.choice(statements)
        kind = numbers.choice(sorted({m.kind for m in group}))
        mutant = numbers.choice([m for m in group if m.kind == kind])
        if mutant not in seen:
            seen.add(mutant)
            yield mutant, lines


def at(package: Path, place: str) -> Iterator[tuple[Mutant, range]]:
    """Every mutant of one line, `structure/loops.py:120`."""
    file, _, line = place.partition(":")
    for lines, group in by_statement(file, (package / file).read_text(encoding="utf-8")):
        yield from ((mutant, lines) for mutant in group if mutant.line == int(line))


def function_at(text: str, line: int) -> str:
    """The functions and classes around a line of a module, `Class.method`; "" for the module itself."""
    around = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        and min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        <= line
        <= (node.end_lineno or 0)
    ]
    return ".".join(node.name for node in sorted(around, key=lambda node: node.lineno))


def by_statement(file: str, text: str) -> list[tuple[range, list[Mutant]]]:
    """The mutants of each statement that has any, with its lines (of a compound statement those of its head)."""
    tree = ast.parse(text)
    words, order = strings(tree), {id(node): i for i, node in enumerate(ast.walk(tree))}
    found: dict[ast.stmt, list[Mutant]] = {}
    unordered = {id(node) for node in _unordered(tree)}
    for statement, node in _computing(tree, None):
        for number, (kind, changed) in enumerate(changes(node, words)):
            if ast.dump(changed) == ast.dump(node) or kind.startswith("swapped") and id(node) in unordered:
                continue  # what was swapped is equal, or its order means nothing
            before, after = _text(node), _text(ast.fix_missing_locations(ast.copy_location(changed, node)))
            mutant = Mutant(
                file, getattr(node, "lineno", statement.lineno), kind, before, after, order[id(node)], number
            )
            found.setdefault(statement, []).append(mutant)
    return [(_lines(statement), group) for statement, group in found.items()]


def _unordered(tree: ast.AST) -> Iterator[ast.AST]:
    """The tuples and unions whose order means nothing: of exceptions, of types, of prefixes, of what a value is in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            yield node.type
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            yield node.comparators[0]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and _is_none(node.right):
            yield node  # a type that may be None
        elif isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in UNORDERED_ARGUMENTS:
                yield from node.args[-1:]
            if name == "suppress":
                yield node


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _computing(node: ast.AST, statement: ast.stmt | None) -> Iterator[tuple[ast.stmt, ast.AST]]:
    """Every part of a tree with its statement, but for what only people and type checkers read."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if not isinstance(child, ast.AST) or isinstance(child, UNREAD) or name in UNREAD_FIELDS or text:
                continue
            owner = child if isinstance(child, ast.stmt) else statement
            if owner is not None:
                yield owner, child
            yield from _computing(child, owner)


def _lines(statement: ast.stmt) -> range:
    body = getattr(statement, "body", None)
    end = max(statement.lineno, body[0].lineno - 1) if body else statement.end_lineno or statement.lineno
    return range(statement.lineno, end + 1)


def strings(tree: ast.AST) -> list[str]:
    """The words that a file spells, for taking one for another."""
    found = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return sorted(word for word in found if 0 < len(word) <= 20 and word.isidentifier())


def changes(node: ast.AST, words: list[str]) -> Iterator[Change]:
    """Every mistake that can be made in this node alone."""
    if isinstance(node, ast.stmt):
        yield from _of_statement(node)
    elif isinstance(node, ast.Call):
        yield from _of_call(node)
    elif isinstance(node, (ast.Dict, ast.List, ast.Tuple, ast.Set)):
        yield from _of_display(node)
    elif isinstance(node, ast.Constant):
        yield from _of_constant(node, words)
    elif isinstance(node, ast.BoolOp):
        yield "and/or", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        for i in range(len(node.values)):
            rest = node.values[:i] + node.values[i + 1 :]
            yield "dropped condition", _with(node, values=rest) if len(rest) > 1 else rest[0]
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield "other comparison", _with(node, ops=[OTHER_COMPARISON[type(node.ops[0])]()])
    elif isinstance(node, ast.BinOp):
        if type(node.op) in OTHER_OPERATOR:
            yield "other operator", ast.BinOp(node.left, OTHER_OPERATOR[type(node.op)](), node.right)
        yield "swapped operands", ast.BinOp(node.right, node.op, node.left)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield "dropped sign", node.operand
    elif isinstance(node, ast.IfExp):
        yield "wrong branch", ast.IfExp(node.test, node.orelse, node.body)
        yield "dropped condition", node.body
    elif isinstance(node, ast.comprehension) and node.ifs:
        yield "dropped condition", _with(node, ifs=node.ifs[1:])
        yield "negated condition", _with(node, ifs=[ast.UnaryOp(ast.Not(), node.ifs[0]), *node.ifs[1:]])
    elif isinstance(node, ast.Slice):
        for name in ("lower", "upper", "step"):
            if getattr(node, name) is not None:
                yield "dropped bound", _with(node, **{name: None})


def _of_statement(node: ast.stmt) -> Iterator[Change]:
    dropped = isinstance(node, (ast.AugAssign, ast.Continue, ast.Break, ast.Delete))
    stored = isinstance(node, ast.Assign) and not all(isinstance(t, ast.Name) for t in node.targets)
    if dropped or stored or isinstance(node, ast.Expr):
        yield "dropped statement", ast.Pass()
    if isinstance(node, (ast.If, ast.While)):
        yield "negated condition", _with(node, test=ast.UnaryOp(ast.Not(), node.test))
        if isinstance(node, ast.If):
            yield "dropped condition", _with(node, test=ast.Constant(True))
            yield "dropped branch", _with(node, test=ast.Constant(False))
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield "returns nothing", ast.Return(ast.Constant(None))
    if isinstance(node, ast.AugAssign) and type(node.op) in OTHER_OPERATOR:
        yield "other operator", _with(node, op=OTHER_OPERATOR[type(node.op)]())


def _of_call(node: ast.Call) -> Iterator[Change]:
    for i, keyword in enumerate(node.keywords):
        if keyword.arg is not None:
            yield "dropped keyword", _with(node, keywords=node.keywords[:i] + node.keywords[i + 1 :])
    for i in range(len(node.args) - 1):
        if not any(isinstance(a, ast.Starred) for a in node.args[i : i + 2]):
            yield "swapped arguments", _with(node, args=_swapped(node.args, i))
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if name in CLEANERS and node.args and not isinstance(node.args[0], ast.Starred):
        yield "passed by", node.args[0]
    elif isinstance(node.func, ast.Attribute) and not node.args:
        yield "passed by", node.func.value


def _of_display(node: ast.Dict | ast.List | ast.Tuple | ast.Set) -> Iterator[Change]:
    if isinstance(getattr(node, "ctx", None), ast.Store):
        return
    if isinstance(node, ast.Dict):
        for i in range(len(node.keys)):
            keys, values = (part[:i] + part[i + 1 :] for part in (node.keys, node.values))
            yield "dropped entry", ast.Dict(keys, values)
            if i:
                yield "swapped entries", ast.Dict(node.keys, _swapped(node.values, i - 1))
        return
    for i in range(len(node.elts)):
        if len(node.elts) > 1 and not isinstance(node, ast.Tuple):
            yield "dropped entry", _with(node, elts=node.elts[:i] + node.elts[i + 1 :])
        if i and not isinstance(node, ast.Set):
            yield "swapped entries", _with(node, elts=_swapped(node.elts, i - 1))


def _of_constant(node: ast.Constant, words: list[str]) -> Iterator[Change]:
    if isinstance(node.value, bool):
        yield "other flag", ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield "off by one", ast.Constant(node.value + 1)
        yield "off by one", ast.Constant(node.value - 1)
    elif node.value in words and len(words) > 1:
        yield "other word", ast.Constant(words[(words.index(node.value) + 1) % len(words)])


def _swapped(items: list[ast.expr], i: int) -> list[ast.expr]:
    return [*items[:i], items[i + 1], items[i], *items[i + 2 :]]


def _with(node: ast.AST, **fields: object) -> ast.AST:
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _text(node: ast.AST) -> str:
    """A node as one short line."""
    try:
        return " ".join(ast.unparse(node).split())[:90]
    except Exception:  # a slice has no text of its own
        return type(node).__name__
