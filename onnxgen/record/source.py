"""The ONNX file that a module was generated from."""

from __future__ import annotations

import sys
from pathlib import Path

from onnxgen.common.digest import file_sha256
from onnxgen.common.names import printable
from onnxgen.common.paths import is_same_place
from onnxgen.errors import OnnxgenError
from onnxgen.record.signature import Signature

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GENERATE_AGAIN = "generate module and weights again (to keep trained weights, rename them and give them with --weights)"


def source_of(module: Path, signature: Signature | None, onnx: Path | None = None) -> Path:
    """Return the ONNX file that a module was generated from (`onnx`: named by the user).

    Raises:
        OnnxgenError: the module's weights do not name the file, or it can't be found, or has changed.
    """
    if signature is None:
        what = f"the weights of {module} do not name the ONNX file that they came from"
        raise OnnxgenError(what, help=GENERATE_AGAIN)
    path = onnx or _found(module, signature.source)
    if not path.is_file():
        raise OnnxgenError(f"there is no file {path}")
    if file_sha256(path) != signature.sha256:
        what = f"{path} is not the file that {module} was generated from (the SHA-256 differs)"
        way_out = "generate the module from this file again, or name the original with --onnx"
        raise OnnxgenError(what, help=way_out)
    return path


def _found(module: Path, name: str) -> Path:
    """Find the ONNX file: beside the module by its recorded name, or as the project's pyproject.toml says."""
    beside = module.absolute().parent / Path(name).name
    if name and beside.is_file():
        return beside
    found = _configured(module.absolute())
    if found is not None and found.is_file():
        return found
    what = f"{module} was generated from {printable(name)}, which is not in the same folder"
    raise OnnxgenError(what, help="name the file with --onnx")


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
