"""Compares an edited module that has only a part of its weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from onnxgen.errors import OnnxgenError, counted
from onnxgen.record.module import sidecar_of
from onnxgen.verify import torch_side
from onnxgen.verify.convert import to_numpy
from onnxgen.verify.integrity import compare_recorded
from onnxgen.verify.oracle import Answer
from onnxgen.verify.report import VerifyReport
from onnxgen.weights.sidecar import read_tensors

if TYPE_CHECKING:
    from torch import nn

    from onnxgen.verify.check import Check


def in_part(
    check: Check, network: nn.Module, space: Mapping[str, Any], report: VerifyReport, inputs: Iterable[Answer]
) -> VerifyReport:
    """Compare outputs, module with weights file, and weights file with ONNX file. A note has the number of tensors.

    Raises:
        OnnxgenError: the module embeds its weights, so there is no weights file.
    """
    sidecar = sidecar_of(space)
    if sidecar is None:
        raise OnnxgenError("--partial compares with the weights file, and the weights are in the module itself")
    with torch_side.in_mode(network, check.graph):
        report.runs += [check.run(network, given, None, report.gradients) for given in inputs]
    stored, state = read_tensors(sidecar), {key: to_numpy(value) for key, value in network.state_dict().items()}
    both = [key for key, value in state.items() if key in stored and stored[key].shape == value.shape]
    report.notes.append(f"{len(both)} of {counted(len(state), 'tensor')} of the module come from its weights file")
    report.partial = check.partly
    report.moved = [key for key in both if stored[key].tobytes() != state[key].tobytes()]
    if check.cast is None and check.approximation is None:
        report.moved += compare_recorded(check.path, space, check.options)
    return report
