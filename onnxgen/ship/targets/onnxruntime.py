"""ONNX files, run by onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, from_numpy

from onnxgen.ship.target import Job, Run, Target


def write_onnx(job: Job, path: Path) -> list[str]:
    """Write the trained values into the original graph, as `onnxgen export` does."""
    from onnxgen.export import export
    from onnxgen.training.runs.way_back import of_run

    module, arguments = of_run(job.run, {"weights": None, "out": path, "onnx": None})
    report = export(module, **arguments, force=True)
    return [f"{report.method}: {report.why}"]


def fed(job: Job, arguments: Any) -> dict[str, Any]:
    """Return arguments of `forward` as arrays, by the names of the inputs."""
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
        given = {name: values for name, values in fed(job, arguments).items() if name in taken}
        return [from_numpy(np.asarray(values)) for values in session.run(wanted, given)]

    return run


NEEDS: dict[str, Any] = {"needs": {"onnxruntime": "onnxruntime"}, "extra": "verify", "open": run_onnx}
TARGETS = [Target("onnx", ".onnx", "the original graph with the trained values", write=write_onnx, **NEEDS)]
