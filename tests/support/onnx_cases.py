"""ONNX's own node tests, made once for an installation: ONNX computes them anew in every process, for nine seconds.

They are kept in `build/`, under a name that says of which files and packages they came.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import onnx
import onnx.backend.test.loader
import onnx.backend.test.runner

BUILD = Path(__file__).resolve().parents[2] / "build"


@cache
def node_cases() -> list[Any]:
    """Return ONNX's own node tests, as `onnx.backend.test.loader.load_node_model_tests` does."""
    path = BUILD / f"onnx-cases-{made_of()}.pickle"
    with suppress(Exception):  # there is none, or another process was killed while it wrote
        kept: list[Any] = pickle.loads(path.read_bytes())
        return kept
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = list(onnx.backend.test.loader.load_node_model_tests())
    with suppress(OSError):
        BUILD.mkdir(exist_ok=True)
        handle, name = tempfile.mkstemp(dir=BUILD)
        with os.fdopen(handle, "wb") as file:
            pickle.dump(made, file, 5)
        os.replace(name, path)
    return made


def made_of() -> str:
    """Name what the tests are made of: ONNX's files, and the packages that compute what is stated."""
    packages = [f"{name} {version(name)}" for name in ("onnx", "numpy", "ml_dtypes", "protobuf")]
    folder = Path(onnx.__file__).parent
    files = [path for part in ("backend", "reference") for path in sorted((folder / part).rglob("*.py"))]
    facts = [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files]
    return hashlib.sha256(repr((sys.version, packages, facts)).encode()).hexdigest()[:16]


@contextmanager
def kept_cases() -> Iterator[None]:
    """Let ONNX's runner take the kept tests while it lists what it runs."""
    load = onnx.backend.test.runner.load_model_tests

    def loaded(*args: Any, kind: str | None = None, **kwargs: Any) -> list[Any]:
        return node_cases() if kind == "node" else load(*args, kind=kind, **kwargs)

    with mock.patch.object(onnx.backend.test.runner, "load_model_tests", loaded):
        yield
