"""Stochastic depth of a training export is at work while training and does nothing in evaluation, as in its network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.helper
import pytest
import torch
from torch import Tensor, nn

from onnxgen.runtime.load import load

KEEP = 0.75


class Torchvision(nn.Module):
    """As torchvision's StochasticDepth computes it (timm's newer DropPath: the same for "row")."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.fc, self.mode = nn.Linear(4, 4), mode

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        if self.training:
            sizes = [y.shape[0] if self.mode == "row" else 1] + [1] * (y.dim() - 1)
            noise = torch.empty(sizes, dtype=y.dtype, device=y.device)
            y = y * noise.bernoulli_(KEEP).div_(KEEP)
        return x + y


class OldTimm(Torchvision):
    """As older versions of timm compute DropPath."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        if self.training:
            noise = KEEP + torch.rand((y.shape[0],) + (1,) * (y.dim() - 1), dtype=y.dtype)
            y = y.div(KEEP) * noise.floor_()
        return x + y


class Spelled(Torchvision):
    """As people write it themselves: `mode` is one of `SPELLINGS`."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        return x + (SPELLINGS[self.mode](y, torch.rand(y.shape[0], 1, 1)) if self.training else y)


SPELLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "above": lambda y, r: y * (r > 1 - KEEP).to(y.dtype) / KEEP,
    "not below": lambda y, r: y * ((r >= 1 - KEEP) / KEEP),
    "filled": lambda y, r: (y / KEEP).masked_fill(r < 1 - KEEP, 0.0),
    "chosen": lambda y, r: torch.where(r < KEEP, y / KEEP, torch.zeros_like(y)),
    "full": lambda y, r: y * torch.bernoulli(torch.full((y.shape[0], 1, 1), KEEP)) / KEEP,
    "ones": lambda y, r: y * torch.bernoulli(torch.ones(y.shape[0], 1, 1) * KEEP) / KEEP,
}


def exported(net: nn.Module, path: Path, dynamo: bool) -> Path:
    given: dict[str, Any] = {"training": torch.onnx.TrainingMode.TRAINING, "dynamo": dynamo, "input_names": ["x"]}
    if dynamo:
        given |= {"dynamic_shapes": ({0: torch.export.Dim("batch")},), "verbose": False}
    else:
        given |= {"dynamic_axes": {"x": {0: "batch"}}, "opset_version": 17}
    torch.onnx.export(net.train(), (torch.randn(3, 5, 4),), path, **given)
    return path


@pytest.mark.parametrize("dynamo", [False, True], ids=["legacy", "dynamo"])
@pytest.mark.parametrize(
    ("build", "mode"),
    [(Torchvision, "row"), (Torchvision, "batch"), (OldTimm, "row"), *((Spelled, name) for name in SPELLINGS)],
)
def test_it_is_gated(build: type[Torchvision], mode: str, dynamo: bool, tmp_path: Path) -> None:
    net = build(mode)
    made, x = load(exported(net, tmp_path / "net.onnx", dynamo)), torch.randn(400, 5, 4)
    assert torch.allclose(made.eval()(x), net.eval()(x), atol=1e-6)
    torch.manual_seed(0)
    y = made.train()(x) - x
    kept = (y.abs().amax((1, 2)) > 1e-3).float()  # of each sample
    assert torch.allclose(y, net.fc(x) / KEEP * kept[:, None, None], atol=1e-5)
    share = kept.mean().item()
    assert abs(share - KEEP) < 0.1 if mode != "batch" else share in (0.0, 1.0)


@pytest.mark.parametrize(
    ("layer", "rank"),
    [(nn.Dropout1d, 3), (nn.Dropout2d, 4), (nn.Dropout3d, 5), (nn.AlphaDropout, 3), (nn.FeatureAlphaDropout, 4)],
)
def test_layers_that_drop_otherwise(layer: type[nn.Module], rank: int, tmp_path: Path) -> None:
    """Only the dynamo exporter writes these in training mode."""
    net = nn.Sequential(layer(1 - KEEP))
    path, x = tmp_path / "net.onnx", torch.ones(3, 4, *[2] * (rank - 2))
    torch.onnx.export(net.train(), (x,), path, training=torch.onnx.TrainingMode.TRAINING, dynamo=True, verbose=False)
    made = load(path)
    (dropout,) = made.children()
    assert type(dropout) is layer and dropout.p == 1 - KEEP and torch.equal(made.eval()(x), x)


@pytest.mark.parametrize("change", ["scale", "shape", "seed", "range"])
def test_what_is_none_stays(change: str, tmp_path: Path) -> None:
    """Numbers that are drawn for something else are drawn in evaluation, too."""
    path = exported(Torchvision("row"), tmp_path / "net.onnx", True)
    model = onnx.load(path)
    drawing = next(n for n in model.graph.node if n.op_type == "RandomUniformLike")
    if change == "seed":
        drawing.attribute.append(onnx.helper.make_attribute("seed", 3.0))
    elif change == "range":
        next(a for a in drawing.attribute if a.name == "high").f = 2.0
    elif change == "shape":
        drawing.input[0] = "x"
    else:
        division = next(n for n in model.graph.node if n.op_type == "Div")
        constant = onnx.helper.make_tensor("half", onnx.TensorProto.FLOAT, [], [0.5])
        model.graph.initializer.append(constant)
        division.input[1] = "half"
    onnx.save(model, path)
    made, x = load(path).eval(), torch.randn(50, 5, 4)
    gated = {"seed": False, "range": False, "scale": False, "shape": True}[change]
    assert torch.equal(made(x), made(x)) == (gated or change == "seed")
