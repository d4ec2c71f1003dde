"""Copy an ONNX file out of an installed package into the current folder.

    python -m samples.deployed.file ddddocr/common.onnx

The package isn't imported. The file stays what it is: other people's, to be read.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path


def find(name: str) -> Path:
    """The path of "package/file.onnx", in whatever folder of the package it lies.

    Raises `FileNotFoundError` if the package isn't installed, or has no such file.
    """
    package, file = name.split("/", 1)
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).rglob(file)):
            return path
    how = f"the installed {package} has no {file}" if spec else f"{package} is not installed: see samples/deployed"
    raise FileNotFoundError(how)


if __name__ == "__main__":
    try:
        print(shutil.copy(find(sys.argv[1]), "."))
    except (IndexError, FileNotFoundError) as e:
        sys.exit(str(e) if len(sys.argv) > 1 else (__doc__ or "").strip())
