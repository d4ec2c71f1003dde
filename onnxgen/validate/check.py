"""Compare a generated file with its specification: the same members, the same computation.

`translated` retries a text that differs from its specification: the smallest module that differs is written plainly.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from onnxgen.common.names import ModulePath
from onnxgen.errors import WrongTranslation, counted, is_strict
from onnxgen.output.compose import Generated, Report
from onnxgen.validate.expressions import NO_OPERATIONS
from onnxgen.validate.flat import Specification
from onnxgen.validate.text import Text
from onnxgen.validate.values import Node, describe


@dataclass(frozen=True)
class Difference:
    """A difference between a text and its specification: the module (a path, "" is the root), and a description."""

    path: str
    what: str


def validate(specification: Specification, tree: ast.Module, name: str) -> Difference | None:
    """Return the difference of a generated file from its specification, or None if there is none.

    Args:
        specification: that of the flat module (see `specify`).
        tree: the whole file.
        name: the root class.
    """
    text = None
    try:
        text = Text(tree, specification)
        result = text.node(text.root(name))
    except Exception as error:  # the text cannot be executed on symbols, whatever the reason
        return Difference("" if text is None else text.graph.home, f"{type(error).__name__}: {error}")
    return _members(specification, text) or _computation(specification, text, result)


def _members(wanted: Specification, text: Text) -> Difference | None:
    """Return the first member that is missing, superfluous, or made differently."""
    for path, (build, kind) in wanted.members.items():
        leaf = text.leaves.get(path)
        if leaf is None:
            if not text.layers.is_identity(build):
                return Difference(_parent(path), f"{path} is not registered")
        elif (leaf.build, leaf.kind) != (build, kind):
            return Difference(
                _parent(path), f"{path} is {describe(leaf.build)} {leaf.kind}, not {describe(build)} {kind}"
            )
    for path, leaf in text.leaves.items():
        if path not in wanted.members:
            function = leaf.build.key[0] in ("name", "attribute")
            if not function and not text.layers.is_stateless(leaf.build):
                return Difference(_parent(path), f"{path} is registered, and the network has no such member")
    frozen = {f"{p}.{key}" if key else p for p, leaf in text.leaves.items() for key in leaf.frozen}
    if frozen != wanted.frozen:
        return Difference(_parent(min(frozen ^ wanted.frozen)), f"{min(frozen ^ wanted.frozen)} is frozen in one only")
    if text.ties != wanted.ties:
        return Difference("", f"tied are {sorted(text.ties)}, not {sorted(wanted.ties)}")
    return None


def _computation(wanted: Specification, text: Text, result: Node) -> Difference | None:
    """Return the first operation that the specification lacks, or else a difference of the results."""
    flat = wanted.program
    loops = all(flat.nexts.get(node) is after for node, after in text.nexts.items())
    effects = (text.stops, text.effects, text.seen) == (flat.stops, flat.effects, flat.seen)
    first = next((node for node in text.graph.since(text.began) if node.key[0] not in NO_OPERATIONS), None)
    if first is not None:
        return Difference(first.home, f"nothing else computes {describe(first)}")
    if result is wanted.result and loops and effects:
        return None
    what = "its results are others" if result is not wanted.result else "its loops or effects are others"
    return Difference("", what)


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def translated(
    generate: Callable[[frozenset[ModulePath]], Generated],
    differs: Callable[[Generated], Difference | None],
    report: Report,
) -> Generated:
    """Return the first text that matches its specification.

    Args:
        generate: makes a text in which the given modules are left plain.
        differs: compares a text with its specification.
        report: receives the modules that were left plain, and a note.

    Raises:
        WrongTranslation: even the plain text differs; or any text differs and `ONNXGEN_STRICT=1` is set.
    """
    plain: frozenset[ModulePath] = frozenset()
    notes = list(report.notes)
    while True:
        generated = generate(plain)
        difference = differs(generated)
        if difference is None:
            break
        if () in plain or is_strict():
            where = difference.path or "the network"
            raise WrongTranslation(f"the text of {where} is not what the graph computes: {difference.what}")
        path = tuple(difference.path.split(".")) if difference.path else ()
        while path in plain:
            path = path[:-1]
        plain |= {path}
        report.notes[:] = notes
    if plain:
        report.plain = sorted(".".join(path) for path in plain)
        names = ", ".join(name or "the network itself" for name in report.plain)
        report.notes.append(
            f"{counted(len(plain), 'module')} left plain, since structure changed what they do: {names}"
        )
    return generated
