"""Operators without a function: what is said of them, and the methods that `--allow-unsupported` leaves open."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxgen import OnnxgenError, Options
from onnxgen.cli import run as command
from onnxgen.pipeline import build, generate
from tests.plugins.nets import model, net, one, saved
from tests.support.clean_source import assert_safe
from tests.support.hostile import HOSTILE
from tests.support.real import imported

OPEN = Options(allow_unsupported=True)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(path: Path, options: Options = Options()) -> list[str]:  # noqa: B008
    with pytest.raises(OnnxgenError) as refused:
        build(path, options, path.with_suffix(".py"))
    return [str(p) for p in refused.value.problems]


# ---- without it ------------------------------------------------------------------------------------------------------


def test_every_operator_once_with_its_nodes(here: Path) -> None:
    nodes = [helper.make_node("Swish", [f"x{i}"], [f"x{i + 1}"], f"n{i}", domain="com.acme") for i in range(9)]
    nodes.append(helper.make_node("Other", ["x9"], ["y"], "last", domain="com.other"))
    proto = model(nodes, [("x0", [4])], [("y", [4])], domains=("com.acme", "com.other"))
    ways = "write a plugin for it (docs/EXTENDING.md), leave it open with --allow-unsupported, or open an issue"
    assert refusal(saved(proto, here / "m.onnx")) == [
        "node n0 (com.acme.Swish-1): the operator is not supported "
        f"(9 nodes: n0, n1, n2, n3, n4, n5 and 3 more) -> {ways}",
        f"node last (com.other.Other-1): the operator is not supported -> {ways}",
    ]


def test_tokenizers_are_out_of_scope(here: Path) -> None:
    (said,) = refusal(saved(one("BertTokenizer", domain="ai.onnx.contrib"), here / "m.onnx"))
    assert "(ai.onnx.contrib.BertTokenizer-1): tokenizers" in said and "tokenize in Python" in said


@pytest.mark.parametrize(
    ("domain", "name", "says"),
    [
        ("com.microsoft.extensions", "DecodeImage", "operators of onnxruntime-extensions are out of scope"),
        ("trt.plugins", "EfficientNMS", "one of TensorRT's plugins"),
        ("TRT", "EfficientNMS_TRT", "one of TensorRT's plugins"),
        ("", "EfficientNMS_TRT", "one of TensorRT's plugins"),
        ("mmdeploy", "TRTBatchedNMS", "one of MMDeploy and MMCV"),
        ("", "MMCVModulatedDeformConv2d", "one of MMDeploy and MMCV"),
        ("Paddle", "multiclass_nms3", "one of PaddlePaddle"),
        ("org.pytorch.aten", "ATen", "one of PyTorch (ATen)"),
        ("torchvision", "deform_conv2d", "one of torchvision"),
        ("ai.onnx.converters.tensorflow", "TensorListReserve", "one of TensorFlow or Keras"),
        ("qonnx.custom_op.general", "Quant", "one of QONNX"),
    ],
)
def test_whose_operator_it_is(here: Path, domain: str, name: str, says: str) -> None:
    """One line names the package and the ways out; with the option the operator is left open all the same."""
    path = saved(one(name, domain=domain), here / "m.onnx")
    (said,) = refusal(path)
    assert says in said and "--inputs/--outputs" in said and "write a plugin for it" in said
    assert name.replace("_", "").lower() in build(path, OPEN, here / "m.py").source.replace("_", "").lower()


# ---- with it ---------------------------------------------------------------------------------------------------------


def test_a_method_is_filled_in(here: Path) -> None:
    """It raises until then; filled in, the network computes what onnxruntime does on the standard one."""
    generated = generate(saved(net(), here / "net.onnx"), here / "net.py", OPEN)
    assert generated.report.notes == [
        "com.acme.Swish-1 is left open: fill in the method swish (nodes /act1/Swish, /act2/Swish)"
    ]
    network = imported(here / "net.py").Model.from_pretrained()
    x = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    with pytest.raises(NotImplementedError, match=r"com\.acme\.Swish-1 is left open: fill in swish"):
        network(torch.from_numpy(x))
    text = (here / "net.py").read_text()
    head = "def swish(self, x: Tensor, beta: Tensor, *, alpha: float) -> Tensor:"
    assert text.count(head) == 1 and "x: float32 [batch, 8]" in text
    line = 'raise NotImplementedError("com.acme.Swish-1 is left open: fill in swish")'
    assert line in text
    (here / "net.py").write_text(text.replace(line, "return alpha * x * torch.sigmoid(beta * x)"))
    network = imported(here / "net.py").Model.from_pretrained()
    (expected,) = onnxruntime.InferenceSession(net(standard=True).SerializeToString()).run(None, {"x": x})
    got = network(torch.from_numpy(x))
    np.testing.assert_allclose(got.detach(), expected, rtol=1e-5, atol=1e-6)
    got.sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_what_was_filled_in_is_kept(here: Path) -> None:
    """Generating again leaves it; where the file changed, too, it is merged into the new module."""
    generate(saved(net(), here / "net.onnx"), here / "net.py", OPEN)
    text = (here / "net.py").read_text()
    filled = text.replace("raise NotImplementedError(", "return x  # (")
    (here / "net.py").write_text(filled)
    assert generate(here / "net.onnx", here / "net.py", OPEN).report.status == "kept"
    assert (here / "net.py").read_text() == filled
    changed = net()
    changed.graph.node.append(helper.make_node("Neg", ["y"], ["z"]))
    changed.graph.output[0].name = "z"
    saved(changed, here / "net.onnx")
    assert generate(here / "net.onnx", here / "net.py", OPEN).report.status == "merged"
    merged = (here / "net.py").read_text()
    assert "return x  # (" in merged and "raise NotImplementedError" not in merged and merged != filled


def test_a_subclass_fills_it_in(here: Path) -> None:
    """The generated file then stays as it is, and can be generated again."""
    generate(saved(net(), here / "net.onnx"), here / "net.py", Options(allow_unsupported=True, flat=True))
    module = imported(here / "net.py")

    class Mine(module.Model):
        def swish(self, x: torch.Tensor, beta: torch.Tensor, *, alpha: float) -> torch.Tensor:
            return alpha * x * torch.sigmoid(beta * x)

    x = torch.randn(5, 4)
    (expected,) = onnxruntime.InferenceSession(net(standard=True).SerializeToString()).run(None, {"x": x.numpy()})
    np.testing.assert_allclose(Mine.from_pretrained()(x).detach(), expected, rtol=1e-5, atol=1e-6)


def method(source: str, name: str) -> str:
    """How a method begins."""
    lines = [line.strip() for line in source.splitlines()]
    return next(line for line in lines if line.startswith(f"def {name}("))


def test_signatures(here: Path) -> None:
    """Inputs left out, attributes of every kind, several outputs; another signature is another method."""
    table = numpy_helper.from_array(np.arange(3, dtype=np.float32))
    attributes = {"i": 3, "f": 0.1, "s": "a'b", "is": [1, 2], "fs": [0.5], "ss": ["x", "y"], "class": 1, "t": table}
    nodes = [
        helper.make_node("Odd", ["x", "", "k"], ["a", "b"], "n1", domain="com.acme", **attributes),
        helper.make_node("Odd", ["x"], ["c"], "n2", domain="com.acme"),
        helper.make_node("Sum", ["a", "b", "c"], ["y"]),
    ]
    constant = numpy_helper.from_array(np.array([4, 5], np.int64), "k")
    source = build(
        saved(model(nodes, [("x", ["n", 3])], [("y", None)], [constant]), here / "m.onnx"), OPEN, here / "m.py"
    ).source
    tree = ast.parse(source)
    found = {f.name: f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and f.name.startswith("odd")}
    assert set(found) == {"odd", "odd_2"}
    arguments = {a.arg: ast.unparse(a.annotation) for a in found["odd"].args.args[1:] if a.annotation is not None}
    assert arguments == {"x": "Tensor", "x_2": "Tensor | None", "k": "Tensor"}
    keywords = {a.arg: ast.unparse(a.annotation) for a in found["odd"].args.kwonlyargs if a.annotation is not None}
    assert keywords == {
        "i": "int", "f": "float", "s": "str", "is_": "list[int]", "fs": "list[float]", "ss": "list[str]",
        "class_": "int", "t": "Tensor",
    }  # fmt: skip
    assert ast.unparse(found["odd"].returns or ast.Constant(0)) == "tuple[Tensor, Tensor]"
    (call,) = [c for c in ast.walk(tree) if isinstance(c, ast.Call) and ast.unparse(c.func) == "self.odd"]
    given = {k.arg: ast.unparse(k.value) for k in call.keywords}
    assert given["s"] == '"a\'b"' and given["f"] == "0.1" and given["is_"] == "[1, 2]" and given["ss"] == "['x', 'y']"
    generate(here / "m.onnx", here / "m.py", OPEN)
    module = imported(here / "m.py")

    class Mine(module.Model):
        def odd(self, x, x_2, k, **attributes):  # type: ignore[no-untyped-def]
            assert x_2 is None and k.tolist() == [4, 5] and attributes["t"].tolist() == [0, 1, 2]
            return x, 2 * x

        def odd_2(self, x):  # type: ignore[no-untyped-def]
            return 4 * x

    torch.testing.assert_close(Mine.from_pretrained()(torch.ones(2, 3)), torch.full((2, 3), 7.0))


def test_names_that_are_taken(here: Path) -> None:
    """A method is called neither as a submodule or parameter nor as a method of nn.Module."""
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "swish.weight")
    nodes = [
        helper.make_node("Gemm", ["x", "swish.weight"], ["h"], "/swish/Gemm"),
        helper.make_node("Swish", ["h"], ["s"], domain="com.acme"),
        helper.make_node("Forward", ["s"], ["f"], domain="com.acme"),
        helper.make_node("Train", ["f"], ["y"], domain="com.acme"),
    ]
    proto = model(nodes, [("x", ["n", 4])], [("y", ["n", 4])], [weight])
    generate(saved(proto, here / "m.onnx"), here / "m.py", OPEN)
    source = (here / "m.py").read_text()
    assert "self.swish = Swish()" in source
    assert all(method(source, name) for name in ("swish_2", "forward_2", "train_2"))
    with pytest.raises(NotImplementedError, match="swish_2"):
        imported(here / "m.py").Model()(torch.randn(1, 4))


def test_shapes_that_nobody_knows(here: Path) -> None:
    """What follows needs no shape, or reads it of the tensor, or says in one line that it can't be written without."""
    nodes = [
        helper.make_node("Swish", ["x"], ["s"], domain="com.acme"),
        helper.make_node("Relu", ["s"], ["r"]),
        helper.make_node("Shape", ["r"], ["d"]),
        helper.make_node("Expand", ["one", "d"], ["e"]),
        helper.make_node("Add", ["e", "r"], ["y"]),
    ]
    one_ = numpy_helper.from_array(np.array([1], np.float32), "one")
    generate(saved(model(nodes, [("x", ["n", 4])], [("y", None)], [one_]), here / "m.onnx"), here / "m.py", OPEN)
    module = imported(here / "m.py")

    class Mine(module.Model):
        def swish(self, x):  # type: ignore[no-untyped-def]
            return x[0]

    torch.testing.assert_close(Mine.from_pretrained()(torch.ones(2, 4)), torch.full((4,), 2.0))
    nodes = [nodes[0], helper.make_node("Flatten", ["s"], ["y"])]
    (said,) = refusal(saved(model(nodes, [("x", ["n", 4])], [("y", None)]), here / "f.onnx"), OPEN)
    assert "(Flatten-17): the rank of input s is unknown -> " in said and "give the plugin an infer rule" in said


def test_a_graph_inside_is_refused(here: Path) -> None:
    inner = helper.make_graph([], "g", [], [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [4])])
    proto = one("Repeat", body=inner)
    (said,) = refusal(saved(proto, here / "m.onnx"), OPEN)
    assert "(com.acme.Repeat-1): attribute body can't be an argument of a method" in said


def test_an_operator_that_only_a_newer_onnx_has(here: Path) -> None:
    """One of the standard's domain that onnxgen does not know: said, or left open, alike."""
    proto = one("NotYetStandard", domain="", alpha=1.0)
    assert "(NotYetStandard-17): the operator is not supported" in refusal(saved(proto, here / "m.onnx"))[0]
    assert (
        "def not_yet_standard(self, x: Tensor, *, alpha: float)" in build(here / "m.onnx", OPEN, here / "m.py").source
    )


def test_the_command(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(net(), here / "m.onnx")
    assert command(["m.onnx", "-q"]) == 2 and command(["m.onnx", "--allow-unsupported"]) == 0
    assert "note: com.acme.Swish-1 is left open: fill in the method swish" in capsys.readouterr().out
    assert command(["verify", "m.onnx", "m.py", "--allow-unsupported"]) == 2
    assert "error: " in capsys.readouterr().err


# ---- hostile text ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_names(here: Path, text: str) -> None:
    """Of operators, domains, attributes and nodes, and text in attributes: only identifiers and literals."""
    attributes = {text: 2, f"{text} ": text, "words": [text, "x"]}
    node = helper.make_node(text, ["x0", text], ["y"], text, domain=f"com.{text}", **attributes)
    weight = numpy_helper.from_array(np.ones(4, np.float32), text)
    proto = model([node], [("x0", ["n", 4])], [("y", ["n", 4])], [weight], domains=(f"com.{text}",))
    saved(proto, here / "m.onnx")
    for problem in refusal(here / "m.onnx"):
        assert problem.isascii() and problem.isprintable()
    generated = generate(here / "m.onnx", here / "m.py", OPEN)
    assert_safe(generated.source)
    module = imported(here / "m.py")
    with pytest.raises(NotImplementedError):
        module.Model.from_pretrained()(torch.ones(2, 4))
