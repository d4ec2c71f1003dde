"""Three small networks, exported by PyTorch and quantised by onnxruntime in every form that it has."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen import Options, generate
from onnxgen.runtime.load import from_pretrained, imported
from onnxgen.verify.graph import PRODUCTS
from onnxgen.verify.oracle import Onnxruntime

FORMS = [f"{form}-{types}" for form in ("QDQ", "QOperator") for types in ("u8s8", "s8s8-channels", "u8u8")]
DYNAMIC = ["dynamic-s8", "dynamic-u8-channels"]
PACKED = ["nbits-symmetric", "nbits", "nbits-QDQ"]
CASES = [
    *(f"{net}-{form}" for net in ("cnn", "mlp") for form in (*FORMS, *DYNAMIC)),
    *(f"transformer-{form}" for form in (*FORMS, *DYNAMIC, *PACKED)),
]


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.conv3 = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 2)
        y = torch.relu(self.conv2(x))
        y = F.max_pool2d(y + torch.relu(self.conv3(y)), 2)
        return self.fc(F.adaptive_avg_pool2d(y, 1).flatten(1))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        for norm in (self.norm1, self.norm2):  # else the exporter stores the equal tensors of all norms once
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.uniform_(norm.bias, -0.1, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (m(y).unflatten(-1, (4, 8)).transpose(1, 2) for m in (self.q, self.k, self.v))
        y = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks, self.head = nn.Embedding(50, 32), nn.Sequential(Block(), Block()), nn.Linear(32, 50)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(ids)))  # type: ignore[no-any-return]


KINDS: dict[str, type[nn.Module]] = {"cnn": Cnn, "mlp": Mlp, "transformer": Transformer}


def example(net: str, seed: int, batch: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if net == "transformer":
        return torch.randint(0, 50, (batch, 8), generator=generator)
    return torch.randn(batch, *((1, 16, 16) if net == "cnn" else (32,)), generator=generator)


def original(net: str) -> nn.Module:
    torch.manual_seed(3)
    return KINDS[net]().eval()


def exported(net: str, folder: Path) -> Path:
    """The float file, as onnxruntime wants it before it quantises."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    path = folder / f"{net}.onnx"
    if not path.is_file():
        axes = {"x": {0: "n"}, "y": {0: "n"}}
        raw = folder / f"{net}-raw.onnx"
        torch.onnx.export(
            original(net), (example(net, 0),), raw, input_names=["x"], output_names=["y"], dynamic_axes=axes,
            opset_version=17, dynamo=False,
        )  # fmt: skip
        quant_pre_process(raw, path, skip_symbolic_shape=True)
    return path


class _Calibration:
    def __init__(self, net: str) -> None:
        self.feeds: Iterator[dict[str, Any]] = iter([{"x": example(net, seed).numpy()} for seed in range(1, 9)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self.feeds, None)


def quantised(case: str, folder: Path) -> Path:
    """The file of a case, `net-form-...`, made once."""
    from onnxruntime import quantization as q

    path = folder / f"{case}.onnx"
    if path.is_file():
        return path
    logging.disable(logging.WARNING)  # of onnxruntime's own about its defaults
    net, form, *rest = case.split("-")
    source, channels = exported(net, folder), "channels" in rest
    kinds = {"u8": q.QuantType.QUInt8, "s8": q.QuantType.QInt8}
    if form == "dynamic":
        q.quantize_dynamic(source, path, weight_type=kinds[rest[0]], per_channel=channels)
    elif form == "nbits":
        _packed(source, path, "symmetric" in rest, q.QuantFormat.QDQ if "QDQ" in rest else q.QuantFormat.QOperator)
    else:
        q.quantize_static(
            source, path, _Calibration(net), quant_format=q.QuantFormat[form], per_channel=channels,
            activation_type=kinds[rest[0][:2]], weight_type=kinds[rest[0][2:]],
        )  # fmt: skip
    return path


def _packed(source: Path, path: Path, symmetric: bool, form: Any) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=16, is_symmetric=symmetric, quant_format=form)
    quantizer.process()
    quantizer.model.save_model_to_file(str(path))


def generated(case: str, options: Options, folder: Path) -> Path:
    """The module of a case's file with these options, made once."""
    module = folder / f"{case}-{options.quantized}" / "m.py"
    if not module.is_file():
        module.parent.mkdir(exist_ok=True)
        generate(quantised(case, folder), module, options)
    return module


def pretrained(module: Path) -> nn.Module:
    with imported(module) as file:
        return from_pretrained(file, module)


@contextmanager
def checked_before() -> Iterator[None]:
    """For the passes that were checked when the module of the same file was generated with the same options."""
    with mock.patch.dict(os.environ, ONNXGEN_PARANOID="0"):
        yield


def run(path: Path, x: Tensor) -> np.ndarray[Any, Any]:
    """What onnxruntime computes, with exact products of bytes, and without its own fusing of the roundings of QDQ."""
    model = onnx.load(path)
    is_exact = any(PRODUCTS.fullmatch(node.op_type) for node in model.graph.node)
    session = Onnxruntime(path, None, (), exact=is_exact)
    return np.asarray(session.run({model.graph.input[0].name: x.numpy()})[0])


def rms(x: np.ndarray[Any, Any]) -> float:
    return float(np.sqrt((x.astype(np.float64) ** 2).mean()))
