"""onnxconverter-common and onnxruntime: torch's files in float16, whole, with inputs kept, and in part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from benchmarks.exporters.sources import sources

REQUIREMENTS = ["onnxconverter-common", "onnxruntime"]


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Each network in float16; some whose inputs stay float32, or that keep float32 where float16 is not precise."""
    for name, path in sources(out, "cnn", "unet", "encoder_post", "lstm", "mobile", "diffuse", tools=("torch_script",)):
        yield name, partial(_convert, path)
        yield f"{name}_kept", partial(_convert, path, keep_io_types=True)
        yield (
            f"{name}_blocked",
            partial(_convert, path, keep_io_types=True, op_block_list=["Softmax", "Conv", "Sigmoid"]),
        )
    for name, path in sources(out, "causal", "window", tools=("torch_dynamo",)):
        yield name, partial(_convert, path, keep_io_types=True)
    for name, path in sources(out, "mlp", "cnn", tools=("torch_script",)):
        yield f"{name}_mixed", partial(_mixed, path)


def _convert(source: Path, path: Path, **more: object) -> None:
    from onnxconverter_common.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(source), **more), path)


def _mixed(source: Path, path: Path) -> None:
    """float16 wherever its outputs stay near those of float32."""
    from onnxconverter_common.auto_mixed_precision import auto_convert_mixed_precision

    model = onnx.load(source)
    sizes = [d.dim_value or 2 for d in model.graph.input[0].type.tensor_type.shape.dim]
    feeds = {model.graph.input[0].name: np.random.default_rng(0).standard_normal(sizes).astype(np.float32)}
    onnx.save(auto_convert_mixed_precision(model, feeds, rtol=1e-3, atol=1e-4, keep_io_types=True), path)
