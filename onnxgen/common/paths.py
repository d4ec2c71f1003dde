"""Paths of onnxgen's own files, in a wheel, an sdist, an editable install or a bare checkout.

The top-level folder `templates/` is installed as the package `onnxgen.templates`. In an editable install and in a
checkout it stays where it is, beside the package, so both places are looked at (`jinja2.PackageLoader` looks at
the first only).
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from onnxgen.errors import OnnxgenError, Problems

RECORD = "run.json"  # in the folder of a run
_HERE = Path(__file__).resolve().parents[1]
_EXTRAS = {  # the modules that each extra of pyproject.toml installs, as they are imported; "" is onnxgen itself
    "": "black click jinja2 numpy onnx onnx_ir platformdirs pygments rich safetensors",
    "torch": "torch",
    "verify": "onnxruntime",
    "train": "PIL lightning matplotlib sklearn tensorboard torchmetrics yaml",
    "detection": "faster_coco_eval",
    "lora": "peft",
    "text": "tokenizers",
    "generate": "transformers",
    "sound": "soundfile scipy",
    "watch": "watchfiles",
    "wandb": "wandb",
    "mlflow": "mlflow",
}
_EXTRA_OF = {module: extra for extra, modules in _EXTRAS.items() for module in modules.split()}


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
    """The way out where a package is missing: the command that installs onnxgen again, from where it came from."""
    of_checkout = (_HERE.parent / "pyproject.toml").is_file()
    source = str(_HERE.parent) if of_checkout else _source()
    pinned = (_HERE.parent if of_checkout else _folder_of(source)) / "constraints.txt"
    if extra:
        source = f"onnxgen[{extra}] @ {source}" if "://" in source else f"{source}[{extra}]"
    kept = f"-c {shlex.quote(str(pinned))} " if _is_installed(pinned) else ""
    return f"pip install {kept}{shlex.quote(source)}"


def is_same_place(one: Path | str, other: Path | str) -> bool:
    """Return True if both lead to one place. A link to itself leads nowhere, and `Path.resolve` fails on it."""
    return os.path.realpath(one) == os.path.realpath(other)


def _folder_of(address: str) -> Path:
    """Return the folder that an address `file:///...` names: a checkout that pip installed a copy of."""
    from urllib.parse import urlsplit  # for errors alone, as below
    from urllib.request import url2pathname

    return Path(url2pathname(urlsplit(address).path)) if address.startswith("file:") else Path(os.devnull)


def _is_installed(constraints: Path) -> bool:
    """Return True if what is installed of these packages has the versions that the file names."""
    try:
        lines = constraints.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    wanted = [line.partition("==")[::2] for line in lines if "==" in line and not line.startswith("#")]
    pairs = [(_version(name.strip()), version.split(";")[0].strip()) for name, version in wanted]
    return any(version for version, _ in pairs) and all(version in ("", pinned) for version, pinned in pairs)


def _version(name: str) -> str:
    """Return the version of an installed package, without the build's own part (`+cpu`); "" if it is not installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution(name).version.partition("+")[0]
    except PackageNotFoundError:
        return ""


def like(path: Path, way: str) -> str:
    """Return help for a file that is not there: the one in its folder with the most similar name, else `way`."""
    import difflib  # for errors alone

    try:
        names = [other.name for other in path.parent.iterdir() if other.suffix == path.suffix]
    except OSError:
        names = []
    close = difflib.get_close_matches(path.name[:100], names, 1)
    return f"did you mean {path.parent / close[0]}?" if close else way


def _source() -> str:
    """What pip was given: an address, which pip records (PEP 610), or the name."""
    from importlib.metadata import PackageNotFoundError, distribution  # for errors alone, as above

    try:
        recorded = distribution("onnxgen").read_text("direct_url.json")
        return str(json.loads(recorded or "{}").get("url", "onnxgen"))
    except (PackageNotFoundError, ValueError):
        return "onnxgen"


def lacking(error: ModuleNotFoundError) -> OnnxgenError | None:
    """Return the error for a missing module that onnxgen or one of its extras installs; None for any other module."""
    module = (error.name or "").partition(".")[0]
    if module not in _EXTRA_OF:
        return None
    return OnnxgenError(f"the module {module} is not installed", help=installing(_EXTRA_OF[module]))


def need(modules: Iterable[str]) -> None:
    """Raise one `OnnxgenError` for all of the modules that are not installed, without importing them."""
    problems = Problems()
    for module in modules:
        if find_spec(module) is None and (error := lacking(ModuleNotFoundError(name=module))) is not None:
            problems.add(error.problems[0])
    problems.raise_if_any()


def refuse_hiding(path: Path) -> None:
    """Raise `OnnxgenError` if programs in the module's folder would import it in place of one that torch imports.

    In a package, the package's name comes before the module's.
    """
    if path.stem in {"torch", "numpy", "safetensors", *sys.stdlib_module_names}:
        if not (path.parent / "__init__.py").is_file():
            what = f"{path} would hide Python's module {path.stem!r} from every program in its folder"
            raise OnnxgenError(what, help=f"name another file, such as {path.with_name(f'{path.stem}_model.py')}")


def python_file(path: Path) -> Path:
    """Return the path of a module unchanged. Raises `OnnxgenError` if Python cannot import a file of that name."""
    if path.suffix != ".py":
        module = path.with_suffix(".py")
        way = f"name a file that ends in .py: {module}"
        if path.suffix == ".onnx" and path.is_file():
            way = f"first: onnxgen {path} -o {module}; then name {module}"
        raise OnnxgenError(f"{path} is not a Python file", help=way)
    return path
