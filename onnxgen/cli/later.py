"""Imports that wait until something is asked of them.

onnx_ir imports sympy, for arithmetic with symbolic dims that onnxgen does not ask it for: a quarter of a second, which
is a third of generating a small model. (Measured with onnx_ir 1.1. Should its private module be called otherwise one
day, sympy is imported at once, as ever.)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

LATER = ("sympy", "onnx_ir._symbolic_shapes")


class _Later(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, path, target) if fullname in LATER else None
        if found is not None and found.loader is not None:
            found.loader = LazyLoader(found.loader)
        return found


@contextmanager
def sympy_later() -> Iterator[None]:
    """What is imported in this context imports sympy when it first looks into it.

    For processes of our own: before Python 3.12 two threads that look at once are in each other's way.
    """
    finder = _Later()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
