"""Trains a small network for one batch on a device, and compares it with the CPU.

    python -m onnxgen.training.devices.selftest cuda:0

prints one line of JSON: the verdict, and the features that work. DirectML may return missing gradients and stale
BatchNorm statistics without an error. So everything that training reads is compared: the loss, all gradients, the
running statistics, and the weights after a step.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from onnxgen.errors import typed
from onnxgen.training.devices import probe
from onnxgen.training.devices.prepared import unroll
from onnxgen.training.devices.probe import Device

# Relative to the largest element of a tensor. In float32, sums in another order differ by about 1e-6.
TOLERANCE = 1e-3


class Small(nn.Module):
    """Convolution, BatchNorm, LSTM and attention: x [batch, 3, 16, 16] to logits [batch, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)  # a bias before a norm would have only noise as gradient
        self.norm = nn.BatchNorm2d(8)
        self.lstm = nn.LSTM(8, 8, batch_first=True, bidirectional=True)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 4)
        x, _ = self.lstm(x.flatten(2).transpose(1, 2))
        x, _ = self.attention(x, x, x, need_weights=False)
        logits: Tensor = self.head(x.mean(1))
        return logits


def run(device: Device) -> tuple[str, tuple[str, ...]]:
    """Return the verdict ("ok", or what is wrong), and the names of the `device.FEATURES` that work."""
    # TF32 would round inputs to fewer bits.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    works = tuple(n for n, test in _FEATURES.items() if probe.quietly(partial(test, device.torch_device), False))
    torch.manual_seed(0)
    model, x, target = Small(), torch.randn(8, 3, 16, 16), torch.randint(5, (8,))
    expected = _trained(copy.deepcopy(model), x, target, torch.device("cpu"))
    if device.recurrent or device.kind != "directml":
        wrong = _compared(copy.deepcopy(model), x, target, device, expected)
        if wrong is None:
            return "ok", (*works, "recurrent")
    unroll(model)  # recurrent layers are trained unrolled if their kernels fail
    return _compared(model, x, target, device, expected) or "ok", works


def _compared(model: nn.Module, x: Tensor, target: Tensor, device: Device, expected: dict[str, Tensor]) -> str | None:
    """Return what is wrong on the device; None if nothing is."""
    try:
        results = _trained(model, x, target, device.torch_device)
    except Exception as error:
        return typed(error)
    for name, want in expected.items():
        if name not in results:
            return f"{name} is missing"
        difference = (results[name] - want).abs().max().item()
        if not difference <= TOLERANCE * max(want.abs().max().item(), 1e-3):  # also true for NaN
            return f"{name} differs from the CPU's by {difference:.3g}"
    return None


def _trained(model: nn.Module, x: Tensor, target: Tensor, device: torch.device) -> dict[str, Tensor]:
    """Run one training step. Return everything that it changes, by name, on the CPU."""
    model, x, target = model.to(device).train(), x.to(device), target.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    loss = nn.functional.cross_entropy(model(x), target)
    loss.backward()  # type: ignore[no-untyped-call]
    results = {"the loss": loss.detach().cpu()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            results[f"the gradient of {name}"] = parameter.grad.detach().cpu().clone()
    optimizer.step()
    results |= {f"{name} after a step": tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        results["the output in eval mode"] = model.eval()(x).cpu()
    return results


def _autocast(dtype: torch.dtype) -> Callable[[torch.device], bool]:
    def works(device: torch.device) -> bool:
        x = torch.ones(4, 4).to(device)
        with torch.autocast(device.type, dtype=dtype):
            product = x @ x
        return product.dtype == dtype and bool((product.float().cpu() == 4).all())

    return works


def _distributed(device: torch.device) -> bool:
    if not torch.distributed.is_available():
        return False
    back_end = torch.distributed.Backend.default_device_backend_map.get(device.type, "")
    return bool(back_end) and torch.distributed.is_backend_available(back_end)


def _foreach(device: torch.device) -> bool:
    tensors = [torch.ones(2).to(device) for _ in range(2)]
    torch._foreach_add_(tensors, tensors, alpha=2)
    return all(bool((t.cpu() == 3).all()) for t in tensors)


_FEATURES: dict[str, Callable[[torch.device], bool]] = {
    "float64": lambda device: bool((torch.ones(2).to(device).double() * 3).cpu().sum() == 6),
    "bf16": _autocast(torch.bfloat16),
    "fp16": _autocast(torch.float16),
    "lerp": lambda device: bool(torch.zeros(2).to(device).lerp_(torch.ones(2).to(device), 0.25).cpu().sum() == 0.5),
    "foreach": _foreach,
    "distributed": _distributed,
}


def main(arguments: list[str]) -> None:
    """Test a device. The arguments are its text, and the modules to import for it."""
    from onnxgen.training.devices.choice import named

    text, *imports = arguments
    probe.import_plugins(imports)
    verdict, works = run(named(text))
    print(json.dumps({"verdict": verdict, "works": works}))


if __name__ == "__main__":
    main(sys.argv[1:])
