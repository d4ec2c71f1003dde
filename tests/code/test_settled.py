"""Lines that black does not see are as black would write them, and what its absence costs is said."""

from __future__ import annotations

import ast
import random
import time
from collections.abc import Callable
from pathlib import Path

import black
import onnx
import pytest

from benchmarks.generation import irregular
from onnxgen.code import render
from onnxgen.code.class_tree import ClassSource
from onnxgen.code.render import LINE_LENGTH, LOADING_TEMPLATE, Settled, _our_environment, formatted_apart
from onnxgen.common.timing import recorded, stage
from onnxgen.options import Options
from onnxgen.pipeline import build

CONSTANTS = (0, 1, -3, 1e-05, 1e20, 2.5, True, None, "text", "it's", 'say "so"', b"raw", 1e400, 3j, ...)
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.MatMult, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.LShift)


def expression(draw: random.Random, depth: int) -> ast.expr:
    """Any expression, of all the kinds that are written in another way by black than by `ast.unparse`."""

    def sub() -> ast.expr:
        return expression(draw, depth - 1)

    name = ast.Name(draw.choice(["x", "hidden", "self", "torch", "not_yet", "returned"]))
    if depth <= 0:
        return draw.choice([name, ast.Constant(draw.choice(CONSTANTS))])
    several = [sub() for _ in range(draw.randrange(4))]
    keywords = [ast.keyword(draw.choice(["dim", None]), sub()) for _ in range(draw.randrange(2))]
    slices = [ast.Slice(draw.choice([None, sub()]), draw.choice([None, sub()])), sub(), ast.Tuple(several or [name])]
    made: list[Callable[[], ast.expr]] = [
        lambda: ast.Call(ast.Attribute(draw.choice([name, sub()]), "view"), several, keywords),
        lambda: ast.Call(name, [ast.Starred(name), *several], []),
        lambda: ast.BinOp(sub(), draw.choice(OPERATORS)(), sub()),
        lambda: ast.UnaryOp(draw.choice([ast.USub, ast.Not, ast.Invert])(), sub()),
        lambda: ast.Compare(sub(), [draw.choice([ast.Lt, ast.In, ast.IsNot, ast.Eq])()], [sub()]),
        lambda: ast.Subscript(name, draw.choice(slices)),
        lambda: draw.choice([ast.Tuple, ast.List])(several),
        lambda: ast.IfExp(sub(), sub(), sub()),
        lambda: ast.Lambda(ast.arguments([], [ast.arg("y")], None, [], [], None, []), sub()),
        lambda: ast.Dict([sub()], [sub()]),
        lambda: ast.BoolOp(ast.Or(), [sub(), sub()]),
    ]
    return draw.choice(made)()


def statements(draw: random.Random, count: int) -> list[str]:
    lines = []
    for _ in range(count):
        text = ast.unparse(ast.fix_missing_locations(expression(draw, draw.randrange(4))))
        target = draw.choice(
            ["x = ", "x, y = ", "x, = ", "(x, y) = ", "self.layer = ", "x = y = ", "", "return ", "x += "]
        )
        line = target + text
        if draw.random() < 0.3 and len(line) < 60:
            line += draw.choice(["  # [batch, 8]", "  # [a(b), c - 1]", "  # [x] of #2", "  # fmt: skip"])
        lines += [line] if draw.random() < 0.8 else ["if x > 1:", "    " + line]
    return lines


def written(classes: list[ClassSource]) -> str:
    """A file as the templates write one, before black."""
    text = '"""A file."""\nimport torch\n\n'
    for one in classes:
        for method, lines in (("__init__", one.init), ("forward", one.forward)):
            body = "".join(f"        {line}\n" for line in lines)
            text += f"\n\nclass {one.name}{method}(nn.Module):\n    def {method}(self, x, y):\n{body}"
    return text


def formatted(text: str) -> str:
    return black.format_str(text, mode=black.Mode(line_length=LINE_LENGTH))


def test_black_would_have_left_them() -> None:
    draw = random.Random(0)
    lines = marks = 0
    for turn in range(25):
        classes = [ClassSource(f"C{n}", init=statements(draw, 5), forward=statements(draw, 12)) for n in range(2)]
        taken = Settled(classes, LINE_LENGTH)
        assert taken.restored(formatted(written(taken.classes))) == formatted(written(classes)), turn
        lines += sum(len(one.init) + len(one.forward) for one in classes)
        marks += sum(map(len, taken.runs))
    assert lines > 800 and marks > 0.15 * lines


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("more", [{}, {"sharded": True}, {"constants": "constants."}, {"ties": 1}])
@pytest.mark.parametrize("floats", ["", "torch.float32", "torch.float16"])
def test_a_method_that_is_formatted_alone(embedded: bool, more: dict[str, object], floats: str) -> None:
    given = {"sharded": False, "constants": "", "ties": [], "tied_keys": [("a.b", "c" * 60)]}
    given |= {"name": "A", "function": "a"}
    template = _our_environment().get_template(LOADING_TEMPLATE)
    method = template.render({**given, **more, "embedded": embedded, "floats": floats}).strip("\n") + "\n"
    parts = "def forward(self, *args: Any, a=a_long_name_of_a_default, b=a_long_name_of_a_default, **last) -> Tensor:"
    before = f"import torch\nclass A(nn.Module):\n    {parts}\n        return x\n\n\nB = 1\n\n\n"
    for end in ("\n\nModel = A\n", "\n\n\ndef f(x):\n    return x\n"):
        text = before + method + end
        assert formatted_apart(text, method, formatted) == formatted(text)
    seen: list[str] = []
    formatted_apart(text, method, lambda text: seen.append(text) or text)  # type: ignore[func-returns-value]
    assert not any("forward" in text and "strict" in text for text in seen), "it was not taken out"


def test_a_graph_without_repetition(tmp_path: Path) -> None:
    nodes = 200
    onnx.save(irregular(nodes), tmp_path / "net.onnx")
    source = build(tmp_path / "net.onnx", Options(), tmp_path / "net.py").source
    assert source == formatted(source) and source.count("\n") > nodes


def test_too_many_lines_for_black(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(irregular(100), tmp_path / "net.onnx")
    usual = build(tmp_path / "net.onnx", Options(), tmp_path / "net.py")
    assert not any("black" in note for note in usual.report.notes)
    monkeypatch.setattr(render, "MAX_BLACK_LINES", 0)
    quick = build(tmp_path / "net.onnx", Options(), tmp_path / "net.py")
    assert any("black" in note for note in quick.report.notes)
    assert formatted(quick.source) == usual.source  # the same but for the wrapping, so the same fingerprint, too


def test_each_second_is_in_one_stage() -> None:
    seconds: dict[str, float] = {}
    with stage("outside"):
        time.sleep(0.01)
    with recorded(seconds):
        with stage("outer"):
            time.sleep(0.02)
            with pytest.raises(KeyError), stage("inner"):
                time.sleep(0.05)
                raise KeyError
            time.sleep(0.02)
        with stage("inner"):
            time.sleep(0.05)
    assert list(seconds) == ["outer", "inner"]
    assert 0.04 <= seconds["outer"] < 0.1 <= seconds["inner"]
