"""Plugins of installed packages: the modules that entry points of the group `onnxgen.ops` name.

They are used without an option, so only for operators outside the domains of ONNX, onnxruntime and onnxgen. Thus an
installed package changes nothing for files that do not need it.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from onnxgen.errors import OnnxgenError

if TYPE_CHECKING:
    from onnxgen.graph.operators import OperatorTable

GROUP = "onnxgen.ops"


def found() -> list[EntryPoint]:
    """Return the entry points, sorted."""
    return sorted(set(entry_points(group=GROUP)), key=lambda e: (e.name, e.value))


def installed() -> OperatorTable:
    """Return the operators of all of them.

    Raises:
        OnnxgenError: one can't be imported, has no operator, or has the same operator as another.
    """
    from onnxgen.plugins.loading import Plugin, plugin, together

    plugins: dict[str, Plugin] = {}
    for entry in found():
        try:
            plugins.setdefault(entry.module, plugin(entry.module))
        except OnnxgenError as error:
            brought = f"entry point {entry.name} of {entry.dist.name if entry.dist is not None else 'a package'}"
            (problem,) = error.problems
            what = problem.what.removeprefix(f"--plugin {entry.module}: ")
            raise OnnxgenError(f"{brought}: {what}", help=problem.help) from error
    return together(plugins.values())
