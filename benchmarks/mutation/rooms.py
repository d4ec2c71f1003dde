"""The rooms of the product, and mutants spread over all lines of a room."""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from benchmarks.mutation.mutants import Mutant, by_statement

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    "ops", "lowering", "reader", "shapes", "weights", "export", "verify", "training", "build_hooks",
    "passes", "structure", "code",
)  # fmt: skip
PER_LINE = 10  # mutants of a line that are looked at, until one is other bytecode
Key = tuple[str, int]  # a function's name within its module, and its first line


@dataclass(frozen=True)
class Wrong:
    """A mutant, and where it has to be put.

    Attributes:
        mutant: its file is relative to the tree, as `onnxgen/shapes/infer.py`.
        lines: of its statement.
        code: the whole module with the mistake.
        functions: the functions whose code is another, those around a changed one too; empty if the module or a class
            itself does something else, which only importing anew shows.
    """

    mutant: Mutant
    lines: range
    code: CodeType
    functions: dict[Key, CodeType]


def files(room: str) -> list[Path]:
    """The files of a room."""
    return sorted((ROOT / room if room == "build_hooks" else ROOT / "onnxgen" / room).rglob("*.py"))


def spread(room: str, seed: int) -> Iterator[Wrong]:
    """At most one mutant of each line of a room, whether a test runs it or not; each is other bytecode."""
    places: dict[tuple[str, int], list[tuple[range, Mutant]]] = {}
    for path in files(room):
        text, file = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        unread = for_type_checkers(text)
        for lines, group in by_statement(file, text):
            for mutant in group:
                if mutant.line not in unread:
                    places.setdefault((file, mutant.line), []).append((lines, mutant))
    numbers = random.Random(f"{room} {seed}")
    for place in numbers.sample(sorted(places), len(places)):
        kinds = sorted({mutant.kind for _, mutant in places[place]})
        for _ in range(PER_LINE):
            kind = numbers.choice(kinds)
            lines, mutant = numbers.choice([found for found in places[place] if found[1].kind == kind])
            if made := wrong(mutant, lines):
                yield made
                break


def for_type_checkers(text: str) -> set[int]:
    """The lines of `if TYPE_CHECKING:` and of all in it."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def wrong(mutant: Mutant, lines: range) -> Wrong | None:
    """The mutant as bytecode; None if it is the right one, or no Python."""
    path = ROOT / mutant.file
    text = path.read_text(encoding="utf-8")
    try:
        after = compile(mutant.tree(text), str(path), "exec")
    except SyntaxError:
        return None
    before = compile(text, str(path), "exec")
    if same(before, after):
        return None
    changed, often = list(_changed(before, after)), Counter(_keys(before))
    is_placed = all(found is not None and often[found[0]] == 1 for found in changed)
    return Wrong(mutant, lines, after, dict(found for found in changed if found) if is_placed else {})


def same(one: CodeType, other: CodeType) -> bool:
    """Whether two modules or functions do the same, wherever their lines are."""
    return _own(one) == _own(other) and all(map(same, _inner(one), _inner(other)))


def _own(code: CodeType) -> tuple[object, ...]:
    """What a module or function does itself, with how many functions and classes it makes."""
    constants = [(type(c), repr(c)) for c in code.co_consts if not isinstance(c, CodeType)]
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return code.co_code, code.co_exceptiontable, constants, names, code.co_argcount, code.co_flags, len(_inner(code))


def _inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _keys(code: CodeType) -> Iterator[Key]:
    for inner in _inner(code):
        yield inner.co_qualname, inner.co_firstlineno
        yield from _keys(inner)


def _changed(before: CodeType, after: CodeType) -> Iterator[tuple[Key, CodeType] | None]:
    """The functions that are other ones; None where a function's code can't stand in the place of another's."""
    is_function = bool(after.co_flags & 1)  # CO_OPTIMIZED: neither a module nor a class
    if _own(before) != _own(after) and (not is_function or before.co_freevars != after.co_freevars):
        yield None
    elif is_function and not before.co_name.endswith("comp>") and not same(before, after):  # 3.11 calls what is around
        yield (before.co_qualname, before.co_firstlineno), after
    inner = _inner(before), _inner(after)
    if len(inner[0]) == len(inner[1]):
        for one, other in zip(*inner):
            yield from _changed(one, other)
