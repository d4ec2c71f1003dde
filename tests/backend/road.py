"""onnxgen's backend for the tests: without black, which changes nothing that runs."""

from __future__ import annotations

import importlib.util
import itertools
import linecache
import sys
import unittest
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import onnx.backend.test

from onnxgen.backend import OnnxgenBackend, OnnxgenRep
from tests.backend.exclusions import ROUNDED
from tests.ops.harness import unformatted
from tests.support.defaults import given_defaults
from tests.support.onnx_cases import kept_cases

_numbers = itertools.count()


class Road(OnnxgenBackend):
    """The backend, quicker."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> OnnxgenRep:
        with unformatted():  # two thousand files
            rep = super().prepare(model, device, **kwargs)
        source = "".join(linecache.getlines(type(rep.module).forward.__code__.co_filename))
        assert source and given_defaults(source) == [], "what torch takes anyway is not written"
        return rep


def imported(path: Path) -> ModuleType:
    """A file as a module."""
    spec = importlib.util.spec_from_file_location(f"generated_{next(_numbers)}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module


def cases_on(device: str, excluded: Iterable[str], module: str) -> dict[str, type[unittest.TestCase]]:
    """ONNX's own backend tests on a device ("cpu", "cuda"), as classes that pytest finds in `module`."""
    with kept_cases():
        suite = onnx.backend.test.BackendTest(Road, module, test_kwargs=ROUNDED)
    for pattern in excluded:
        suite.exclude(pattern)
    found: dict[str, type[unittest.TestCase]] = suite.test_cases
    for cases in found.values():
        for name in list(vars(cases)):
            if name.startswith("test_") and not name.endswith(f"_{device}"):
                delattr(cases, name)
    return found
