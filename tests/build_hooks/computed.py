"""Installed modules, imported in a process of its own and held to onnxruntime: python computed.py JSON [FOLDER]

JSON has the ONNX file by the module's name. FOLDER is imported from as from `site-packages`. The file of each module is
printed.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import site
import sys
import traceback
from collections.abc import Iterator, Sequence
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def main(modules: str, *folders: str) -> Iterator[str]:
    import numpy
    import onnxruntime
    import torch

    for folder in folders:
        site.addsitedir(folder)  # as an installation: its .pth files count
    for name, source in json.loads(modules).items():
        module = importlib.import_module(name)
        model = module.Model.from_pretrained().eval()
        x = numpy.random.default_rng(7).standard_normal((5, 4), dtype=numpy.float32)
        session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
        (expected,) = session.run(None, {"x": x})
        with torch.inference_mode():
            numpy.testing.assert_allclose(model(torch.from_numpy(x)).numpy(), expected, rtol=1e-5, atol=1e-6)
        yield f"{name} {module.__file__}"
    assert "onnxgen" not in sys.modules


@cache
def _context() -> Any:
    """Processes are forked from one that has imported what takes long, once for all."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["numpy", "onnxruntime", "torch"])
    return context


def forked(given: Sequence[str], cwd: Path) -> tuple[bool, str]:
    """Whether all is right, and what `main` says or how it failed."""
    ours, theirs = _context().Pipe()
    child = _context().Process(target=_child, args=(theirs, cwd, list(given)))
    child.start()
    theirs.close()
    try:
        told: tuple[bool, str] = ours.recv()
    except EOFError:
        told = (False, "the process died")
    child.join()
    return told


def _child(pipe: Connection, cwd: Path, given: list[str]) -> None:
    os.chdir(cwd)
    try:
        pipe.send((True, "\n".join(main(*given))))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


if __name__ == "__main__":
    print("\n".join(main(*sys.argv[1:])))
