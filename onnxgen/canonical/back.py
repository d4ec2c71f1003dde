"""The way back of a transplant: from a trained module to the tensors of the module that onnxgen generates."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from onnxgen.canonical.binding import Equation
from onnxgen.canonical.matching import below
from onnxgen.canonical.solving import Solver
from onnxgen.canonical.standing import plain_copy, put, tensors_of
from onnxgen.canonical.values import Values
from onnxgen.errors import OnnxgenError


def returned(matched: Any, state: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the generated module's tensors, from those of the trained module: the same equations, solved backwards.

    Args:
        matched: what the module was filled with.
        state: the trained module's tensors; folded norms are folded again.
        reference: the generated module's tensors before the training. What the module has no part of stays.

    Raises:
        OnnxgenError: the file has no tensor for something that was trained.
    """
    known = Values(matched.terms, {leaf: state[path] for leaf, path in matched.other.items()})
    equations = [Equation(e.other, e.one, e.other) for e in matched.equations]
    solution = Solver(matched.terms, known, matched.one, lambda leaves: []).solve(equations)
    for equation in [*solution.apart, *solution.open]:
        used = {*below([equation.one])}
        paths = sorted(path for leaf, path in matched.other.items() if leaf in used)
        trained = f"{paths[0]} was trained" if paths else "it was trained"
        what = f"{trained}, and the ONNX file has no tensor of its own for it"
        raise OnnxgenError(what, help="freeze it, or export the module with torch.onnx.export")
    result = {}
    for leaf, value in solution.values.items():
        path = matched.one[leaf]
        old = reference[path].detach().cpu().double()
        result[path] = torch.where(value.isnan(), old, value).to(reference[path].dtype)
    return result


def folded_again(module: nn.Module, norms: Mapping[str, str]) -> dict[str, Tensor]:
    """Return a module's tensors with its norms folded into the layers before them. `norms`: the layer of each norm."""
    parts = dict(module.named_modules())
    every = {path: tensor.detach().cpu() for path, tensor in tensors_of(module).items()}
    state = {path: tensor.double() if tensor.is_floating_point() else tensor for path, tensor in every.items()}
    for path, layer in norms.items():
        norm: Any = parts[path]
        scale = (state[f"{path}.running_var"] + norm.eps).rsqrt()
        scale = scale if norm.weight is None else scale * state[f"{path}.weight"]
        mean = state[f"{path}.running_mean"]
        has_bias = f"{layer}.bias" in state
        shift = ((state[f"{layer}.bias"] if has_bias else 0) - mean) * scale
        shift = shift if norm.bias is None else shift + state[f"{path}.bias"]
        transposed = isinstance(parts[layer], nn.modules.conv._ConvTransposeNd)
        weight = state[f"{layer}.weight"]
        shape = [1] * weight.dim()
        shape[1 if transposed else 0] = -1
        state[f"{layer}.weight"] = weight * scale.view(shape)
        state[f"{path}.running_mean"], state[f"{path}.running_var"] = 0 * mean, 0 * mean + 1 - norm.eps
        if norm.weight is not None:
            state[f"{path}.weight"] = torch.ones_like(mean)
        own, empty = (f"{path}.bias", f"{layer}.bias") if norm.bias is not None else (f"{layer}.bias", "")
        state[own] = shift
        if empty in state:
            state[empty] = torch.zeros_like(mean)
    return state


def export_back(report: Any, module: nn.Module, out: Path, *, force: bool = False) -> Any:
    """Write a trained module's values into the ONNX file that its weights came from (see `Report.export`)."""
    from onnxgen.export import export
    from onnxgen.pipeline import generate
    from onnxgen.runtime.load import load

    loose = [path for path in report.folded if path not in report.matched.behind]
    if loose:
        what = f"{loose[0]} has no layer before it that it can be folded into"
        raise OnnxgenError(what, help="freeze it, or export the module with torch.onnx.export")
    reference = load(report.source, report.options)
    state = folded_again(plain_copy(module), report.matched.behind)
    put(reference, returned(report.matched, state, tensors_of(plain_copy(reference))))
    with tempfile.TemporaryDirectory(prefix="onnxgen-", ignore_cleanup_errors=True) as folder:
        text = Path(folder) / "model.py"
        generate(report.source, text, replace(report.options, weights=None))
        weights = Path(folder) / "trained.safetensors"
        save_file(
            {key: tensor.detach().clone().contiguous() for key, tensor in reference.state_dict().items()}, weights
        )
        return export(text, report.source, weights, out, force=force)
