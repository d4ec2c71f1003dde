"""onnxruntime.quantization: static and dynamic, whole tensors and channels, 8, 16 and 4 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.exporters.sources import scratch, sources

REQUIREMENTS = ["onnxruntime", "onnx", "sympy", "onnx-ir"]


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Images and sequences by QDQ and by QOperator; products of transformers by blocks of 4 and 8 bits."""
    nets = sources(out, "cnn", "mlp", "encoder_post", "lstm", "unet", "mobile", tools=("torch_script",))
    for name, path in nets:
        yield f"{name}_dynamic", partial(_dynamic, path)
        yield f"{name}_qdq", partial(_static, path, "QDQ")
    for name, path in nets[:2] + nets[-1:]:
        yield f"{name}_dynamic_channels", partial(_dynamic, path, per_channel=True, reduce_range=True)
        yield f"{name}_operators", partial(_static, path, "QOperator")
        yield f"{name}_channels", partial(_static, path, "QDQ", per_channel=True, activation_type="QInt8")
        yield f"{name}_symmetric", partial(_static, path, "QDQ", extra_options={"ActivationSymmetric": True})
        yield f"{name}_16bit", partial(_static, path, "QDQ", activation_type="QUInt16", weight_type="QInt16")
        yield f"{name}_entropy", partial(_static, path, "QDQ", calibrate_method="Entropy")
        yield f"{name}_int4", partial(_static, path, "QDQ", weight_type="QInt4")
    for name, path in sources(out, "mlp", "encoder_pre", "causal", tools=("torch_script", "torch_dynamo")):
        for block, level in ((16, 0), (32, 4)):
            yield f"{name}_blocks{block}_level{level}", partial(_blocks, path, block_size=block, accuracy_level=level)
        yield f"{name}_blocks_qdq", partial(_blocks, path, block_size=32, is_qdq=True)
        yield f"{name}_asymmetric", partial(_blocks, path, block_size=16, is_symmetric=False)


def _prepared(source: Path, folder: Path) -> Path:
    """As its documentation asks: shapes inferred, and what is constant folded."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    path = folder / "prepared.onnx"
    quant_pre_process(str(source), str(path), skip_symbolic_shape=True)
    return path


def _dynamic(source: Path, path: Path, **options: Any) -> None:
    from onnxruntime.quantization import quantize_dynamic

    with scratch() as folder:
        quantize_dynamic(_prepared(source, folder), path, **options)


def _static(source: Path, form: str, path: Path, **options: Any) -> None:
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    for name in ("activation_type", "weight_type"):
        if name in options:
            options[name] = QuantType[options[name]]
    if "calibrate_method" in options:
        options["calibrate_method"] = CalibrationMethod[options["calibrate_method"]]
    with scratch() as folder:
        reader = _Reader(onnx.load(source))
        quantize_static(_prepared(source, folder), path, reader, quant_format=QuantFormat[form], **options)


class _Reader:
    """Eight batches of random numbers."""

    def __init__(self, model: onnx.ModelProto) -> None:
        rng = np.random.default_rng(0)
        given = [i for i in model.graph.input if i.name not in {w.name for w in model.graph.initializer}]
        self.batches = iter([{i.name: self._drawn(i, rng) for i in given} for _ in range(8)])

    def _drawn(self, value: onnx.ValueInfoProto, rng: np.random.Generator) -> Any:
        kind = value.type.tensor_type
        sizes = [d.dim_value or 2 for d in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if dtype.kind == "i":
            return rng.integers(0, 10, sizes).astype(dtype)
        return rng.standard_normal(sizes).astype(dtype)

    def get_next(self) -> Any:
        return next(self.batches, None)


def _blocks(source: Path, path: Path, *, is_qdq: bool = False, **options: Any) -> None:
    from onnxruntime.quantization import QuantFormat
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    form = QuantFormat.QDQ if is_qdq else QuantFormat.QOperator
    made = MatMulNBitsQuantizer(onnx.load(source), quant_format=form, **options)
    made.process()
    made.model.save_model_to_file(str(path))
