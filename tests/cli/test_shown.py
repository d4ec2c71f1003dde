"""What is shown on a terminal, in a log, an error or a report holds nothing that a terminal obeys."""

from __future__ import annotations

import ast
import json
import re
import sys
import unicodedata
import warnings
from pathlib import Path

import onnx
import pytest
import tomllib
from onnx import TensorProto, helper

from onnxgen.cli import run, say
from onnxgen.code.printer import is_quotable
from onnxgen.common.names import printable, visible
from onnxgen.errors import OnnxgenError, Problem
from tests.conftest import ROOT, SHARED

# an escape sequence, C1's, the bell, turned writing, zero width, a deletion, NUL, half a pair, a line that is none
HOSTILE = "a\x1b]0;PWNED\x07\x1b[31m\x9b2J\x85\u202eb\u2066\u200b\u2028\x7f\x00\r\x08"
SURROGATE = HOSTILE + "\udcff\ud800"


def obeyed(text: str, lines: bool = True) -> set[str]:
    """What of a text a terminal would obey or not show."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp", "Co")} - (
        {"\n"} if lines else set()
    )


def hostile_model(text: str) -> onnx.ModelProto:
    """A model that can be converted, with the text wherever it may be."""
    make, info = helper.make_node, helper.make_tensor_value_info
    nodes = [make("Relu", [text], [f"{text}h"], f"{text}n"), make("Neg", [f"{text}h"], [f"{text}y"], f"{text}m")]
    inputs, outputs = [info(text, TensorProto.FLOAT, [text, 3])], [info(f"{text}y", TensorProto.FLOAT, [text, 3])]
    graph = helper.make_graph(nodes, text, inputs, outputs, doc_string=text)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(text, 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name=text, producer_version=text)
    made.metadata_props.add(key=text, value=text)
    return made


def test_visible() -> None:
    assert obeyed(visible(SURROGATE)) == set() and len(visible(SURROGATE)) == len(SURROGATE)
    assert visible("naïve 日本語\n\t~ 🙂") == "naïve 日本語\n\t~ 🙂"
    assert obeyed(printable(SURROGATE), lines=False) == set()
    assert not is_quotable(HOSTILE)


def test_every_line_of_a_command_is_told_in_one_place() -> None:
    """No `print` and no `write` to a stream besides: they would show whatever they get."""
    for path in sorted((ROOT / "onnxgen").rglob("*.py")):
        if path.parent.name == "helpers":
            continue
        source = path.read_text(encoding="utf-8")
        if not re.search(r"print|echo|write", source):
            continue  # to parse every file would take seconds
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called not in ("print", "echo", "write") and not called.startswith("print"):
                continue  # to write every call again would take seconds
            text = ast.unparse(node)
            allowed = path.name in (
                "say.py",
                "progress.py",
                "page.py",
                "selftest.py",
            )  # the last prints JSON for its parent
            is_print = text.startswith(("print(", "click.echo(", "sys.stdout.write(", "sys.stderr.write("))
            assert not is_print or allowed, f"{path}:{node.lineno}: {text}"
            assert not text.startswith("traceback.print"), f"{path}:{node.lineno}: {text}"
            assert not is_print or "visible(" in text or "json.dumps(" in text, f"{path}:{node.lineno}: {text}"


@pytest.mark.parametrize("command", ["generate", "verify", "inspect", "check"])
@pytest.mark.parametrize("as_json", [False, True])
def test_commands(command: str, as_json: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Both streams, native code's lines among them."""
    path, out = tmp_path / "net.onnx", tmp_path / "net.py"
    path.write_bytes(hostile_model(HOSTILE).SerializeToString())
    assert run([str(path), "-o", str(out)]) == 0
    args = {"generate": ["--force"], "check": ["--check"]}
    given = [str(path), "-o", str(out), *args.get(command, [])]
    if command in ("verify", "inspect"):
        given = [command, str(path), *([str(out)] if command == "verify" else [])]
    assert run([*given, *(["--json"] if as_json else [])]) == 0
    shown = capfd.readouterr()
    assert obeyed(shown.out + shown.err) == set() and shown.out
    if as_json:
        json.loads(shown.out.splitlines()[-1])


@pytest.mark.parametrize("operator", ["Unknown", HOSTILE])
def test_errors(operator: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = hostile_model(HOSTILE)
    model.graph.node[0].op_type, model.graph.node[0].domain = operator, HOSTILE
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    for given in (["-v"], ["--json"], []):
        assert run([str(path), *given]) == 2
        shown = capfd.readouterr()
        assert shown.err.startswith("error: ") and obeyed(shown.out + shown.err) == set()


def test_an_error_that_is_raised() -> None:
    error = OnnxgenError(Problem(SURROGATE, SURROGATE, SURROGATE, 1, SURROGATE), SURROGATE)
    assert obeyed(str(error)) == set() and all(obeyed(str(vars(problem))) == set() for problem in error.problems)


def test_a_bug_and_a_warning(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What libraries say of a file, and the traceback of an error of theirs."""
    from onnxgen import pipeline

    names = {"sys": sys, "warnings": warnings, "said": SURROGATE}
    exec(  # in no file: an error of a person's own file is none of onnxgen's
        "def fail(*_, **__):\n"
        "    sys.stderr.write(warnings.formatwarning(said, UserWarning, 'x.py', 1))\n"
        "    raise KeyError(said)",
        names,
    )
    monkeypatch.setattr(pipeline, "generate", names["fail"])
    for given in ([], ["-v"], ["--json"]):
        assert run([str(tmp_path / "net.onnx"), *given]) == 70
        shown = capfd.readouterr()
        assert obeyed(shown.out + shown.err) == set() and "KeyError" in shown.err and "UserWarning" in shown.err
    assert HOSTILE in warnings.formatwarning(HOSTILE, UserWarning, "x.py", 1)  # afterwards all is as it was


def test_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    say.table(HOSTILE, ("name",), [(SURROGATE,), ("two\nlines",)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and obeyed("".join(lines), lines=False) == set()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    say.table(HOSTILE, ("name",), [(SURROGATE,)])
    assert obeyed(capsys.readouterr().out) == set()


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of a run, its settings and its page: names of files and of data come from outside, too."""
    pytest.importorskip("lightning")
    from onnxgen.training.config import write_config
    from onnxgen.training.report import Facts, Outcome, finish
    from onnxgen.training.report.metrics import Metrics
    from onnxgen.training.report.progress import Lines
    from onnxgen.training.runs.metrics import write_rows
    from onnxgen.training.settings import Settings

    settings = Settings(out=tmp_path)
    facts = Facts(SURROGATE, None, 1, 1, SURROGATE, {"train": 3}, (SURROGATE,), SURROGATE)
    Lines(facts, tmp_path, Metrics(tmp_path / "metrics.csv", "val_loss")).say(SURROGATE)
    assert obeyed(capsys.readouterr().out) == set()
    write_config(tmp_path / "config.toml", settings, {"model": SURROGATE, "data": HOSTILE}, (facts.line(tmp_path),))
    text = (tmp_path / "config.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["data"].endswith(HOSTILE) and "model" not in tomllib.loads(text)
    assert obeyed(text) == set()
    write_rows(tmp_path / "metrics.csv", [{"epoch": 1.0, "step": 1.0, "train_loss": 1.0}])
    finish(settings, facts, Outcome(1.0, SURROGATE))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert obeyed(page) == set() and "PWNED" in page


@pytest.mark.skipif(not (SHARED / "findings").is_dir(), reason=f"no findings in {SHARED} (ONNXGEN_SHARED says where)")
def test_a_finding(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = SHARED / "findings" / "terminal_dim_param.onnx"
    assert run([str(path), "-o", str(tmp_path / "net.py")]) == 0
    assert run(["verify", str(path), str(tmp_path / "net.py")]) == 0
    shown = capfd.readouterr()
    assert obeyed(shown.out + shown.err) == set()
