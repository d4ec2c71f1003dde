"""Convert values between ONNX (numpy) and PyTorch: every dtype, sequences, optionals and strings.

A value is an array, a list of values (sequence), None (absent optional) or a dict (map). Values of types that torch
lacks (int4, uint4, int2, float4) get the wider type that generated code uses. Strings stay numpy object arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.weights.dtypes import TORCH_DTYPES, WIDER

if TYPE_CHECKING:
    import torch

# torch's name, numpy's (ml_dtypes) dtype, and an integer type of that width that both support
_RAW = {
    "bfloat16": (ml_dtypes.bfloat16, np.int16),
    "float8_e4m3fn": (ml_dtypes.float8_e4m3fn, np.uint8),
    "float8_e4m3fnuz": (ml_dtypes.float8_e4m3fnuz, np.uint8),
    "float8_e5m2": (ml_dtypes.float8_e5m2, np.uint8),
    "float8_e5m2fnuz": (ml_dtypes.float8_e5m2fnuz, np.uint8),
}


def widened(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in the type in which torch receives it (see above)."""
    if array.dtype == object or array.dtype.kind in "US":
        return array.astype(object)
    dtype = ir.DataType.from_numpy(array.dtype)
    return array.astype(TORCH_DTYPES[dtype]) if dtype in WIDER and dtype in TORCH_DTYPES else array


def to_torch(value: Any) -> Any:
    """Convert an ONNX value to an argument of `forward`. Arrays are copied, so the oracle's arrays stay unchanged."""
    import torch

    if value is None:
        return None
    if isinstance(value, list):
        return [to_torch(v) for v in value]
    if isinstance(value, dict):
        return dict(value)  # numbers in a map may be plain Python numbers
    array = widened(np.asarray(value))
    if array.dtype == object:
        return array.copy()
    for name, (dtype, raw) in _RAW.items():
        if array.dtype == dtype:
            bits = torch.from_numpy(np.array(array, order="C").view(raw))
            return bits.view(getattr(torch, name))
    return torch.from_numpy(np.array(array, order="C"))


def to_numpy(value: Any) -> Any:
    """Convert a result of `forward` to an ONNX value. Raises `TypeError` for anything else."""
    import torch

    if value is None or isinstance(value, np.ndarray):
        return value
    if isinstance(value, (list, tuple)):
        return [to_numpy(v) for v in value]
    if isinstance(value, dict):
        return {key: to_numpy(held) for key, held in value.items()}
    if isinstance(value, str):
        return np.array(value, object)
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"a {type(value).__name__}, not a tensor")
    return _array(value)


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    import torch

    if tensor.is_meta:
        raise TypeError("a tensor on the device meta, which has no values")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    if name in _RAW:
        dtype, raw = _RAW[name]
        bits = tensor.view(torch.int16 if raw is np.int16 else torch.uint8).numpy()
        return np.asarray(bits).view(dtype)
    return np.asarray(tensor.numpy())
