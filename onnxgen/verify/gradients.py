"""Check that gradients reach every parameter that they must reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import nn

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError
from onnxgen.graph.annotations import is_trained
from onnxgen.options import Options
from onnxgen.passes.trainable import differentiable, stored_values
from onnxgen.pipeline import read_and_simplify
from onnxgen.verify.limits import limited
from onnxgen.verify.oracle import nan_node
from onnxgen.verify.report import Gradients
from onnxgen.verify.torch_side import Backward, flat_outputs


def finish(network: nn.Module, backward: Backward, expected: set[str], found: Gradients) -> None:
    """Sum up the backward passes of all runs. `expected`: see `expected_keys`."""
    names = [n for n, p in network.named_parameters() if p.requires_grad]
    found.parameters = len(names)
    found.not_finite = [n for n in names if n in backward.not_finite]
    found.reached = sum(n in backward.reached and n not in backward.not_finite for n in names)
    without = [n for n in names if n not in backward.reached | backward.not_finite | backward.excused]
    expected = set() if found.error else expected
    found.missing = [n for n in without if n in expected - backward.idle]
    found.unreached = [n for n in without if n not in found.missing]


def without_nans(
    path: Path, model: Callable[[], onnx.ModelProto], feeds: Mapping[str, Any], backward: Backward
) -> list[str]:
    """Excuse gradients that are not finite because the file itself computes a NaN that a Where discards.

    PyTorch multiplies the NaN derivative of the discarded value by 0, which is NaN. So the author's module has the same
    gradient. Returns a note.
    """
    node = nan_node(path, model(), feeds) if backward.not_finite else None
    if node is None:
        return []
    names, name = ", ".join(sorted(backward.not_finite)), printable(node.name or node.output[0])
    backward.excused |= backward.not_finite
    backward.not_finite.clear()
    return [f"the file computes NaN at {name} ({node.op_type}): there is no gradient of {names} for such inputs"]


def excuse_idle(network: nn.Module, feeds: Mapping[str, Any], backward: Backward, seconds: float | None = None) -> None:
    """Excuse missing gradients of parameters whose value does not change any output.

    For example, a file may compute attention, but return only the cache that it fills.
    """
    known = backward.reached | backward.not_finite | backward.excused
    for name, parameter in network.named_parameters():
        if parameter.requires_grad and name not in known and _is_idle(network, parameter, feeds, seconds):
            backward.idle.add(name)


def _is_idle(network: nn.Module, parameter: nn.Parameter, feeds: Mapping[str, Any], seconds: float | None) -> bool:
    stored = parameter.detach().clone()
    try:
        with torch.no_grad(), limited(seconds):
            before = flat_outputs(network, feeds)
            parameter.copy_(stored * 1.5 + torch.randn(stored.shape, generator=torch.Generator().manual_seed(0)))
            after = flat_outputs(network, feeds)
            return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    except Exception:  # the module fails; its runs report that
        return False
    finally:
        with torch.no_grad():
            parameter.copy_(stored)


def expected_keys(path: Path, options: Options, record: Mapping[str, Any]) -> set[str]:
    """Return the state-dict keys that must get a gradient: those with tensors in the graph's differentiable part.

    `record`: the rules that rebuild the file's tensors from the state dict (`provenance.way_back`).
    """
    try:
        model = read_and_simplify(path, replace(options, trainable=None, frozen=None))
    except OnnxgenError:
        return set()
    reached = differentiable(model.graph)
    found: set[str] = set()
    for value in stored_values(model.graph):
        keys = _keys(record.get(value.name or "", []))
        if is_trained(value) and (len(keys) == 1 or _is_reached_everywhere(value, reached)):
            found |= keys
    return found


def _is_reached_everywhere(value: ir.Value, reached: set[ir.Value]) -> bool:
    """Return True if every layer that uses the tensor gives it a gradient. A layer that ends in integers does not."""
    return all(any(o in reached for o in use.node.outputs) for use in value.uses())


def _keys(entry: Any) -> set[str]:
    """Return the state-dict keys in one entry of the weight provenance."""
    if isinstance(entry, str):
        return {entry}
    if isinstance(entry, list):
        return set().union(*map(_keys, entry))
    return {part["key"] for part in entry["parts"]}
