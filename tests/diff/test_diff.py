"""`onnxgen diff`: what is a change and what is none, where it is, and the page in a browser."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper as h
from onnx import numpy_helper as nh

from onnxgen import diff, generate
from onnxgen.cli import run as command
from onnxgen.diff.page import page
from onnxgen.diff.side import program_of
from onnxgen.diff.texts import rows
from onnxgen.diff.weights import compared, told

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
EVIL = "</script><img src=http://example.com/x.png onerror=alert(1)>\"'&"
NET = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[n, 6] x) => (float[n, 4] y)
    {
        [stem] a = Gemm <transB = 1> (x, stem_weight, stem_bias)
        [act1] b = Relu (a)
        [left] c = MatMul (b, left_weight)
        [right] d = MatMul (b, right_weight)
        [minus] e = Sub (c, d)
        [act2] f = Relu (e)
        [head] y = Gemm <transB = 1> (f, head_weight, head_bias)
    }
"""
SHAPES = {
    "stem.weight": (8, 6),
    "stem.bias": (8,),
    "left.weight": (8, 8),
    "right.weight": (8, 8),
    "head.weight": (4, 8),
    "head.bias": (4,),
}


def net() -> onnx.ModelProto:
    model = onnx.parser.parse_model(NET)
    for each in model.graph.node:
        each.input[:] = [re.sub("_(weight|bias)$", r".\1", name) for name in each.input]
    rng = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        model.graph.initializer.append(nh.from_array(rng.standard_normal(shape).astype(np.float32), name))
    return model


def node(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.name == name)


def put(model: onnx.ModelProto, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(nh.from_array(change(nh.to_array(tensor).copy()).astype(np.float32), name))


@pytest.fixture
def files(tmp_path: Path) -> Callable[[onnx.ModelProto], tuple[Path, Path]]:
    def write(other: onnx.ModelProto) -> tuple[Path, Path]:
        onnx.save(net(), tmp_path / "one.onnx")
        onnx.save(other, tmp_path / "other.onnx")
        return tmp_path / "one.onnx", tmp_path / "other.onnx"

    return write


Files = Callable[[onnx.ModelProto], tuple[Path, Path]]


def run(*words: str | Path) -> int:
    return command(["diff", *map(str, words)])


def test_a_trained_layer_is_named(files: Files) -> None:
    model = net()
    put(model, "head.weight", lambda w: w + 0.5)
    put(model, "head.bias", lambda w: w + 0.5)
    found = diff(*files(model))
    assert found.verdict == "different" and not found.changes and found.apart and found.apart > 1e-3
    assert [w.name for w in found.changed_weights] == ["head.weight", "head.bias"]
    assert len(found.weights) == len(SHAPES) and "only head (2 tensors) changed" in found.summary[0]


def test_a_function_in_place_of_another_is_named(files: Files) -> None:
    model = net()
    node(model, "act2").op_type = "Sigmoid"
    found = diff(*files(model))
    assert found.verdict == "different" and not found.changed_weights
    (change,) = found.changes
    assert change.kind == "changed" and change.what == "relu -> sigmoid"
    assert change.was and "act2" in change.was.nodes and change.now and "act2" in change.now.nodes


def test_operands_in_another_order_are_a_change_of_a_difference_only(files: Files) -> None:
    model = net()
    minus = node(model, "minus")
    minus.input[:] = list(minus.input)[::-1]
    found = diff(*files(model))
    (change,) = found.changes
    assert found.verdict == "different" and "another order" in change.what and not found.changed_weights


def test_what_was_added_and_resized(files: Files) -> None:
    model = net()
    node(model, "act2").output[0] = "g"
    model.graph.node.insert(6, h.make_node("Tanh", ["g"], ["f"], name="new"))
    for name in ("head.weight", "head.bias"):
        put(model, name, lambda w: np.concatenate([w, w[:2]]))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 6
    found = diff(*files(model))
    assert [(c.kind, c.what) for c in found.changes] == [
        ("added", "tanh"),
        ("changed", "linear: weight [4, 8] -> [6, 8], bias [4] -> [6]"),
    ]
    assert [(w.name, w.how) for w in found.changed_weights] == [("head.weight", "resized"), ("head.bias", "resized")]
    assert found.ports == ["output y: [n, 4] -> [n, 6]"]


def respelled() -> onnx.ModelProto:
    """Other names, another order, a transposed weight, a product and a sum for a Gemm, an Identity."""
    model = net()
    stem, position = node(model, "stem"), 0
    put(model, "stem.weight", np.transpose)
    new = [
        h.make_node("MatMul", ["x", "stem.weight"], ["p"], name="mm"),
        h.make_node("Add", ["p", "stem.bias"], ["q"], name="add"),
        h.make_node("Identity", ["q"], ["a"], name="same"),
    ]
    model.graph.node.remove(stem)
    for made in reversed(new):
        model.graph.node.insert(position, made)
    nodes = [copy.deepcopy(n) for n in model.graph.node]
    left, right = (next(i for i, n in enumerate(nodes) if n.name == name) for name in ("left", "right"))
    nodes[left], nodes[right] = nodes[right], nodes[left]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    for each in model.graph.node:
        each.name = f"n{len(each.name)}_{each.output[0]}"
        each.input[:], each.output[:] = [f"{i}_z" for i in each.input], [f"{o}_z" for o in each.output]
    for item in (*model.graph.initializer, *model.graph.input, *model.graph.output):
        item.name += "_z"
    return model


def test_another_spelling_is_the_same_function(files: Files) -> None:
    found = diff(*files(respelled()))
    assert found.verdict == "same" and "canonical forms" in found.why
    assert not found.changes and not found.changed_weights and not found.ports
    assert "input x is named x_z" in found.file and any("tensors renamed" in text for text in found.file)


def test_a_trained_layer_of_another_spelling_is_named(files: Files) -> None:
    model = respelled()
    put(model, "stem.weight_z", lambda w: w * 1.5 + 0.1)
    found = diff(*files(model))
    assert found.verdict == "different" and not found.changes
    (weight,) = found.changed_weights
    assert weight.was == ("stem.weight",) and weight.how == "changed"


def convolutions(folded: bool) -> onnx.ModelProto:
    """Two convolutions with BatchNorms, and an activation behind each; or the norms folded into them."""
    rng = np.random.default_rng(0)
    text = "n0 = Conv <pads = [1, 1, 1, 1]> (x, w0, b0) r0 = Relu (n0)" * folded
    text += "n1 = Conv <pads = [1, 1, 1, 1]> (r0, w1, b1) y = Relu (n1)" * folded
    if not folded:
        text = "c0 = Conv <pads = [1, 1, 1, 1]> (x, w0, b0) n0 = BatchNormalization (c0, g0, s0, m0, v0) r0 = Relu (n0)"
        text += (
            "c1 = Conv <pads = [1, 1, 1, 1]> (r0, w1, b1) n1 = BatchNormalization (c1, g1, s1, m1, v1) y = Relu (n1)"
        )
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> net (float[n, 3, 8, 8] x) => (float[n, 3, 8, 8] y) {{ {text} }}'
    )
    for k in range(2):
        weight, bias, gain, shift, mean = (
            rng.standard_normal(shape).astype(np.float32) for shape in ((3, 3, 3, 3), (3,), (3,), (3,), (3,))
        )
        var = rng.random(3).astype(np.float32) + np.float32(0.5)
        scale = gain / np.sqrt(var + np.float32(1e-5))
        arrays = {"w": weight, "b": bias, "g": gain, "s": shift, "m": mean, "v": var}
        if folded:
            arrays = {"w": weight * scale[:, None, None, None], "b": (bias - mean) * scale + shift}
        model.graph.initializer.extend(nh.from_array(a.astype(np.float32), f"{n}{k}") for n, a in arrays.items())
    return model


def test_a_folded_norm_is_no_change(tmp_path: Path) -> None:
    for name, folded in (("one", False), ("other", True)):
        onnx.save(convolutions(folded), tmp_path / f"{name}.onnx")
    for one, other in (("one", "other"), ("other", "one")):
        found = diff(tmp_path / f"{one}.onnx", tmp_path / f"{other}.onnx")
        assert found.verdict == "same" and "rounding of folded" in found.why
        assert not found.changes and not found.changed_weights
    model = convolutions(True)
    model.graph.node[1].op_type = "Tanh"
    onnx.save(model, tmp_path / "other.onnx")
    found = diff(tmp_path / "one.onnx", tmp_path / "other.onnx")
    assert found.verdict == "different" and [c.what for c in found.changes] == ["relu -> tanh"]
    assert not found.changed_weights, "the folded tensors are only rounded"


def test_what_only_the_files_say(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    model = net()
    entry = model.metadata_props.add()
    entry.key, entry.value = "author", "a person"
    model.producer_name = "another"
    model.graph.initializer.append(nh.from_array(np.ones(3, np.float32), "nothing_takes_it"))
    one, other = files(model)
    found = diff(one, other)
    assert found.verdict == "same" and found.apart is None, "nothing had to be run"
    assert found.file == [
        "producer: none -> another",
        "metadata author: added ('a person')",
        "1 tensor of the second file unused",
    ]
    assert run(one, other, "--quiet") == 0 and capsys.readouterr().out == ""


def test_other_sizes_of_an_input_are_a_difference(files: Files) -> None:
    model = net()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    found = diff(*files(model))
    assert found.verdict == "different" and found.ports[0] == "input x: [n, 6] -> [1, 6]"


def test_a_change_below_what_numbers_show_is_not_called_the_same(files: Files) -> None:
    model = net()
    put(model, "left.weight", lambda w: w * np.float32(1 + 2e-7))
    found = diff(*files(model))
    assert found.verdict == "not proved" and [w.name for w in found.changed_weights] == ["left.weight"]


def test_modules_are_compared_like_files(files: Files, tmp_path: Path) -> None:
    one, _ = files(net())
    generate(one, tmp_path / "model.py")
    assert diff(one, tmp_path / "model.py").verdict == "same"
    assert diff(tmp_path / "model.py", tmp_path / "model.py").verdict == "same"
    text = (tmp_path / "model.py").read_text()
    assert text.count("relu") == 2
    first, _, rest = text.partition("relu")
    (tmp_path / "model.py").write_text(f"{first}tanh{rest}".replace("F.tanh", "torch.tanh"))
    found = diff(one, tmp_path / "model.py")
    assert found.verdict == "different" and [c.what for c in found.changes] == ["relu -> tanh"]
    assert found.changes[0].now and "torch.tanh" in found.changes[0].now.code


def test_the_command_tells(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    model = net()
    node(model, "act1").op_type = "Tanh"
    put(model, "head.bias", lambda w: w + 1)
    one, other = files(model)
    assert run(one, other) == 1
    shown = capsys.readouterr().out
    assert "relu -> tanh" in shown and "(nodes act1)" in shown and "head.bias" in shown
    assert run(one, other, "--json") == 1
    told_ = json.loads(capsys.readouterr().out)
    assert set(told_) == {
        *("one", "other", "verdict", "why", "summary", "changes", "weights", "ports", "file", "apart", "runs")
    }
    assert told_["weights"]["changed"][0]["name"] == "head.bias" and told_["weights"]["same"] == 5
    assert run(one, one) == 0
    assert run(one, one.parent) == run(one, one.with_name("none.onnx")) == 2


# ---- parts -----------------------------------------------------------------------------------------------------------


def test_how_a_tensor_changed() -> None:
    rng = np.random.default_rng(0)
    old = rng.standard_normal((8, 32)).astype(np.float32)
    step = np.abs(old).max() / 127
    channel = np.abs(old).max(1, keepdims=True) / 127
    cases = {
        "same": old.copy(),
        "half": old.astype(np.float16).astype(np.float32),
        "quantised": (np.round(old / step) * step).astype(np.float32),
        "pruned": np.where(np.abs(old) < 0.5, 0, old),
        "scaled": old * np.float32(3),
        "changed": old + rng.standard_normal(old.shape).astype(np.float32) * np.float32(0.1),
    }
    for how, new in cases.items():
        assert compared("w", ["w"], old, new).how == how
    each = compared("w", ["w"], old, (np.round(old / channel) * channel).astype(np.float32))
    assert each.how == "quantised" and "each channel" in each.what
    found = compared("w", ["w"], old, -old)
    assert found.cosine == pytest.approx(-1) and found.relative == pytest.approx(2)
    off = (np.round(old / step) * step).astype(np.float32)
    off[3, 4] += 3 * step
    assert compared("w", ["w"], old, off).how == "changed", "on the grid, and further than rounding"


def test_what_became_of_all_weights_in_a_sentence() -> None:
    old = np.arange(1, 9, dtype=np.float32)

    def said(*changed: str) -> str:
        names = ["conv.weight", "norm.weight", "norm.running_mean", "norm.running_var", "fc.weight", "fc.bias"]
        new = np.asarray([3, 1, 4, 1, 5, 9, 2, 6.1], np.float32)
        (text,) = told([compared(n, [n], old, new if n in changed else old) for n in names])
        return text.partition(" changed")[0]

    assert said("fc.weight", "fc.bias") == "only fc (2 tensors)"
    assert said("fc.weight") == "only fc.weight"
    assert said("conv.weight", "norm.weight", "fc.weight", "fc.bias") == "all weights but the statistics of BatchNorm"
    assert said("norm.running_mean", "norm.running_var") == "only the statistics of BatchNorm"
    assert said("conv.weight", "fc.weight") == "2 of 6 tensors (in conv, fc)"


def test_programs_differ_by_more_than_names() -> None:
    source = (
        "class A(nn.Module):\n    '''Text.'''\n    def forward(self, x, y):\n        z = x - y\n        return {0}\n"
    )
    same = source.format("z").replace("x", "u").replace("class A", "class B").replace("Text", "Other")
    assert program_of(source.format("z")) == program_of(same)
    assert program_of(source.format("z")) != program_of(source.format("x"))
    again = "class A:\n    def forward(self, {0}):\n        {1}\n        y = {0} + 1\n        return y - {2}\n"
    assert program_of(again.format("x", "x = x * 2", "x")) == program_of(again.format("u", "u = u * 2", "u"))
    assert program_of(again.format("x", "z = x * 2", "x")) != program_of(again.format("x", "x = x * 2", "x"))
    assert program_of(again.format("x", "z = x * 2", "z")) != program_of(again.format("x", "z = x * 2", "x"))
    call = "class A:\n    def forward(self, {0}):\n        return {1}\nb = A().forward(x=1, y=2)\n"
    assert program_of(call.format("x, y", "x - y")) != program_of(call.format("y, x", "y - x")), "arguments by name"


def test_rows_of_two_texts() -> None:
    found = list(rows(["a", "b", "c"], ["a", "x", "c", "d"]))
    assert found == [("same", 1, 1), ("changed", 2, 2), ("same", 3, 3), ("added", 0, 4)]


# ---- the page --------------------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """The tags of a page, and its attributes that load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [name for name, _ in attrs if name in ("src", "href") or name.startswith("on")]


def test_nothing_of_the_files_is_html(files: Files) -> None:
    model = net()
    for each in model.graph.node:
        each.name += EVIL
    node(model, f"act2{EVIL}").op_type = "Tanh"
    model.graph.input[0].name += EVIL
    model.graph.node[0].input[0] += EVIL
    entry = model.metadata_props.add()
    entry.key, entry.value, model.producer_name = EVIL, EVIL, EVIL
    text = page(diff(*files(model)))
    found = Elements(text)
    assert "img" in text and "img" not in found.tags and not found.loads
    assert text.count("<script>") == text.count("</script>") == 1 and "default-src 'none'" in text


HOSTILE = {
    "tags": "<script>alert(1)</script>",
    "control": "\x01\x1b[31m\u202e\u2028",
    "quotes": "\"'`${x}{{ x }}{% x %}\\",
    "long": "<marquee>" * 3000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_in_the_page_and_in_json(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also the names of the files, one of which is no Unicode."""
    model = net()
    for each in model.graph.node:
        each.name += text
        each.input[:], each.output[:] = [f"{i}{text}" for i in each.input], [f"{o}{text}" for o in each.output]
    for item in (*model.graph.initializer, *model.graph.input, *model.graph.output):
        item.name += text
    model.graph.node[1].op_type = "Tanh"
    entry = model.metadata_props.add()
    entry.key, entry.value, model.producer_name, model.doc_string = text, text, text, text
    one, other = tmp_path / "one.onnx", tmp_path / os.fsdecode(b"\xff'&.onnx")
    onnx.save(net(), one)
    other.write_bytes(model.SerializeToString())
    assert run(one, other, "--html", tmp_path / "page.html") == 1
    shown = capsys.readouterr().out
    assert "relu -> tanh" in shown and not re.search(r"[^\n -~]", shown)
    page_ = (tmp_path / "page.html").read_bytes().decode()
    found = Elements(page_)
    assert "marquee" not in found.tags and not found.loads and page_.count("<script>") == 1
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e\u2028]", page_)
    assert run(one, other, "--json") == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "different"


CLICK = """
document.querySelector("#changes [data-line]").click();
const on = [...document.querySelectorAll(".row.on")].map(row => row.className + " " + row.textContent.includes("tanh"));
const bars = [...document.querySelectorAll("#tree div")].filter(row => row.querySelector(".bar")).length;
const shown = [...document.querySelectorAll("#sources details")].filter(group => group.open).length;
document.title = "seen " + JSON.stringify([on, bars, shown > 0, document.querySelectorAll("#weights tr").length]);
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_the_page_in_a_browser(files: Files, tmp_path: Path) -> None:
    """The script of the page runs under its own policy; a second one, which the policy is told of, clicks."""
    model = net()
    node(model, "act2").op_type = "Tanh"
    put(model, "head.weight", lambda w: w + 1)
    one, other = files(model)
    assert run(one, other, "--html", tmp_path / "page.html") == 1
    digest = base64.b64encode(hashlib.sha256(CLICK.encode()).digest()).decode()
    text = (tmp_path / "page.html").read_text()
    text = re.sub(r"(script-src 'sha256-[^']*')", rf"\1 'sha256-{digest}'", text, count=1)
    text = text.replace("</body>", f"<script>{CLICK}</script></body>")
    (tmp_path / "seen.html").write_text(text, encoding="utf-8")
    how = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    command = [str(CHROMIUM), *how, (tmp_path / "seen.html").as_uri()]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    assert '<title>seen [["row changed on true"],1,true,2]</title>' in seen


def test_only_a_page_of_its_own_is_overwritten(files: Files, tmp_path: Path) -> None:
    one, other = files(net())
    out = tmp_path / "page.html"
    out.write_text("mine")
    assert run(one, other, "--html", out) == 2 and out.read_text() == "mine"
    for given in (["--force"], []):
        assert run(one, other, "--html", out, *given) == 0 and "onnxgen diff" in out.read_text()
