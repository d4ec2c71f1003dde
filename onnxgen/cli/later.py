"""Delay imports until a module is used.

onnx_ir imports sympy, for arithmetic with symbolic dims that onnxgen does not use. That takes a quarter of a second, a
third of generating a small model (with onnx_ir 1.1). If onnx_ir renames its private module, sympy is imported at once.
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
    """Delay the import of sympy, by modules that are imported in this context, until its first use.

    Only for onnxgen's own processes: before Python 3.12, a lazy import is not safe with several threads.
    """
    finder = _Later()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
