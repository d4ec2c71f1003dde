"""Changes a model so that a device can train it."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError
from onnxgen.training.devices.device import Device
from onnxgen.training.devices.unrolled import UNROLLED

# The dtype of half the size, for devices without float64.
SINGLE = {torch.float64: torch.float32, torch.complex128: torch.complex64}


def prepare_for(model: nn.Module, device: Device) -> nn.Module:
    """Change a model in place so that `device` can train it. The keys of its state dict stay.

    If the device has no float64, such parameters and buffers become float32 (parameters with a warning). If its LSTM,
    GRU and RNN kernels are not known to work, these layers are unrolled. Nothing is moved to the device.

    Returns:
        the same model.

    Raises:
        OnnxgenError: a recurrent layer is of a subclass, so it can't be unrolled.
    """
    if not device.float64:
        if any(p.dtype in SINGLE for p in model.parameters()):
            warnings.warn(f"{device.text} has no float64: parameters of it are trained in float32", stacklevel=2)
        model._apply(single)  # type: ignore[no-untyped-call]
    if not device.recurrent:
        unroll(model)
    return model


def single(tensor: Tensor) -> Tensor:
    """Convert float64 to float32 and complex128 to complex64. Return any other tensor unchanged."""
    return tensor.to(SINGLE[tensor.dtype]) if tensor.dtype in SINGLE else tensor


def unroll(model: nn.Module) -> None:
    """Make every LSTM, GRU, RNN and cell of torch compute step by step.

    Raises:
        OnnxgenError: one is of a subclass, which may have its own `forward`.
    """
    for name, module in model.named_modules():
        if type(module) in UNROLLED:
            module.__class__ = UNROLLED[type(module)]
        elif isinstance(module, nn.RNNBase | nn.RNNCellBase) and type(module) not in UNROLLED.values():
            raise OnnxgenError(
                f"{name or 'the model'} is a {type(module).__name__}, which can't be unrolled",
                help="use nn.LSTM, nn.GRU or nn.RNN itself, or another device",
            )
