"""Rewrites of the graph before lowering, in order, each with the reason for its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from onnxgen.errors import FIX_SHAPE, OnnxgenError, WrongRewrite, is_strict
from onnxgen.graph.annotations import CHECKED
from onnxgen.graph.element_types import NAMED
from onnxgen.options import Options
from onnxgen.paranoid.quick import NEEDED, checker_for, is_paranoid
from onnxgen.passes.activations import activations
from onnxgen.passes.added_bias import added_bias
from onnxgen.passes.affine import affine
from onnxgen.passes.attention import attention
from onnxgen.passes.axes import axes
from onnxgen.passes.batch import dynamic_batch
from onnxgen.passes.broadcasts import broadcasts
from onnxgen.passes.chosen import chosen
from onnxgen.passes.concats import concats
from onnxgen.passes.contrib import contrib
from onnxgen.passes.deviation import deviation
from onnxgen.passes.dropout import dropout
from onnxgen.passes.dynamic import dynamic
from onnxgen.passes.empty_rows import empty_rows
from onnxgen.passes.equal import equal_nodes
from onnxgen.passes.expand import expand
from onnxgen.passes.filled import filled
from onnxgen.passes.folded import restore_batchnorm
from onnxgen.passes.gradient import gradient
from onnxgen.passes.group_norm import group_norm
from onnxgen.passes.growing import growing
from onnxgen.passes.indexed import indexed
from onnxgen.passes.known import known
from onnxgen.passes.layer_sizes import layer_sizes
from onnxgen.passes.linear import linear
from onnxgen.passes.multihead import multihead
from onnxgen.passes.no_ops import aliases, no_ops
from onnxgen.passes.normalise import normalise, reciprocal_roots
from onnxgen.passes.norms import norms
from onnxgen.passes.one_row import one_row
from onnxgen.passes.paddings import paddings
from onnxgen.passes.pooling import pooling
from onnxgen.passes.quantized import quantized
from onnxgen.passes.quantized.fakes import once
from onnxgen.passes.quantized.moved import dequantise_rows
from onnxgen.passes.quantized.pairs import rounded
from onnxgen.passes.recurrent import recurrent
from onnxgen.passes.reductions import reductions
from onnxgen.passes.repeats import repeats
from onnxgen.passes.retype import retype
from onnxgen.passes.roll import roll
from onnxgen.passes.sequences import sequences
from onnxgen.passes.shared_nodes import shared_nodes
from onnxgen.passes.slices import slices
from onnxgen.passes.softmax import softmax
from onnxgen.passes.stack import stack
from onnxgen.passes.standardised import standardised
from onnxgen.passes.taken import decide, taken
from onnxgen.passes.tensordot import tensordot
from onnxgen.passes.text import text
from onnxgen.passes.trainable import kept, trainable
from onnxgen.passes.transformer import transformer
from onnxgen.passes.turned import turned
from onnxgen.passes.unbind import unbind
from onnxgen.passes.unrolled import unrolled
from onnxgen.passes.views import views
from onnxgen.scopes.between import infer_missing_scopes
from onnxgen.shapes import propagate
from onnxgen.shapes.dims import TooComplex

Pass = Callable[[ir.Model, Options], None]


def _propagate(model: ir.Model, options: Options) -> None:
    propagate(model.graph, options)


def _retype(model: ir.Model, options: Options) -> None:
    assert options.dtype is not None
    retype(model, NAMED[options.dtype])


PASSES: list[Pass] = [
    gradient,  # first: it differentiates the file's own graph
    aliases,  # second names of values would hide from every pass below what is computed of what
    quantized,  # if asked for; before contrib, which has functions for onnxruntime's operators on integers
    contrib,  # before trainable, which knows weights by the standard's operators
    dequantise_rows,  # before trainable: it writes new names of values
    rounded,  # after contrib, which writes other spellings of these
    dynamic,  # before trainable: what these layers have is not trained
    trainable,  # before anything is folded: trained tensors must not be folded
    _propagate,  # types, dims and constants, which the idioms' checks read
    kept,  # when it is decided what is trained; types are known then, which the second decision needs
    axes,  # also those of branches that are never taken
    decide,  # what ranks decide, while nodes are still those of the file
    taken,  # then inner values are all in one graph
    layer_sizes,  # after contrib, which writes layers, and before any pass moves their tensors
    axes,  # again: what is taken must fit the ranks, before anything counts axes modulo the rank
    expand,  # after propagation: a function body may depend on types
    text,  # text becomes numbers, so that the passes below meet nothing unusual
    known,  # shapes computed beside the data would count as users of it
    dynamic_batch,  # sizes are numbers now, and operators are still the exporter's: it has a rule for each
    sequences,
    no_ops,  # casts and identities would hide a pattern
    equal_nodes,  # when what changes nothing is gone, and before patterns ask who alone uses a value
    filled,
    chosen,
    indexed,  # before broadcasts, which takes an Expand away
    standardised,  # before norms, which would take the statistics that it computes beside
    dropout,  # before another idiom takes its Mul
    unrolled,  # before recurrent, which finds the module of such layers
    recurrent,
    roll,  # rolls and rotary embeddings start from Slices, which unbind would take
    one_row,  # before views, which takes the axes together
    unbind,  # after recurrent, whose states exporters cut with Slices
    repeats,  # before views, which would merge the Reshape that ends it
    stack,
    concats,  # before growing, which looks for lists that are taken on the way
    views,  # chains of reshapes hide a transpose
    tensordot,  # behind views, which makes one Reshape of several
    turned,  # before attention, which looks for the keys
    once,  # when moves are as few as they get
    broadcasts,  # an Expand before an operator that broadcasts hides a pattern, too
    reductions,  # before the idioms, which ask for means and for the axes that are kept
    norms,
    deviation,  # statistics that no norm has taken
    group_norm,
    pooling,  # means that no norm has taken
    paddings,
    activations,
    softmax,  # before attention, which looks for it
    normalise,
    reciprocal_roots,  # roots that no norm has taken
    multihead,  # before attention, which takes its inner part
    attention,  # before linear, which also starts from MatMul
    empty_rows,  # of attention that is still spelled out
    views,  # again: attention permutes the heads of an Einsum
    slices,
    growing,  # after all idioms, which look for whole lists
    shared_nodes,  # when chains are as short as they get
    added_bias,
    linear,
    transformer,  # around the layers that are found by now
    affine,  # what no idiom has taken
    infer_missing_scopes,  # for the remaining nodes; idioms are single nodes now
    restore_batchnorm,  # last: no idiom contains a norm that is put back
]


def simplify(model: ir.Model, options: Options, left_out: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run every pass, then give floats the type of `options.dtype`: idioms are recognised in the file's own type.

    Args:
        left_out: names of passes that do not run, each with the reason.

    Raises:
        OnnxgenError: a pass refuses the model, or meets a dim that is too complex to compute with.
        WrongRewrite: a pass changed what the network computes. The model is not to be used.
    """
    checker = checker_for(options, left_out)
    CHECKED.set(model, checker.counts)
    for step in PASSES if options.dtype is None else (*PASSES, _retype):
        try:
            checker.run(step, model, options)
        except TooComplex as error:
            raise OnnxgenError(str(error), help=FIX_SHAPE) from error


def simplified(model: ir.Model, options: Options, left_out: dict[str, str]) -> bool:
    """Run every pass but those that are left out. Returns False if one more must be: then the file is to be read again.

    Such a pass would change what the network computes. It is added to `left_out`, and `CHECKED` counts it.

    Raises:
        OnnxgenError: see `simplify`.
        WrongRewrite: `ONNXGEN_STRICT=1` is set, or the pass is needed, or the options ask for `--paranoid`.
    """
    try:
        simplify(model, options, left_out)
    except WrongRewrite as error:
        if is_strict() or is_paranoid(options) or error.step in (*NEEDED, *left_out):
            raise
        left_out[error.step] = str(error)
        return False
    return True
