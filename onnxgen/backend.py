"""onnxgen as a backend of ONNX: generates a model, imports it and runs it with PyTorch.

    import onnx.backend.test, onnxgen.backend
    suite = onnx.backend.test.BackendTest(onnxgen.backend, __name__)

The interface is that of `onnx.backend.base` (docs/ImplementingAnOnnxBackend.md in ONNX's repository).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir
from onnx import helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from onnxgen.runtime.load import load

if TYPE_CHECKING:
    from torch import nn

__all__ = ["OnnxgenBackend", "OnnxgenRep", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]


class OnnxgenBackend(Backend):
    """onnxgen as a backend of ONNX."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return True for "CPU", and for "CUDA" if PyTorch has it."""
        kind = Device(device).type
        if kind == DeviceType.CUDA:
            import torch

            return torch.cuda.is_available()
        return bool(kind == DeviceType.CPU)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> OnnxgenRep:
        """Generate a module and load its weights.

        Args:
            model: the model, which is not changed.
            device: "CPU" or "CUDA", optionally with a number ("CUDA:1").
            kwargs: ignored; part of the interface.

        Raises:
            OnnxgenError: the model can't be converted.
        """
        with TemporaryDirectory(prefix="onnxgen-") as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(model.SerializeToString())
            module = load(path)
        return OnnxgenRep(module, narrowed(model), device)

    @classmethod
    def run_node(cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", *args: Any, **kwargs: Any) -> Any:
        """Raise `NotImplementedError`: onnxgen generates from files."""
        raise NotImplementedError("run_node is not supported: make a model of the node with onnx.helper.make_model")


class OnnxgenRep(BackendRep):
    """A module that is ready to run.

    Attributes:
        module: an instance of the generated class, in eval mode.
        dtypes: for each output its numpy type, if PyTorch stores it in a wider one, else None.
    """

    def __init__(self, module: nn.Module, dtypes: Sequence[Any], device: str = "CPU") -> None:
        self.module, self.dtypes = module, dtypes
        self.device = device.lower()
        module.to(self.device)

    def run(self, inputs: Sequence[Any], **kwargs: Any) -> tuple[Any, ...]:
        """Return the outputs for numpy arrays, in graph order.

        Attention uses PyTorch's plain kernel: the fast one for CPUs rounds half-precision probabilities.
        """
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        from onnxgen.verify.convert import to_numpy, to_torch

        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            outputs = self.module(*[_moved(to_torch(value), self.device) for value in inputs])
        arrays = [to_numpy(value) for value in (outputs if isinstance(outputs, tuple) else (outputs,))]
        return tuple(x if dtype is None else x.astype(dtype) for x, dtype in zip(arrays, self.dtypes, strict=True))


def narrowed(model: onnx.ModelProto) -> list[Any]:
    """Return the numpy type of each output that generated code stores in a wider type; None for all others."""
    return [_narrow(output.type.tensor_type.elem_type) for output in model.graph.output]


def _narrow(elem_type: int) -> Any:
    if elem_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING, onnx.TensorProto.BOOL):
        return None
    dtype = ir.DataType(elem_type)
    small = dtype.bitwidth < 8 or dtype == ir.DataType.FLOAT8E8M0
    return helper.tensor_dtype_to_np_dtype(elem_type) if small else None


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, list):
        return [_moved(item, device) for item in value]
    return value.to(device) if hasattr(value, "to") else value


is_compatible = OnnxgenBackend.is_compatible
prepare = OnnxgenBackend.prepare
run_model = OnnxgenBackend.run_model
run_node = OnnxgenBackend.run_node
supports_device = OnnxgenBackend.supports_device
