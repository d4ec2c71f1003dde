"""`param_groups`: parameter groups for an optimizer, with their own learning rates and weight decay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from onnxgen.errors import OnnxgenError
from onnxgen.surgery.example import Example, example_for
from onnxgen.surgery.head import last_layers
from onnxgen.surgery.owners import NORMS, near
from onnxgen.training.finetune.blocks import blocks


def param_groups(
    model: nn.Module,
    *,
    lr: float | None = None,
    head_lr: float = 1.0,
    weight_decay: float | None = None,
    layer_decay: float | None = None,
    head: str | Sequence[str] | None = None,
    example: Example | None = None,
) -> list[dict[str, Any]]:
    """Return all parameters, once each, in groups for any optimizer of `torch.optim`.

    Norms, biases and other parameters with one dim get no weight decay. Frozen parameters are included: they have no
    gradient, so an optimizer does not change them until they are unfrozen.

    Args:
        model: any module.
        lr: the learning rate; None: the optimizer's.
        head_lr: the rate of the head, or the heads of several outputs, as a multiple of `lr`.
        weight_decay: None: the optimizer's.
        layer_decay: the rate of each block (see `blocks`) as a multiple of the next block's rate.
        head: the path of the module that gets `head_lr`, or of several, if it is not the last layer with weights.
        example: see `find_head`; the model is run only if `head_lr` is not 1.

    Returns:
        dicts with "params", "name" ("head", "body no decay", "layer1 no decay"), and "lr" and "weight_decay" if given.

    Raises:
        OnnxgenError: a rate depends on `lr`, which is missing, or the head can't be found.
    """
    if lr is None and (head_lr != 1 or layer_decay is not None):
        raise OnnxgenError("head_lr and layer_decay are factors of lr, which is missing", help="give lr=")
    top = _head(model, head, example) if head_lr != 1 else ()
    order = blocks(model)
    plain = _without_decay(model)
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        is_head = any(f"{name}.".startswith(f"{path}.") for path in top)
        block = next((b for b in order if f"{name}.".startswith(f"{b}.")), "")
        place = "head" if is_head else "body" if layer_decay is None else block or "root"
        rate = None if lr is None else lr * (head_lr if is_head else 1.0)
        if rate is not None and layer_decay is not None and not is_head:
            rate *= layer_decay ** (len(order) - 1 - order.index(block) if block else len(order))
        decays = name not in plain
        key = place if decays else f"{place} no decay"
        said = {"lr": rate, "weight_decay": weight_decay if decays else 0.0}
        options = {option: value for option, value in said.items() if value is not None}
        groups.setdefault(key, {"name": key, "params": [], **options})["params"].append(parameter)
    return list(groups.values())


def _head(model: nn.Module, head: str | Sequence[str] | None, example: Example | None) -> tuple[str, ...]:
    if head is None:
        return last_layers(model, example_for(model, example))
    paths = (head,) if isinstance(head, str) else tuple(head)
    for path in paths:
        if not any(f"{name}.".startswith(f"{path}.") for name, _ in model.named_parameters()):
            raise OnnxgenError(f"no layer is called {path!r}", help=near(path, [n for n, _ in model.named_modules()]))
    return paths


def _without_decay(model: nn.Module) -> set[str]:
    """Return the names of norms' parameters, of biases, and of parameters with at most one dim longer than 1."""
    found = set()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            matrix = name.startswith("weight") and isinstance(
                module, (nn.Linear, nn.Bilinear, nn.Embedding, nn.modules.conv._ConvNd)
            )
            flat = parameter.numel() == max(parameter.shape, default=1) and not matrix
            if isinstance(module, NORMS) or "bias" in name or parameter.ndim < 2 or flat:
                found.add(f"{path}.{name}" if path else name)
    return found
