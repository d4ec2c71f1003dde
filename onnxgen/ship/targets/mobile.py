"""Files for phones and small devices: ExecuTorch, Core ML and LiteRT."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, from_numpy

from onnxgen.common.names import legible
from onnxgen.ship.target import Job, Run, Target, quietly
from onnxgen.ship.targets.torch_files import exported, traced


def write_executorch(job: Job, path: Path) -> list[str]:
    """Write a program for ExecuTorch's CPU kernels (XNNPACK); metadata are methods without inputs."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    with quietly():
        edge = to_edge_transform_and_lower(
            exported(job), partitioner=[XnnpackPartitioner()], constant_methods=dict(job.facts)
        )
        path.write_bytes(edge.to_executorch().buffer)
    return []


def run_executorch(job: Job, path: Path) -> Run:
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(path)
    method = program.load_method("forward")

    def run(arguments: Any) -> list[Tensor]:
        return [output.clone() for output in method.execute([x.contiguous() for x in arguments])]

    run.program = program  # type: ignore[attr-defined]  # it must live as long as its method
    return run


def write_coreml(job: Job, path: Path) -> list[str]:
    """Write an ML program of 32-bit floats; metadata are entries of the user's.

    Core ML's tools read some layers (recurrent ones) in a trace only, and others (of attention) only in a program of
    torch.export.
    """
    import coremltools

    kinds = {torch.int64: np.int32, torch.bool: np.bool_}
    inputs = [
        coremltools.TensorType(name=legible(name), shape=x.shape, dtype=kinds.get(x.dtype, x.numpy().dtype))
        for name, x in zip(job.inputs, job.example)
    ]
    whole: dict[str, Any] = {"convert_to": "mlprogram", "skip_model_load": True}
    whole["compute_precision"] = coremltools.precision.FLOAT32
    with quietly():
        try:
            model = coremltools.convert(traced(job), inputs=inputs, **whole)
        except Exception as error:
            try:
                model = coremltools.convert(exported(job).run_decompositions({}), **whole)
            except Exception:
                raise error from None
        model.user_defined_metadata.update(job.facts)
        model.save(str(path))
    return ["Core ML runs on Apple's systems only: the file is written, and was not run", *_narrowed(job)]


def write_litert(job: Job, path: Path) -> list[str]:
    """Write a TFLite file; metadata are files in a ZIP archive at its end, where readers of TFLite look for them."""
    import litert_torch

    with quietly():
        litert_torch.convert(job.model, job.example).export(str(path))
    with zipfile.ZipFile(path, "a") as archive:
        for key, text in job.facts.items():
            archive.writestr("run.txt" if key == "run" else f"{key}.json", text)
        if classes := json.loads(job.facts.get("classes", "[]")):
            archive.writestr("labels.txt", "".join(f"{' '.join(name.splitlines())}\n" for name in classes))
    return _narrowed(job)


def _narrowed(job: Job) -> list[str]:
    """Return a sentence if inputs are integers of 64 bits, which these runtimes do not take."""
    names = [legible(name) for name, x in zip(job.inputs, job.example) if x.dtype == torch.int64]
    return [f"the file takes integers of 32 bits: {', '.join(names)}"] if names else []


def run_litert(job: Job, path: Path) -> Run:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path))
    interpreter.allocate_tensors()
    runner = interpreter.get_signature_runner()
    kinds = {name: details["dtype"] for name, details in runner.get_input_details().items()}
    wanted = sorted(runner.get_output_details(), key=_place)

    def run(arguments: Any) -> list[Tensor]:
        # an argument that nothing reads is no input of the file, and integers are narrower there
        results = runner(**{n: np.asarray(arguments[_place(n)]).astype(kind) for n, kind in kinds.items()})
        return [from_numpy(np.array(results[name])) for name in wanted]

    return run


def _place(name: str) -> int:
    """Return the place of an input or output of a LiteRT file among all, in which its name ends (`args_1`)."""
    return int(name.rpartition("_")[2])


TARGETS = [
    Target("executorch", ".pte", "ExecuTorch, with XNNPACK", {"executorch": "executorch"}, "executorch",
           write_executorch, run_executorch, one=True),
    Target("coreml", ".mlpackage", "Core ML", {"coremltools": "coremltools"}, "coreml", write_coreml, one=True,
           folder=True),
    Target("litert", ".tflite", "LiteRT (TensorFlow Lite)", {"litert-torch": "litert_torch"}, "litert",
           write_litert, run_litert, one=True),
]  # fmt: skip
