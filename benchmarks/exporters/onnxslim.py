"""onnxslim: torch's files slimmed, with sizes fixed, without fusions, and in float16."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import onnx

from benchmarks.exporters.sources import sources

REQUIREMENTS = ["onnxslim", "onnxruntime", "onnxconverter-common"]


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Each of torch's networks once; some in its other ways."""
    for name, path in sources(
        out, "cnn", "unet", "causal", "gru", "encoder_pre", "diffuse", "experts", "mobile", "wave"
    ):
        yield name, partial(_slim, path)
    for name, path in sources(out, "cnn", "encoder_post", "mlp", tools=("torch_script",)):
        yield f"{name}_fp16", partial(_slim, path, dtype="fp16")
        yield f"{name}_unfused", partial(_slim, path, skip_fusion_patterns=["FusionGemm", "FusionConvBN"])
    for name, path in sources(out, "cnn", tools=("torch_script",)):
        yield f"{name}_sized", partial(_slim, path, input_shapes=["input_0:1,3,32,32"])
        yield f"{name}_outputs", partial(_slim, path, outputs=["output"], no_shape_infer=True)


def _slim(source: Path, path: Path, **more: object) -> None:
    import onnxslim

    onnx.save(onnxslim.slim(onnx.load(source), **more), path)
