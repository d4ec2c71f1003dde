"""onnx.version_converter: torch's files at other opsets, up and down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import onnx

from benchmarks.exporters.sources import sources

REQUIREMENTS = ["onnx"]


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Many networks to the newest opset, some down to the oldest that the converter reaches."""
    for name, path in sources(out, tools=("torch_script",)):
        yield f"{name}_to_23", partial(_convert, path, 23)
    for target in (8, 10, 12, 15, 25):
        for name, path in sources(out, "cnn_opset9", "mlp", "lstm_opset11", tools=("torch_script",)):
            yield f"{name}_to_{target}", partial(_convert, path, target)
    for name, path in sources(out, "cnn", "unet", "causal", "gru", "window", tools=("torch_dynamo",)):
        yield f"{name}_to_24", partial(_convert, path, 24)
        yield f"{name}_to_13", partial(_convert, path, 13)


def _convert(source: Path, target: int, path: Path) -> None:
    from onnx import version_converter

    onnx.save(version_converter.convert_version(onnx.load(source), target), path)
