"""The module of a detector that is trained: the user's, or that of the raw maps beside it. Nothing here imports torch.

Behind its raw maps a detector decodes boxes, without weights. So what is trained is the part before, at one size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import onnx
import onnx_ir as ir

from onnxgen.errors import OnnxgenError
from onnxgen.heads.reading import find_tail
from onnxgen.options import Options
from onnxgen.output.write import Output
from onnxgen.pipeline import check, generate
from onnxgen.reader import read
from onnxgen.record.asked import command, recorded_options
from onnxgen.record.base import fingerprint
from onnxgen.record.labels import ultralytics_size
from onnxgen.record.sidecar import metadata_at
from onnxgen.record.signature import Signature, recorded
from onnxgen.record.tail import Tail
from onnxgen.record.way_back import source_of
from onnxgen.shapes import propagate
from onnxgen.shapes.dims import symbol
from onnxgen.shapes.infer import fails
from onnxgen.shapes.info import Info
from onnxgen.training.config import parse_size

USUAL = (640, 640)  # height and width of a file that takes any size and does not tell that of its training
_SIZED = re.compile(r"_\d+x\d+$")  # the end of the name of a module of raw maps
_Shapes = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Detector:
    """A generated module of a detector.

    Attributes:
        module: its file.
        onnx: the whole network.
        tail: what the raw maps of the ONNX file mean.
        options: the sizes of the inputs that the module is trained for.
        given: the options that it was generated with; None if that is not known.
        missing: raw maps that are no outputs of the module.
        said: why it is of this size, if the module has another one, or takes any.
        sha256: of the ONNX file.
    """

    module: Path
    onnx: Path
    tail: Tail
    options: Options
    given: Options | None
    missing: tuple[str, ...]
    said: str = ""
    sha256: str = ""

    @property
    def wanted(self) -> Options:
        """The options of the module of the raw maps: as the given ones, otherwise."""
        options = self.given or Options()
        shapes = {**options.input_shapes, **(self._images if self.said else {})}
        return replace(options, task="detection", inputs=(), outputs=(), weights=None, input_shapes=shapes)

    @property
    def _images(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for name, shape in self.options.input_shapes.items() if len(shape) == 4}

    @property
    def way_out(self) -> str:
        """The command that generates the module to train, with the options that this one has."""
        return command(self.onnx, self.place, self.wanted)

    @property
    def place(self) -> Path:
        """The module of the raw maps that is written beside this one."""
        stem = f"{self.module.stem}_maps" if self.missing else _SIZED.sub("", self.module.stem)
        if self.said:  # earlier runs need those of other sizes
            stem += "_" + "x".join(str(dim) for shape in self._images.values() for dim in shape[2:])
        return self.module.with_name(f"{stem}.py")

    def refuse_whole(self) -> None:
        """Raise `OnnxgenError` if the module has the decoding of boxes inside, or is of no size."""
        if self.missing:
            what = f"{self.module} does not end in the raw maps of the detector: {self.missing[0]} is no output"
            raise OnnxgenError(what, help=self.way_out)
        if self.said:
            raise OnnxgenError(self.said, help=self.way_out)

    def part(self) -> tuple[Path, list[str]]:
        """Return the module to train, and notes: this one, or that of the raw maps, which is written beside it.

        It is generated with the same options from the same file. So it is what the user has, as long as nothing was
        edited or trained. Raises `OnnxgenError` if the module is not what a generation with its options writes.
        """
        if not self.missing and not self.said:
            return self.module, []
        part = self.place
        is_written = self._is_written(part)
        if not self._may_be_cut() or not (is_written or check(self.onnx, self.module, self.given or Options())):
            what = f"{self.module} does not end in the raw maps of the detector, at one size"
            way = f"it was edited, trained or cut, so generate it yourself, and train {part}: {self.way_out}"
            raise OnnxgenError(what, help=way)
        if not is_written:
            generate(self.onnx, part, self.wanted)
        if not self.missing:
            return part, [f"{self.said}: {part} is trained"]
        what = f"{self.module} goes on behind the raw maps, where no weights are: {part} is trained, which ends in them"
        return part, [what, *([self.said] if self.said else [])]

    def _may_be_cut(self) -> bool:
        """Return True if the options of the module are known, run no code of others, and leave the end open."""
        options = self.given
        if options is None or options.plugins or options.templates or options.inputs:
            return False
        return set(options.outputs) <= {*self.tail.maps} and not _is_edited(self.module)

    def _is_written(self, part: Path) -> bool:
        """Return True if the part was generated before, from this file with these options, and was not edited."""
        metadata = metadata_at(part.with_suffix(".safetensors"))
        of = recorded(metadata)
        same = of is not None and of.sha256 == self.sha256 and recorded_options(metadata, part.parent) == self.wanted
        if not same or not part.is_file() or _is_edited(part):
            return False
        return fingerprint(part.read_text(encoding="utf-8")) == metadata.get("fingerprint")


def detector_at(
    module: Path, metadata: Mapping[str, str], size: str = "auto", onnx_file: Path | None = None
) -> Detector:
    """Return what is known of a detector.

    Args:
        module: the generated file.
        metadata: of its weights.
        size: "HxW", for a network that takes any size; "auto": that of its training, if the file tells it.
        onnx_file: its ONNX file, if it is not where a module's is.

    Raises:
        OnnxgenError: its ONNX file is not there, it is no detector that can be read, or it takes no images of the size.
    """
    signature = recorded(metadata)
    onnx_file = source_of(module, signature, onnx_file, "copy it there: it says how boxes are decoded")
    assert signature is not None
    shapes, why = _fixed(signature, onnx_file, size)
    tail = _tail(onnx_file.resolve(), signature.sha256, shapes)
    names = [port.name for port in signature.outputs]
    missing = tuple(name for name in tail.maps if name not in names)
    known = recorded_options(metadata, module.parent)
    options = Options(input_shapes=dict(shapes))
    return Detector(module, onnx_file, tail, options, known, missing, why, signature.sha256)


def part_to_train(module: Path, size: str = "auto") -> tuple[Path, list[str]]:
    """Return the module to train with boxes, and notes: see `Detector.part`. What is no generated file stays.

    Raises:
        OnnxgenError: see `detector_at` and `Detector.part`.
    """
    metadata = metadata_at(module.with_suffix(".safetensors"))
    return (module, []) if recorded(metadata) is None else detector_at(module, metadata, size).part()


def _is_edited(module: Path) -> bool:
    text = Output(module, Options()).text()
    return text is None or Output(module, Options()).is_edited(text)


def _fixed(signature: Signature, file: Path, size: str) -> tuple[_Shapes, str]:
    """Return the sizes to train with, -1 for an open batch; and a note if the module leaves that of images open."""
    shapes, note = [], ""
    model = onnx.load(file, load_external_data=False)
    free = {value.name for value in model.graph.input if _is_free(value)}
    for port in signature.inputs:
        if port.dims is None or port.kind != "tensor":
            continue
        dims = tuple(d if isinstance(d, int) else -1 for d in port.dims)
        if port.name in free and (-1 in dims[2:] or size != "auto"):
            wanted, why = _size_of(model, file, size)
            if dims[2:] != wanted:
                dims = (*dims[:2], *wanted)
                note = f"{port.name} takes images of any size, and is trained with {wanted[0]}x{wanted[1]}, {why}"
        shapes.append((port.name, dims))
    return tuple(shapes), note


def _is_free(value: onnx.ValueInfoProto) -> bool:
    """Return True for an input of images [N, C, H, W] of any height and width."""
    dims = value.type.tensor_type.shape.dim
    return len(dims) == 4 and not any(dim.HasField("dim_value") for dim in dims[2:])


def _size_of(model: onnx.ModelProto, file: Path, size: str) -> tuple[tuple[int, int], str]:
    """Return the height and width to train with, and where they are from."""
    if size != "auto":
        return parse_size(size.rpartition("=")[2]), "as asked"
    trained = ultralytics_size({entry.key: entry.value for entry in model.metadata_props})
    if trained is not None:
        return trained, f"which {file.name} tells (imgsz); --size HxW names another one"
    return USUAL, "the usual size; --size HxW names another one"


@lru_cache(maxsize=8)
def _tail(onnx_file: Path, sha256: str, shapes: _Shapes) -> Tail:
    """Return the tail of a file of this content. It takes seconds, and a run asks several times."""
    model = _sized(onnx_file, shapes)
    if fails(model.graph):
        raise _wrong_size(onnx_file, shapes)
    return find_tail(model)


def _sized(onnx_file: Path, shapes: _Shapes) -> ir.Model:
    """Return the whole network with facts of all values for inputs of these shapes."""
    options = Options(input_shapes=dict(shapes))
    model = read(onnx_file, options)
    propagate(model.graph, options)
    return model


def _wrong_size(onnx_file: Path, shapes: _Shapes) -> OnnxgenError:
    """Make the error for images of a size that the network does not take, with the sizes that it takes."""
    from onnxgen.verify.graph import Graph
    from onnxgen.verify.sizes import MAX_STEP, described, steps

    name, (batch, channels, *size) = next((name, dims) for name, dims in shapes if len(dims) == 4)
    asked = dict(zip(("height", "width"), size))

    def takes(sizes: Mapping[str, int]) -> bool:
        one = tuple((n, (batch, channels, *sizes.values()) if n == name else dims) for n, dims in shapes)
        return not fails(_sized(onnx_file, one).graph)

    facts = Info(None, (1, channels, *(symbol(dim, (name, n + 2)) for n, dim in enumerate(asked))))
    large = {dim: -(-length // MAX_STEP) * MAX_STEP for dim, length in asked.items()}
    refused = [{dim: large[dim] + 1 for dim in asked}]  # each size is asked for, also one that went well
    able = takes(large)
    multiples = steps(Graph([(name, None, facts)], {}, []), refused, large, takes) if able else {}
    near = {dim: max(round(length / multiples.get(dim, 1)), 1) * multiples.get(dim, 1) for dim, length in asked.items()}
    why = described(multiples) if multiples else "inside it, tensors of sizes meet that do not go together"
    way = "x".join(map(str, (near if multiples else large).values())) if able else "HxW names another size"
    return OnnxgenError(f"{onnx_file.name} takes no images of {size[0]}x{size[1]}: {why}", help=f"--size {way}")
