"""The whole road as a backend of ONNX's own test runner: generate, import, load the weights, run."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx import helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType
from torch.nn.attention import SDPBackend, sdpa_kernel

from onnxgen.pipeline import generate
from tests.ops.harness import to_numpy, to_torch, unformatted

_numbers = itertools.count()


class Road(Backend):
    """onnxgen as a backend."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return bool(Device(device).type == DeviceType.CPU)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Generated:
        """Generate module and weights into a folder, import the one and load the other."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(model.SerializeToString())
            with unformatted():  # two thousand files
                generate(path, path.with_suffix(".py"))
            module = imported(path.with_suffix(".py")).Model.from_pretrained().eval()
        return Generated(module, narrowed(model))


class Generated(BackendRep):
    """An instance of a generated module, and the dtypes in which its outputs are compared (None: as they are)."""

    def __init__(self, module: torch.nn.Module, dtypes: Sequence[Any]) -> None:
        self.module, self.dtypes = module, dtypes

    def run(self, inputs: Sequence[Any], **kwargs: Any) -> list[Any]:
        """The outputs, in the types of numpy that the runner compares.

        torch's attention for CPUs rounds the probabilities to half precision, and its plain one does not.
        """
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            made = self.module(*map(to_torch, inputs))
        found = [to_numpy(m) for m in (made if isinstance(made, tuple) else (made,))]
        return [x if dtype is None else x.astype(dtype) for x, dtype in zip(found, self.dtypes, strict=True)]


def narrowed(model: onnx.ModelProto) -> list[Any]:
    """For each output the dtype in which it is compared, None for its own."""
    return [_narrow(output.type.tensor_type.elem_type) for output in model.graph.output]


def _narrow(elem_type: int) -> Any:
    """numpy's type for the ONNX types of less than a byte, which generated code holds in the next wider one."""
    if elem_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING, onnx.TensorProto.BOOL):
        return None
    dtype = ir.DataType(elem_type)
    small = dtype.bitwidth < 8 or dtype == ir.DataType.FLOAT8E8M0
    return helper.tensor_dtype_to_np_dtype(elem_type) if small else None


def imported(path: Path) -> ModuleType:
    """A file as a module."""
    spec = importlib.util.spec_from_file_location(f"generated_{next(_numbers)}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module
