"""Where nodes come from: parameter names, node names and exporter metadata; called twice is not named so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxgen.graph.annotations import CLASSES, SCOPE
from onnxgen.options import Options
from onnxgen.reader import param_path, read
from onnxgen.scopes.origin import torch_path
from tests.support.reader_models import Write, model, node, weight, write

__all__ = ["write"]  # a fixture


def scopes(path: Path) -> dict[str, str]:
    """Dotted scopes by node name."""
    return {n.name or "": ".".join(SCOPE.get(n)) for n in read(path, Options()).graph.all_nodes()}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.b.weight", ("a", "b", "weight")),
        ("0.weight", ("0", "weight")),
        ("params.0", ("params", "0")),
        ("a.B_c.weight", ("a", "B_c", "weight")),
        ("w", None),
        ("val_14", None),
        ("onnx::Conv_41", None),
        ("dense/kernel:0", None),
        ("a/b.weight", None),
        ("a..weight", None),
        (".weight", None),
        ("a.", None),
        ("0.5", None),
        ("a b.weight", None),
        ("x.y\n", None),
        ("x'.y", None),
        ("", None),
        (".".join("a" * 100), None),
    ],
)
def test_param_path(name: str, parts: tuple[str, ...] | None) -> None:
    assert param_path(name) == parts


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("/layer1/layer1.0/conv1/Conv", "layer1.0.conv1"),
        ("/encoder/layer.0/conv1/Conv", "encoder.layer.0.conv1"),
        ("/seq/seq.2/seq.2.0/MatMul", "seq.2.0"),
        ("/blocks.0/mlp/mlp.0/Gemm", "blocks.0.mlp.0"),
        ("/0/0.1/Conv", "0.1"),
        ("/Mul", ""),
        ("Conv_0", None),
        ("//Conv", None),
        ("/a..b/Conv", None),
    ],
)
def test_torch_path(name: str, scope: str | None) -> None:
    found = torch_path(name, set())
    assert found == (None if scope is None else tuple(filter(None, scope.split("."))))


def test_torch_path_asks_the_parameters() -> None:
    """A module that holds a list of its own name looks like a called container."""
    name = "/encoder/encoder.0/Conv"
    assert torch_path(name, {("encoder", "encoder", "0")}) == ("encoder", "encoder", "0")
    assert torch_path(name, {("encoder", "0")}) == ("encoder", "0")


def conv(name: str, weights: str, x: str = "x", y: str = "y") -> onnx.NodeProto:
    return node("MatMul", [x, weights], [y], name=name)


def test_parameter_names_outrank(write: Write) -> None:
    stale = conv("fused", "body.0.conv.weight")
    stale.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'body', 'body.0', 'body.0.bn', 'conv']")
    assert scopes(write(model([stale], [weight("body.0.conv.weight", 4, 4)]))) == {"fused": "body.0.conv"}
    named = conv("/head/conv/MatMul", "body.0.conv.weight")
    assert scopes(write(model([named], [weight("body.0.conv.weight", 4, 4)]))) == {"/head/conv/MatMul": "body.0.conv"}
    folded = conv("/head/MatMul", "onnx::MatMul_7")
    assert scopes(write(model([folded], [weight("onnx::MatMul_7", 4, 4)]))) == {"/head/MatMul": "head"}


def test_a_module_that_shares_a_weight_keeps_its_place(write: Write) -> None:
    """T5's encoder.embed_tokens takes shared.weight: the exporter calls a tensor by the first of its names."""
    shared = conv("/encoder/embed_tokens/Gather", "shared.weight")
    found = scopes(write(model([shared], [weight("shared.weight", 4, 4)])))
    assert found == {"/encoder/embed_tokens/Gather": "encoder.embed_tokens"}


def test_parameters_through_other_nodes(write: Write) -> None:
    chain = [node("Transpose", ["a.b.weight"], ["t"], name="t"), node("Identity", ["t"], ["i"], name="i")]
    found = scopes(write(model([*chain, conv("m", "i")], [weight("a.b.weight", 4, 4)])))
    assert found == {"t": "a.b", "i": "a.b", "m": "a.b"}


def test_shared_tensors_keep_their_own_names(write: Write) -> None:
    """The legacy exporter hands equal parameters out through an Identity with the other's name."""
    same = node("Identity", ["norm1.weight"], ["norm2.weight"], name="same")
    nodes = [same, conv("/norm1/Mul", "norm1.weight", "x", "h"), conv("/norm2/Mul", "norm2.weight", "h")]
    found = scopes(write(model(nodes, [weight("norm1.weight", 4, 4)])))
    assert found["/norm1/Mul"] == "norm1" and found["/norm2/Mul"] == "norm2"


def test_tied_weights_stay_where_they_are_used(write: Write) -> None:
    tied = [
        conv("/wte/Gather", "wte.weight", "x", "h"),
        node("Transpose", ["wte.weight"], ["t"], name="/lm_head/Transpose"),
        conv("/lm_head/MatMul", "t", "h"),
    ]
    found = scopes(write(model(tied, [weight("wte.weight", 4, 4)])))
    assert found == {"/wte/Gather": "wte", "/lm_head/Transpose": "lm_head", "/lm_head/MatMul": "lm_head"}


def test_parameters_of_several_modules_meet_in_their_parent(write: Write) -> None:
    both = node("Concat", ["attn.q.weight", "attn.k.weight"], ["w"], name="both", axis=0)
    weights = [weight("attn.q.weight", 4, 4), weight("attn.k.weight", 4, 4)]
    assert scopes(write(model([both, conv("m", "w")], weights)))["both"] == "attn"


@pytest.mark.parametrize(
    ("weights", "used", "scope"),
    [
        (["onnx::w", "onnx::w"], ["/conv/MatMul", "/conv_1/MatMul"], "conv"),  # the same weight: a second call
        (["onnx::w", "onnx::v"], ["/conv/MatMul", "/conv_1/MatMul"], "conv_1"),  # another weight: another module
        (["conv.weight", "conv_1.weight"], ["/conv/MatMul", "/conv_1/MatMul"], "conv_1"),  # the name says so
        (["onnx::w", "onnx::w"], ["/other/MatMul", "/conv_1/MatMul"], "conv_1"),  # there is no first call
    ],
)
def test_called_twice(write: Write, weights: Sequence[str], used: Sequence[str], scope: str) -> None:
    nodes = [conv(used[0], weights[0], "x", "h"), conv(used[1], weights[1], "h")]
    assert scopes(write(model(nodes, [weight(name, 4, 4) for name in dict.fromkeys(weights)])))[used[1]] == scope


def test_a_whole_block_called_twice(write: Write) -> None:
    nodes = [
        conv("/block/fc/MatMul", "onnx::w", "x", "a"),
        node("Relu", ["a"], ["b"], name="/block/act/Relu"),
        conv("/block_1/fc/MatMul", "onnx::w", "b", "c"),
        node("Relu", ["c"], ["y"], name="/block_1/act_1/Relu"),
    ]
    found = scopes(write(model(nodes, [weight("onnx::w", 4, 4)])))
    assert found["/block_1/fc/MatMul"] == "block.fc" and found["/block_1/act_1/Relu"] == "block.act"


@pytest.mark.parametrize(
    ("weights", "scope"),
    [
        (["model.decoder.fc1.weight", "model.decoder.fc2.weight"], "model.decoder"),  # `self.model.decoder(x)`
        (["model.decoder.fc1.weight", "decoder.fc2.weight"], "decoder"),  # both exist
        (["model.decoder.fc1.weight", "wrapped.decoder.fc2.weight"], "decoder"),  # which one is it?
        (["model.decoder.fc1.weight", "onnx::w"], "model.decoder"),
        (["onnx::v", "onnx::w"], "decoder"),
    ],
)
def test_a_module_whose_parts_are_called_without_it(write: Write, weights: Sequence[str], scope: str) -> None:
    nodes = [
        conv("/decoder/fc1/MatMul", weights[0], "x", "a"),
        node("Relu", ["a"], ["b"], name="/decoder/act/Relu"),
        conv("/decoder/fc2/MatMul", weights[1], "b", "y"),
    ]
    assert scopes(write(model(nodes, [weight(name, 4, 4) for name in weights])))["/decoder/act/Relu"] == f"{scope}.act"


@pytest.mark.parametrize(
    ("third", "weight_of_third", "scope"),
    [("/fc3", "m.fc3.weight", "m"), ("/m/fc3", "m.fc3.weight", ""), ("/fc3", "fc3.weight", "")],
)
def test_what_calls_the_parts_of_one_module_is_its_forward(
    write: Write, third: str, weight_of_third: str, scope: str
) -> None:
    """`self.m.fc3(torch.relu(self.m.fc1(x)))`, where `m` has all parameters, and is not called itself."""
    weights = ["m.fc1.weight", "onnx::w", weight_of_third]
    nodes = [
        conv("/fc1/MatMul", weights[0], "x", "a"),
        node("Relu", ["a"], ["b"], name="/Relu"),
        conv("/fc2/MatMul", weights[1], "b", "c"),
        conv(f"{third}/MatMul", weights[2], "c", "y"),
    ]
    found = scopes(write(model(nodes, [weight(name, 4, 4) for name in weights])))
    assert found["/Relu"] == scope and found["/fc2/MatMul"] == (f"{scope}.fc2" if scope else "fc2")


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("model/block_3/conv/Conv2D", "model.block_3.conv"),
        ("StatefulPartitionedCall/model/dense/MatMul", "model.dense"),
        ("dense/Relu;dense/BiasAdd", "dense"),
        ("re_lu/Relu;batch_norm/FusedBatchNormV3;conv2d/BiasAdd;conv2d/BiasAdd;other/Conv2D", "conv2d"),
        ("Transpose__12", ""),
        ("a b/Conv", ""),
        ("a//Conv", ""),
        ("http://x/y", ""),
        ("x/" * 1000, ""),
    ],
)
def test_slash_names(write: Write, name: str, scope: str) -> None:
    assert scopes(write(model([node("Relu", name=name)]))) == {name: scope}


HOSTILE = [
    "",
    "[",
    "1",
    "{'a': 1}",
    "[1, 2]",
    "__import__('os').system('x')",
    "(" * 5000,
    "['a'",
    "['']" * 3,
    "[''," * 30000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_metadata_is_ignored(write: Write, text: str) -> None:
    relu = node("Relu", name="n")
    for key in ("name_scopes", "class_hierarchy"):
        relu.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=text)
    found = read(write(model([relu])), Options())
    assert not SCOPE.has(found.graph[0]) and not CLASSES.get(found)


# --- what PyTorch's exporters really write -------------------------------------------------------------------------


def network() -> Any:
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn, self.act = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.act(self.bn(self.conv1(self.act(x)))) + x

    class Encoder(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.shared = nn.ModuleList([Block(), Block()]), nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            for layer in self.layer:
                x = layer(x)
            return self.shared(torch.relu(self.shared(x)))

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = Encoder()
            self.seq = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 3)))

        def forward(self, x: Any) -> Any:
            return self.seq(self.encoder(x))

    return Net()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dynamo", [False, True])
def test_torch_exports(tmp_path: Path, dynamo: bool, training: bool) -> None:
    torch = pytest.importorskip("torch")
    if dynamo:
        pytest.importorskip("onnxscript")
    net = network().train(training)
    mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
    more = {} if dynamo else {"opset_version": 17, "training": mode, "do_constant_folding": not training}
    torch.onnx.export(net, (torch.zeros(2, 4, 8, 8),), tmp_path / "net.onnx", dynamo=dynamo, **more)
    found = read(tmp_path / "net.onnx", Options())
    modules = dict(net.named_modules())
    by_op: dict[str, list[str]] = {}
    for step in found.graph.all_nodes():
        scope = ".".join(SCOPE.get(step))
        assert scope in modules, (step.name, scope)
        by_op.setdefault(step.op_type, []).append(scope)
    assert by_op["Conv"] == ["encoder.layer.0.conv1", "encoder.layer.1.conv1"]
    assert by_op["MatMul"] == ["encoder.shared", "encoder.shared", "seq.0", "seq.2.0"]
    layers = [f"encoder.layer.{i}.act" for i in (0, 0, 1, 1)]
    assert by_op["Relu"] == [*layers, "encoder", "seq.1"]
    if dynamo:
        expected = {path: type(module).__name__ for path, module in modules.items()}
        classes = {".".join(path): kind for path, kind in CLASSES.get(found).items()}
        assert classes.items() <= expected.items() and {"", "encoder", "encoder.layer.1"} <= classes.keys()
