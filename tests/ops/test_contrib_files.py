"""Files as onnxruntime's own tools write them: its graph optimiser, its quantisers; onnxruntime runs the same files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
import torch.nn.functional as F
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static
from safetensors.torch import save_file
from torch import Tensor, nn

import onnxgen
from onnxgen.export.report import BACK
from tests.export.trained import perturbed
from tests.ops.harness import assert_same, run_model, run_onnxruntime
from tests.support.exported import exported
from tests.support.real import imported


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.third, self.fc = nn.Conv2d(16, 8, 1), nn.Linear(16 + 8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = F.relu(F.leaky_relu(self.second(x), 0.1) + x)
        x = torch.cat([torch.sigmoid(self.third(x)), x], 1)
        return self.fc(F.avg_pool2d(x, 2).mean((2, 3))).softmax(-1)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Residual(nn.Module):
    """Of 16 and 32 channels: convolutions in groups and of single channels, residuals, pools; batch norms if asked."""

    def __init__(self, normed: bool = True) -> None:
        super().__init__()
        norm = nn.BatchNorm2d if normed else lambda channels: nn.Identity()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=not normed), norm(16), nn.ReLU(), nn.MaxPool2d(2))
        self.depthwise = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ReLU6(), nn.Conv2d(16, 32, 1))
        self.grouped = nn.Conv2d(32, 32, 3, padding=1, groups=2)
        self.last, self.fc = nn.Conv2d(64, 32, 3, stride=2), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(self.stem(x))
        x = torch.cat([F.relu(self.grouped(x) + x), F.avg_pool2d(x, 3, 1, 1)], 1)
        return self.fc(F.silu(self.last(F.interpolate(x, scale_factor=2.0))).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(12, 16, 2, batch_first=True, bidirectional=True), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(x)[0])


NETS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "convolutions": (Convolutions, (2, 3, 8, 8)),
    "encoder": (encoder, (2, 6, 32)),
    "residual": (Residual, (2, 3, 16, 16)),
    "recurrent": (Recurrent, (2, 6, 12)),
}


class Samples(CalibrationDataReader):
    def __init__(self, feeds: dict[str, Any]) -> None:
        self.left = [feeds]

    def get_next(self) -> dict[str, Any] | None:
        return self.left.pop() if self.left else None


LEVELS = {"basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED", "all": "ORT_ENABLE_ALL"}


def optimised(source: Path, out: Path, level: str = "extended") -> onnx.ModelProto:
    """The file as onnxruntime saves it after its optimisations, which it reads again."""
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
    options.optimized_model_filepath, options.log_severity_level = str(out), 4
    ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return onnx.load(out)


@pytest.mark.parametrize("name", ["convolutions", "encoder", "recurrent"])
def test_files_of_its_tools(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, shape = NETS[name]
    x, plain = torch.randn(shape), tmp_path / "plain.onnx"
    onnx.save(exported(make().eval(), [x]), plain)
    feeds = {"i0": x.numpy()}
    dynamic, integers, pairs = (tmp_path / f"{kind}.onnx" for kind in ("dynamic", "integers", "pairs"))
    how = {"reduce_range": True}  # 7 bits, as its documentation advises where AVX2 has no VNNI: products saturate there
    quantize_dynamic(plain, dynamic, **how)
    quantize_static(plain, integers, Samples(feeds), quant_format=QuantFormat.QOperator, **how)
    quantize_static(plain, pairs, Samples(feeds), quant_format=QuantFormat.QDQ, **how)
    domains = set()
    for path in (plain, dynamic, integers, pairs):
        for model in (onnx.load(path), optimised(path, path.with_suffix(".optimised.onnx"))):
            domains |= {node.domain for node in model.graph.node}
            for made, expected in zip(run_model(model, feeds).outputs, run_onnxruntime(model, feeds), strict=True):
                assert_same(made, expected, rtol=1e-4, atol=1e-5)
    assert "com.microsoft" in domains
    assert np.isfinite(made).all()


# ---- optimised and saved ---------------------------------------------------------------------------------------------


def block_of(folder: Path) -> int:
    """How many channels this machine's onnxruntime makes a block: what it rounds 8 up to."""
    onnx.save(exported(nn.Conv2d(3, 8, 3).eval(), [torch.randn(1, 3, 8, 8)]), folder / "probe.onnx")
    model = optimised(folder / "probe.onnx", folder / "probed.onnx", "all")
    convolution = next((n for n in model.graph.node if n.domain == "com.microsoft.nchwc"), None)
    if convolution is None:
        pytest.skip("onnxruntime has no blocks of channels here")
    return next(i.dims[0] for i in model.graph.initializer if i.name == convolution.input[1])


def kinds(model: nn.Module) -> list[str]:
    return sorted(str(m) for m in model.modules() if not list(m.children()) and list(m.parameters()))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NETS)
def test_a_saved_network(name: str, level: str, tmp_path: Path) -> None:
    """Its layers are those of the network, and take gradients."""
    torch.manual_seed(0)
    make, shape = NETS[name]
    net, x, plain = make().eval(), torch.randn(shape), tmp_path / "plain.onnx"
    onnx.save(exported(net, [x]), plain)
    model = optimised(plain, tmp_path / "saved.onnx", level)
    blocked = level == "all" and name == "residual"
    ran = run_model(model, {"i0": x.numpy()}, onnxgen.Options(nchwc_block=block_of(tmp_path) if blocked else None))
    for made, expected in zip(ran.outputs, run_onnxruntime(model, {"i0": x.numpy()}), strict=True):
        assert_same(made, expected, rtol=1e-4, atol=1e-5)
    (ran.model(x) * torch.rand(ran.outputs[0].shape)).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in ran.model.parameters())
    if name == "residual":
        assert kinds(ran.model) == kinds(make(False))


def test_blocks_of_channels(tmp_path: Path) -> None:
    """A file whose sizes are of blocks of 8 as well as of 16 is refused; told which, it is trained and written back."""
    torch.manual_seed(0)
    onnx.save(exported(Residual().eval(), [torch.randn(2, 3, 16, 16)]), tmp_path / "plain.onnx")
    model, x = optimised(tmp_path / "plain.onnx", tmp_path / "saved.onnx", "all"), torch.randn(2, 3, 16, 16)
    with pytest.raises(onnxgen.OnnxgenError, match="blocks of 8 or 16 channels.*--nchwc-block 16"):
        run_model(model, {"i0": x.numpy()})
    (expected,) = run_onnxruntime(model, {"i0": x.numpy()})
    block = block_of(tmp_path)
    for given in (8, 16):
        ran = run_model(model, {"i0": x.numpy()}, onnxgen.Options(nchwc_block=given))
        assert np.allclose(ran.outputs[0], expected, 1e-4, 1e-5) == (given == block)
    module = tmp_path / "model.py"
    onnxgen.generate(tmp_path / "saved.onnx", module, onnxgen.Options(nchwc_block=block))
    trained: nn.Module = imported(module).Model.from_pretrained()
    trained.load_state_dict(perturbed(trained))
    save_file(trained.state_dict(), tmp_path / "best.safetensors")
    report = onnxgen.export(module, weights=tmp_path / "best.safetensors", out=tmp_path / "tuned.onnx")
    assert report.method == BACK
    (tuned,) = run_onnxruntime(onnx.load(tmp_path / "tuned.onnx"), {"i0": x.numpy()})
    assert np.abs(tuned - expected).max() > 1e-3
    with torch.no_grad():
        assert_same(trained.eval()(x).numpy(), tuned, rtol=1e-4, atol=1e-5)
