"""The command line: every option, every exit code, and that bad input ends in a line and changes nothing."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from onnxgen import OnnxgenError, Options, __version__
from onnxgen.cli import run, say
from onnxgen.cli.app import app
from onnxgen.cli.group import CODES, DEFAULT, EVERY, START, SYNONYMS, Command, Option

Out = pytest.CaptureFixture[str]
ROOT = Path(__file__).resolve().parents[2]
VI = h.make_tensor_value_info


def network(*nodes: Any, **changed: np.ndarray[Any, Any]) -> onnx.ModelProto:
    """`relu(x @ fc.weight.T + fc.bias)` with a dynamic batch, or other nodes from "x" to "y"."""
    rng = np.random.default_rng(0)
    stored = {"fc.weight": rng.standard_normal((3, 4)).astype(np.float32), "fc.bias": np.ones(3, np.float32), **changed}
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in stored.items()]
    gemm = [h.make_node("Gemm", ["x", "fc.weight", "fc.bias"], ["h"], transB=1), h.make_node("Relu", ["h"], ["y"])]
    ports = [VI("x", T.FLOAT, ["n", 4])], [VI("y", T.FLOAT, None)]
    graph = h.make_graph(list(nodes) or gemm, "g", *ports, tensors)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8, producer_name="tests")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.onnx"
    onnx.save(network(), path)
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out" / "model.py"


@pytest.fixture(autouse=True)
def _folder(out: Path) -> None:
    out.parent.mkdir()


def call(*args: object) -> int:
    return run([str(arg) for arg in args])


def answer(capsys: Out, *args: object) -> Any:
    """The exit code, and what `--json` printed."""
    code = call(*args, "--json")
    return code, json.loads(capsys.readouterr().out)


# ---- generate --------------------------------------------------------------------------------------------------------


def test_generate(model: Path, out: Path, capsys: Out) -> None:
    assert call(model, "-o", out) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert f"wrote {out.with_suffix('.safetensors')} and {out}" in said.out
    assert "1 class, 15 parameters" in said.out and "recognised: 1 nn.Linear" in said.out
    assert sorted(p.name for p in out.parent.iterdir()) == ["model.py", "model.safetensors"]
    assert call(model, "-o", out) == 0
    assert "is fresh" in capsys.readouterr().out


def test_the_output_is_beside_the_model_by_its_stem(model: Path) -> None:
    assert call(model) == 0
    assert model.with_suffix(".py").exists() and model.with_suffix(".safetensors").exists()


@pytest.mark.parametrize(
    "arrange",
    [
        lambda m, o: ("-o", o, m),
        lambda m, o: ("--output", o, m),
        lambda m, o: ("-q", m, "-o", o),
        lambda m, o: ("generate", m, "-o", o),
        lambda m, o: ("-q", "generate", m, "-o", o),
        lambda m, o: ("--flat", "-o", o, "--class-name", "Net", m),
    ],
)
def test_options_before_and_after_the_model(model: Path, out: Path, arrange: Callable[[Path, Path], Any]) -> None:
    assert call(*arrange(model, out)) == 0
    assert out.exists()


def test_a_model_called_like_a_command(model: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    monkeypatch.chdir(model.parent)
    model.rename("verify")
    assert call("./verify", "-o", out) == 0 and out.exists()
    assert call("verify") == 2 and "MODEL" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "other"), [("class", "class_"), ("my-model", "my_model"), ("2nd", "model_2nd"), ("net", "")]
)
def test_a_name_that_cannot_be_imported_is_told(model: Path, capsys: Out, name: str, other: str) -> None:
    code, found = answer(capsys, model, "-o", model.parent / f"{name}.py")
    told = [note for note in found["notes"] if "imported" in note]
    says = f"{name}.py can't be imported, since {name!r} is not a name in Python: give -o {other}.py"
    assert code == 0 and told == ([says] if other else [])


@pytest.mark.parametrize("name", ["torch", "safetensors", "numpy", "typing", "pathlib", "random"])
def test_a_name_that_hides_a_module_of_python_is_refused(model: Path, capsys: Out, name: str) -> None:
    """In that folder `import torch` would import the generated file."""
    taken = model.parent / f"{name}.py"
    assert call(model, "-o", taken) == 2 and not taken.exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert f"would hide Python's module {name!r}" in line and line.endswith(f"such as {model.parent / name}_model.py")
    package = model.parent / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    assert call(model, "-o", package / f"{name}.py") == 0


def test_check(model: Path, out: Path, capsys: Out) -> None:
    assert call(model, "-o", out, "--check") == 1 and not out.exists()
    assert "is missing" in capsys.readouterr().out
    call(model, "-o", out, "-q")
    assert call(model, "-o", out, "--check") == 0 and "is fresh" in capsys.readouterr().out
    assert answer(capsys, model, "-o", out, "--check") == (0, {"status": "fresh", "module": str(out)})
    onnx.save(network(**{"fc.bias": np.zeros(3, np.float32)}), model)
    before = {p: p.read_bytes() for p in out.parent.iterdir()}
    assert answer(capsys, model, "-o", out, "--check")[0] == 1
    assert {p: p.read_bytes() for p in out.parent.iterdir()} == before


def edited(model: Path, out: Path) -> str:
    call(model, "-o", out, "-q")
    text = out.read_text().replace("def forward", "def helper(self) -> int:\n        return 1\n\n    def forward")
    out.write_text(text)
    return text


def test_edited_and_its_source_unchanged(model: Path, out: Path, capsys: Out) -> None:
    text = edited(model, out)
    assert call(model, "-o", out) == 0 and "edited by hand" in capsys.readouterr().out
    assert out.read_text() == text
    assert call(model, "-o", out, "--force") == 0
    assert "helper" not in out.read_text()


def test_edited_and_its_source_changed(model: Path, out: Path, capsys: Out) -> None:
    edited(model, out)
    text = out.read_text().replace("nn.Linear(4, 3)", "nn.Linear(4, 3, bias=True)")
    out.write_text(text)
    onnx.save(network(**{"fc.weight": np.zeros((5, 4), np.float32), "fc.bias": np.zeros(5, np.float32)}), model)
    assert call(model, "-o", out) == 3
    assert "edited by hand" in capsys.readouterr().err
    assert out.read_text() == text and "nn.Linear(4, 5)" in out.with_name("model.py.new").read_text()
    code, said = answer(capsys, model, "-o", out)
    assert code == said["exit_code"] == 3 and said["problems"]
    assert call(model, "-o", out, "--force") == 0 and "nn.Linear(4, 5)" in out.read_text()


def test_verify_what_was_generated(model: Path, out: Path, capsys: Out) -> None:
    assert call(model, "-o", out, "--verify") == 0
    said = capsys.readouterr().out
    assert "gradients: finite for 2 of 2 parameters" in said and "equal, to rtol 0.001" in said
    code, found = answer(capsys, model, "-o", out, "--verify")
    assert code == 0 and found["status"] == "fresh" and found["verify"]["agrees"] is True


def test_class_name(model: Path, out: Path, capsys: Out) -> None:
    assert call(model, "-o", out, "--class-name", "Digits") == 0
    assert "class Digits(nn.Module)" in out.read_text() and "Model = Digits" in out.read_text()
    assert call(model, "-o", out, "--class-name", "no name") == 2
    assert "'no name' is not a Python identifier" in capsys.readouterr().err
    for name in ("class", "nn", "Tensor", "list", "load_weights", "onnx_lstm", "__x"):
        assert call(model, "-o", out, "--class-name", name) == 2, name
    for name in ("my_net", "Model", "X_1"):
        assert call(model, "-o", out, "--class-name", name, "--verify", "-q") == 0
        assert f"class {name}(nn.Module)" in out.read_text()


def test_weights(model: Path, out: Path, tmp_path: Path) -> None:
    weights = tmp_path / "elsewhere.safetensors"
    assert call(model, "-o", out, "--weights", weights, "--verify", "-q") == 0
    assert weights.exists() and not out.with_suffix(".safetensors").exists()


def test_dtype(model: Path, out: Path, capsys: Out) -> None:
    assert call(model, "-o", out, "--dtype", "float16", "--verify") == 0
    assert "cast to float16" in capsys.readouterr().out
    assert call(model, "-o", out, "--dtype", "float8") == 2
    assert "float8" in capsys.readouterr().err


def test_embed(model: Path, out: Path) -> None:
    assert call(model, "-o", out, "--embed", "--verify", "-q") == 0
    assert [p.name for p in out.parent.iterdir()] == ["model.py"]


def test_embed_after_a_sidecar(model: Path, out: Path, tmp_path: Path, capsys: Out) -> None:
    """The module says where its weights are, and leaves none behind that it no longer reads; others' stay."""
    others = tmp_path / "other.py"
    for shard_size in ("5GB", "20"):
        assert call(model, "-o", out, "--shard-size", shard_size, "-q") == 0
        assert call(model, "-o", others, "--class-name", "Other", "-q") == 0
        assert call(model, "-o", out, "--embed", "-q") == 0
        assert sorted(p.name for p in out.parent.iterdir()) == ["model.py"]
        assert (
            "Weights   in this file, 15 parameters\n" in out.read_text() and "model.safetensors" not in out.read_text()
        )
    kept = others.with_suffix(".safetensors").rename(out.with_suffix(".safetensors"))
    assert call(model, "-o", out, "--embed", "--flat", "-q", "--force") == 0 and kept.exists()
    assert call(model, "-o", out, "--embed", "--weights", tmp_path / "w.safetensors") == 2
    assert "leave one out" in capsys.readouterr().err and not (tmp_path / "w.safetensors").exists()


def test_input_shape(model: Path, out: Path, capsys: Out) -> None:
    assert call(model, "-o", out, "--input-shape", "x=5,4") == 0
    assert "[5, 4]" in out.read_text()
    capsys.readouterr()
    for wrong in ("x", "x=a,b", "=1", "x=1,,2"):
        assert call(model, "-o", out, "--input-shape", wrong) == 2
        assert "NAME=1,3,224,224" in capsys.readouterr().err
    assert call(model, "-o", out, "--input-shape", "nobody=1,4") == 2
    assert "nobody" in capsys.readouterr().err


def test_input_shape_is_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Options] = []
    monkeypatch.setattr("onnxgen.cli.generating.generate_command", lambda m, o, options, **_: seen.append(options) or 0)
    assert call(model, "--input-shape", "a=b=1,-1,?", "--input-shape", "scalar=", "--shard-size", "2 GB") == 0
    assert seen[0].input_shapes == {"a=b": (1, -1, -1), "scalar": ()} and seen[0].shard_size == 2_000_000_000


def test_flat(model: Path, out: Path, capsys: Out) -> None:
    onnx.save(network_with_scopes(), model)
    code, nested = answer(capsys, model, "-o", out)
    assert code == 0
    code, flat = answer(capsys, model, "-o", out, "--flat")
    assert code == 0 and flat["classes"] == 1 <= nested["classes"]
    assert call("verify", model, out, "-q", "--flat") == 0


def network_with_scopes() -> onnx.ModelProto:
    """Two blocks of two layers each, by their parameters' names."""
    nodes, previous, stored = [], "x", {}
    for block in "ab":
        for layer in ("first", "second"):
            name = f"{block}.{layer}"
            stored |= {f"{name}.weight": np.eye(4, dtype=np.float32), f"{name}.bias": np.ones(4, np.float32)}
            nodes.append(h.make_node("Gemm", [previous, f"{name}.weight", f"{name}.bias"], [f"{name}.h"], transB=1))
            nodes.append(h.make_node("Relu", [f"{name}.h"], [f"{name}.y"]))
            previous = f"{name}.y"
    nodes.append(h.make_node("Identity", [previous], ["y"]))
    return network(*nodes, **stored)


def test_trainable_and_frozen(model: Path, out: Path, capsys: Out) -> None:
    _, found = answer(capsys, "inspect", model, "--frozen", "bias$")
    assert {t["name"]: t["trainable"] for t in found["tensors"]} == {"fc.weight": True, "fc.bias": False}
    assert {t["why"] for t in found["tensors"] if not t["trainable"]} == {"--frozen says so"}
    _, found = answer(capsys, "inspect", model, "--trainable", "weight$")
    assert next(t for t in found["tensors"] if t["name"] == "fc.weight")["why"] == "--trainable says so"
    assert call(model, "-o", out, "--frozen", "bias$", "--verify") == 0
    assert "finite for 1 of 1 parameter" in capsys.readouterr().out
    assert call(model, "-o", out, "--frozen", "(") == 2
    assert "not a regular expression" in capsys.readouterr().err


def test_shard_size(model: Path, out: Path, capsys: Out) -> None:
    assert call(model, "-o", out, "--shard-size", "50B", "--verify", "-q") == 0
    assert len(list(out.parent.glob("*.safetensors"))) == 2 and list(out.parent.glob("*.index.json"))
    assert call(model, "-o", out, "--shard-size", "many") == 2
    assert "500MB" in capsys.readouterr().err


def test_templates(model: Path, out: Path, tmp_path: Path, capsys: Out) -> None:
    assert call(model, "-o", out, "--templates", tmp_path / "absent") == 2
    assert "absent" in capsys.readouterr().err
    folder = tmp_path / "mine"
    folder.mkdir()
    ours = (ROOT / "templates" / "module.py.jinja").read_text()
    for bad, said in (
        ("{{ bad", "(module.py.jinja, line 2)"),
        ("{{ 1/0 }}", "ZeroDivisionError"),
        ("{{ no }}", "no"),
        ("def def", "1:4"),
    ):
        (folder / "module.py.jinja").write_text(bad + "\n" + ours)
        assert call(model, "-o", out, "--templates", folder) == 2 and not out.exists()
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1 and "bug" not in err
    (folder / "module.py.jinja").write_text(ours + "# mine\n")
    assert call(model, "-o", out, "--templates", folder, "--verify", "-q") == 0 and "# mine" in out.read_text()


def test_what_comes_next(model: Path, out: Path, capsys: Out) -> None:
    """A network without parameters can't be trained."""
    assert call(model, "-o", out) == 0
    check, then = capsys.readouterr().out.splitlines()[-2:]
    assert check == f"  next: onnxgen verify {model} {out}" and then == f"  then: onnxgen train {out} --data DATA"
    onnx.save(network(h.make_node("Relu", ["x"], ["y"])), model)
    assert call(model, "-o", out) == 0
    assert capsys.readouterr().out.splitlines()[-1] == check


def test_quiet_and_verbose(model: Path, out: Path, capsys: Out) -> None:
    assert call(model, "-o", out, "-q") == 0
    assert capsys.readouterr() == ("", "")
    assert call("verify", model, out, "-q") == 0
    assert capsys.readouterr() == ("", "")
    assert call(model, "-o", out, "-v", "--force") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    seconds = {" ".join(row[:-1]): row[-1] for row in rows[rows.index(["stage", "seconds"]) + 1 :]}
    assert list(seconds)[:3] == ["imports", "weights", "read"] and list(seconds)[-3:-1] == ["write", "in all"]
    parts = [float(value) for value in list(seconds.values())[:-2]]
    assert abs(sum(parts) - float(seconds["in all"])) < 0.01
    assert abs(sum(parts[2:]) - float(seconds["without imports and weights"])) < 0.01


def test_json(model: Path, out: Path, capsys: Out) -> None:
    code, found = answer(capsys, model, "-o", out)
    assert code == 0 and found["status"] == "written" and found["module"] == str(out)
    assert sorted(found["wrote"]) == [str(out), str(out.with_suffix(".safetensors"))]
    assert found["parameters"] == 15 and found["recognised"] == {"nn.Linear": 1} and "read" in found["stages"]


# ---- verify ----------------------------------------------------------------------------------------------------------


def test_verify(model: Path, out: Path, capsys: Out) -> None:
    call(model, "-o", out, "-q")
    assert call("verify", model, out) == 0
    said = capsys.readouterr().out
    assert "onnxruntime" in said and "float32 [2, 3]" in said and "n=2" in said and "\x1b" not in said
    code, found = answer(capsys, "verify", model, out, "--runs", 2, "--seed", 7)
    assert code == 0 and len(found["runs"]) == 2 and found["runs"][0]["seed"] == 7000
    out.write_text(out.read_text().replace("return ", "return 1.01 * ", 1))
    assert call("verify", model, out) == 1
    said = capsys.readouterr().out
    assert "DIFFERENT" in said and "NOT EQUAL" in said and "different: run 0, output y" in said
    assert call("verify", model, out, "-q") == 1 and "different:" in capsys.readouterr().out
    assert call("verify", model, out, "--rtol", "0.1") == 0
    assert call("verify", model, out, "--atol", "10") == 0


def test_verify_finds_the_module_by_itself(model: Path, capsys: Out) -> None:
    assert call("verify", model, "-q") == 2
    said = capsys.readouterr().err
    assert f"there is no module {model.with_suffix('.py')} -> " in said and f"write it: onnxgen {model}" in said
    call(model, "-q")
    assert call("verify", model, "-q") == 0


def test_verify_integrity(model: Path, out: Path, capsys: Out) -> None:
    call(model, "-o", out, "-q")
    assert call("verify", model, out, "--integrity") == 0
    assert "2 tensors of the weights compared bit for bit" in capsys.readouterr().out
    sidecar = out.with_suffix(".safetensors")
    sidecar.write_bytes(sidecar.read_bytes()[:-1] + b"\x01")
    assert call("verify", model, out, "--integrity") == 1
    assert "different: tensor fc." in capsys.readouterr().out


def test_verify_with_inputs_of_ones_own(model: Path, out: Path, tmp_path: Path, capsys: Out) -> None:
    call(model, "-o", out, "-q")
    np.savez(tmp_path / "in.npz", x=np.zeros((9, 4), np.float32))
    code, found = answer(capsys, "verify", model, out, "--inputs", tmp_path / "in.npz")
    assert code == 0 and [r["inputs"] for r in found["runs"]] == [{"x": "float32 [9, 4]"}]
    for wrong in (tmp_path / "absent.npz", model):
        assert call("verify", model, out, "--inputs", wrong) == 2
        assert "is not an npz file" in capsys.readouterr().err


def test_verify_refuses_a_stale_sidecar(model: Path, out: Path, tmp_path: Path, capsys: Out) -> None:
    call(model, "-o", out, "-q")
    other = tmp_path / "other.onnx"
    onnx.save(network(**{"fc.weight": np.zeros((5, 4), np.float32), "fc.bias": np.zeros(5, np.float32)}), other)
    call(other, "-o", tmp_path / "other.py", "-q")
    os.replace(tmp_path / "other.safetensors", out.with_suffix(".safetensors"))
    assert call("verify", model, out) == 2
    assert "does not belong here" in capsys.readouterr().err


# ---- inspect, ops, help ----------------------------------------------------------------------------------------------


def test_inspect(model: Path, capsys: Out) -> None:
    assert call("inspect", model) == 0
    said = capsys.readouterr().out
    for part in (
        "opset ai.onnx 17, made by tests",
        "float32  [n, 4]",
        "Gemm",
        "fc.weight",
        "trained",
        "can be converted",
    ):
        assert part in said
    code, found = answer(capsys, "inspect", model)
    assert code == 0 and found["opset"] == {"ai.onnx": 17} and found["exporter"] == "tests"
    assert found["inputs"] == [{"name": "x", "kind": "tensor", "dtype": "float32", "shape": ["n", 4]}]
    assert {o["name"]: o["count"] for o in found["operators"]} == {"Gemm": 1, "Relu": 1}
    assert not list(model.parent.glob("*.py"))


def test_inspect_says_first_what_matters(model: Path, capsys: Out) -> None:
    """Whether the file can be converted, then what it is for; each tensor only if asked."""
    assert call("inspect", model) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "can be converted" and lines[2].startswith("purpose: ")
    (row,) = [line.split(maxsplit=2) for line in lines if line.split()[:1] == ["trained"]]
    assert row[1] == "2" and "fc.weight" in row[2] and not any("[3, 4]" in line for line in lines)
    assert call("inspect", model, "-v") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows if row[1:2] == ["float32"] and "trained" in row] == ["fc.weight", "fc.bias"]


def test_the_help_of_train_begins_with_a_screen(capsys: Out) -> None:
    """What most runs need stands above the line of a terminal of 40 lines; the rest is below, with these options."""
    assert call("train", "-h") == 0
    lines = capsys.readouterr().out.splitlines()
    first = lines.index("Used most (all options are below):")
    end = lines.index("", first)
    screen = [line.split()[0] for line in lines[first:end] if line.startswith("  --")]
    assert end < 40 and {"--data", "--epochs", "--lr", "--replace-head", "--out", "--resume"} <= {*screen}
    assert all(sum(line.split()[:1] == [name] for line in lines) == 2 for name in screen if name != "--resume")


UNSUPPORTED = [
    h.make_node("Nonsense", ["x"], ["a"], name="first", domain="some.where"),
    h.make_node("Rubbish", ["a"], ["y"], name="second", domain="some.where"),
]


def test_unsupported_operators_all_at_once(model: Path, out: Path, capsys: Out) -> None:
    proto = network(*UNSUPPORTED)
    proto.opset_import.append(h.make_opsetid("some.where", 1))
    onnx.save(proto, model)
    assert call(model, "-o", out) == 2
    error = capsys.readouterr().err
    assert "first (some.where.Nonsense" in error and "second (some.where.Rubbish" in error and "Traceback" not in error
    assert not list(out.parent.iterdir())
    code, found = answer(capsys, model, "-o", out)
    assert [p["node"] for p in found["problems"]] == ["first", "second"] and all(p["help"] for p in found["problems"])
    code, found = answer(capsys, "inspect", model)
    assert code == 2 and [o["supported"] for o in found["operators"]] == [False, False] and len(found["problems"]) == 2
    assert call("inspect", model) == 2 and "NOT SUPPORTED" in capsys.readouterr().out


def test_ops(capsys: Out) -> None:
    assert call("ops") == 0
    assert "Conv" in capsys.readouterr().out
    code, found = answer(capsys, "ops")
    conv = next(o for o in found if o["name"] == "Conv" and o["domain"] == "ai.onnx")
    assert code == 0 and {"x", "w"} <= {p.lower() for p in conv["parameters"]} and len(found) > 20


def test_version_and_help(capsys: Out) -> None:
    assert call("--version") == 0 and __version__ in capsys.readouterr().out
    for args in (["-h"], ["--help"]):
        assert run(args) == 0
        said = capsys.readouterr().out
        assert all(name in said for name in app.commands) and "Exit codes:" in said
        assert all(option in said for option in ("--check", "--input-shape", "--frozen", "--json", "--version"))
    for command in sorted(app.commands):
        assert call(command, "-h") == 0
        said = capsys.readouterr().out
        assert "Exit codes:" in said and "Examples:" in said
    assert run([]) == 2 and "MODEL.onnx" in capsys.readouterr().out


def test_help_begins_with_what_to_type(capsys: Out) -> None:
    assert run(["-h"]) == 0
    said = capsys.readouterr().out
    titles = [line for line in said.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles[:3] == ["What to type:", "Commands:", "Files:"] and titles[-1] == f"{EVERY}:"


def test_every_option_stands_under_a_title() -> None:
    """What every command has stands last; nothing else stands there."""
    for command in app.commands.values():
        options = [p for p in command.params if isinstance(p, click.Option)]
        assert all(isinstance(option, Option) and option.help for option in options)
        last = {name for option in options if getattr(option, "group", "") == EVERY for name in option.opts}
        assert last == {"-q", "--quiet", "-v", "--verbose", "--json"}, command.name


@pytest.mark.parametrize(
    ("command", "codes"), [("train", "0 2 70 75 130"), ("verify", "0 1 2 70 130"), ("build", "0 1 2 3 70 130")]
)
def test_a_command_lists_its_own_exit_codes(command: str, codes: str, capsys: Out) -> None:
    assert call(command, "-h") == 0
    said = capsys.readouterr().out
    listed = said[said.index("Exit codes:") :].splitlines()[1:]
    assert " ".join(line.split()[0] for line in listed) == codes
    assert command != "train" or "stale" not in said
    assert set(map(int, codes.split())) <= set(CODES)


def test_help_is_a_command_too(capsys: Out) -> None:
    assert run(["help"]) == 0 and "What to type:" in capsys.readouterr().out
    assert run(["help", "export"]) == 0 and "--same-graph" in capsys.readouterr().out


def test_a_mistyped_command(capsys: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for typed in (["trian", "model.py"], ["-q", "trian"]):
        assert run(typed) == 2
        assert capsys.readouterr().err.startswith(
            "error: there is no command and no file 'trian'; did you mean: onnxgen train (try: "
        )
    (tmp_path / "trian").write_text("a file of that name")
    for typed in ("trian", "modle.onnx", "--verify"):
        assert run([typed]) == 2
        assert "did you mean: onnxgen" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "typed", "meant"),
    [
        ("train", "--learning-rate", "--lr"),
        ("train", "--learning_rate", "--lr"),
        ("train", "--patience", "--early-stop"),
        ("train", "--bs", "--batch-size"),
        ("train", "--output", "--out"),
        ("export", "--out", "--output"),
        ("generate", "--overwrite", "--force"),
    ],
)
def test_the_word_of_another_program_for_an_option(command: str, typed: str, meant: str, capsys: Out) -> None:
    assert call(command, typed, 1) == 2
    assert f"no such option {typed}; did you mean {meant}?" in capsys.readouterr().err


def test_synonyms_are_no_options_themselves() -> None:
    """Each is of an option that exists, and none is an option of the same command."""
    commands = [{name for p in command.params for name in p.opts} for command in app.commands.values()]
    for option, words in SYNONYMS.items():
        having = [names for names in commands if option in names]
        assert having and not any(f"--{word}" in names for word in words.split() for names in having), option


def test_examples_are_commands_that_parse() -> None:
    """Each line of an example is taken apart as it would be run, up to the point where files are opened."""
    for command in app.commands.values():
        assert isinstance(command, Command) and command.examples
        for line, meaning in (*command.examples, *START):
            name, *args = shlex.split(line)
            first = args[0] if args[0] in app.commands else DEFAULT
            assert name == "onnxgen" and meaning.endswith(".")
            app.commands[first].make_context(first, args[first != DEFAULT :])


# ---- bad input -------------------------------------------------------------------------------------------------------


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"x" * 100)


def _cyclic(path: Path) -> None:
    onnx.save(network(h.make_node("Add", ["x", "b"], ["a"]), h.make_node("Add", ["a", "a"], ["b"])), path)


BAD: dict[str, Callable[[Path], object]] = {
    "absent": lambda path: path.unlink(),
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "random": lambda path: path.write_bytes(np.random.default_rng(1).bytes(5000)),
    "text": lambda path: path.write_text("Once upon a time there was a network.\n" * 20),
    "zip": _zip,
    "cyclic": _cyclic,
    "undeclared": lambda path: onnx.save(network(h.make_node("Add", ["x", "nobody"], ["y"])), path),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_bad_files(model: Path, out: Path, capsys: Out, bad: Callable[[Path], object]) -> None:
    call(model, "-o", out, "-q")
    before = {p: p.read_bytes() for p in out.parent.iterdir()}
    bad(model)
    for args in ((model, "-o", out), (model, "-o", out, "--check"), ("inspect", model), ("verify", model, out)):
        assert call(*args) == 2
        said = capsys.readouterr()
        assert said.err.startswith("error: ") and "Traceback" not in said.err and said.out == ""
        assert "bug" not in said.err
    code, found = answer(capsys, model, "-o", out)
    assert code == 2 and found["error"] and found["problems"]
    assert {p: p.read_bytes() for p in out.parent.iterdir()} == before


@pytest.mark.parametrize("where", ["folder", "missing/model.py", "file.txt/model.py"])
def test_outputs_that_cannot_be_written(model: Path, tmp_path: Path, capsys: Out, where: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.txt").write_text("here")
    before = sorted(tmp_path.rglob("*"))
    assert call(model, "-o", tmp_path / where) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_module_is_a_python_file(model: Path, out: Path, tmp_path: Path, capsys: Out) -> None:
    assert call(model, "-o", out) == 0
    text = out.rename(out.with_suffix(".txt"))
    commands = [[model, "-o", text], [model, "-o", text, "--check"], ["verify", model, text], ["export", text]]
    before = {p: p.read_bytes() for p in out.parent.iterdir()}
    for args in commands:
        assert call(*args) == 2
        assert capsys.readouterr().err == f"error: {text} is not a Python file -> name a file that ends in .py: {out}\n"
    assert {p: p.read_bytes() for p in out.parent.iterdir()} == before
    assert call(model, "-o", tmp_path) == 2 and "it is a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "args", [["--bogus", "m.onnx"], ["m.onnx", "extra", "more"], ["verify"], ["inspect"], ["--check"], ["ops", "x"]]
)
def test_usage_errors(args: list[str], capsys: Out) -> None:
    assert run(args) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and said.err.startswith("error: ") and "-h)" in said.err
    assert run([*args, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OnnxgenError("one", "two"), 2, "error: one\nerror: two\n"),
        (MemoryError(), 2, "error: out of memory\n"),
        (OSError(28, "No space left on device", "model.py"), 2, "error: No space left on device (model.py)\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (ZeroDivisionError("oops"), 70, "this is a bug in onnxgen, please report it; -v shows the traceback: Zero"),
    ],
)
def test_errors(
    model: Path, error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.setattr("onnxgen.pipeline.generate", Mock(side_effect=error))
    assert call(model) == code
    shown = capsys.readouterr()
    assert said in shown.err and "Traceback" not in shown.err and shown.out == ""
    assert call(model, "--json") == code
    assert json.loads(capsys.readouterr().out)["exit_code"] == code
    if code == 70:
        assert call(model, "-v") == code and "Traceback" in capsys.readouterr().err


# ---- the process -----------------------------------------------------------------------------------------------------


def python(code: str, *args: object, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, **kwargs)


def test_no_torch_and_no_rich(model: Path) -> None:
    """Not after `--check`, which finds nothing yet, nor after any other of these."""
    code = """
import sys
from onnxgen.cli import run
for words in (["--check"], [], ["inspect"], ["--check"]):
    code = run([*words, sys.argv[1]])
    print("heavy", code, sorted({"torch", "rich", "onnxruntime", "onnxscript"} & set(sys.modules)))
"""
    result = python(code, model)
    found = [line for line in result.stdout.splitlines() if line.startswith("heavy ")]
    assert found == ["heavy 1 []", *["heavy 0 []"] * 3], result.stdout + result.stderr


def test_sympy_waits_until_it_is_asked(model: Path) -> None:
    """That of onnx_ir comes when its symbolic dims are computed with, and not before; the hook is gone by then."""
    code = """
import sys
from onnxgen.cli import run
before = len(sys.meta_path)
print(run(sys.argv[1:]), "sympy.core" in sys.modules, len(sys.meta_path) - before)
import onnx_ir
print(onnx_ir.SymbolicDim("N") * 2 + 1, "sympy.core" in sys.modules)
"""
    assert python(code, model, "-q").stdout == "0 False 0\n2*N + 1 True\n"


def test_a_generation_loads_no_training(model: Path) -> None:
    code = """
import sys
from onnxgen.cli import run
print(run(sys.argv[1:]), [m for m in sys.modules if m.startswith(("onnxgen.training", "onnxgen.cli.app"))])
"""
    assert python(code, model, "-q").stdout == "0 []\n"


def test_importing_costs_nothing() -> None:
    code = "import sys, onnxgen; print([m for m in ('onnx', 'numpy', 'torch', 'click', 'black') if m in sys.modules])"
    assert python(code).stdout == "[]\n"
    code = "import sys, onnxgen.cli; print([m for m in ('onnx', 'numpy', 'torch', 'rich') if m in sys.modules])"
    assert python(code).stdout == "[]\n"


def test_python_m(model: Path, out: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "onnxgen", str(model), "-o", str(out)]
    result = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert result.returncode == 0 and "wrote" in result.stdout and result.stderr == "" and out.exists()
    command[3] = str(model.parent / "absent.onnx")
    result = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert result.returncode == 2 and result.stdout == "" and result.stderr.startswith("error: ")


def test_a_reader_that_stops_reading() -> None:
    code = "import os; r, w = os.pipe(); os.dup2(w, 1); os.close(r); from onnxgen.cli import main; main(['ops'])"
    result = python(code)
    assert result.returncode == 0 and "Traceback" not in result.stderr


# ---- terminal --------------------------------------------------------------------------------------------------------


class Terminal:
    """A stream that says it is a terminal."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def isatty(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def test_a_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stdout", Terminal(sys.stdout))
    say.table("A [red]title", ("name", "why"), [("[bold]x[/bold]", "because")])
    said = capsys.readouterr().out
    assert "[bold]x[/bold]" in said and "because" in said  # names are no markup


def test_the_progress_bar(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    import time

    with say.progress("working", quiet=False):  # no terminal: nothing
        pass
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal(sys.stderr))
    with say.progress("working", quiet=False):  # done within a second: nothing
        pass
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(say, "DELAY", 0.0)
    with say.progress("[odd] name", quiet=False):
        time.sleep(0.5)
    assert "[odd] name" in capsys.readouterr().err
    with say.progress("working", quiet=True):
        time.sleep(0.1)
    assert capsys.readouterr() == ("", "")


def test_every_command_has_the_same_manners() -> None:
    for command in app.commands.values():
        names = {name for parameter in command.params for name in parameter.opts}
        assert {"-q", "-v", "--json"} <= names, command.name
        assert command.help and command.get_short_help_str(60)
