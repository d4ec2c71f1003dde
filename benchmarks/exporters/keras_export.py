"""keras.Model.export(format="onnx")."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.exporters.tf2onnx import NETS, net

REQUIREMENTS = ["tensorflow-cpu", "tf2onnx", "onnx", "numpy<2", "protobuf<6"]


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """The networks of tf2onnx's files."""
    for name in NETS:
        yield name, partial(_export, name)


def _export(name: str, path: Path) -> None:
    import numpy as np

    model, spec = net(name)
    model(np.zeros((2, *spec.shape[1:]), spec.dtype.as_numpy_dtype))
    model.export(str(path), format="onnx", verbose=False)
