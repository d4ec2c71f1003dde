"""The way back to the ONNX file: where it is, how its tensors are made, and which part was cut."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnxgen.common.built import json_object
from onnxgen.common.cache import file_sha256
from onnxgen.common.names import printable
from onnxgen.common.paths import is_same_place
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.record.signature import Signature

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GENERATE_AGAIN = "generate module and weights again (to keep trained weights, rename them and give them with --weights)"


NAME_IT = "name the file with --onnx"


def source_of(module: Path, signature: Signature | None, onnx: Path | None = None, way: str = NAME_IT) -> Path:
    """Return the ONNX file that a module was generated from.

    Args:
        onnx: named by the user.
        way: what to do if the file is not found.

    Raises:
        OnnxgenError: the module's weights do not name the file, or it can't be found, or has changed.
    """
    if signature is None:
        what = f"the weights of {module} do not name the ONNX file that they came from"
        raise OnnxgenError(what, help=GENERATE_AGAIN)
    path = onnx or _found(module, signature.source, way)
    if not path.is_file():
        raise OnnxgenError(f"there is no file {path}")
    if file_sha256(path) != signature.sha256:
        what = f"{path} is not the file that {module} was generated from (the SHA-256 differs)"
        way_out = "generate the module from this file again, or name the original with --onnx"
        raise OnnxgenError(what, help=way_out)
    return path


def _found(module: Path, name: str, way: str) -> Path:
    """Find the ONNX file: beside the module by its recorded name, or as the project's pyproject.toml says."""
    beside = module.absolute().parent / Path(name).name
    if name and beside.is_file():
        return beside
    configured = _configured(module.absolute())
    if configured is not None and configured.is_file():
        return configured
    what = f"{module} was generated from {printable(name)}, which is not in the same folder"
    raise OnnxgenError(what, help=way)


def _configured(module: Path) -> Path | None:
    """Return `source` of the nearest pyproject.toml's `[[tool.onnxgen.models]]` entry whose `output` is the module."""
    for folder in module.parents:
        file = folder / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            models = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("onnxgen", {}).get("models")
        except (OSError, ValueError) as error:
            raise OnnxgenError(f"{file} can't be read: {' '.join(str(error).split())}") from None
        for entry in models if isinstance(models, list) else []:
            source, output = (entry.get(k) if isinstance(entry, dict) else None for k in ("source", "output"))
            if isinstance(source, str) and isinstance(output, str) and is_same_place(folder / output, module):
                return folder / source
        return None
    return None


TENSORS, QUANTISED, CUT = "wayback", "quantised", "cut"  # in the sidecar's metadata
# by ONNX tensor and state-dict key: (output of the node, index of its input)
Uses = Mapping[str, Mapping[str, list[tuple[str, int]]]]
# for tensors of local functions: domain, name and overload of the function, and the tensor's name there
Functions = Mapping[str, Sequence[str | None]]
Cut = tuple[Sequence[str], Sequence[str]]  # names of the first and the last values; empty means as in the file


@dataclass(frozen=True)
class WayBack:
    """The weight provenance in the sidecar.

    Attributes:
        tensors: how each ONNX tensor is made (`onnxgen.weights.provenance.way_back`).
        uses: the users of tensors that the file stores once for several keys.
        functions: the local functions of tensors that are not in the graph.
        quantised: the integers that the file has of float tensors (`onnxgen.weights.dequantised`).
        cut: the part of the network that the module is; None if it is the whole.
    """

    tensors: Mapping[str, Any]
    uses: Uses
    functions: Functions
    quantised: Mapping[str, Any] = field(default_factory=dict)
    cut: Cut | None = None

    def to_metadata(self) -> dict[str, str]:
        entries = {
            TENSORS: self.tensors,
            "uses": self.uses,
            "functions": self.functions,
            QUANTISED: self.quantised,
        }
        texts = {key: json.dumps(value) for key, value in entries.items() if value or key == TENSORS}
        return texts | ({CUT: json.dumps(dict(zip(("inputs", "outputs"), self.cut)))} if self.cut else {})

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> WayBack:
        """Raises `OnnxgenError` if an entry is damaged. Entries that are not there are empty."""
        tensors, uses = _entry(metadata, TENSORS), _entry(metadata, "uses")
        functions, quantised = _entry(metadata, "functions"), _entry(metadata, QUANTISED)
        return cls(tensors, uses, functions, quantised, recorded_cut(metadata))


def parts(entries: Any, shape: tuple[int, ...] = ()) -> Iterator[dict[str, Any]]:
    """Yield every part in a tensor's record. A tensor that is a whole state-dict tensor is one part of that `shape`."""
    for entry in entries if isinstance(entries, list) else [entries]:
        whole = {"key": entry, "size": [math.prod(shape)], "stride": [1]}
        yield from [whole] if isinstance(entry, str) else entry["parts"]


def _entry(metadata: Mapping[str, str], key: str) -> dict[str, Any]:
    try:
        return json_object(metadata.get(key, "{}"))
    except ValueError:
        raise OnnxgenError(f"entry {key!r} of the weights file is damaged", help=GENERATE_AGAIN) from None


def cut_of(options: Options) -> Cut | None:
    """Return the part that the options ask for, or None for the whole network."""
    return (tuple(options.inputs), tuple(options.outputs)) if options.inputs or options.outputs else None


def recorded_cut(metadata: Mapping[str, str]) -> Cut | None:
    """Return the part that a module was generated from, as its sidecar records it."""
    try:
        names = json_object(metadata[CUT])
        return tuple(map(str, names["inputs"])), tuple(map(str, names["outputs"]))
    except (KeyError, TypeError, ValueError):
        return None
