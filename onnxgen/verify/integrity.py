"""Compare the sidecar with the ONNX file, tensor by tensor and bit for bit.

An edited module that has only a part of the weights is compared by what it has (`in_part`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.common.built import json_object, read_json
from onnxgen.common.cache import file_sha256
from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError, counted
from onnxgen.options import Options
from onnxgen.passes.trainable import stored_values
from onnxgen.reader import read
from onnxgen.record.labels import alphabet_in, recorded_alphabet
from onnxgen.record.sidecar import metadata_of, noted, sidecar_of
from onnxgen.record.signature import recorded
from onnxgen.record.way_back import TENSORS
from onnxgen.verify import torch_side
from onnxgen.verify.convert import to_numpy
from onnxgen.verify.graph import Graph
from onnxgen.verify.oracle import Answer
from onnxgen.verify.report import Integrity, VerifyReport
from onnxgen.weights.dequantised import KEY as APPROXIMATION
from onnxgen.weights.dequantised import Approximation
from onnxgen.weights.provenance import Source, rebuild
from onnxgen.weights.sidecar import read_tensors
from onnxgen.weights.stored import stored

if TYPE_CHECKING:
    from torch import nn

    from onnxgen.verify.check import Check


FOLDED = 1e-5  # allowed relative difference of weights into which a norm was folded


def record_of(space: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the recorded weight provenance (`provenance.way_back`), or None if the sidecar has none."""
    return noted(space, TENSORS, json_object)


def approximation_of(space: Mapping[str, Any]) -> Approximation | None:
    """Return the recorded approximation of a quantised file, or None if there is none."""
    return noted(space, APPROXIMATION, partial(read_json, Approximation))


def other_file(path: Path, graph: Graph, space: Mapping[str, Any], module: str) -> list[str]:
    """Return a note if a module was generated from a file whose contents differ from the file at `path`.

    Raises:
        OnnxgenError: that file has other inputs or outputs, so there is nothing to compare.
    """
    signature = recorded(metadata_of(space))
    if signature is None or signature.sha256 == file_sha256(path):
        return []
    source = printable(signature.source)
    of_module = [[port.name for port in ports] for ports in (signature.inputs, signature.outputs)]
    of_file = [[name for name, _, _ in graph.inputs], list(graph.outputs)]
    if of_module == of_file:
        return [f"{module} was generated from {source} with other contents than {path} has (the SHA-256 differs)"]
    has, wanted = (
        " and ".join(", ".join(map(printable, s)) or "none" for s in sides) for sides in (of_module, of_file)
    )
    what = f"{module} was generated from {source}, not from {path}: its inputs and outputs are {has}, not {wanted}"
    raise OnnxgenError(what, help=f"verify it with {source}, or generate it from {path} again")


def without_alphabet(path: Path, space: Mapping[str, Any], module: str) -> list[str]:
    """Return a note if the file lists the characters that it reads, and a module of an older version does not."""
    metadata = metadata_of(space)
    signature = recorded(metadata)
    texts = signature is not None and any(port.dims is None or len(port.dims) == 3 for port in signature.outputs)
    if not texts or recorded_alphabet(metadata) is not None:
        return []
    alphabet = alphabet_in(read(path, Options()).metadata_props)
    if alphabet is None:
        return []
    what = f"the weights of {module} lack the {len(alphabet.characters):,} characters that {path} lists"
    return [f"{what} ({alphabet.source}): train would number those of its data; generate it again"]


def compare_weights(path: Path, out: Path, space: Mapping[str, Any], options: Options) -> Integrity:
    """Compare every tensor of the sidecar of `out` with the ONNX file (see `provenance.Source`).

    Args:
        path: the ONNX file.
        out: the generated module; `space` are the names in it.
        options: the options of its generation.

    Raises:
        OnnxgenError: the ONNX file can't be converted, there is no sidecar, or it is broken.
    """
    from onnxgen import pipeline

    sidecar = sidecar_of(space)
    if sidecar is None:
        raise OnnxgenError(f"{out} has no weights file to compare: the weights are in the module itself")
    tensors = read_tensors(sidecar)
    expected = pipeline.build(path, options, out).tensors
    differences = [f"tensor {key}: missing in the weights file" for key in expected if key not in tensors]
    differences += [f"tensor {key}: not in the ONNX file" for key in tensors if key not in expected]
    both = expected.keys() & tensors.keys()
    differences += [f"tensor {key}: {why}" for key in both if (why := _difference(expected[key], tensors[key]))]
    return Integrity(len(tensors), sorted(differences))


def moved_tensors(check: Check, space: Mapping[str, Any]) -> list[str]:
    """Return the file's tensors that differ from a module's weights, where these must be equal.

    A small change of a weight may not show in outputs.
    """
    if check.cast is not None or check.approximation is not None:
        return []
    return compare_recorded(check.path, space, check.options)


def compare_recorded(path: Path, space: Mapping[str, Any], options: Options) -> list[str]:
    """Return the names of the file's tensors that differ from those rebuilt from a module's weights.

    The sidecar records how to rebuild them. Tensors with a folded norm are compared up to rounding, all others bit for
    bit. Without a sidecar or a record the list is empty. Nothing is generated.
    """
    record, sidecar = record_of(space), sidecar_of(space)
    if record is None or sidecar is None:
        return []
    tensors = read_tensors(sidecar)
    values = [(value.name or "", stored(value)) for value in stored_values(read(path, options).graph)]
    return [
        name
        for name, tensor in values
        if tensor is not None and name in record and not _is_rebuilt(record, name, tensor, tensors)
    ]


def _is_rebuilt(
    record: Mapping[str, Any], name: str, tensor: ir.TensorProtocol, tensors: Mapping[str, NDArray[Any]]
) -> bool:
    """Return True if each copy of a tensor in the sidecar equals the file's, or can't be compared with it."""
    entries = record[name] if isinstance(record[name], list) else [record[name]]
    parts = [part for entry in entries if isinstance(entry, dict) for part in entry["parts"]]
    if any(part.get("lossy") for part in parts):
        return True
    original = np.asarray(tensor.numpy())
    rtol = FOLDED if any("fold" in part for part in parts) else 0.0
    try:
        copies = [np.asarray(rebuild(record, name, tensors.__getitem__, original, i)) for i in range(len(entries))]
    except (OnnxgenError, KeyError):
        return False
    return all(_is(original, back, rtol) for back in copies)


def _is(original: NDArray[Any], back: NDArray[Any], rtol: float) -> bool:
    if original.shape != back.shape:
        return False
    if original.dtype.kind in "fc" and rtol:
        scale = float(np.abs(original).max()) if original.size else 0.0
        return bool(np.allclose(back, original, rtol=rtol, atol=rtol * scale, equal_nan=True))
    cast = back.astype(original.dtype, copy=False)
    return np.ascontiguousarray(cast).tobytes() == np.ascontiguousarray(original).tobytes()


def _difference(expected: Source | NDArray[Any], actual: NDArray[Any]) -> str:
    array = expected.numpy() if isinstance(expected, Source) else expected
    try:
        if tuple(array.shape) != actual.shape or array.dtype.itemsize != actual.dtype.itemsize:
            return f"{actual.dtype} {list(actual.shape)} instead of {array.dtype} {list(array.shape)}"
        bits = np.dtype(f"u{array.dtype.itemsize}") if array.dtype.itemsize <= 8 else np.dtype("u8")
        wrong = np.ascontiguousarray(array).reshape(-1).view(bits) != np.ascontiguousarray(actual).reshape(-1).view(
            bits
        )
        return f"{int(wrong.sum()):,} of {counted(array.size, 'element')} differ" if wrong.any() else ""
    finally:
        if isinstance(expected, Source):
            expected.release()


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
        report.runs += [check.run(network, answer, None, report.gradients) for answer in inputs]
    stored, state = read_tensors(sidecar), {key: to_numpy(value) for key, value in network.state_dict().items()}
    both = [key for key, value in state.items() if key in stored and stored[key].shape == value.shape]
    report.notes.append(f"{len(both)} of {counted(len(state), 'tensor')} of the module come from its weights file")
    report.partial = check.partly
    report.moved = [key for key in both if stored[key].tobytes() != state[key].tobytes()]
    report.moved += moved_tensors(check, space)
    return report
