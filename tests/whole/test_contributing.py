"""CONTRIBUTING.md adds an operator and an idiom; the same is done here, in a copy of the tree, and the commands run.

A command is added, too: one function. (A task is one file: tests/training/test_tasks.py.)
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import textwrap
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.conftest import ROOT
from tests.ops.harness import node_model
from tests.support import forked
from tests.support.idioms import spelled

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
COPIED = ("onnxgen", "templates", "build_hooks", "tests", "docs", "benchmarks", "samples")
FILES = ("pyproject.toml", "README.md", "CONTRIBUTING.md", "SECURITY.md")
STEP = re.compile(
    r"(?:At the end of `(?P<end>[^`]+)`|In `(?P<inside>[^`]+)`, before `(?P<anchor>[^`]+)`):\n\n"
    r"^ *```python\n(?P<code>.*?)^ *```$|^ *```sh\n(?P<commands>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)
BLOCKS = re.compile(r"^ *```\w", re.MULTILINE)

# What the page's commands run besides the page's own tests: other sizes, another spelling, torch's module.
DET = """

def test_a_determinant_of_other_sizes() -> None:
    run_node("Det", [np.random.default_rng(1).normal(size=(3, 1, 2, 2)).astype(F)])
"""
TANHSHRINK = """

def test_tanhshrink_is_torchs_module() -> None:
    model = spelled("t = Tanh(x) n = Neg(t) y = Add(n, x)", shape="2, 3")
    hold(model, "return F.tanhshrink(x)", torch.nn.Tanhshrink())
"""


COMMAND = '''

@_command("count", "Count the bytes of a file.", [("onnxgen count net.onnx", "Print a number.")])
@model_argument
def count(model: Path) -> int:
    """Count the bytes of MODEL."""
    click.echo(model.stat().st_size)
    return 0
'''


def section(title: str) -> str:
    """The text under a heading."""
    found = re.search(rf"^## {title}$(.*?)(?=^## )", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is here, with the bytecode of what stays as it is."""
    tree = tmp_path_factory.mktemp("contributing")
    for name in COPIED:
        shutil.copytree(ROOT / name, tree / name)
    for name in FILES:
        shutil.copy(ROOT / name, tree)
    return tree


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "ONNXGEN"))}
    return {**kept, **more}


def run(tree: Path, *command: str) -> tuple[int, str]:
    """Run `python COMMAND` in a copy; its exit code and what it prints."""
    done = forked.run(command, cwd=tree, env=environment(PYTHONPATH=str(tree)), merged=True)
    return done.returncode, done.stdout


def follow(tree: Path, text: str) -> list[str]:
    """Do the steps of a section; returns what its commands print."""
    said = []
    steps = list(STEP.finditer(text))
    assert len(steps) == len(BLOCKS.findall(text)), "a block that belongs to no step"
    for step in steps:
        if step["commands"] is not None:
            said += [command(tree, line.strip()) for line in step["commands"].splitlines()]
        elif step["end"]:
            code = textwrap.dedent(step["code"])
            append(tree / step["end"], "\n\n" + code)
        else:
            insert(tree / step["inside"], step["anchor"], step["code"].removeprefix("   ").replace("\n   ", "\n"))
    return said


def insert(path: Path, anchor: str, code: str) -> None:
    """Put lines before the one line that has the anchor."""
    lines = path.read_text().splitlines(keepends=True)
    (at,) = [number for number, line in enumerate(lines) if anchor in line]
    path.write_text("".join([*lines[:at], code, *lines[at:]]))


def command(tree: Path, line: str) -> str:
    """What a command prints; its `>` writes a file."""
    line, _, file = line.partition(" > ")
    python, *arguments = shlex.split(line)
    assert python == "python"
    code, said = run(tree, *arguments)
    assert code == 0, said
    if file:
        (tree / file).write_text(said)
    return said


def remove(path: Path, *names: str) -> None:
    """Take functions out of a file."""
    lines = path.read_text().splitlines(keepends=True)
    for node in reversed(ast.parse("".join(lines)).body):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            del lines[min(d.lineno for d in (*node.decorator_list, node)) - 1 : node.end_lineno]
    path.write_text("".join(lines))


def passed(said: str) -> int:
    """How many tests a run of pytest says have passed."""
    found = re.search(r"\b(\d+) passed", said)
    return int(found[1]) if found else 0


def generated(tree: Path, model: onnx.ModelProto) -> str:
    """What the command of the copy says of a model, and the text that it writes."""
    path = tree / "net.onnx"
    path.write_bytes(model.SerializeToString())
    code, said = run(tree, "-m", "onnxgen", str(path), "--force")
    return said + (path.with_suffix(".py").read_text() if code == 0 else "")


def append(path: Path, code: str) -> None:
    path.write_text(path.read_text() + code)


def test_an_operator(tree: Path) -> None:
    """Without its function it is refused; with it, it computes what onnxruntime does, and the page is as it is here."""
    remove(tree / "onnxgen/ops/math.py", "det")
    remove(tree / "tests/ops/test_math.py", "test_det")
    append(tree / "tests/ops/test_math.py", DET)
    model = node_model("Det", [np.eye(2, dtype=np.float32)])
    assert "(Det-21): the operator is not supported" in (said := generated(tree, model)), said
    assert passed(follow(tree, section("Add an operator"))[-1]) == 4
    assert (tree / "docs/OPERATORS.md").read_text() == (ROOT / "docs/OPERATORS.md").read_text()


def test_an_idiom(tree: Path) -> None:
    """Before, it is spelled out; after, it is torch's function, in another spelling than the page's, too."""
    append(tree / "tests/passes/test_idioms_activation.py", TANHSHRINK)
    assert "return x - torch.tanh(x)" in (text := generated(tree, spelled("t = Tanh(x) y = Sub(x, t)"))), text
    (said,) = follow(tree, section("Add an idiom"))
    assert passed(said) == 4, said


def test_a_command(tree: Path) -> None:
    """Its function is run by its name, and `onnxgen -h` lists it."""
    append(tree / "onnxgen/cli/app.py", COMMAND)
    (tree / "bytes.onnx").write_bytes(b"12345")
    assert run(tree, "-m", "onnxgen", "count", "bytes.onnx") == (0, "5\n")
    code, said = run(tree, "-m", "onnxgen", "-h")
    assert code == 0 and re.search(r"count +Count the bytes of a file", said)


@pytest.mark.parametrize(("title", "row"), [("Add an operator", "operator"), ("Add an idiom", "idiom")])
def test_the_table_counts_the_steps(title: str, row: str) -> None:
    steps = [step for step in STEP.finditer(section(title)) if step["code"]]
    files = {step["end"] or step["inside"] for step in steps} | ({"docs/OPERATORS.md"} if row == "operator" else set())
    lines = sum(bool(line.strip()) for step in steps for line in step["code"].splitlines())
    assert re.search(rf"^\| an {row}: [^|]*\| {len(files)} \| {lines}\b", PAGE, re.MULTILINE), (len(files), lines)
