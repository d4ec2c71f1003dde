"""onnxgen's backend for the tests: without black, which changes nothing that runs."""

from __future__ import annotations

import importlib.util
import itertools
import linecache
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx

from onnxgen.backend import OnnxgenBackend, OnnxgenRep
from tests.ops.harness import unformatted
from tests.support.defaults import given_defaults

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
