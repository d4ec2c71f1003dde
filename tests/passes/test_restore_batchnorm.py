"""`--restore-batchnorm`: what comes back, where, under which name, and that it is folded again on the way back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper as h
from torch import nn

import onnxgen
from onnxgen import Options, verify
from onnxgen.cli import run
from onnxgen.pipeline import build, check, generate
from onnxgen.weights.provenance import rebuild
from tests.support.real import Run, assert_way_back, imported
from tests.support.stripped import strip
from tests.zoo import ZOO, Entry, _image, _simple
from tests.zoo.export import export

RESTORE = Options(restore_batchnorm=True)
NORM = nn.modules.batchnorm._BatchNorm


class Grouped(nn.Module):
    """Transposed and grouped convolutions, one with a bias of its own; numbered layers; a head."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Sequential(nn.ConvTranspose2d(3, 8, 2, 2), nn.BatchNorm2d(8), nn.ReLU())
        self.grouped_conv = nn.ConvTranspose2d(8, 12, 3, groups=4, bias=False)
        self.grouped_bn = nn.BatchNorm2d(12)
        self.depthwise = nn.Conv2d(12, 12, 3, groups=12, bias=False)
        self.depthwise_bn = nn.BatchNorm2d(12)
        self.head = nn.Conv2d(12, 2, 1)

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.relu(self.grouped_bn(self.grouped_conv(self.up(x))))
        return self.head(self.depthwise_bn(self.depthwise(x)).sigmoid())


class Called(nn.Module):
    """One convolution and its norm, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv1d(4, 4, 3, padding=1, bias=False), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.relu(self.bn(self.conv(torch.relu(self.bn(self.conv(x))))))


NETS: dict[str, Entry] = {name: ZOO[name] for name in ("resnet18", "cnn", "mobilenet", "audio_cnn", "video_cnn")}
NETS |= {"unet_transpose": ZOO["unet_transpose"]}
NETS |= {"grouped": _image(Grouped, 6), "called": _simple(Called, "x", 4, 9)}
CASES = [(name, "legacy") for name in NETS] + [(name, "dynamo") for name in ("cnn", "grouped", "called")]


def exported(name: str, exporter: str, folder: Path) -> tuple[Path, nn.Module]:
    path = folder / f"{name}.onnx"
    return path, export(NETS[name], path, exporter, 17 if exporter == "legacy" else 18)


def outputs(path: Path, inputs: tuple[torch.Tensor, ...]) -> list[Any]:
    session = onnxruntime.InferenceSession(path)
    return list(session.run(None, {v.name: x.numpy() for v, x in zip(session.get_inputs(), inputs)}))


def norms(model: nn.Module) -> set[str]:
    return {name for name, m in model.named_modules() if isinstance(m, NORM)}


@pytest.mark.parametrize(("name", "exporter"), CASES)
def test_put_back(name: str, exporter: str, tmp_path: Path) -> None:
    """The original's keys, and its checkpoint fits; evaluation as before; trained values come back to the file."""
    path, original = exported(name, exporter, tmp_path)
    if name == "called" and exporter == "dynamo":
        pytest.skip("the exporter folds the norm into two copies of the weight")
    generated = generate(path, tmp_path / "model.py", RESTORE)
    module = imported(tmp_path / "model.py")
    model = module.Model.from_pretrained().eval()
    keys, expected = set(model.state_dict()), set(original.state_dict())
    if exporter == "dynamo":  # which records where the norms were
        assert keys == expected
        model.load_state_dict(original.state_dict(), strict=True)
        model = module.Model.from_pretrained().eval()
    else:  # `conv1` had a bn1; whether it had a bias of its own is lost
        assert len(norms(model)) == len(norms(original))
        assert name == "mobilenet" or expected - keys <= {"stem.0.bias", "conv1.bias", "conv2.bias"}
    assert any(not v.any() for k, v in model.state_dict().items() if k.endswith("running_mean"))
    inputs = NETS[name].inputs(3)
    with torch.no_grad():
        np.testing.assert_allclose(model(*inputs).numpy(), outputs(path, inputs)[0], 1e-5, 1e-5)
    assert assert_way_back(Run(generated, module, model), path)
    train(model, inputs)
    _assert_exported(path, generated.metadata["wayback"], model.eval(), inputs)
    _assert_apart(path, model, inputs)


def _assert_apart(path: Path, model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """The file that is exported has a node for each call of each norm, and computes what the module does."""
    calls: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, NORM):
            module.register_forward_hook(lambda made, *_: calls.append(made))
    with torch.no_grad():
        expected = model(*inputs).numpy()
    count = len(calls)
    report = onnxgen.export(path.with_name("model.py"), weights=model, out=path.with_name("apart.onnx"))
    kept, found = (
        sum(node.op_type == "BatchNormalization" for node in onnx.load(file).graph.node)
        for file in (path, path.with_name("apart.onnx"))
    )
    assert report.method == "written back" and len(report.added) == 4 * (len(norms(model)) - kept) and found == count
    got = outputs(path.with_name("apart.onnx"), inputs)[0]
    np.testing.assert_allclose(got, expected, 1e-4, 1e-5 * np.abs(expected).max())


def train(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """Statistics from data, and every parameter moved."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        for p in model.parameters():
            p.add_(torch.rand_like(p) * 0.1)
        model.train()(*[x * 2 + 1 for x in inputs])


def _assert_exported(path: Path, wayback: str, model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """The file with the trained values, run by onnxruntime, computes what the module does."""
    state = {key: value.numpy() for key, value in model.state_dict().items()}
    file, record = onnx.load(path), json.loads(wayback)
    names = {t.name: t for t in file.graph.initializer}
    assert record and record.keys() <= names.keys()
    for name in record:
        names[name].CopyFrom(onnx.numpy_helper.from_array(rebuild(record, name, state.__getitem__), name))
    trained = path.with_name("trained.onnx")
    onnx.save(file, trained)
    with torch.no_grad():
        expected = outputs(trained, inputs)[0]
        np.testing.assert_allclose(model(*inputs).numpy(), expected, 1e-4, 1e-5 * np.abs(expected).max())


def save(path: Path, nodes: list[onnx.NodeProto], **stored: tuple[int, ...]) -> Path:
    rng = np.random.default_rng(0)
    tensors = [
        onnx.numpy_helper.from_array(rng.random(shape, np.float32), name.replace("_", "."))
        for name, shape in stored.items()
    ]
    ports = [[h.make_tensor_value_info(n, onnx.TensorProto.FLOAT, d)] for n, d in (("x", ["n", 3, 8, 8]), ("y", None))]
    graph = h.make_graph(nodes, "g", *ports, tensors)
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), path)
    return path


CONVOLVED = ("Conv", "x a.weight a.bias", "h")
CONV = {"a_weight": (3, 3, 1, 1), "a_bias": (3,)}


@pytest.mark.parametrize(
    ("nodes", "stored", "found"),
    [
        ([CONVOLVED, ("Relu", "h", "y")], CONV, {"a_bn"}),
        ([CONVOLVED, ("Sigmoid", "h", "y")], CONV, set()),  # a head
        ([("Conv", "x a.weight a.bias", "y")], CONV, set()),
        ([CONVOLVED, ("ArgMax", "x", "i"), ("Gather", "h i", "y")], CONV, set()),  # what picks rows is no layer
        ([("Conv", "x a.weight", "h"), ("Relu", "h", "y")], {"a_weight": (3, 3, 1, 1)}, set()),
        ([CONVOLVED, ("Conv", "h b.weight", "y")], {**CONV, "b_weight": (2, 3, 1, 1)}, {"a_bn"}),
        ([CONVOLVED, ("Relu", "h", "r"), ("BatchNormalization", "h" + " a.bias" * 4, "y")], CONV, {"bn"}),  # its own
        (
            [CONVOLVED, ("Relu", "h", "r"), ("InstanceNormalization", "r n.weight n.bias", "y")],
            {**CONV, "n_weight": (3,), "n_bias": (3,)},
            set(),
        ),
        (  # a weight that is used otherwise too can't have a norm folded in
            [CONVOLVED, ("Relu", "h", "r"), ("Mul", "r a.weight", "y")],
            {**CONV, "a_weight": (3, 3, 1, 1)},
            set(),
        ),
    ],
)  # fmt: skip
def test_without_metadata(nodes: list[Any], stored: dict[str, Any], found: set[str], tmp_path: Path) -> None:
    """A network whose author folded it: after biased convolutions that no norm follows, but for the last layer."""
    made = [h.make_node(kind, inputs.split(), [output]) for kind, inputs, output in nodes]
    path = save(tmp_path / "m.onnx", made, **stored)
    generated = generate(path, tmp_path / "model.py", RESTORE)
    model = imported(tmp_path / "model.py").Model.from_pretrained()
    assert norms(model) == found
    assert verify(path, tmp_path / "model.py", options=RESTORE, rtol=1e-4, integrity=True).agrees
    put_back = "a_bn" in found
    assert ("1 BatchNorm put back" if put_back else "found no convolution") in "".join(generated.report.notes)
    if put_back:
        x = torch.rand(2, 3, 8, 8)
        train(model, (x,))
        _assert_exported(path, generated.metadata["wayback"], model.eval(), (x,))


def test_one_bias_for_two_convolutions(tmp_path: Path) -> None:
    """Exporters store equal tensors once; each convolution gets a norm of its own, and the record says both."""
    kinds = [
        ("Conv", "x a.weight c.bias", "h"),
        ("Relu", "h", "r"),
        ("Conv", "r b.weight c.bias", "s"),
        ("Relu", "s", "y"),
    ]
    made = [h.make_node(kind, inputs.split(), [output]) for kind, inputs, output in kinds]
    path = save(tmp_path / "m.onnx", made, a_weight=(3, 3, 1, 1), b_weight=(3, 3, 1, 1), c_bias=(3,))
    generated = generate(path, tmp_path / "model.py", RESTORE)
    model = imported(tmp_path / "model.py").Model.from_pretrained()
    assert norms(model) == {"bn1", "bn2"}
    record = json.loads(generated.metadata["wayback"])
    state = {k: v.numpy() for k, v in model.state_dict().items()}
    state["bn1.running_mean"] = state["bn1.running_mean"] + 1
    same = state["bn2.bias"]
    np.testing.assert_allclose(rebuild(record, "c.bias", state.__getitem__), same - 1, rtol=1e-4)
    np.testing.assert_array_equal(rebuild(record, "c.bias", state.__getitem__, entry=1), same)


def test_convolutions_that_share_a_scope(tmp_path: Path) -> None:
    """They are called in one module's forward: their norms are that module's, too."""
    made = [
        h.make_node("Conv", ["x", "a", "c"], ["h"], "/block/Conv"),
        h.make_node("Relu", ["h"], ["r"], "/block/Relu"),
    ]
    made += [
        h.make_node("Conv", ["r", "b", "d"], ["s"], "/block/Conv_1"),
        h.make_node("Relu", ["s"], ["y"], "/block/Relu_1"),
    ]
    path = save(tmp_path / "m.onnx", made, a=(3, 3, 1, 1), b=(3, 3, 1, 1), c=(3,), d=(3,))
    generate(path, tmp_path / "model.py", RESTORE)
    assert norms(imported(tmp_path / "model.py").Model.from_pretrained()) == {"block.bn1", "block.bn2"}
    assert verify(path, tmp_path / "model.py", options=RESTORE, rtol=1e-4).agrees


def test_a_network_without_names(tmp_path: Path) -> None:
    """Its blocks are found all the same, and the norms are theirs."""
    path, original = exported("resnet18", "legacy", tmp_path)
    generate(strip(path, tmp_path / "stripped.onnx"), tmp_path / "model.py", RESTORE)
    model = imported(tmp_path / "model.py").Model.from_pretrained().eval()
    assert len(norms(model)) == len(norms(original)) and sum("." in name for name in norms(model)) == 19
    inputs = NETS["resnet18"].inputs(3)
    with torch.no_grad():
        np.testing.assert_allclose(model(*inputs).numpy(), outputs(path, inputs)[0], 1e-5, 1e-5)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = exported("cnn", "legacy", tmp_path)
    out = tmp_path / "out.py"
    assert run([str(path), "-o", str(out), "--restore-batchnorm", "--dtype", "float64", "--verify"]) == 0
    assert "2 BatchNorms put back" in capsys.readouterr().out
    options = Options(restore_batchnorm=True, dtype="float64")
    assert check(path, out, options) and not check(path, out, Options(dtype="float64"))
    assert "put it back with --restore-batchnorm" in "".join(build(path, Options(), out).report.notes)
