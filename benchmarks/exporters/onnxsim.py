"""onnxsim: torch's files simplified, as they are and with sizes fixed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import onnx

from benchmarks.exporters.sources import sources

REQUIREMENTS = ["onnxsim", "onnxruntime"]


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Each of torch's networks once; those on images also with fixed sizes."""
    for name, path in sources(
        out, "cnn", "unet", "causal", "lstm", "encoder_post", "diffuse", "window", "mlp", "detect"
    ):
        yield name, partial(_simplify, path)
    for name, path in sources(out, "cnn", "mobile", "warp", tools=("torch_script",)):
        yield f"{name}_sized", partial(_simplify, path, overwrite_input_shapes={"input_0": [1, 3, 16, 16]})
        yield f"{name}_unfolded", partial(_simplify, path, skip_constant_folding=True)


def _simplify(source: Path, path: Path, **more: object) -> None:
    from onnxsim import simplify

    simple, checked = simplify(onnx.load(source), **more)
    assert checked, "onnxsim's own check failed"
    onnx.save(simple, path)
