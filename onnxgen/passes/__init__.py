"""Rewrites of the graph before lowering, in order, each with the reason why it stands there."""

from __future__ import annotations

import os
from collections.abc import Callable

import onnx_ir as ir

from onnxgen.errors import FIX_SHAPE, OnnxgenError
from onnxgen.graph.annotations import CHECKED
from onnxgen.options import Options
from onnxgen.passes.activations import activations
from onnxgen.passes.added_bias import added_bias
from onnxgen.passes.attention import attention
from onnxgen.passes.axes import axes
from onnxgen.passes.batch import dynamic_batch
from onnxgen.passes.broadcasts import broadcasts
from onnxgen.passes.contrib import contrib
from onnxgen.passes.deviation import deviation
from onnxgen.passes.dropout import dropout
from onnxgen.passes.empty_rows import empty_rows
from onnxgen.passes.expand import expand
from onnxgen.passes.folded import restore_batchnorm
from onnxgen.passes.gradient import gradient
from onnxgen.passes.group_norm import group_norm
from onnxgen.passes.growing import growing
from onnxgen.passes.known import known
from onnxgen.passes.linear import linear
from onnxgen.passes.no_ops import no_ops
from onnxgen.passes.normalise import normalise, reciprocal_roots
from onnxgen.passes.norms import norms
from onnxgen.passes.paddings import paddings
from onnxgen.passes.pooling import pooling
from onnxgen.passes.quantized import quantized
from onnxgen.passes.recurrent import recurrent
from onnxgen.passes.repeats import repeats
from onnxgen.passes.retype import DTYPES, retype
from onnxgen.passes.roll import roll
from onnxgen.passes.rotary import rotary
from onnxgen.passes.sequences import sequences
from onnxgen.passes.shared_nodes import shared_nodes
from onnxgen.passes.slices import slices
from onnxgen.passes.softmax import softmax
from onnxgen.passes.stack import stack
from onnxgen.passes.text import text
from onnxgen.passes.trainable import trainable
from onnxgen.passes.unbind import unbind
from onnxgen.passes.views import views
from onnxgen.scopes.between import infer_missing_scopes
from onnxgen.shapes import propagate
from onnxgen.shapes.dims import TooComplex

Pass = Callable[[ir.Model, Options], None]
PARANOID = "ONNXGEN_PARANOID"  # in the environment: as if `Options.paranoid` were set


def _propagate(model: ir.Model, options: Options) -> None:
    propagate(model.graph, options)


PASSES: list[Pass] = [
    gradient,  # first: what is differentiated is the file's own graph
    quantized,  # if asked for: floats instead of integers; contrib has the integers of onnxruntime's operators
    contrib,  # what onnxruntime fused, whose weights trainable knows by the standard's operators
    trainable,  # before all that folds: nothing that is trained may be
    _propagate,  # types, dims and constants, which the idioms' checks read
    axes,  # refuses axes out of range, before anything counts them modulo the rank
    expand,  # operators that only the standard's function bodies define; these may depend on types
    text,  # operators that only move text do so with numbers; the passes below then meet nothing unusual
    known,  # shapes computed beside the data would count as users of it
    dynamic_batch,  # when sizes are numbers, and operators still the exporter's: it has a rule for each
    sequences,  # lists that are taken apart again at once
    no_ops,  # casts and identities that would hide a pattern
    dropout,  # random numbers, before anything takes the product for its own
    recurrent,  # LSTM, GRU and RNN as torch's layers
    rotary,  # these and rolls begin with Slices, which would be the parts of an axis
    roll,
    unbind,  # the parts of a packed projection; after the layers whose states are cut up by Slices
    repeats,  # heads that several queries share; ends with a Reshape
    stack,
    views,  # chains of reshapes that hide a transpose
    broadcasts,  # an Expand before what broadcasts would hide a pattern, too
    norms,  # LayerNorm and RMSNorm spelled out
    deviation,  # statistics that are no norm's
    group_norm,  # GroupNorm spelled out
    pooling,  # what global pooling the norms have left
    paddings,  # a Pad before a convolution or pool
    activations,  # GELU, SiLU and their like spelled out
    softmax,  # softmax, log_softmax and logsumexp spelled out; before attention, which looks for them
    normalise,  # vectors divided by their norms
    reciprocal_roots,  # what the norms have left
    attention,  # before Linear, which also starts from MatMul
    empty_rows,  # of the attention that is still spelled out
    views,  # what Einsum's orders of axes leave of the heads' own
    slices,  # a Slice for each axis
    growing,  # no idiom looks for a part of a list
    shared_nodes,  # chains are as short as they get
    added_bias,  # a convolution's bias that is added to its result
    linear,  # MatMul + Add: one nn.Linear
    infer_missing_scopes,  # for what is left; idioms are single nodes now
    restore_batchnorm,  # last: no idiom has a norm of ours in it
]


def simplify(model: ir.Model, options: Options) -> None:
    """Run every pass, and give floats the type that is asked for: idioms are recognised in the file's own.

    Raises:
        OnnxgenError: a pass refuses the model, or meets a dim that is too complex to compute with.
        WrongRewrite: with `options.paranoid`, a pass changed what the network computes.
    """
    run = _running(model, options)
    for step in PASSES:
        try:
            run(step, model, options)
        except TooComplex as error:
            raise OnnxgenError(str(error), help=FIX_SHAPE) from error
    if options.dtype:
        retype(model, DTYPES[options.dtype])


def _running(model: ir.Model, options: Options) -> Callable[[Pass, ir.Model, Options], None]:
    """The function that runs a pass; with `--paranoid` it also compares, and notes what it found."""
    if not options.paranoid and os.environ.get(PARANOID, "") in ("", "0"):
        return lambda step, *given: step(*given)
    from onnxgen.paranoid.check import Checker

    checker = Checker()
    CHECKED.set(model, checker.counts)
    return checker.run
