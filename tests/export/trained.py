"""Values that training might have left, and files compared but for their values."""

from __future__ import annotations

import onnx
import torch
from torch import Tensor, nn

from onnxgen.reader.protos import tensors_of

SHARE = 0.05  # of a tensor's deviation that its elements move by


def perturbed(model: nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """The model's state dict with every parameter and every BatchNorm statistic moved; variances stay positive."""
    generator = torch.Generator().manual_seed(seed)
    trained = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    tied: dict[int, Tensor] = {}
    for name, value in (state := dict(model.state_dict(keep_vars=True))).items():
        statistic = name.endswith(("running_mean", "running_var"))
        if not value.is_floating_point() or not (name in trained or statistic):
            continue
        if id(value) not in tied:
            wide = value.detach().double()
            spread = float(wide.std()) if wide.numel() > 1 else 0.0
            noise = torch.randn(wide.shape, generator=generator, dtype=torch.float64)
            moved = wide + SHARE * (spread if 0.0 < spread < float("inf") else 1.0) * noise
            tied[id(value)] = (wide * noise.mul(SHARE).exp() if name.endswith("running_var") else moved).to(value.dtype)
        state[name] = tied[id(value)]
    return {name: value.detach().clone() for name, value in state.items()}


def blank(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without the elements of floating point tensors, wherever they are stored, and of ai.onnx.ml's lists."""
    for node in model.graph.node:
        for attribute in node.attribute if node.domain == "ai.onnx.ml" else ():
            del attribute.floats[:]
    for tensor in tensors_of(model):
        if tensor.data_type in (1, 10, 11, 16):
            for field in ("raw_data", "float_data", "double_data", "int32_data", "external_data", "data_location"):
                tensor.ClearField(field)
    return model


def stepped(model: nn.Module, *inputs: Tensor, steps: int = 3, rate: float = 0.05) -> None:
    """Train a few steps of SGD on noise: parameters move, and so do BatchNorm's statistics. Ends in eval mode."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], rate)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        found = model(*inputs)
        outputs = [o for o in _tensors(found) if o.is_floating_point()]
        loss = sum((o.float() - torch.randn(o.shape, generator=generator)).square().mean() for o in outputs)
        assert isinstance(loss, Tensor)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
    model.eval()


def _tensors(found: object) -> list[Tensor]:
    if isinstance(found, (tuple, list)):
        return [t for part in found for t in _tensors(part)]
    return [found] if isinstance(found, Tensor) else []
