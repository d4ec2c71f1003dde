"""A teacher that is an ONNX file, which onnxruntime runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx.external_data_helper import ExternalDataInfo, uses_external_data
from torch import Tensor

from onnxgen.common.paths import need
from onnxgen.errors import OnnxgenError, did_you_mean, one_line
from onnxgen.graph.operators import having
from onnxgen.graph.traits import RESHAPE, SAME
from onnxgen.purpose.ends import softmax_of
from onnxgen.record.labels import PREFIX
from onnxgen.record.sidecar import TRAINED
from onnxgen.record.signature import Port
from onnxgen.training.runs.contract import fed_images
from onnxgen.training.teacher import TOLD, Tensors
from onnxgen.verify.convert import to_torch
from onnxgen.verify.oracle import Onnxruntime, Refused

_TYPES = {"float": "float32", "double": "float64"}  # onnxruntime's names of types that torch calls otherwise


class OnnxNetwork:
    """An ONNX file, run by onnxruntime: on CUDA if the inputs are there and onnxruntime has it, else on the CPU."""

    images: Mapping[str, Any]

    def __init__(self, path: Path, features: Sequence[str]) -> None:
        """`features` are names of further values of the graph.

        Raises:
            OnnxgenError: the file can't be read or run, or it has no such value.
        """
        need(["onnxruntime"])
        try:
            self.model = onnx.load(path, load_external_data=False)
        except (OSError, DecodeError) as error:
            raise OnnxgenError(f"the teacher {path} can't be read: {one_line(error)}", help=TOLD) from None
        self.path, self.outputs = path, tuple(value.name for value in self.model.graph.output)
        self.makers = {name: node for node in self.model.graph.node for name in node.output if name}
        for name in features:
            if name not in self.makers:
                raise OnnxgenError(f"the teacher {path} has no value {name!r}", help=did_you_mean(name, self.makers))
        new = [onnx.ValueInfoProto(name=name) for name in features if name not in self.outputs]
        self.changed = bool(new)
        self.model.graph.output.extend(new)
        self.sessions: dict[str, Onnxruntime] = {}
        self.inputs = tuple(map(_port, self._session("cpu").session.get_inputs()))
        self.sha256 = _sha256_of(path, self.model)
        entries = {entry.key: entry.value for entry in self.model.metadata_props}
        self.scale, self.images = fed_images(entries.get(PREFIX + TRAINED, ""))

    def _session(self, kind: str) -> Onnxruntime:
        if kind not in self.sessions:
            alone, changed = torch.get_num_threads() == 1, self.model if self.changed else None
            try:
                session = Onnxruntime(self.path, changed, (), optimised=True, alone=alone, cuda=kind == "cuda")
            except Refused as error:
                raise OnnxgenError(f"onnxruntime can't run the teacher {self.path}: {error}", help=TOLD) from None
            self.sessions[kind] = session
        return self.sessions[kind]

    def run(self, inputs: Sequence[Tensor]) -> Tensors:
        device = inputs[0].device
        session = self._session(device.type)
        feeds = {port.name: x.detach().cpu().contiguous().numpy() for port, x in zip(self.inputs, inputs)}
        try:
            arrays = session.run(feeds)
        except Refused as error:
            raise OnnxgenError(f"onnxruntime can't run the teacher {self.path}: {error}", help=TOLD) from None
        names = [value.name for value in self.model.graph.output]
        return {name: to_torch(array).to(device) for name, array in zip(names, arrays, strict=True)}

    def endings(self, inputs: Sequence[Tensor]) -> dict[str, str]:
        return {name: self._ending(name) for name in self.outputs}

    def _ending(self, name: str) -> str:
        passing = having(RESHAPE, SAME) | {"Clip"}
        while (node := self.makers.get(name)) is not None and node.op_type in passing:
            name = node.input[0]
        if node is not None and node.op_type == "Log" and (before := self.makers.get(node.input[0])) is not None:
            return "log_softmax" if softmax_of(before.op_type) == "softmax" else ""
        kind = "" if node is None else node.op_type
        return "sigmoid" if kind == "Sigmoid" else softmax_of(kind)


def _port(value: Any) -> Port:
    kind = value.type.rpartition("(")[2].rstrip(")")
    dims = None if value.shape is None else tuple(d if isinstance(d, int) else str(d) for d in value.shape)
    return Port(value.name, _TYPES.get(kind, kind), dims)


def _sha256_of(path: Path, model: onnx.ModelProto) -> str:
    """Return the SHA-256 of a file, followed by the files of its external data."""
    places = {ExternalDataInfo(t).location for t in model.graph.initializer if uses_external_data(t)}
    digest = hashlib.sha256()
    for file in (path, *(path.parent / place for place in sorted(places))):
        with file.open("rb") as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
