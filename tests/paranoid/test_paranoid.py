"""`--paranoid`: what is asked, what is said, and what is written all the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onnxgen.passes
from onnxgen.cli import run
from onnxgen.errors import STRICT, WrongRewrite
from onnxgen.graph.annotations import CHECKED
from onnxgen.options import Options
from onnxgen.paranoid import check, quick, single
from onnxgen.paranoid.apart import Apart, Crashed
from onnxgen.paranoid.claims import claims, difference
from onnxgen.paranoid.picture import take
from onnxgen.paranoid.quick import PARANOID
from onnxgen.paranoid.trained import Doubt, Rules
from onnxgen.passes import PASSES, simplify
from onnxgen.pipeline import build
from onnxgen.reader import read
from tests.support.hostile import HOSTILE

GELU = (
    '<ir_version: 8, opset_import: ["": 17]> net (float[n,4] x) => (float[n,4] y) '
    "<float root2 = {1.41421354}, float one = {1}, float half = {0.5}> "
    "{ a = Div(x, root2) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half) }"
)


@pytest.fixture
def gelu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(PARANOID, raising=False)
    onnx.save(onnx.parser.parse_model(GELU), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def wrong(model: ir.Model, options: Options) -> None:
    for node in list(model.graph):
        if node.op_type == "Gelu":
            node.attributes["approximate"] = ir.AttrString("approximate", "tanh")


def test_the_command_says_what_was_checked(gelu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([str(gelu), "--paranoid"]) == 0
    assert re.search(r"checked: 1 rewritten regions are the same .* by onnxruntime", capsys.readouterr().out)
    assert run([str(gelu), "--paranoid", "--force", "--json"]) == 0
    assert "rewritten regions" in json.loads(capsys.readouterr().out)["checked"]
    assert run([str(gelu), "--force"]) == 0
    assert "checked" not in capsys.readouterr().out


def test_a_difference_is_a_bug_in_onnxgen(
    gelu: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 70, one line that names pass, value, nodes and how much."""
    monkeypatch.setattr(onnxgen.passes, "PASSES", [*PASSES, wrong])
    assert run([str(gelu), "--paranoid"]) == 70
    said = capsys.readouterr().err
    assert re.search(r"this is a bug in onnxgen.*: the pass wrong changed 'y', made by y: the largest difference", said)
    assert len(said.splitlines()) == 1 and not gelu.with_suffix(".py").exists()


def test_a_pass_that_changes_results_is_left_out(
    gelu: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By default, and that is said. `ONNXGEN_STRICT=1` makes it an error, and so does an option that asks for it."""
    monkeypatch.setenv(STRICT, "")
    right = build(gelu, Options(), gelu.with_suffix(".py")).source
    monkeypatch.setattr(onnxgen.passes, "PASSES", [*PASSES, wrong])
    generated = build(gelu, Options(), gelu.with_suffix(".py"))
    assert generated.source == right and set(generated.report.left_out) == {"wrong"}
    assert run([str(gelu)]) == 0
    assert "1 rewriting left out, which would change results: wrong" in capsys.readouterr().out
    monkeypatch.setattr(quick, "NEEDED", ("wrong",))
    with pytest.raises(WrongRewrite, match="the pass wrong changed 'y'"):
        build(gelu, Options(), gelu.with_suffix(".py"))
    monkeypatch.setenv(STRICT, "1")
    monkeypatch.setattr(quick, "NEEDED", ())
    with pytest.raises(WrongRewrite):
        build(gelu, Options(), gelu.with_suffix(".py"))


@pytest.mark.parametrize("name", ["newlines", "separators", "non_ascii", "bidi", "control", "long", "backslash"])
def test_what_is_said_of_a_name_is_one_printable_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what a pass changed, and of a tensor about which two decisions differ."""
    monkeypatch.setenv(STRICT, "")
    monkeypatch.setattr(onnxgen.passes, "PASSES", [*PASSES, wrong])
    monkeypatch.setattr(Rules, "is_unfounded", lambda self, value, why: True)
    model = onnx.parser.parse_model(GELU)
    for node in model.graph.node:
        node.name = HOSTILE[name]
        node.input[:] = [HOSTILE[name] if i == "root2" else i for i in node.input]
    model.graph.initializer[0].name = HOSTILE[name]
    onnx.save(model, tmp_path / "m.onnx")
    report = build(tmp_path / "m.onnx", Options(), tmp_path / "m.py").report
    assert set(report.left_out) == {"wrong"} and "in doubt" in " ".join(report.notes)
    for said in (*report.left_out.values(), *report.notes):
        assert said.isascii() and said.isprintable() and len(said) <= 1000, said


@pytest.mark.parametrize(("value", "looks"), [("1", True), ("0", False), ("", False)])
def test_the_environment_asks_for_it_too(gelu: Path, value: str, looks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PARANOID, value)
    model = read(gelu, Options())
    simplify(model, Options())
    assert ("computed by numpy" not in str(CHECKED.get(model))) == looks


def test_what_is_written_does_not_depend_on_it(gelu: Path) -> None:
    plain, checked = (build(gelu, Options(paranoid=p), gelu.with_suffix(".py")) for p in (False, True))
    assert plain.source == checked.source and plain.report.checked != checked.report.checked


def test_without_onnxruntime_onnx_computes(gelu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report says so; what is wrong is still found."""
    monkeypatch.setattr(single, "HAS_ONNXRUNTIME", False)
    monkeypatch.setattr(check, "HAS_ONNXRUNTIME", False)
    assert "computed by onnx.reference" in build(gelu, Options(paranoid=True), gelu.with_suffix(".py")).report.checked
    monkeypatch.setattr(onnxgen.passes, "PASSES", [*PASSES, wrong])
    with pytest.raises(WrongRewrite):
        build(gelu, Options(paranoid=True), gelu.with_suffix(".py"))


def test_it_never_imports_torch(gelu: Path) -> None:
    code = (
        "import sys; from onnxgen.cli import run\n"
        "assert run([sys.argv[1], '--paranoid', '-q']) == 0 and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(gelu)], check=True, timeout=120)


@pytest.mark.parametrize("paranoid", [True, False])
def test_a_renamed_output_is_a_fault(gelu: Path, paranoid: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing else is changed, by every generation."""

    def renames(model: ir.Model, options: Options) -> None:
        model.graph.outputs[0].name = "z"

    monkeypatch.setattr(onnxgen.passes, "PASSES", [*PASSES, renames])
    with pytest.raises(WrongRewrite, match="the pass renames is wrong: the graph's outputs were y and are z"):
        build(gelu, Options(paranoid=paranoid), gelu.with_suffix(".py"))


def test_a_pass_that_changes_nothing_claims_nothing(gelu: Path) -> None:
    model = read(gelu, Options())
    assert difference(take(model), take(model)) is None


def test_every_use_of_a_changed_value_is_a_claim(gelu: Path) -> None:
    model = read(gelu, Options())
    before = take(model)
    last = model.graph[-1]
    new = ir.Node("", "Neg", [last.inputs[0]], version=13)
    model.graph.insert_before(last, new)
    last.replace_input_with(0, new.outputs[0])
    found = difference(before, take(model))
    assert found is not None
    assert [(c.before, c.after) for c in claims(found)] == [(new.inputs[0], new.outputs[0])]


def test_a_crash_is_no_end(tmp_path: Path) -> None:
    """What ends the other process is told, and not tried again; another process does the next one."""
    apart = Apart()
    good = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {y = Neg(x)}'
    )
    model, feeds = good.SerializeToString(), {"x": np.ones(2, np.float32)}
    assert apart.run(model, feeds)[0].tolist() == [-1, -1]
    assert apart.process is not None
    apart.process.kill()
    with pytest.raises(Crashed):
        apart.run(b"another", feeds)
    assert apart.process is None and b"another" in apart.crashed
    with pytest.raises(RuntimeError):
        apart.run(b"no model", feeds)
    assert apart.run(model, feeds)[0].tolist() == [-1, -1]
    apart.close()


def test_a_doubt_about_what_is_trained_is_said(gelu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second decision is that of `--paranoid`, which refuses; any other generation says it, unless it is strict."""
    doubt = Doubt(ir.Value(name="w"), "'w' is trained: of course")
    monkeypatch.setattr(quick, "wrong_decisions", lambda *_: iter([doubt]))
    with pytest.raises(WrongRewrite, match="trainable is wrong: 'w' is trained: of course"):
        build(gelu, Options(), gelu.with_suffix(".py"))
    monkeypatch.setenv(STRICT, "")
    notes = build(gelu, Options(), gelu.with_suffix(".py")).report.notes
    doubted = (
        "what is trained is in doubt (--trainable and --frozen decide), please report it: 'w' is trained: of course"
    )
    assert doubted in notes


def test_a_pass_whose_check_fails_is_left_out(gelu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what it did. That is no reason to write nothing."""
    monkeypatch.setattr(quick.Comparison, "is_same", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        build(gelu, Options(), gelu.with_suffix(".py"))
    monkeypatch.setenv(STRICT, "")
    generated = build(gelu, Options(), gelu.with_suffix(".py"))
    assert "the check failed: ZeroDivisionError" in generated.report.left_out["activations"]
    assert "torch.erf(" in generated.source and "gelu" not in generated.source.lower()


def test_a_second_decision_that_fails_is_a_doubt(gelu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT, "")
    right = build(gelu, Options(), gelu.with_suffix(".py")).source
    monkeypatch.setattr(Rules, "wanted", lambda *_: 1 // 0)
    generated = build(gelu, Options(), gelu.with_suffix(".py"))
    assert generated.source == right
    assert any("in doubt" in note and "ZeroDivisionError" in note for note in generated.report.notes)


def test_a_pass_that_is_needed_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the pass `text`, a later stage would take text for numbers."""
    net = 'g (int64[n] i) => (string y) <string[3] table = {"a", "bc", "d"}> { y = Gather(table, i) }'
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {net}'), tmp_path / "m.onnx")
    assert build(tmp_path / "m.onnx", Options(), tmp_path / "m.py")
    names = [step.__name__ for step in PASSES]

    def text(model: ir.Model, options: Options) -> None:
        """A pass that does nothing."""

    monkeypatch.setattr(onnxgen.passes, "PASSES", [text if n == "text" else p for n, p in zip(names, PASSES)])
    monkeypatch.setenv(STRICT, "")
    with pytest.raises(WrongRewrite, match="text is wrong: Gather .*is given text"):
        build(tmp_path / "m.onnx", Options(), tmp_path / "m.py")
