"""How often the product names operators outside their functions, by room.

    python -m tests.support.mentions [OPERATOR ...]

Prints how many files name some operators (by default Conv, MatMul and Add), and the tables of operators of each room:
literals (dicts, sets, lists, tuples, or texts of several words) of three operators or more.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import onnx

from onnxgen.graph.operators import operators
from tests.conftest import ROOT

PRODUCT = ROOT / "onnxgen"
LEAST = 3  # operators of a table


@cache
def known() -> frozenset[str]:
    """Return the names of all operators: of the standard, and of those that onnxgen has a function for."""
    return frozenset({name for _, name in operators()} | {schema.name for schema in onnx.defs.get_all_schemas()})


def files() -> list[Path]:
    return sorted(path.relative_to(PRODUCT) for path in PRODUCT.rglob("*.py"))


def _tree(path: Path) -> ast.Module:
    return ast.parse((PRODUCT / path).read_text(encoding="utf-8"))


def _named(node: ast.AST) -> set[str]:
    """Return the operators that a text names which holds nothing else."""
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        return set()
    words = {word.rpartition(".")[2] for word in node.value.split()}
    return words if words <= known() else set()


@cache
def named_in(path: Path) -> frozenset[str]:
    """Return the operators that a file names in texts that hold nothing else."""
    return frozenset[str]().union(*(_named(node) for node in ast.walk(_tree(path))))


def tables(path: Path) -> Iterator[tuple[int, set[str]]]:
    """Yield the line and the operators of each table of a file; not those of a table in another."""
    todo: list[ast.AST] = [_tree(path)]
    while todo:
        node = todo.pop()
        names = _of_table(node)
        if len(names) >= LEAST:
            yield getattr(node, "lineno", 0), names
        else:
            todo += ast.iter_child_nodes(node)


def _of_table(node: ast.AST) -> set[str]:
    match node:
        case ast.Dict(keys=keys, values=values):
            parts: Iterable[ast.AST | None] = [*keys, *(v for k, v in zip(keys, values) if k is None)]
            return set[str]().union(*(_parts(part) for part in parts if part is not None))
        case ast.Set(elts=elts) | ast.List(elts=elts) | ast.Tuple(elts=elts):
            return set[str]().union(*map(_parts, elts))
    return _named(node)


def _parts(node: ast.AST) -> set[str]:
    """Return the operators of a key or an element, also of several: `**dict.fromkeys(("Conv", "MatMul"), rule)`."""
    return set[str]().union(*(_named(inner) for inner in ast.walk(node)))


def main(wanted: list[str]) -> None:
    """Print the table."""
    for name in wanted:
        print(f"{name}: named in {sum(name in named_in(path) for path in files())} files")
    found: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    for path in files():
        made = list(tables(path))
        found[path.parts[0]] += len(made)
        inside[path.parts[0]] += bool(made)
    for room, count in found.most_common():
        if count:
            print(f"{room:12} {count:4} tables in {inside[room]} files")
    print(f"{'all':12} {sum(found.values()):4} tables in {sum(inside.values())} files")


if __name__ == "__main__":
    main(sys.argv[1:] or ["Conv", "MatMul", "Add"])
