"""Files for phones and small devices: ExecuTorch, Core ML and LiteRT."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, from_numpy, nn

from onnxgen.common.names import legible
from onnxgen.errors import OnnxgenError
from onnxgen.ship.comparison import EQUAL, other_sizes
from onnxgen.ship.target import ONE_SIZE, Job, Run, Target, quietly
from onnxgen.ship.targets.torch_files import called, exported, traced


def write_executorch(job: Job, path: Path) -> list[str]:
    """Write a program for ExecuTorch's CPU kernels (XNNPACK); metadata are methods without inputs.

    Axes of any size have a largest one, since ExecuTorch plans its memory beforehand.
    """
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    def written(free: bool) -> None:
        with quietly():
            program = exported(job, free=free)
            edge = to_edge_transform_and_lower(
                program, partitioner=[XnnpackPartitioner()], constant_methods=dict(job.facts)
            )
            path.write_bytes(edge.to_executorch().buffer)
        if free and other_sizes(job, run_executorch(job, path)) != EQUAL:
            raise OnnxgenError("it takes one size only")

    return _sized(job, written)


def _sized(job: Job, written: Callable[[bool], None]) -> list[str]:
    """Write a file with free axes if its tools can, else of the size of the example. Returns a sentence that says it.

    written: writes the file, with free axes or without.
    """
    try:
        if job.free:
            written(True)
            return [f"the file takes {job.sizes(True)}"]
    except Exception:  # of tools that have no such axes, or not for this network
        written(False)
        return [f"{ONE_SIZE}: {job.sizes(False)}"]
    written(False)
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
    torch.export. Axes are free in a trace that computes what the module does at other sizes.
    """
    import coremltools

    kinds = {torch.int64: np.int32, torch.bool: np.bool_}
    inputs, outputs = job.called()
    whole: dict[str, Any] = {"convert_to": "mlprogram", "skip_model_load": True}
    whole["compute_precision"] = coremltools.precision.FLOAT32
    whole["outputs"] = [coremltools.TensorType(name=name) for name in outputs] or None

    def converted(free: bool) -> Any:
        trace = traced(job)
        if free and other_sizes(job, called(trace)) != EQUAL:
            raise OnnxgenError("the trace takes one size only")
        types = []
        for name, own, x in zip(job.inputs, inputs, job.example):
            ends = job.free.get(name, {}) if free else {}
            shape = [coremltools.RangeDim(1, ends[n], size) if n in ends else size for n, size in enumerate(x.shape)]
            types.append(coremltools.TensorType(own, shape, kinds.get(x.dtype, x.numpy().dtype)))
        with quietly():
            try:
                return coremltools.convert(trace, inputs=types, **whole)
            except Exception as error:
                if free:
                    raise
                try:
                    return coremltools.convert(exported(job).run_decompositions({}), **whole)
                except Exception:
                    raise error from None

    called_there: list[Iterable[str]] = [(), ()]

    def written(free: bool) -> None:
        model = converted(free)
        model.user_defined_metadata.update(job.facts)
        with quietly():
            model.save(str(path))
            there = model.get_spec().description
        called_there[:] = [port.name for port in there.input], [port.name for port in there.output]

    notes = _sized(job, written)
    told = "Core ML runs on Apple's systems only: the file is written, and was not run"
    return [told, *notes, *job.renamed(*called_there), *_narrowed(job)]


def write_litert(job: Job, path: Path) -> list[str]:
    """Write a TFLite file; metadata are files in a ZIP archive at its end, where readers of TFLite look for them.

    Inputs and outputs have their names in its signature. All axes have the size of the example: its converter has no
    others.
    """
    import litert_torch

    inputs, _ = job.called()
    with quietly():
        litert_torch.convert(Named(job).eval(), (), dict(zip(inputs, job.example))).export(str(path))
    with zipfile.ZipFile(path, "a") as archive:
        for key, text in job.facts.items():
            archive.writestr("run.txt" if key == "run" else f"{key}.json", text)
        if classes := json.loads(job.facts.get("classes", "[]")):
            archive.writestr("labels.txt", "".join(f"{' '.join(name.splitlines())}\n" for name in classes))
    sizes = [f"{ONE_SIZE}: {job.sizes(False)}"] if job.free else []
    return [*sizes, *job.renamed(*job.called()), *_narrowed(job)]


class Named(nn.Module):
    """A module that takes its arguments by name, and returns its outputs by name."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.model = job.model
        self.inputs, self.outputs = job.called()

    def forward(self, /, **arguments: Tensor) -> dict[str, Tensor]:
        result = self.model(*(arguments[name] for name in self.inputs))
        results = [*result] if isinstance(result, (tuple, list)) else [result]
        return dict(zip(self.outputs if len(self.outputs) == len(results) else _numbered(len(results)), results))


def _numbered(count: int) -> list[str]:
    return [f"output_{n}" for n in range(count)]


def _narrowed(job: Job) -> list[str]:
    """Return a sentence if inputs are integers of 64 bits, which these runtimes do not take."""
    names = [legible(name) for name, x in zip(job.inputs, job.example) if x.dtype == torch.int64]
    return [f"the file takes integers of 32 bits: {', '.join(names)}"] if names else []


def run_litert(job: Job, path: Path) -> Run:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path))
    interpreter.allocate_tensors()
    runner = interpreter.get_signature_runner()
    taken, (inputs, outputs) = runner.get_input_details(), job.called()
    there = runner.get_output_details()
    wanted = outputs if {*outputs} == {*there} else _numbered(len(there))

    def run(arguments: Any) -> list[Tensor]:
        given = {name: np.asarray(x) for name, x in zip(inputs, arguments) if name in taken}
        for name, x in given.items():  # LiteRT would compute something with another size
            if x.shape != (shape := tuple(taken[name]["shape"])):
                what = f"the file takes {name} {[*map(int, shape)]}, and a sample has {[*x.shape]}"
                raise OnnxgenError(what, help="give data of one size, or ship --to onnx, pt2 or executorch")
        results = runner(**{name: x.astype(taken[name]["dtype"]) for name, x in given.items()})  # narrower integers
        return [from_numpy(np.array(results[name])) for name in wanted]

    return run


TARGETS = [
    Target("executorch", ".pte", "ExecuTorch, with XNNPACK", {"executorch": "executorch"}, "executorch",
           write_executorch, run_executorch, one=True),
    Target("coreml", ".mlpackage", "Core ML", {"coremltools": "coremltools"}, "coreml", write_coreml, one=True,
           folder=True),
    Target("litert", ".tflite", "LiteRT (TensorFlow Lite)", {"litert-torch": "litert_torch"}, "litert",
           write_litert, run_litert, one=True),
]  # fmt: skip
