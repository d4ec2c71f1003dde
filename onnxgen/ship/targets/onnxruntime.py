"""ONNX files, run by onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from torch import Tensor, from_numpy

from onnxgen.errors import counted
from onnxgen.ship.card import fixed_in_file
from onnxgen.ship.comparison import by_pieces
from onnxgen.ship.samples import batch_axes
from onnxgen.ship.target import Job, Run, Target


def write_onnx(job: Job, path: Path) -> list[str]:
    """Write the trained values into the original graph, as `onnxgen export` does."""
    from onnxgen.export import export
    from onnxgen.training.runs.way_back import of_run

    module, arguments = of_run(job.run, {"weights": None, "out": path, "onnx": job.onnx})
    report = export(module, **arguments, force=True)
    job.rounded.extend(report.rounded)
    what = f"{counted(len(report.rounded), 'trained tensor')} rounded to the file's integers"
    told = [f"{what}: the metrics tell what that costs"] if report.rounded else []
    return [f"{report.method}: {report.why}", *told]


def fed(job: Job, arguments: Any) -> dict[str, Any]:
    """Return arguments of `forward` as arrays, by the names of the inputs."""
    return {name: np.asarray(argument) for name, argument in zip(job.inputs, arguments)}


def run_onnx(job: Job, path: Path) -> Run:
    """Open the file in onnxruntime, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    wanted, source = _compared(job, path)
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    wanted = wanted or [output.name for output in session.get_outputs()]
    taken = {entry.name for entry in session.get_inputs()}

    def run(arguments: Any) -> list[Tensor]:
        given = {name: values for name, values in fed(job, arguments).items() if name in taken}
        return [from_numpy(np.asarray(values)) for values in session.run(wanted, given)]

    fixed = 0 if job.batch else fixed_in_file(path, job.record)
    return by_pieces(run, batch_axes(job.model), fixed) if fixed else run


def _compared(job: Job, path: Path) -> tuple[list[str], Path | bytes]:
    """Return the values of a file that are compared with the outputs of the module, and the file to run for them.

    They are the file's outputs ([]), but of a module that is a part of the network: a detector up to its raw maps. Of a
    file of integers they are what comes back of these.
    """
    model = onnx.load(path, load_external_data=False)
    made = {name for node in model.graph.node for name in node.output}
    if {*job.outputs} <= {output.name for output in model.graph.output} or not {*job.outputs} <= made:
        return [], path
    back = {name: f"{name}_DequantizeLinear_Output" for name in job.outputs}
    wanted = [back[name] if back[name] in made else name for name in job.outputs]
    model = onnx.load(path)
    model.graph.output.extend(map(onnx.helper.make_empty_tensor_value_info, wanted))
    return wanted, model.SerializeToString()


NEEDS: dict[str, Any] = {"needs": {"onnxruntime": "onnxruntime"}, "extra": "verify", "open": run_onnx}
TARGETS = [Target("onnx", ".onnx", "the original graph with the trained values", write=write_onnx, **NEEDS)]
