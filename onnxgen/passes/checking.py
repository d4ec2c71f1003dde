"""How passes run: checked by `onnxgen.paranoid`, or alone in a copy of onnxgen that has none."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import onnx_ir as ir

from onnxgen.common.paths import installing
from onnxgen.common.timing import IMPORTS, stage
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options

if TYPE_CHECKING:
    from onnxgen.paranoid.check import Counts

Pass = Callable[[ir.Model, Options], None]
CHECKS = "onnxgen.paranoid.quick"


class Runner(Protocol):
    """Runs the passes of one model.

    Attributes:
        counts: what was compared so far; None if nothing is.
    """

    counts: Counts | None

    def run(self, step: Pass, model: ir.Model, options: Options) -> None:
        """Run one pass. Raises `WrongRewrite` if it changed what the network computes."""


class Unchecked:
    """Runs passes without a check."""

    counts: Counts | None = None

    def run(self, step: Pass, model: ir.Model, options: Options) -> None:
        step(model, options)


@cache
def checker_module() -> Any:
    """Return the module that checks passes; None if it is missing."""
    with stage(IMPORTS):
        try:
            return importlib.import_module(CHECKS)
        except ModuleNotFoundError as error:
            if error.name is None or not CHECKS.startswith(error.name):
                raise
            return None


def runner_for(options: Options, left_out: Mapping[str, str]) -> Runner:
    """Return what runs the passes. `left_out`: those that do not run, each with the reason.

    Raises:
        OnnxgenError: the options ask for a check that is missing.
    """
    if checker_module() is not None:
        runner: Runner = checker_module().checker_for(options, left_out)
        return runner
    if options.paranoid:
        what = "--paranoid: the package onnxgen.paranoid is missing"
        raise OnnxgenError(what, help=f"install onnxgen again: {installing('')}")
    return Unchecked()
