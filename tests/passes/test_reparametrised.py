"""Layers whose weight is made by `nn.utils.parametrizations` come back with the original's keys, and train as it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.export import export
from onnxgen.options import Options
from onnxgen.pipeline import generate
from onnxgen.runtime.load import load
from tests.zoo.export import quiet

weight_norm, spectral_norm = nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm
PLACE = "nn.utils.parametrizations"


class Dense(nn.Module):
    """[batch, 6] -> [batch, 4]."""

    size = (6,)

    def __init__(self, by: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.fc1 = by(nn.Linear(6, 8))
        self.fc2 = by(nn.Linear(8, 4, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc2(F.relu(self.fc1(x)))
        return y


class Maps(nn.Module):
    """[batch, 3, 6, 6] -> [batch, 4, 12, 12]."""

    size = (3, 6, 6)

    def __init__(self, by: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.up = by(nn.ConvTranspose2d(3, 8, 4, stride=2, padding=1))
        self.conv = by(nn.Conv2d(8, 4, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(F.relu(self.up(x)))
        return y


def made(build: type[Dense] | type[Maps], by: Callable[[nn.Module], nn.Module]) -> tuple[nn.Module, Tensor]:
    """A network whose lengths are not the norms of its weights, and an input."""
    torch.manual_seed(0)
    net = build(by)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith(("original0", "weight_g")):
                parameter.mul_(torch.rand_like(parameter) + 0.5)
    return net, torch.randn(2, *build.size)


def exported(net: nn.Module, x: Tensor, path: Path, dynamo: bool, training: bool) -> Path:
    """Export without folding, which would leave a plain weight."""
    mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
    with quiet():
        if dynamo:
            torch.onnx.export(net.train(training), (x,), path, dynamo=True, optimize=False, external_data=False)
        else:
            torch.onnx.export(
                net.train(training), (x,), path, dynamo=False, opset_version=17, training=mode,
                do_constant_folding=False,
            )  # fmt: skip
    return path


def steps(net: nn.Module, x: Tensor) -> None:
    optimizer = torch.optim.SGD(net.train().parameters(), 0.05)
    for _ in range(3):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


def trains_alike(path: Path, net: nn.Module, x: Tensor, ours: nn.Module) -> None:
    """Keys, outputs, gradients and some steps of training are the original's."""
    assert ours.state_dict().keys() == net.state_dict().keys()
    theirs = copy.deepcopy(net)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    for network in (ours, theirs):
        network.eval()(x).square().sum().backward()
    gradients = {name: p.grad for name, p in ours.named_parameters()}
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-5)
    for network in (ours, theirs):
        steps(network, x)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=1e-4, atol=1e-5)
    for key, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[key], value, rtol=1e-4, atol=1e-5)


def goes_back(path: Path, ours: nn.Module) -> None:
    """The trained tensors are written into the same graph, and it computes what the module does."""
    out = path.with_name("back.onnx")
    export(path.with_name("made.py"), path, ours, out)
    before, after = onnx.load(path), onnx.load(out)
    assert list(before.graph.node) == list(after.graph.node)
    state = ours.state_dict()
    for tensor in after.graph.initializer:
        if tensor.name in state:
            array = torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy())
            torch.testing.assert_close(array, state[tensor.name], rtol=0, atol=0)


CASES = [
    (Dense, {}, False, True),
    (Dense, {}, True, False),
    (Dense, {"dim": 1}, False, False),
    (Dense, {"dim": None}, True, True),
    (Dense, {"dim": None}, False, False),
    (Maps, {}, False, False),
    (Maps, {}, True, True),
]


@pytest.mark.parametrize(("build", "options", "dynamo", "training"), CASES)
def test_weight_norm(
    build: type[Dense] | type[Maps], options: dict[str, int], dynamo: bool, training: bool, tmp_path: Path
) -> None:
    net, x = made(build, functools.partial(weight_norm, **options))
    path = exported(net, x, tmp_path / "net.onnx", dynamo, training)
    source = generate(path, tmp_path / "made.py", Options(paranoid=True)).source
    assert source.count(f"{PLACE}.weight_norm(") == 2 and "vector_norm" not in source
    assert source.count("dim=") == 2 * len(options)
    ours = load(path)
    trains_alike(path, net, x, ours)
    goes_back(path, ours)


def test_spectral_norm_stays_written_out(tmp_path: Path) -> None:
    net, x = made(Dense, spectral_norm)
    path = exported(net, x, tmp_path / "net.onnx", dynamo=True, training=False)
    source = generate(path, tmp_path / "made.py", Options(paranoid=True)).source
    assert PLACE not in source
    ours = load(path)
    torch.testing.assert_close(ours.eval()(x), net.eval()(x), rtol=1e-4, atol=1e-5)
    goes_back(path, ours)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("dynamo", [False, True])
def test_the_older_weight_norm_keeps_its_names(dynamo: bool, tmp_path: Path) -> None:
    net, x = made(Maps, nn.utils.weight_norm)
    path = exported(net, x, tmp_path / "net.onnx", dynamo, training=False)
    source = generate(path, tmp_path / "made.py", Options(paranoid=True)).source
    assert "torch._weight_norm(self.weight_v, self.weight_g)" in source and PLACE not in source
    ours = load(path)
    assert ours.state_dict().keys() == net.state_dict().keys()
    torch.testing.assert_close(ours(x), net(x), rtol=1e-4, atol=1e-5)
    for network in (ours, net):
        steps(network, x)
    torch.testing.assert_close(ours(x), net(x), rtol=1e-4, atol=1e-5)
    goes_back(path, ours)


@pytest.mark.parametrize("dynamo", [False, True])
def test_vectors_of_the_older_spectral_norm_are_buffers(dynamo: bool, tmp_path: Path) -> None:
    net, x = made(Dense, nn.utils.spectral_norm)
    path = exported(net, x, tmp_path / "net.onnx", dynamo, training=False)
    generate(path, tmp_path / "made.py", Options(paranoid=True))
    ours = load(path)
    assert dict(ours.named_buffers()).keys() == dict(net.named_buffers()).keys()
    ours.load_state_dict(net.state_dict(), strict=True)
    goes_back(path, ours)


NORMED = ("parametrizations.weight.original0", "parametrizations.weight.original1")


def test_a_frozen_layer_is_one_of_them(tmp_path: Path) -> None:
    net, x = made(Dense, weight_norm)
    path = exported(net, x, tmp_path / "net.onnx", dynamo=False, training=False)
    ours = load(path, Options(frozen="fc1"))
    assert {name for name, p in ours.named_parameters() if p.requires_grad} == {f"fc2.{key}" for key in NORMED}
    torch.testing.assert_close(ours(x), net(x), rtol=1e-4, atol=1e-5)


def test_a_norm_along_another_axis_stays_written_out(tmp_path: Path) -> None:
    """A length of each row, but norms of the columns."""
    net, x = made(Dense, weight_norm)
    path = exported(net, x, tmp_path / "net.onnx", dynamo=False, training=False)
    model = onnx.load(path)
    norm = next(node for node in model.graph.node if node.op_type == "ReduceL2")
    norm.attribute[0].ints[0] = 0
    onnx.save(model, path)
    source = generate(path, tmp_path / "made.py", Options(paranoid=True)).source
    assert source.count(PLACE) == 1  # that of fc2
