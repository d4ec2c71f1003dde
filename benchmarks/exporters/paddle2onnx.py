"""paddle.onnx.export, which asks paddle2onnx."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

REQUIREMENTS = ["paddlepaddle", "paddle2onnx", "onnx", "packaging", "setuptools"]


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Layers as a paper would stack them, with a free batch."""
    for name in ("dense", "conv", "residual", "lstm", "gru", "encoder", "words", "resized", "pooled"):
        yield name, partial(_export, name)
    for opset in (9, 11, 15):
        yield f"conv_opset{opset}", partial(_export, "conv", opset_version=opset)


def _net(name: str) -> tuple[Any, list[int | None], str]:
    import paddle
    from paddle import nn

    class Residual(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2D(3, 8, 3, padding=1), nn.Conv2D(8, 8, 3, padding=1)
            self.norm = nn.BatchNorm2D(8)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            return paddle.concat([x, nn.functional.hardswish(self.norm(self.second(x)) + x)], axis=1)

    class Recurrent(nn.Layer):
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.layer, self.head = layer(8, 6, num_layers=2, direction="bidirect"), nn.Linear(12, 3)

        def forward(self, x: Any) -> Any:
            return self.head(self.layer(x)[0][:, -1])

    class Resized(nn.Layer):
        def forward(self, x: Any) -> Any:
            x = nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            return nn.functional.pad(x, [1, 2, 0, 1], mode="reflect").transpose([0, 2, 3, 1]).flatten(1)

    image: list[int | None] = [None, 3, 16, 16]
    made: dict[str, tuple[Any, list[int | None]]] = {
        "dense": (lambda: nn.Sequential(nn.Linear(12, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)), [None, 12]),
        "conv": (
            lambda: nn.Sequential(
                nn.Conv2D(3, 8, 3, stride=2, padding=1), nn.BatchNorm2D(8), nn.ReLU6(), nn.MaxPool2D(2),
                nn.Flatten(), nn.Linear(128, 5), nn.Softmax(),
            ),
            image,
        ),
        "residual": (Residual, image),
        "lstm": (lambda: Recurrent(nn.LSTM), [None, 7, 8]),
        "gru": (lambda: Recurrent(nn.GRU), [None, 7, 8]),
        "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16), [None, 5, 8]),
        "words": (lambda: nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 2), nn.LogSoftmax()), [None, 6]),
        "resized": (Resized, image),
        "pooled": (
            lambda: nn.Sequential(nn.Conv2DTranspose(3, 4, 3, stride=2), nn.Silu(), nn.AdaptiveAvgPool2D(3)), image,
        ),
    }  # fmt: skip
    paddle.seed(0)
    make, shape = made[name]
    return make(), shape, "int64" if name == "words" else "float32"


def _export(name: str, path: Path, opset_version: int = 17) -> None:
    import paddle

    layer, shape, dtype = _net(name)
    layer.eval()
    spec = paddle.static.InputSpec(shape, dtype, "x")
    paddle.onnx.export(layer, str(path.with_suffix("")), input_spec=[spec], opset_version=opset_version)
