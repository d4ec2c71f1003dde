"""Small PyTorch modules, exported and back: what was generated computes, and trains, exactly what the original does."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from tests.ops.harness import Ran, assert_same, run_model, run_onnxruntime, to_torch
from tests.zoo.export import quiet

LEGACY = ("legacy-9", "legacy-11", "legacy-13", "legacy-17")


def exported(
    model: nn.Module, inputs: Sequence[Tensor], case: str = "legacy-17", axes: dict[int, dict[int, str]] | None = None
) -> onnx.ModelProto:
    """A module's file, by `case`: "legacy-11", "legacy-17-train" (nothing folded), "dynamo-18".

    Inputs are called i0, i1, ...; `axes`: {input: {axis: name}}, the dims that are dynamic.
    """
    exporter, opset, *mode = case.split("-")
    file, names = io.BytesIO(), [f"i{k}" for k in range(len(inputs))]
    axes = axes or {}
    with quiet():
        if exporter == "dynamo":
            shapes = tuple(dict(axes.get(k, {})) for k in range(len(inputs)))
            torch.onnx.export(
                model, tuple(inputs), file, dynamo=True, verbose=False, input_names=names, opset_version=int(opset),
                dynamic_shapes=shapes, external_data=False, optimize=not mode,
            )  # fmt: skip
        else:
            training = torch.onnx.TrainingMode.TRAINING if mode else torch.onnx.TrainingMode.EVAL
            torch.onnx.export(
                model, tuple(inputs), file, dynamo=False, input_names=names, opset_version=int(opset),
                training=training, do_constant_folding=not mode,
                dynamic_axes={f"i{k}": dims for k, dims in axes.items()},
            )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


def held(
    model: nn.Module,
    inputs: Sequence[Tensor],
    case: str = "legacy-17",
    axes: dict[int, dict[int, str]] | None = None,
    keys: bool = True,
) -> Ran:
    """Generate a module's file: outputs as onnxruntime's and the original's, gradients and keys as the original's."""
    training = case.endswith("train")
    proto = exported(model.train(training), inputs, case, axes)
    feeds = {f"i{k}": t.numpy() for k, t in enumerate(inputs)}
    ran = run_model(proto, feeds)
    model.eval()
    with torch.no_grad():
        original = _flat(model(*inputs))
    for actual, wanted in zip(ran.outputs, original, strict=True):
        assert_same(actual, wanted.numpy(), 1e-4, 1e-5)
    if not training:  # onnxruntime applies a training Dropout
        for actual, wanted in zip(ran.outputs, run_onnxruntime(proto, feeds), strict=True):
            assert_same(actual, wanted, 1e-4, 1e-5)
    if keys:
        assert ran.model.state_dict().keys() == model.state_dict().keys()
    assert_same_gradients(ran.model, model, inputs)
    return ran


def assert_same_gradients(made: nn.Module, original: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Of every float input, and of every parameter by its key, where both have it."""
    ours, theirs = _gradients(made, inputs), _gradients(original, inputs)
    assert any(g.abs().max() > 0 for g in theirs.values()), "nothing was compared"
    for key in ours.keys() & theirs.keys():
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-3, atol=1e-4, msg=lambda m, k=key: f"{k}: {m}")


def _gradients(model: nn.Module, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    given = [t.clone().requires_grad_(t.is_floating_point()) for t in inputs]
    total = sum((t * torch.linspace(-1, 1, t.numel()).reshape(t.shape)).sum() for t in _flat(model(*given)))
    assert isinstance(total, Tensor)
    total.backward()
    found = {f"input {k}": t.grad for k, t in enumerate(given) if t.grad is not None}
    found.update({k: p.grad for k, p in model.named_parameters() if p.grad is not None})
    return found


def held_graph(proto: onnx.ModelProto, feeds: dict[str, Any], rtol: float = 1e-4, atol: float = 1e-5) -> Ran:
    """Generate a hand-made graph: outputs as onnxruntime's."""
    ran = run_model(proto, feeds)
    for actual, wanted in zip(ran.outputs, run_onnxruntime(proto, feeds), strict=True):
        assert_same(actual, wanted, rtol, atol)
    return ran


def _flat(outputs: Any) -> list[Tensor]:
    if isinstance(outputs, (tuple, list)):
        return [t for part in outputs for t in _flat(part)]
    return [to_torch(outputs)] if not isinstance(outputs, Tensor) else [outputs]
