"""The module of a detector that is trained: the network up to its raw maps."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from torch import nn

from onnxgen.errors import OnnxgenError
from onnxgen.export.origin import origin_of
from onnxgen.heads.reading import find_tail
from onnxgen.heads.tail import Tail
from onnxgen.options import Options
from onnxgen.output.signature import Signature
from onnxgen.pipeline import check, generate
from onnxgen.reader import read
from onnxgen.surgery.ports import signature_of
from onnxgen.training.report.facts import file_of
from onnxgen.training.runs.folder import RECORD
from onnxgen.training.runs.record import read_record

_Shapes = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Detector:
    """A generated module of a detector.

    Attributes:
        module: its file.
        onnx: the whole network.
        tail: what the raw maps of the ONNX file mean.
        options: the sizes of the inputs that the module was generated for.
        missing: raw maps that are no outputs of the module.
    """

    module: Path
    onnx: Path
    options: Options
    tail: Tail
    missing: tuple[str, ...]

    @property
    def way_out(self) -> str:
        return f"onnxgen {self.onnx} -o {self.module} --task detection --force"

    def refuse_whole(self) -> None:
        """Raise `OnnxgenError` if the module has the decoding of boxes inside."""
        if self.missing:
            what = f"{self.module} does not end in the raw maps of the detector: {self.missing[0]} is no output"
            raise OnnxgenError(what, help=self.way_out)


def detector_of(model: nn.Module) -> Detector:
    """Return what is known of a detector.

    Raises:
        OnnxgenError: the model is of no generated file, its ONNX file is not there, or it is no detector that can be
            read.
    """
    module, signature = _module(model), signature_of(model)
    onnx = origin_of(module, vars(sys.modules[type(model).__module__]), None).onnx
    shapes = _fixed(signature)
    tail = _tail(onnx.resolve(), signature.sha256, shapes)
    names = [port.name for port in signature.outputs]
    return Detector(
        module, onnx, Options(input_shapes=dict(shapes)), tail, tuple(name for name in tail.maps if name not in names)
    )


def trained_part(model: nn.Module) -> tuple[Path, str] | None:
    """Write the module of the raw maps beside a module that decodes boxes.

    It is generated from the same ONNX file. So it is what the user has, as long as that is what a plain `onnxgen
    FILE.onnx` writes: nothing was edited, and no option was given.

    Returns:
        its file and a note; None if the model has the raw maps as its outputs.

    Raises:
        OnnxgenError: see `detector_of`; or the module is another than a plain generation writes.
    """
    found = detector_of(model)
    if not found.missing:
        return None
    if not check(found.onnx, found.module):
        found.refuse_whole()
    part = found.module.with_name(f"{found.module.stem}_maps.py")
    generate(found.onnx, part, Options(task="detection"))
    return (
        part,
        f"{found.module} goes on behind the raw maps, where no weights are: {part} is trained, which ends in them",
    )


def _module(model: nn.Module) -> Path:
    """Return the generated file of a model; of a run, the file that was trained, beside which its ONNX file is."""
    if (file := file_of(model)) is None:
        what = f"{type(model).__name__} is of no generated file, which would say how its boxes are decoded"
        raise OnnxgenError(what, help="give the path of the module that onnxgen generated")
    folder = file.parent
    return read_record(folder).origin_for(folder) if (folder / RECORD).is_file() else file


def _fixed(signature: Signature) -> _Shapes:
    """Return the sizes that the module was generated for; -1 for open ones."""
    ports = [port for port in signature.inputs if port.dims is not None and port.kind == "tensor"]
    return tuple((p.name, tuple(d if isinstance(d, int) else -1 for d in p.dims or ())) for p in ports)


@lru_cache(maxsize=8)
def _tail(onnx: Path, sha256: str, shapes: _Shapes) -> Tail:
    """Return the tail of a file of this content. It takes seconds, and a run asks several times."""
    return find_tail(read(onnx, Options(input_shapes=dict(shapes))))
