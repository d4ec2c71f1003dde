"""An original beside what was generated from its export: what both are held to, in tests and in benchmarks.

Exported in training mode with nothing folded, and with every Dropout at 0, so that two runs are comparable.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from onnxgen.pipeline import generate
from tests.support.real import imported
from tests.zoo import ZOO, Entry
from tests.zoo.export import export

ARCHITECTURES = (
    "resnet18 resnet50 mobilenet_v3 efficientnet densenet convnext unet_transpose vit swin lstm_tagger gru_tagger "
    "bert gpt2 llama hf_bert hf_gpt2 hf_llama hf_t5 hf_whisper hf_clip"
).split()
OPSETS = {"legacy": 17, "dynamo": 23}  # of dynamo the newest that it writes
# Steps so small that the rounding of one does not grow into the next: at a rate of 0.01 EfficientNet's own loss differs
# by 1e-3 after 20 steps if its weights begin one unit in the last place away.
STEPS, RATE = 20, 0.002


@dataclass(frozen=True)
class Pair:
    """One architecture by one exporter: the module that was exported, and the generated one with its weights."""

    name: str
    exporter: str
    entry: Entry
    original: nn.Module
    generated: nn.Module
    module: ModuleType


def still(entry: Entry) -> Entry:
    """The same network where nothing is random: every Dropout at 0."""

    def build() -> nn.Module:
        model = entry.build()
        for module in model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = 0.0
            elif isinstance(getattr(module, "dropout", None), float):
                module.dropout = 0.0
        return model

    return replace(entry, build=build)


def pair(name: str, exporter: str, folder: Path) -> Pair:
    """Export an architecture to `folder`, generate, and load both; both are in training mode."""
    entry, path = still(ZOO[name]), folder / f"{name}.onnx"
    original = export(entry, path, exporter, OPSETS[exporter], training=True, keep=f"{name}-still")
    generate(path, folder / f"{name}_{exporter}.py")
    for layer in original.modules() if exporter == "legacy" else ():
        if isinstance(layer, nn.Embedding):  # the legacy exporter writes no `padding_idx`: the file does not have it
            layer.padding_idx = None
    module = imported(folder / f"{name}_{exporter}.py")
    return Pair(name, exporter, entry, original, module.Model.from_pretrained().train(), module)


def outputs(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    result = model(*inputs)
    return result if isinstance(result, tuple) else (result,)


def loss(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    """The mean squared distance from fixed random targets, summed over the outputs."""
    generator = torch.Generator().manual_seed(2)
    made = outputs(model, inputs)
    return torch.stack([(y - torch.randn(y.shape, generator=generator)).square().mean() for y in made]).sum()


def gradients(model: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """By parameter, tied ones by each of their names; zeros where the loss does not depend on it."""
    named = {n: p for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    found = torch.autograd.grad(loss(model, inputs), list(named.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(named.items(), found, strict=True)}


def curve(model: nn.Module, inputs: tuple[Tensor, ...], frozen: Iterable[str] = ()) -> list[float]:
    """The loss before each of some steps of gradient descent on the same data; `model` stays as it was."""
    model = copy.deepcopy(model).train()
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], RATE)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = loss(model, inputs)
        value.backward()
        optimizer.step()
        found.append(value.item())
    return found
