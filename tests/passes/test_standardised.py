"""A norm by the statistics of its own input is one line; a weight that it standardises has its own key and shape."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.pipeline import generate
from onnxgen.runtime.load import load
from tests.zoo.export import quiet


class ScaledStdConv2d(nn.Conv2d):
    """As timm's: Brock et al. 2021, arXiv 2101.08692."""

    def __init__(self, channels: int, out: int, gain: bool) -> None:
        super().__init__(channels, out, 3, padding=1)
        self.gain = nn.Parameter(torch.rand(out, 1, 1, 1)) if gain else None
        self.scale = self.weight[0].numel() ** -0.5

    def forward(self, input: Tensor) -> Tensor:
        gain = None if self.gain is None else (self.gain * self.scale).view(-1)
        weight = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(weight, None, None, weight=gain, training=True, momentum=0.0, eps=1e-6)
        return F.conv2d(input, weight.reshape_as(self.weight), self.bias, padding=1)


class Net(nn.Module):
    def __init__(self, gain: bool) -> None:
        super().__init__()
        self.stem = ScaledStdConv2d(3, 8, gain)
        self.norm = nn.BatchNorm2d(8, track_running_stats=False)
        self.final = ScaledStdConv2d(8, 4, gain)

    def forward(self, image: Tensor) -> Tensor:
        out: Tensor = self.final(F.silu(self.norm(self.stem(image))))
        return out


def exported(net: nn.Module, path: Path, folded: bool | None) -> Path:
    """`folded`: by the legacy exporter; None: the dynamo exporter, which writes a BatchNorm for evaluation."""
    x = torch.randn(2, 3, 6, 6)
    with quiet():
        if folded is None:
            torch.onnx.export(net.eval(), (x,), path, dynamo=True, optimize=False, external_data=False)
        else:
            torch.onnx.export(net.eval(), (x,), path, dynamo=False, opset_version=17, do_constant_folding=folded)
    return path


@pytest.mark.parametrize("folded", [True, False, None])
@pytest.mark.parametrize("gain", [True, False])
def test_a_standardised_weight(gain: bool, folded: bool | None, tmp_path: Path) -> None:
    net, x = Net(gain), torch.randn(2, 3, 6, 6)
    path = exported(net, tmp_path / "net.onnx", folded)
    source, made = generate(path, tmp_path / "made.py").source, load(path)
    assert source.count("F.batch_norm(") <= 3 and ".mean(" not in source
    assert "batch_norm_update" not in source and "batch_norm_by_input" not in source and "reshape_as" in source
    ours, theirs = dict(made.named_parameters()), dict(net.named_parameters())
    assert ours.keys() == theirs.keys() and not list(made.buffers())
    for name in ("stem.weight", "final.weight", "norm.weight"):
        assert torch.equal(ours[name], theirs[name])
    if gain:  # a folded gain is multiplied by its constant, and has not the key's shape, so that nothing loads it
        assert ours["stem.gain"].shape == ((8,) if folded else (8, 1, 1, 1))
    torch.testing.assert_close(made(x), net(x), rtol=1e-4, atol=1e-5)
    made(x).square().sum().backward()
    net(x).square().sum().backward()
    torch.testing.assert_close(ours["final.weight"].grad, theirs["final.weight"].grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("what", ["statistics are read", "statistics are stored"])
def test_what_is_none_stays(what: str, tmp_path: Path) -> None:
    path = exported(nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False)), tmp_path / "net.onnx", True)
    model = onnx.load(path)
    norm = next(n for n in model.graph.node if n.op_type == "BatchNormalization")
    if what == "statistics are read":
        model.graph.output.append(onnx.helper.make_tensor_value_info(norm.output[1], onnx.TensorProto.FLOAT, [3]))
    else:
        for index, name in ((3, "mean"), (4, "var")):
            model.graph.initializer.append(onnx.helper.make_tensor(name, onnx.TensorProto.FLOAT, [3], [1.0] * 3))
            norm.input[index] = name
    onnx.save(model, path)
    source = generate(path, tmp_path / "made.py").source
    assert ("batch_norm_update(" if what == "statistics are read" else "nn.BatchNorm2d(") in source
