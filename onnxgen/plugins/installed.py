"""Plugins that installed packages bring: the modules that entry points of the group `onnxgen.ops` name.

They count without being asked for, and so only for operators of domains that are neither the standard's, onnxruntime's
nor onnxgen's: what is installed beside onnxgen changes nothing of files that need nothing of it.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from onnxgen.errors import OnnxgenError

if TYPE_CHECKING:
    from onnxgen.graph.operators import OperatorTable

GROUP = "onnxgen.ops"


def found() -> list[EntryPoint]:
    """The entry points, in an order that does not depend on the environment's."""
    return sorted(set(entry_points(group=GROUP)), key=lambda e: (e.name, e.value))


def installed() -> OperatorTable:
    """The operators of all of them.

    Raises:
        OnnxgenError: one can't be imported, has no operator, or has one that another has, too.
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
