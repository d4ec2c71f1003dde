"""ONNX files, and their integers by onnxruntime's own quantisation."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, from_numpy

from onnxgen.ship.target import Job, Run, Target, quietly

LAYERS = ["Conv", "ConvTranspose", "Gemm", "MatMul"]  # operators with weights


def write_onnx(job: Job, path: Path) -> list[str]:
    """Write the trained values into the original graph, as `onnxgen export` does."""
    from onnxgen.export import export
    from onnxgen.training.runs.way_back import of_run

    module, arguments = of_run(job.run, {"weights": None, "out": path, "onnx": None})
    report = export(module, **arguments, force=True)
    return [f"{report.method}: {report.why}"]


def write_int8(job: Job, path: Path) -> list[str]:
    """Quantise the exported file to 8 bits: weights by channel, activations by ranges of training samples."""
    import onnx
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.samples: Iterator[Any] = job.calibration()

        def get_next(self) -> dict[str, Any] | None:
            arguments = next(self.samples, None)
            return None if arguments is None else _fed(job, arguments)

    with tempfile.TemporaryDirectory() as folder:
        whole, ready = Path(folder) / "whole.onnx", Path(folder) / "ready.onnx"
        notes = write_onnx(job, whole)
        onnxruntime.set_default_logger_severity(3)  # errors: files may declare shapes that they do not keep
        with quietly():
            quant_pre_process(_of_opset_13(whole), ready, skip_symbolic_shape=True)
            some = LAYERS if job.record.states else None  # a state would lose more with each step
            options: dict[str, Any] = {"per_channel": True, "weight_type": QuantType.QInt8}
            quantize_static(ready, path, Reader(), op_types_to_quantize=some, **options)
        model, original = onnx.load(path), onnx.load(whole, load_external_data=False)
        del model.metadata_props[:]
        model.metadata_props.extend(original.metadata_props)
        onnx.save(model, path)
    return notes


def _of_opset_13(path: Path) -> Path:
    """Return the path of the same network in opset 13 or newer: before, integers had one scale for all channels."""
    import onnx
    from onnx.version_converter import convert_version

    model = onnx.load(path)
    if any(entry.domain in ("", "ai.onnx") and entry.version < 13 for entry in model.opset_import):
        onnx.save(convert_version(model, 13), path)
    return path


def _fed(job: Job, arguments: Any) -> dict[str, Any]:
    return {name: np.asarray(argument) for name, argument in zip(job.inputs, arguments)}


def run_onnx(job: Job, path: Path) -> Run:
    """Open the file in onnxruntime, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    wanted = [output.name for output in session.get_outputs()]
    taken = {entry.name for entry in session.get_inputs()}

    def run(arguments: Any) -> list[Tensor]:
        fed = {name: values for name, values in _fed(job, arguments).items() if name in taken}
        return [from_numpy(np.asarray(values)) for values in session.run(wanted, fed)]

    return run


_NEEDS: dict[str, Any] = {"needs": {"onnxruntime": "onnxruntime"}, "extra": "verify", "open": run_onnx}
TARGETS = [
    Target("onnx", ".onnx", "the original graph with the trained values", write=write_onnx, **_NEEDS),
    Target("onnx-int8", ".onnx", "8-bit integers by onnxruntime", write=write_int8, rounds=True, **_NEEDS),
]
