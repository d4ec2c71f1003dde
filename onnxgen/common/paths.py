"""Paths of onnxgen's own files, in a wheel, an sdist, an editable install or a bare checkout.

The top-level folder `templates/` is installed as the package `onnxgen.templates`. In an editable install and in a
checkout it stays where it is, beside the package, so both places are looked at (`jinja2.PackageLoader` looks at
the first only).
"""

from __future__ import annotations

import shlex
from pathlib import Path

from onnxgen.errors import OnnxgenError

_HERE = Path(__file__).resolve().parents[1]


def templates_dir() -> Path:
    """The folder with the Jinja templates.

    Raises:
        OnnxgenError: the installation is incomplete.
    """
    for folder in (_HERE / "templates", _HERE.parent / "templates"):
        if (folder / "__init__.py").is_file():
            return folder
    raise OnnxgenError("the templates of onnxgen are missing; install onnxgen again")


def helper_files() -> list[Path]:
    """The files whose functions are copied into generated files, by name: onnxgen's, and those of bundled plugins."""
    return sorted([*_HERE.glob("helpers/*.py"), *_HERE.glob("*/helpers/*.py")], key=lambda path: path.name)


def installing(extra: str) -> str:
    """The way out where a package is missing: onnxgen is installed from its own folder, not from a package index."""
    folder = str(_HERE.parent) if (_HERE.parent / "pyproject.toml").is_file() else "PATH"
    return f"pip install {shlex.quote(f'{folder}[{extra}]')}" + (" (PATH: onnxgen's own folder)" * (folder == "PATH"))


def python_file(path: Path) -> Path:
    """Return the path of a module unchanged. Raises `OnnxgenError` if Python cannot import a file of that name."""
    if path.suffix != ".py":
        raise OnnxgenError(
            f"{path} is not a Python file", help=f"name a file that ends in .py: {path.with_suffix('.py')}"
        )
    return path
