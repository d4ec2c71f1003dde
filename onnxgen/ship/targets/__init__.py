"""The files that `onnxgen ship` writes, each by one file in this folder."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from onnxgen.errors import OnnxgenError
from onnxgen.ship.target import SHIPS, Target

TARGETS: dict[str, Target] = {
    target.name: target
    for found in pkgutil.iter_modules(__path__)
    for target in import_module(f"{__name__}.{found.name}").TARGETS
}


def target_of(name: str) -> Target:
    """Return the target of a name. Raises `OnnxgenError` if there is none, or if its packages are not installed."""
    from importlib.util import find_spec

    if name not in TARGETS:
        raise OnnxgenError(f"nothing is shipped as {name!r}", help=f"--to {'|'.join(SHIPS)}")
    target = TARGETS[name]
    if missing := [package for package, module in target.needs.items() if find_spec(module) is None]:
        what = f"--to {name} needs {', '.join(missing)}, which is not installed"
        raise OnnxgenError(what, help=f"pip install 'onnxgen[{target.extra}]'")
    return target
