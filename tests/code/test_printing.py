"""Trees are printed in one place, and a finished file holds the very trees that were meant."""

from __future__ import annotations

import ast
import itertools
import keyword
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from onnxgen.cli import run
from onnxgen.code import printer, render
from onnxgen.code.allowed import BUILTINS, Refused, check, is_identifier
from onnxgen.code.class_tree import ClassTree, Meant, hold, refuse_others, same
from onnxgen.code.copied import Definition, helper_names
from onnxgen.code.quote import NiceFloat
from onnxgen.common.names import RESERVED, FileText, LocalName, local
from onnxgen.options import Options
from onnxgen.pipeline import build
from onnxgen.record.base import with_fingerprint
from onnxgen.structure import naming
from tests.conftest import ROOT
from tests.injection.holding import hold as hold_clean
from tests.ops.harness import unformatted
from tests.support.clean_source import check_module
from tests.support.real import run as run_model

MNIST = ROOT / "samples" / "mnist" / "mnist.onnx"
CODE = '__import__("os").system("touch PWNED"); y'
NOT_NAMES = ("", "a b", "a;b", "a\nb", "1a", "é", "ｅｘｅｃ", "class", "None", "a.b", CODE, "x\x00", "\udcff")


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


# ---- names -----------------------------------------------------------------------------------------------------------


def test_every_local_name_is_one() -> None:
    for text in (*NOT_NAMES, *keyword.kwlist, *keyword.softkwlist, *BUILTINS, "__class__", "x" * 999, "Fine", "_"):
        name = local(text)
        assert is_identifier(name) and name not in BUILTINS and not name.startswith("__"), text
        assert type(name) is LocalName and local(name) == name
    assert [local(name) for name in ("x", "hidden_states", "Loop_out", "_")] == ["x", "hidden_states", "Loop_out", "_"]


def test_a_name_of_the_file_is_no_part_of_other_text() -> None:
    text = FileText(CODE)
    joins: tuple[Callable[[Any], str], ...] = (
        lambda t: f"x = {t}", lambda t: "x = " + t, str, lambda t: "".join([t]), "{}".format
    )  # fmt: skip
    for join in joins:
        with pytest.raises(TypeError):
            join(text)
    assert text.identifier().isidentifier() and set(text.printable()).isdisjoint("\"'\\\n") and text.word() == ""
    assert FileText("hidden").word() == "hidden" and FileText("hidden\n").word() == ""
    assert text == FileText(CODE) != CODE and len({text, FileText(CODE)}) == 1


def looped(*states: str) -> onnx.ModelProto:
    """One loop after another, whose carried values have these names, and another shape each time one is declared."""
    make, info = helper.make_node, helper.make_tensor_value_info
    body = helper.make_graph(
        [make("Add", ["s", "x"], ["t"]), make("Identity", ["c"], ["d"])],
        "body",
        [info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, []), info("s", TensorProto.FLOAT, [None, 2])],
        [info("d", TensorProto.BOOL, []), info("t", TensorProto.FLOAT, None)],
    )
    nodes = [make("Loop", ["n", "", given], [made], body=body) for given, made in itertools.pairwise(["x", *states])]
    nodes.append(make("Neg", [states[-1]], ["y"]))
    given = [info("x", TensorProto.FLOAT, [2, 2]), info("n", TensorProto.INT64, [])]
    graph = helper.make_graph(nodes, "net", given, [info("y", TensorProto.FLOAT, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("part", range(3))
def test_no_name_of_a_carried_value_breaks_a_module(part: int, tmp_path: Path) -> None:
    """The value is called by its name in the file, whatever that is: keywords, and `range`, which the loop calls."""
    path = tmp_path / "net.onnx"
    every = {*NOT_NAMES[1:-1], *keyword.kwlist, *keyword.softkwlist, *BUILTINS, *helper_names(), *RESERVED}
    names = sorted(every)[part::3]
    with unformatted():  # black finds what Python finds, and takes most of the time
        for first in range(0, len(names), 24):
            some = names[first : first + 24]
            path.write_bytes(looped(*some).SerializeToString())
            hold_clean(build(path, Options(), tmp_path / "net.py").source, ", ".join(some))


@pytest.mark.parametrize("name", ["range", "class", "self", "torch", "__class__", CODE])
def test_a_loop_is_what_it_was(name: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(looped(name).SerializeToString())
    given = {"x": np.ones((2, 2), np.float32), "n": np.array(3)}
    (expected,) = onnxruntime.InferenceSession(path).run(None, given)
    (found,) = run_model(path, tmp_path, given).outputs
    np.testing.assert_array_equal(found.numpy(), expected)


# ---- the printer -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NOT_NAMES, "range", "print", "torch", "nn"])
def test_no_such_name_is_bound(name: str) -> None:
    """As a variable, a parameter, an attribute, a keyword, a class."""
    target, x = ast.Name(name, ast.Store()), ast.Name("x", ast.Load())
    places: list[ClassTree] = [
        ClassTree("Net", body=[ast.Assign([target], x), ast.Return(x)], inputs=[ast.arg("x")]),
        ClassTree("Net", body=[ast.For(target, x, [ast.Pass()], []), ast.Return(x)], inputs=[ast.arg("x")]),
        ClassTree("Net", body=[ast.Return(x)], inputs=[ast.arg("x"), ast.arg(name)]),
    ]
    if not is_identifier(name):
        here = ast.Attribute(ast.Name("self", ast.Load()), name, ast.Load())
        call = ast.Call(ast.Attribute(x, "sum", ast.Load()), [], [ast.keyword(name, x)])
        places += [ClassTree("Net", body=[ast.Return(value)], inputs=[ast.arg("x")]) for value in (here, call)]
        places.append(ClassTree(name, body=[ast.Return(x)], inputs=[ast.arg("x")]))
    refuse_others([ClassTree("Net", body=[ast.Return(x)], inputs=[ast.arg("x")])], frozenset(), False)
    for with_plugins in (False, True)[: 1 if name == "é" else 2]:  # a plugin may have names in letters of its own
        for place in places:
            with pytest.raises(Refused):
                refuse_others([place], frozenset(), with_plugins)


@pytest.mark.parametrize("text", ["[input for input in x]", "größe(x)", "torch.ops.mine.op(x)", "(lambda id: id)(x)"])
def test_a_plugin_writes_what_it_likes(text: str) -> None:
    tree = ClassTree("Net", body=[ast.Return(expression(text))], inputs=[ast.arg("x")])
    refuse_others([tree], frozenset(), True)
    with pytest.raises(Refused):
        refuse_others([tree], frozenset(), False)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')", "open('x')", "x.__class__", "torch.load('x')", "unknown", "unknown(x)", "(lambda: exec)()",
        "(await_ := x)", "getattr(x, 'eval')", "torch.hub", "os.system('x')", "[y for y in __builtins__]",
        "torch.nn.utils.x(y)", "nn.utils.parametrizations.weight_norm.__globals__", "nn.utils.weight_norm(x)",
    ],
)  # fmt: skip
def test_no_such_expression(text: str) -> None:
    with pytest.raises(Refused):
        check(expression(text), BUILTINS | {"x", "torch", "y", "nn"}, BUILTINS)


def test_no_name_or_attribute_that_leads_out_is_read() -> None:
    """Neither what runs code nor what reaches files and processes, whatever is known; of `self`, it is a layer."""
    names = "exec eval open compile __import__ input breakpoint globals locals vars setattr delattr getattr os sys"
    for name in f"{names} subprocess".split():
        with pytest.raises(Refused, match="it uses the name"):
            check(expression(name), BUILTINS | {"os", "sys", "subprocess"}, BUILTINS)
    attributes = "load save hub ops utils jit package serialization multiprocessing distributed library fromfile tofile"
    attributes += " memmap loadtxt savetxt genfromtxt savez open unlink write_text write_bytes rename rmdir mkdir touch"
    attributes += " chmod symlink_to hardlink_to iterdir glob exec eval system popen fork spawn modules environ"
    attributes += " import_module builtins os sys subprocess classes compiler ctypeslib f2py distutils DataSource"
    for name in attributes.split():
        with pytest.raises(Refused, match="it uses the attribute"):
            check(expression(f"x.{name}"), {"x"}, BUILTINS)
        check(expression(f"self.{name}.weight"), {"self"}, BUILTINS)


def test_what_may_hold_a_layer_is_called() -> None:
    """Arguments and loop variables, each as often as the method likes; no other variable."""
    text = """
def forward(self, x, first, second):
    for layer, scale in self.layers:
        x = layer(x) + second(first(second(x)))
    try:
        return [inner(first(x)) for inner in self.more]
    except ValueError:
        return layer(x)
"""
    check(ast.parse(text), BUILTINS | {"self"}, BUILTINS, {"torch"})
    for line in ("x = len; x(y)", "x = y; [x(z) for z in y]", "y(y)"):
        with pytest.raises(Refused, match="it calls"):
            check(ast.parse(line), BUILTINS | {"y"}, BUILTINS)


def test_a_layer_whose_weight_is_made_is_allowed() -> None:
    text = "nn.utils.parametrizations.weight_norm(nn.Linear(1, 2), dim=None)"
    check(expression(text), {"nn"}, BUILTINS)
    with pytest.raises(Refused, match="with axis="):
        check(expression(text.replace("dim", "axis")), {"nn"}, BUILTINS)


@pytest.mark.parametrize("text", ["yield x", "await x", "import os", "global x", "try:\n pass\nfinally:\n pass"])
def test_no_such_statement_is_printed(text: str) -> None:
    tree = ast.parse(f"async def f():\n {text}" if "await" in text else text).body
    with pytest.raises(Refused):
        printer.lines(tree)
        check_module(ast.Module(tree, []))


@pytest.mark.parametrize("text", ["a\nb", "it's", '"', "back\\slash", "\x1b[31m", "é", "\u202e", "\u2028"])
def test_no_such_comment_is_printed(text: str) -> None:
    with pytest.raises(Refused):
        printer.remarked(ast.Pass(), text)
    assert printer.lines([printer.remarked(ast.Pass(), "[2, 3]")]) == ["pass  # [2, 3]"]


@pytest.mark.parametrize("text", ['"', "\\", "a\nb", "\x00", "\udcff", "\u2028", "\x85"])
def test_no_such_text_is_put_between_quotes(text: str) -> None:
    with pytest.raises(Refused):
        printer.between_quotes(text)
    assert printer.between_quotes("it's a ñ {x}") == "it's a ñ {x}"


def test_what_a_method_binds_hides_nothing_that_it_reads() -> None:
    check(ast.parse("for item in range(3):\n    _ = item"), BUILTINS, BUILTINS, {"torch"})
    for text in ("range = 1", "def f(len): pass", "for torch in x: pass", "[__x for __x in y]"):
        with pytest.raises(Refused, match="means something else"):
            check(ast.parse(text), BUILTINS | {"x", "y"}, BUILTINS, {"torch"})


# ---- the finished file -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x + 1", "x + 1.0"), ("x(1)", "x(True)"), ("x", "y"), ("f(a=x)", "f(b=x)"), ("x.a", "x.b"), ("[x]", "(x,)"),
        ("f(x, y)", "f(x)"), ("x < y", "x > y"), ("'a'", "'b'"), ("x[1:]", "x[1::]  if x else y"), ("-x", "+x"),
        ("'1'", "1"), ("f'{x}'", "f'{y}'"), ("[y for y in x]", "[x for y in x]"), ("None", "0"), ("f(x)", "f(*x)"),
    ],
)  # fmt: skip
def test_other_trees_are_not_the_same(one: str, other: str) -> None:
    assert same(expression(one), expression(f"({one})")) and not same(expression(one), expression(other))


def test_a_meant_literal_is_found_as_python_reads_it() -> None:
    assert same(ast.Constant(NiceFloat(1e-5)), expression("1e-5"))
    assert not same(ast.Constant(NiceFloat(1e-5)), expression("1e-6"))


def meant_and_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Meant, str]:
    seen: list[Meant] = []
    before = render.hold
    monkeypatch.setattr(render, "hold", lambda tree, meant, is_ours: (seen.append(meant), before(tree, meant, is_ours)))
    source = build(MNIST, Options(), tmp_path / "net.py").source
    return seen[0], source


CHANGES: dict[str, Callable[[str], str]] = {
    "a statement in forward": lambda s: s.replace("        return ", "        print(1)\n        return ", 1),
    "a statement in __init__": lambda s: s.replace("super().__init__()", "super().__init__(); x = 1", 1),
    "another argument": lambda s: s.replace(") -> Tensor:", ", y=open('x')) -> Tensor:", 1),
    "another result": lambda s: s.replace(") -> Tensor:", ") -> exit():", 1),
    "a decorator": lambda s: s.replace("    def forward", "    @print\n    def forward", 1),
    "another base": lambda s: s.replace("(nn.Module)", "(nn.Module, print())", 1),
    "a line in a class": lambda s: s.replace("    def forward", "    x = print()\n\n    def forward", 1),
    "a method twice": lambda s: s.replace("    def forward", "    def forward(self): pass\n\n    def forward", 1),
    "a line in the file": lambda s: s.replace("\nWEIGHTS", "\nprint(1)\nWEIGHTS", 1),
    "an import": lambda s: s.replace("\nimport torch\n", "\nimport torch\nimport os\n", 1),
    "a function": lambda s: s + "\n\ndef more():\n    pass\n",
    "a class twice": lambda s: s + "\n\nclass Mnist:\n    pass\n",
    "no docstring": lambda s: s[s.index("from __future__") if "from __future__" in s else s.index("\nimport") :],
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_file_that_is_not_what_was_meant(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meant, source = meant_and_source(tmp_path, monkeypatch)
    hold(ast.parse(source), meant, is_ours=True)
    changed = CHANGES[kind](source)
    assert changed != source
    with pytest.raises(Refused):
        hold(ast.parse(changed), meant, is_ours=True)


def test_a_helper_is_word_for_word(tmp_path: Path) -> None:
    name = sorted(helper_names())[0]
    meant = Meant([], {name: Definition("", ast.parse(f"def {name}(x):\n    return x").body[0])})
    hold(ast.parse(f'"""Text."""\ndef {name}(x):\n    return x'), meant, is_ours=True)
    for text in (f'"""Text."""\ndef {name}(x):\n    return -x', '"""Text."""'):
        with pytest.raises(Refused):
            hold(ast.parse(text), meant, is_ours=True)


@pytest.mark.parametrize("fault", [CODE, "class", "range", "x y"])
def test_a_fault_costs_a_refusal(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If what makes names were broken, or what prints, the command would end with 70 and write nothing."""
    monkeypatch.setattr(naming, "local", lambda text: LocalName(fault if text == "image" else text))
    assert run([str(MNIST), "-o", str(tmp_path / "net.py")]) == 70
    said = capsys.readouterr().err
    assert said.startswith("error: this is a bug in onnxgen, please report it") and said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fault", [CODE, "x)\n        import os\n        (x", "x  # (", '"""', "("])
def test_a_fault_in_printing_costs_a_refusal(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(printer, "bare", lambda tree: fault)
    assert run([str(MNIST), "-o", str(tmp_path / "net.py")]) == 70
    assert "this is a bug in onnxgen" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_long_comment_is_not_put_behind_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    statement = printer.remarked(ast.Pass(), "", (FileText("a"),))
    longest = "pass  # onnx: ".ljust(printer.LINE_LENGTH, "a")
    monkeypatch.setattr(printer, "annotated", lambda line, nodes: [longest])
    assert printer.lines([statement]) == [longest]
    monkeypatch.setattr(printer, "annotated", lambda line, nodes: [longest + "a"])
    with pytest.raises(Refused):
        printer.lines([statement])


def test_a_file_gets_its_fingerprint() -> None:
    assert with_fingerprint('a = 1\nFINGERPRINT = ""\n', "0f") == 'a = 1\nFINGERPRINT = "0f"\n'
    with pytest.raises(ValueError):
        with_fingerprint("a = 1\n", "0f")
