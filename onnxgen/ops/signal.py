"""Fourier transforms and mel filters."""

from __future__ import annotations

import ast

import onnx_ir as ir

from onnxgen.code.quote import OMIT, DeviceOf, unless
from onnxgen.graph.operators import PIECEWISE_CONSTANT, op
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.ops.cast import converted
from onnxgen.ops.rules import rules


@op("DFT", still="dft_length axis", **rules("dft"))
def dft(
    b: Builder,
    input: Arg,
    dft_length: Arg | None = None,
    axis: Arg | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> ast.expr:
    """Along one axis; the last axis has the real and the imaginary part."""
    return b.call(
        "dft",
        input,
        length=OMIT if dft_length is None else dft_length.as_int(),
        axis=OMIT if axis is None or axis.scalar == -2 else axis.as_int(),
        inverse=unless(bool(inverse), False),
        onesided=unless(bool(onesided), False),
    )


@op("STFT", still="frame_step window frame_length", **rules("stft"))
def stft(
    b: Builder,
    signal: Arg,
    frame_step: Arg,
    window: Arg | None = None,
    frame_length: Arg | None = None,
    *,
    onesided: int = 1,
) -> ast.expr:
    """Not `torch.stft`, which pads or centres frames: ONNX's frames are entirely inside the signal.

    A signal of two axes has real numbers: so says onnxruntime (core/providers/cpu/signal/dft.cc), the schema has three.
    """
    size = [*window.shape] if window is not None and window.shape is not None else None
    return b.call(
        "stft",
        b("x.unsqueeze(-1)", x=signal) if signal.known_rank == 2 else signal,
        frame_step.as_int(),
        window=unless(window, None),
        length=OMIT if frame_length is None or (size and size == frame_length.ints) else frame_length.as_int(),
        onesided=unless(bool(onesided), True),
    )


@op("MelWeightMatrix", flat=PIECEWISE_CONSTANT)
def mel_weight_matrix(
    b: Builder,
    num_mel_bins: Arg,
    dft_length: Arg,
    sample_rate: Arg,
    lower_edge_hertz: Arg,
    upper_edge_hertz: Arg,
    *,
    output_datatype: int = 1,
) -> ast.expr:
    """Filters that are computed in every call, since their inputs may be known only at run time."""
    sizes = [x.as_int() for x in (num_mel_bins, dft_length, sample_rate)]
    edges = [x.as_int() for x in (lower_edge_hertz, upper_edge_hertz)]
    filters = b.call("mel_weights", *sizes, *edges, DeviceOf())
    return converted(b, filters, ir.DataType.FLOAT, ir.DataType(output_datatype))
