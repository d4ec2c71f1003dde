"""The way back of a transplant: from a trained module to the tensors of the module that onnxgen generates."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from onnxgen.canonical.binding import Piece
from onnxgen.canonical.terms import Term
from onnxgen.canonical.values import Unknown, viewed
from onnxgen.errors import OnnxgenError


def returned(
    state: Mapping[str, Tensor], pieces: Mapping[str, Sequence[Piece]], reference: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the generated module's tensors.

    Args:
        state: the trained module's tensors; folded norms are folded again.
        pieces: for each of its leaves, what its parts were made of.
        reference: the generated module's tensors before the training. What the module has no part of stays.

    Raises:
        OnnxgenError: two parts of the module stand for one tensor, and were trained apart.
    """
    result = {key: tensor.detach().clone() for key, tensor in reference.items()}
    written: dict[str, Tensor] = {key: torch.zeros_like(tensor, dtype=torch.bool) for key, tensor in result.items()}
    for path, parts in pieces.items():
        for piece in parts:
            tensor = state[path].detach().cpu()
            if piece.axis is not None:
                tensor = tensor.narrow(piece.axis, piece.start, piece.stop - piece.start)
            _put(piece.value, tensor.reshape(piece.value.shape), result, written, path)
    return result


def _put(term: Term, tensor: Tensor, result: dict[str, Tensor], written: dict[str, Tensor], path: str) -> None:
    """Write the elements that a term stands for."""
    if term.op == "cat":
        at = 0
        for part in term.args[0]:
            size = part.shape[term.args[1]]
            _put(part, tensor.narrow(term.args[1], at, size), result, written, path)
            at += size
        return
    if term.op == "sum" and len(term.args[0]) == 1:
        ((monomial, number),) = term.args[0]
        if len(monomial) == 1 and number:
            ((factor, exponent),) = monomial
            if exponent == 1 and factor.shape == term.shape:
                _put(factor, tensor / number, result, written, path)
                return
    place, done = _place(term, result), _place(term, written)
    known = done.expand(place.shape)
    if bool(known.any()) and not torch.allclose(place[known], tensor.to(place.dtype)[known]):
        what = f"{path} was trained apart from another tensor that the ONNX file has only once"
        raise OnnxgenError(what, help="train them as one parameter")
    place.copy_(tensor.to(place.dtype))
    done.fill_(True)


def _place(term: Term, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return where a term's elements are stored: a view of the stored tensor. Raises `Unknown`."""
    match term.op:
        case "parameter" | "frozen":
            return tensors[term.args[0]]
        case "view":
            base = _place(term.args[0], tensors)
            place = viewed(base, term.args[1])
        case "reshape":
            base = _place(term.args[0], tensors)
            place = base.reshape(term.shape)
        case "slice":
            base, axis, start, stop, step = _place(term.args[0], tensors), *term.args[1:]
            index: list[Any] = [slice(None)] * base.dim()
            index[axis] = slice(start, stop, step)
            place = base[tuple(index)]
        case _:
            raise Unknown(term.op)
    if place.untyped_storage().data_ptr() != base.untyped_storage().data_ptr():
        raise Unknown(term.op)
    return place


def folded_again(module: nn.Module, norms: Mapping[str, str]) -> dict[str, Tensor]:
    """Return a module's tensors with its norms folded into the layers before them. `norms`: the layer of each norm."""
    state = {key: tensor.detach().clone() for key, tensor in module.state_dict().items()}
    parts = dict(module.named_modules())
    for path, layer in norms.items():
        norm: Any = parts[path]
        scale = (norm.running_var + norm.eps).rsqrt()
        scale = scale if norm.weight is None else scale * norm.weight
        before = state.get(f"{layer}.bias", torch.zeros_like(norm.running_mean))
        shift = (before - norm.running_mean) * scale
        transposed = isinstance(parts[layer], nn.modules.conv._ConvTransposeNd)
        weight = state[f"{layer}.weight"]
        shape = [1] * weight.dim()
        shape[1 if transposed else 0] = -1
        state[f"{layer}.weight"] = (weight * scale.detach().view(shape)).detach()
        own = f"{path}.bias" if norm.bias is not None else f"{layer}.bias"
        state[own] = (shift + norm.bias if norm.bias is not None else shift).detach()
    return state


def export_back(report: Any, module: nn.Module, out: Path, *, force: bool = False) -> Any:
    """Write a trained module's values into the ONNX file that its weights came from (see `Report.export`)."""
    from onnxgen.export import export
    from onnxgen.pipeline import generate
    from onnxgen.runtime.load import load

    loose = [path for path in report.folded if path not in report.behind]
    if loose:
        what = f"{loose[0]} has no layer before it that it can be folded into"
        raise OnnxgenError(what, help="freeze it, or export the module with torch.onnx.export")
    reference = load(report.source, report.options).state_dict()
    state = returned(folded_again(module, report.behind), report.pieces, reference)
    with tempfile.TemporaryDirectory(prefix="onnxgen-", ignore_cleanup_errors=True) as folder:
        text = Path(folder) / "model.py"
        generate(report.source, text, replace(report.options, weights=None))
        weights = Path(folder) / "trained.safetensors"
        save_file({key: tensor.contiguous() for key, tensor in state.items()}, weights)
        return export(text, report.source, weights, out, force=force)
