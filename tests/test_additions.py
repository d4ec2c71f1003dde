"""What it takes to add an operator, an idiom or a command: one place each. (A task: tests/training/test_tasks.py.)

Each is added to a copy of the package in which all else is linked, and used there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, parser

from tests.conftest import ROOT
from tests.support import forked

OPERATOR = '''
"""The length of a vector from its two parts."""

import ast

from onnxgen.graph.operators import op
from onnxgen.graph.traits import ELEMENTWISE
from onnxgen.lowering.builder import Arg, Builder


@op("Hypot", domain="com.acme", traits=[ELEMENTWISE])
def hypot(b: Builder, X: Arg, Y: Arg) -> ast.expr:
    return b("torch.hypot(x, y)", x=X, y=Y)
'''
IDIOM = '        _to("Softsign", 22, "x / (1 + Abs(x))"),\n'
COMMAND = '''

@_command("count", "Count the bytes of a file.", [("onnxgen count net.onnx", "Print a number.")])
@model_argument
def count(model: Path) -> int:
    """Count the bytes of MODEL."""
    click.echo(model.stat().st_size)
    return 0
'''
GENERATE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import onnxgen

assert Path(onnxgen.__file__).is_relative_to(sys.argv[1])
onnxgen.generate(sys.argv[2], "net.py")
print(Path("net.py").read_text())
"""
RUN = """
import sys
sys.path.insert(0, sys.argv[1])
from onnxgen.cli import main
main(sys.argv[2:])
"""


def copy_with(folder: Path, file: str, text: str) -> Path:
    """A copy of onnxgen that has a file of its own, and where all else is linked."""
    parts = Path(file).parts
    for depth in range(1, len(parts)):
        inner = Path(*parts[:depth])
        (folder / inner).mkdir(parents=True)
        for path in (ROOT / inner).iterdir():
            if path.name not in (parts[depth], "__pycache__"):
                (folder / inner / path.name).symlink_to(path)
    (folder / file).write_text(text, encoding="utf-8")
    return folder


def saved(path: Path, text: str) -> Path:
    graph = parser.parse_graph(text)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def generated(copy: Path, model: Path) -> str:
    done = forked.run(["-c", GENERATE, str(copy), str(model)], cwd=model.parent)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_one_function_adds_an_operator(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    copy = copy_with(tmp_path / "copy", "onnxgen/ops/lengths.py", OPERATOR)
    model = saved(tmp_path / "net.onnx", "net (float[N] x, float[N] y) => (float[N] z) { z = com.acme.Hypot(x, y) }")
    assert "torch.hypot(x, y)" in generated(copy, model)
    space: dict[str, object] = {"__name__": "net", "__file__": str(tmp_path / "net.py")}
    exec((tmp_path / "net.py").read_text(), space)
    x, y = np.array([3.0, 5.0], np.float32), np.array([4.0, 12.0], np.float32)
    np.testing.assert_array_equal(space["Model"]()(torch.from_numpy(x), torch.from_numpy(y)), np.hypot(x, y))  # type: ignore[operator]


def test_one_row_adds_an_idiom(tmp_path: Path) -> None:
    """A row is taken out in a copy, and what it recognises is written out; so the row is all that there is of it."""
    file = "onnxgen/passes/activations.py"
    text = (ROOT / file).read_text(encoding="utf-8")
    assert text.count(IDIOM) == 1
    model = saved(
        tmp_path / "net.onnx",
        "net (float[N] x) => (float[N] y) { c = Constant<value_float = 1.0>() a = Abs(x) b = Add(c, a) y = Div(x, b) }",
    )
    without = copy_with(tmp_path / "without", file, text.replace(IDIOM, ""))
    assert "softsign" not in generated(without, model)
    whole = copy_with(tmp_path / "whole", file, text)
    (tmp_path / "net.py").unlink()
    assert "F.softsign(x)" in generated(whole, model)


def test_one_function_adds_a_command(tmp_path: Path) -> None:
    file = "onnxgen/cli/app.py"
    copy = copy_with(tmp_path / "copy", file, (ROOT / file).read_text(encoding="utf-8") + COMMAND)
    (tmp_path / "net.onnx").write_bytes(b"12345")
    done = forked.run(["-c", RUN, str(copy), "count", "net.onnx"], cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "5"), done.stderr[-2000:]
    done = forked.run(["-c", RUN, str(copy), "-h"], cwd=tmp_path)
    assert "count" in done.stdout and "Count the bytes of a file." in done.stdout
