"""`--dropout SCOPE=P`: where it stands, what it drops, and that nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import torch
from onnx import helper as h

from onnxgen import OnnxgenError, Options
from onnxgen.cli import run
from onnxgen.common.names import matches
from onnxgen.pipeline import build, check, generate
from tests.support.real import assert_way_back, imported
from tests.support.real import run as run_file
from tests.zoo import ZOO
from tests.zoo.export import export


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("exported")

    def get(name: str) -> Path:
        path: Path = folder / f"{name}.onnx"
        if not path.exists():
            export(ZOO[name], path)
        return path

    return get


@pytest.mark.parametrize(
    ("net", "dropout", "where"),
    [
        ("resnet18", {"conv1": 0.2}, ["dropout"]),
        ("resnet18", {"layer1.*": 0.9}, ["layer1.0.dropout", "layer1.1.dropout"]),
        ("resnet18", {"layer2": 0.5}, ["dropout"]),
        ("resnet18", {"layer2.0.downsample.0": 0.5, "fc": 0.3}, ["layer2.0.downsample.1", "dropout"]),
        ("resnet18", {"**": 0.5, "layer?.*.conv1": 0.1}, None),
        ("lstm_tagger", {"rnn": 0.25, "embedding": 0.1}, ["dropout", "dropout1"]),
        ("encoder", {"encoder.layers.*": 0.4}, ["encoder.layers.0.dropout", "encoder.layers.1.dropout"]),
        ("encoder", {"**.linear1": 0.4, "encoder": 0.1}, None),
        ("encoder", {"**.self_attn": 0.1}, ["encoder.layers.0.dropout", "encoder.layers.1.dropout"]),  # of two results
    ],
)
def test_it_stands_after_the_module(
    exported: Any, net: str, dropout: dict[str, float], where: list[str] | None, tmp_path: Path
) -> None:
    """In evaluation nothing changes: outputs (by onnxruntime), keys and the way back."""
    path = exported(net)
    names = [value.name for value in onnxruntime.InferenceSession(path).get_inputs()]
    feeds = dict(zip(names, [x.numpy() for x in ZOO[net].inputs(3)]))
    expected = onnxruntime.InferenceSession(path).run(None, feeds)
    made = run_file(path, tmp_path, feeds, Options(dropout=dropout))
    for got, want in zip(made.outputs, expected):
        np.testing.assert_allclose(got.detach().numpy(), want, 1e-3, 1e-5)
    plain = build(path, Options(), tmp_path / "model.py")
    assert set(made.generated.tensors) == set(plain.tensors)
    if net != "encoder":  # without Dropout its layers are torch's own, and equal tensors are told apart
        assert made.generated.metadata["wayback"] == plain.metadata["wayback"]
    assert assert_way_back(made, path)
    found = {name: m.p for name, m in made.model.named_modules() if isinstance(m, torch.nn.Dropout)}
    assert len(found) > 2 if where is None else list(found) == where
    assert set(found.values()) == set(dropout.values())


@pytest.mark.parametrize(("scope", "outer"), [("layer1.0", "layer1.0"), ("layer2", ""), ("conv1", "")])
def test_it_drops_what_the_module_returns(exported: Any, scope: str, outer: str, tmp_path: Path) -> None:
    """What reaches the rest of the network is the module's result, partly dropped and scaled up."""
    generate(exported("resnet18"), tmp_path / "model.py", Options(dropout={scope: 0.75}))
    model = imported(tmp_path / "model.py").Model.from_pretrained()
    seen: list[Any] = []
    dropout = model.get_submodule(f"{outer}.dropout".lstrip("."))
    dropout.register_forward_hook(lambda _, given, got: seen.append((given[0], got)))
    if scope != "layer1.0":  # it stands behind the module, not in it
        model.get_submodule(scope).register_forward_hook(lambda _, given, got: seen.append(got))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model(*ZOO["resnet18"].inputs(4))
    if scope != "layer1.0":
        assert seen.pop(0) is seen[0][0]
    ((before, after),) = seen
    kept = after != 0
    torch.testing.assert_close(after[kept], before[kept] * 4)
    assert 0.15 < (kept.float().sum() / (before != 0).float().sum()).item() < 0.35


@pytest.mark.parametrize(
    ("dropout", "says"),
    [
        ({"layer1.0.cnv1": 0.1}, ["no module is called layer1.0.cnv1", "layer1.0.conv1"]),
        ({"encoder": 0.1, "layr1": 0.1}, ["no module is called encoder", "no module is called layr1", "layer1"]),
        ({"layer1.*.*.*": 0.1}, ["no module is called"]),
    ],
)
def test_a_pattern_that_matches_nothing(
    exported: Any, dropout: dict[str, float], says: list[str], tmp_path: Path
) -> None:
    with pytest.raises(OnnxgenError) as caught:
        generate(exported("resnet18"), tmp_path / "model.py", Options(dropout=dropout))
    assert all(text in str(caught.value) for text in says) and not list(tmp_path.iterdir())


def refusal(dropout: dict[str, float], names: str, folder: Path, head: str = "heads") -> str:
    """What is said of dropout in a network of one layer for each name, each of which makes an output."""
    stored = [onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), f"{head}.{x}.weight") for x in names]
    nodes = [h.make_node("MatMul", ["x", f"{head}.{x}.weight"], [x], f"/{head}/{x}/MatMul") for x in names]
    ports = [[h.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["n", 4]) for n in each] for each in ("x", names)]
    onnx.save(h.make_model(h.make_graph(nodes, "g", *ports, stored), ir_version=8), folder / "m.onnx")
    with pytest.raises(OnnxgenError) as caught:
        build(folder / "m.onnx", Options(dropout=dropout), folder / "model.py")
    return str(caught.value)


def test_a_module_with_several_results(tmp_path: Path) -> None:
    """Nothing says which of them is meant; eight are named."""
    for names, shown in (("ab", "2 values (a, b)"), ("abcdefghij", "10 values (a, b, c, d, e, f, g, h)")):
        said = refusal({"heads": 0.1}, names, tmp_path)
        assert said == f"--dropout: heads returns {shown}, but Dropout needs one -> name a module inside it"


def test_eight_modules_are_named_where_none_is_similar(tmp_path: Path) -> None:
    said = refusal({"?\n": 0.1}, "abcdefgh", tmp_path)
    listed = ", ".join(f"heads.{name}" for name in "abcdefg")
    assert said == f"--dropout: no module is called ?? -> similar modules: heads, {listed}, ..."


def test_a_dropout_whose_rate_alone_is_used(tmp_path: Path) -> None:
    """That of attention, which torch drops itself. A long path is cut."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[2, 3, 4] q, float[2, 3, 4] k, float[2, 3, 4] v)
        => (float[2, 3, 4] y) <float ratio = {0.25}, bool train = {1}, float half = {0.5}> {
        t = Transpose <perm = [0, 2, 1]> (k)  s = MatMul (q, t)  h = Mul (s, half)  a = Softmax <axis = -1> (h)
        d = Dropout (a, ratio, train)  y = MatMul (d, v) }"""
    )
    for node in proto.graph.node:
        node.name = f"/{'a' * 90}/{'drop/' * (node.op_type == 'Dropout')}{node.op_type}"
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(OnnxgenError) as caught:
        build(tmp_path / "m.onnx", Options(dropout={"**.drop": 0.1}), tmp_path / "model.py")
    cut = "a" * 77 + "..."
    assert str(caught.value) == f"--dropout: {cut} is never called for a value -> name another module"


@pytest.mark.parametrize(
    ("pattern", "path", "yes"),
    [
        ("layer1", "layer1", True),
        ("layer1", "layer1.0", False),
        ("layer1.*", "layer1.0", True),
        ("layer1.*", "layer1.0.conv1", False),
        ("layer1.**", "layer1.0.conv1", True),
        ("layer1.**", "layer1", True),
        ("layer?", "layer12", False),
        ("**.conv1", "conv1", True),
        ("**.conv1", "layer1.0.conv1", True),
        ("**.conv1", "layer1.0.myconv1", False),
        ("a.**.b", "a.x.y.b", True),
        ("a.**.b", "a.b", True),
        ("[ab]", "a", False),
    ],
)
def test_patterns(pattern: str, path: str, yes: bool) -> None:
    assert matches(pattern, tuple(path.split("."))) == yes


def test_the_command(exported: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = exported("resnet18"), tmp_path / "model.py"
    assert run([str(path), "-o", str(out), "--dropout", "layer1.*=.1", "--dropout", "fc=0.5", "--verify"]) == 0
    assert "self.dropout = nn.Dropout(0.1)" in out.read_text() and "self.dropout = nn.Dropout()" in out.read_text()
    options = Options(dropout={"layer1.*": 0.1, "fc": 0.5})
    assert check(path, out, options) and not check(path, out)
    for bad in ("fc", "=0.1", "fc=x", "fc=1.5", "fc=-1"):
        capsys.readouterr()
        assert run([str(path), "-o", str(out), "--dropout", bad]) == 2
        assert capsys.readouterr().err.count("\n") == 1
