"""Files that PyTorch runs without the code of the module: TorchScript, and programs of torch.export."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onnxgen.common.names import legible
from onnxgen.errors import OnnxgenError
from onnxgen.ship.target import ONE_SIZE, Job, Run, Target


def exported(job: Job, *, free: bool = False) -> torch.export.ExportedProgram:
    """Return the program of the module.

    Dims that have names stay open. In a file of one sample they do with `free` alone, up to the largest size that each
    may have, without that of the batch.
    """
    open_dims: list[dict[int, Any] | None] = []
    for name, dims in job.inputs.items():
        if not job.batch:
            open_dims.append({axis: torch.export.Dim.AUTO for axis, dim in enumerate(dims) if isinstance(dim, str)})
        else:
            ends = job.free.get(name, {}) if free else {}
            open_dims.append({axis: torch.export.Dim.AUTO(max=end) for axis, end in ends.items()} or None)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.export.export(job.model, job.example, dynamic_shapes=tuple(open_dims), strict=False)
    if free and one_size(job, program):
        raise OnnxgenError("torch.export takes one size only")
    return program


def write_program(job: Job, path: Path) -> list[str]:
    """Write a program of torch.export; its metadata are files of their own inside it."""
    program = exported(job)
    torch.export.save(program, path, extra_files=dict(job.facts))
    return [] if job.batch else one_size(job, program)


def one_size(job: Job, program: torch.export.ExportedProgram) -> list[str]:
    """Return a sentence if a program takes one size only where the module takes any.

    In a file of one sample, beside that of the batch.
    """
    taken = program.graph_signature.user_inputs
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    shapes = {name: values[str(taken[n])].shape for n, name in enumerate(job.inputs) if n < len(taken)}
    fixed = [
        f"{legible(name)} {[*map(str, shape)]}".replace("'", "")
        for name, shape in shapes.items()
        if any(
            (axis in job.free.get(name, ()) if job.batch else isinstance(dim, str)) and str(size).isdigit()
            for axis, (dim, size) in enumerate(zip(job.inputs[name], shape))
        )
    ]
    return [f"{ONE_SIZE}: {', '.join(fixed)}"] if fixed else []


def traced(job: Job) -> Any:
    """Return a trace of the module."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.jit.trace(job.model, job.example, check_trace=False)  # type: ignore[no-untyped-call]


def write_script(job: Job, path: Path) -> list[str]:
    """Write a trace; its metadata are files of their own inside it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(traced(job), str(path), _extra_files=dict(job.facts))
    return []


def called(module: Any) -> Run:
    def run(arguments: Any) -> list[Tensor]:
        with torch.inference_mode():
            result = module(*arguments)
        return list(result) if isinstance(result, (tuple, list)) else [result]

    return run


def run_program(job: Job, path: Path) -> Run:
    return called(torch.export.load(path).module())


def run_script(job: Job, path: Path) -> Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return called(torch.jit.load(str(path)))  # type: ignore[no-untyped-call]


_NEEDS: dict[str, Any] = {"needs": {"torch": "torch"}, "extra": "torch"}
TARGETS = [
    Target("pt2", ".pt2", "a program of torch.export", write=write_program, open=run_program, **_NEEDS),
    Target("torchscript", ".pt", "a trace for libtorch", write=write_script, open=run_script, **_NEEDS),
]
