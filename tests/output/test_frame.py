"""What stands beside the network in a generated file: little, after the network, and no line too long.

Of the network itself, the `forward` of the whole says its types.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxgen.code.copied import helper_names, helpers
from onnxgen.code.printer import LINE_LENGTH
from tests.whole.test_golden import FILES

BESIDE = 18  # lines that load weights
STEPWISE = 3  # more where weights are tied, or constants lie among them


def beside(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """What loads the weights."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "from_pretrained":
            yield node


def lines_of(node: ast.FunctionDef, text: str) -> int:
    first = min(each.lineno for each in (node, *node.decorator_list))
    return len(list(filter(str.strip, text.splitlines()[first - 1 : node.end_lineno])))


def hold(text: str) -> None:
    """A file made with the default options keeps to all of it."""
    tree = ast.parse(text)
    room = BESIDE + (STEPWISE if "]} | state" in text or "key.startswith(" in text else 0)
    assert sum(lines_of(node, text) for node in beside(tree)) <= room
    assert [line for line in text.splitlines() if len(line) > LINE_LENGTH] == []
    assert untyped(tree) == []
    assert len(re.findall(r"(?<![.\w])(?=\w*[a-f])[0-9a-f]{16,}\b", text)) == 1, (
        "one hash tells edits and other weights"
    )
    defined = [node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
    own = [node for node in defined if isinstance(node, ast.FunctionDef) or node.name not in helper_names()]
    assert isinstance(own[0], ast.ClassDef)


def untyped(tree: ast.Module) -> list[str]:
    """Functions of which an argument or the result has no annotation; not those that authors write without.

    These are the methods of the network's parts, and the functions that build the network.
    """
    network = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name not in helper_names()]
    free = {id(method) for node in network for method in node.body}
    free -= (
        {id(method) for method in network[-1].body if getattr(method, "name", "") == "forward"} if network else set()
    )
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and id(node) not in free)
    found = []
    for node in functions:
        given = [*node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        kinds = [a.annotation for a in given if a is not None and a.arg not in ("self", "cls")]
        builds = bool(node.args.args) and node.args.args[0].arg in ("pretrained", "cls")
        found += [node.name] if None in (*kinds, node.returns) and not builds else []
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden_files(path: Path) -> None:
    hold(path.read_text(encoding="utf-8"))


def test_helpers() -> None:
    """Whatever of them a file has."""
    every = "\n\n".join(helper.text for _, helper in sorted(helpers().items()))
    wrapped = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length=88", "-"]  # black takes seconds
    text = subprocess.run(wrapped, input=every, capture_output=True, text=True, encoding="utf-8", check=True).stdout
    assert text.count("\n") > 1000 and [line for line in text.splitlines() if len(line) > 88] == []
    assert untyped(ast.parse(text)) == []
