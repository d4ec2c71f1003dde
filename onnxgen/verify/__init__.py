"""The numeric check: compare a generated module with its ONNX file, forward and backward.

Each run draws seeded inputs, computes the outputs with an oracle (onnxruntime, or `onnx.reference` if that can't run
the file), and compares shape, dtype and every element. If the oracle refuses inputs, others are drawn. If it refuses
them all, the verification fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgen._callable import callable_module
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.verify.report import Gradients, Integrity, Located, OutputCheck, Run, VerifyReport

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Gradients", "Integrity", "Located", "OutputCheck", "Run", "VerifyReport", "verify"]


def verify(
    model: Path | str,
    module: Path | str | nn.Module | None = None,
    *,
    options: Options | None = None,
    runs: int = 3,
    seed: int = 0,
    rtol: float = 1e-3,
    atol: float = 1e-5,
    feeds: Sequence[Mapping[str, Any]] | None = None,
    sizes: Mapping[str, int] | None = None,
    integrity: bool = False,
    locate: bool = False,
    partial: bool = False,
) -> VerifyReport:
    """Compare a module with its ONNX file: every output's value, shape and dtype, then the gradients.

    A graph that records training mode is compared in that mode: BatchNorm uses batch statistics (the running ones are
    restored afterwards), and Dropout drops nothing on either side. Any other graph is compared in eval mode. Integers,
    booleans and strings must be equal; NaN equals NaN. Outputs in half precision, and all outputs of a graph that
    computes in it, get a wider tolerance, which the report names. If an output depends on random numbers, only its
    shape and dtype are compared. A float module of a quantised file is run on inputs over the file's whole quantised
    range, and may differ by as much as rounding explains. If that could hide a wrong module, `report.untold` has the
    reason, and the report does not agree.

    Args:
        model: the ONNX file.
        module: a generated file, an `nn.Module` that takes the graph's inputs in order, or None for `load(model)`.
        options: the options that the module was generated with (`input_shapes` fixes dims here too).
        runs: the number of sets of inputs; dynamic dims have other sizes in each.
        seed: for the inputs; the same seed draws the same ones on every machine.
        rtol, atol: an element agrees if `|got - expected| <= atol + rtol * |expected|`.
        feeds: your own inputs instead of drawn ones: for each run, numpy arrays by input name.
        sizes: sizes of dynamic dims of inputs, by name; others are drawn.
        locate: if something differs, find the first node that does (`report.located`).
        integrity: also compare every tensor of the sidecar with the ONNX file, bit for bit.
        partial: load what fits into an edited file. If that is not all, outputs may differ (`VerifyReport.partial`).

    Returns:
        the report; `report.agrees` is the verdict.

    Raises:
        OnnxgenError: the file or the module can't be read, torch is missing, or no oracle would run on any input.
    """
    from onnxgen.runtime.load import need_torch

    if runs < 1 or rtol < 0 or atol < 0:
        raise OnnxgenError("verifying needs at least one run, and tolerances that are not negative")
    if (partial or integrity) and not isinstance(module, (str, Path)):
        raise OnnxgenError("partial and integrity read the weights file: give the path of the generated module")
    if partial and (integrity or locate):
        raise OnnxgenError("partial excludes integrity and locate: compare the module as it was generated with them")
    need_torch("verify", "verify")
    from onnxgen.verify.check import Check  # imported here, since it imports torch

    check = Check(Path(model), options or Options(), rtol=rtol, atol=atol, sizes=sizes)
    return check.verify(module, runs=runs, seed=seed, feeds=feeds, integrity=integrity, locate=locate, partial=partial)


callable_module(__name__, verify)
