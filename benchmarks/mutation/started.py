"""What the processes do first that a test starts: they note the lines that they run, or they have the mistake, too.

A line of `site-packages` runs this file in every process whose environment has `ONNXGEN_MUTATION`: tests give processes
another PYTHONPATH, so a `sitecustomize` would not be found. It must not import anything of this repository.
"""

from __future__ import annotations

import atexit
import importlib.machinery
import marshal
import os
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STARTED = "ONNXGEN_MUTATION"  # in the environment: this file
LINES = "ONNXGEN_MUTATION_LINES"  # the file in which lines are noted
CONTEXT = "ONNXGEN_MUTATION_CONTEXT"  # the test that runs now
MUTANT = "ONNXGEN_MUTANT"  # a file with the path of a module and its bytecode
LINE = f"import os; p = os.environ.get('{STARTED}'); p and exec(open(p).read(), {{'__name__': 'started'}})\n"


@contextmanager
def told() -> Iterator[None]:
    """Processes that are started run this file first."""
    place = Path(sysconfig.get_paths()["purelib"], "onnxgen_mutation.pth")
    place.write_text(LINE)
    os.environ[STARTED] = __file__
    try:
        yield
    finally:
        place.unlink(missing_ok=True)
        del os.environ[STARTED]


def lines_noted(file: str, context: str | None) -> Any:
    """Note from now on which lines of the product run; returns coverage's object."""
    import coverage

    root = os.environ["ONNXGEN_MUTATION_ROOT"]
    folders = [os.path.join(root, name, "*") for name in ("onnxgen", "build_hooks")]
    noted = coverage.Coverage(
        data_file=file, data_suffix=True, include=folders, context=context, config_file=False, messages=False
    )
    noted._warn_no_data = False
    noted.start()
    return noted


def substitute(file: str) -> None:
    """Import one module with the mistake that a file has."""
    path, wrong = marshal.loads(Path(file).read_bytes())
    right = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: Any, fullname: str) -> Any:
        is_it = os.path.basename(self.path) == os.path.basename(path) and os.path.realpath(self.path) == path
        return wrong if is_it else right(self, fullname)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def _begin() -> None:
    if file := os.environ.get(MUTANT):
        substitute(file)
    if (file := os.environ.get(LINES)) and CONTEXT in os.environ:
        noted = lines_noted(file, os.environ[CONTEXT])

        def save() -> None:
            noted.stop()
            noted.save()

        atexit.register(save)


if __name__ == "started":
    _begin()
