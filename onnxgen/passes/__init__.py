"""Rewrites of the graph before lowering, in order, each with the reason for its place."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from onnxgen.errors import FIX_SHAPE, OnnxgenError, WrongRewrite, is_strict
from onnxgen.graph.annotations import CHECKED
from onnxgen.graph.nodes import NAMED, all_nodes
from onnxgen.graph.operators import find, having
from onnxgen.graph.traits import COMPARISON, ELEMENTWISE, MOVES, RANDOM, RECURRENT, REDUCTION, RESHAPE, SOFTMAX, Trait
from onnxgen.options import Options
from onnxgen.passes.checking import Pass, checker_module, runner_for
from onnxgen.scopes.between import infer_missing_scopes
from onnxgen.shapes import propagate
from onnxgen.shapes.dims import TooComplex

Operators = frozenset[tuple[str, str]]  # of a graph, as (domain, name)


class Step:
    """A pass, which is loaded when it runs first: few graphs have what most passes look for.

    Args:
        place: the module in this package, and the name of its function if that is another one ("no_ops:aliases").
        starts: names of operators and traits. The pass changes nothing in a graph that has no such operator.
        when: the same of the operators of the graph and the options.
    """

    def __init__(
        self, place: str, *starts: str | Trait, when: Callable[[Operators, Options], bool] | None = None
    ) -> None:
        self.module, _, name = place.partition(":")
        self.__name__ = name or self.module.rpartition(".")[2]
        self.starts, self.when = starts, when

    def __call__(self, model: ir.Model, options: Options) -> None:
        module = importlib.import_module(f"{__name__}.{self.module}")
        getattr(module, self.__name__)(model, options)

    def concerns(self, operators: Operators, options: Options) -> bool:
        """Return True if the pass may change a graph with these operators."""
        if self.when is not None:
            return self.when(operators, options)
        names = frozenset[str]().union(*(having(s) if isinstance(s, Trait) else s.split() for s in self.starts))
        return not self.starts or any(name in names for _, name in operators)


def _is_quantised(operators: Operators, options: Options) -> bool:
    return options.quantized != "keep"


def _has_unknown(operators: Operators, options: Options) -> bool:
    return any(find(domain, name, sys.maxsize) is None for domain, name in operators)


def _frees_batch(operators: Operators, options: Options) -> bool:
    return options.dynamic_batch


def _restores(operators: Operators, options: Options) -> bool:
    return options.restore_batchnorm


def _propagate(model: ir.Model, options: Options) -> None:
    propagate(model.graph, options)


def _retype(model: ir.Model, options: Options) -> None:
    from onnxgen.passes.retype import retype

    assert options.dtype is not None
    retype(model, NAMED[options.dtype])


PASSES: list[Pass] = [
    Step("gradient", "Gradient"),  # first: it differentiates the file's own graph
    Step("no_ops:aliases"),  # second names of values would hide from every pass below what is computed of what
    # if asked for; before contrib, which has functions for onnxruntime's operators on integers
    Step("quantized", when=_is_quantised),
    Step("contrib", when=_has_unknown),  # before trainable, which knows weights by the standard's operators
    Step("quantized.moved:dequantise_rows", "DequantizeLinear"),  # before trainable: it writes new names of values
    Step("quantized.pairs:rounded", "DequantizeLinear"),  # after contrib, which writes other spellings of these
    Step("dynamic", "MatMulInteger ConvInteger"),  # before trainable: what these layers have is not trained
    Step("trainable"),  # before anything is folded: trained tensors must not be folded
    _propagate,  # types, dims and constants, which the idioms' checks read
    Step("trainable:kept"),  # when it is decided what is trained; types are known then, which the second decision needs
    Step("checks:axes"),  # also those of branches that are never taken
    Step("expand:decide"),  # what ranks decide, while nodes are still those of the file
    Step("expand:taken"),  # then inner values are all in one graph
    Step("checks:layer_sizes"),  # after contrib, which writes layers, and before any pass moves their tensors
    Step("checks:axes"),  # again: what is taken must fit the ranks, before anything counts axes modulo the rank
    Step("expand"),  # after propagation: a function body may depend on types
    Step("text"),  # text becomes numbers, so that the passes below meet nothing unusual
    Step("no_ops:known"),  # shapes computed beside the data would count as users of it
    # sizes are numbers now, and operators are still the exporter's: it has a rule for each
    Step("batch:dynamic_batch", when=_frees_batch),
    Step("shared_nodes:shared_views", MOVES),  # before no_ops and unbind, which would merge what is apart
    Step("sequences", "SplitToSequence"),
    Step("no_ops"),  # casts and identities would hide a pattern
    Step("no_ops:equal_nodes"),  # when what changes nothing is gone, and before patterns ask who alone uses a value
    Step("broadcasts:filled", "ConstantOfShape"),
    Step("indexed:chosen", "GatherND Gather NonZero"),
    Step("indexed", COMPARISON, "GatherND And"),  # before broadcasts, which takes an Expand away
    Step("indexed:whole", "GatherND Gather"),  # after the masks, which are found by GatherND
    Step("norms:standardised", "BatchNormalization"),  # before norms, which would take its statistics
    Step("dropout", RANDOM),  # before another idiom takes its Mul
    Step("unrolled", "Gemm MatMul"),  # before recurrent, which finds the module of such layers
    Step("recurrent", RECURRENT),
    Step("concats:roll", "Concat"),  # rolls and rotary embeddings start from Slices, which unbind would take
    Step("convolutions:one_row", "Squeeze"),  # before views, which takes the axes together
    Step("slices:unbind", "Gather Slice Split"),  # after recurrent, whose states exporters cut with Slices
    Step("broadcasts:repeats", "Expand Tile"),  # before views, which would merge the Reshape that ends it
    Step("concats:stack", "Concat"),
    Step("concats", "Concat"),  # before growing, which looks for lists that are taken on the way
    Step("views"),  # chains of reshapes hide a transpose
    Step("linear:tensordot", "Einsum Reshape"),  # behind views, which makes one Reshape of several
    Step("linear:turned", "Transpose"),  # before attention, which looks for the keys
    Step("quantized.pairs:once", "FakeQuantize"),  # when moves are as few as they get
    Step("broadcasts", "Expand"),  # an Expand before an operator that broadcasts hides a pattern, too
    Step("reductions", REDUCTION),  # before the idioms, which ask for means and for the axes that are kept
    Step("norms", REDUCTION, "MatMul"),
    Step("reductions:deviation", REDUCTION),  # statistics that no norm has taken
    Step("norms:group_norm", "InstanceNormalization"),
    Step("convolutions:pooling", REDUCTION, "Squeeze"),  # means that no norm has taken
    Step("convolutions:paddings", "Pad"),
    Step("activations", ELEMENTWISE),
    Step("activations:softmax", REDUCTION, SOFTMAX),  # before attention, which looks for it
    Step("reductions:normalise", REDUCTION),
    Step("reductions:reciprocal_roots", "Sqrt Pow"),  # roots that no norm has taken
    Step("multihead", SOFTMAX),  # before attention, which takes its inner part
    Step("attention", SOFTMAX),  # before linear, which also starts from MatMul
    Step("attention_masks:empty_rows", "Where"),  # of attention that is still spelled out
    Step("views"),  # again: attention permutes the heads of an Einsum
    Step("slices", RESHAPE, "Slice"),
    Step("concats:growing", "Concat"),  # after all idioms, which look for whole lists
    Step("shared_nodes"),  # when chains are as short as they get
    Step("convolutions:added_bias", "Add"),
    Step("linear", "Gemm MatMul"),
    Step("transformer", "MultiheadAttention"),  # around the layers that are found by now
    Step("linear:affine", "Mul"),  # what no idiom has taken
    infer_missing_scopes,  # for the remaining nodes; idioms are single nodes now
    Step("folded:restore_batchnorm", when=_restores),  # last: no idiom contains a norm that is put back
]


def simplify(model: ir.Model, options: Options, left_out: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run every pass, then give floats the type of `options.dtype`: idioms are recognised in the file's own type.

    Args:
        left_out: names of passes that do not run, each with the reason.

    Raises:
        OnnxgenError: a pass refuses the model, or meets a dim that is too complex to compute with.
        WrongRewrite: a pass changed what the network computes. The model is not to be used.
    """
    runner = runner_for(options, left_out)
    CHECKED.set(model, runner.counts)
    operators = _operators(model)
    for step in PASSES if options.dtype is None else (*PASSES, _retype):
        if isinstance(step, Step) and not step.concerns(operators, options):
            if is_strict():
                _hold(step, model, options)
            continue
        try:
            runner.run(step, model, options)
        except TooComplex as error:
            raise OnnxgenError(str(error), help=FIX_SHAPE) from error
        operators = _operators(model)


def _operators(model: ir.Model) -> Operators:
    return frozenset((node.domain, node.op_type) for node in all_nodes(model.graph))


def _hold(step: Step, model: ir.Model, options: Options) -> None:
    """Check that a pass changes nothing which is not to run. Raises `AssertionError`."""
    before = [(node, *node.inputs) for node in all_nodes(model.graph)]
    step(model, options)
    assert before == [(node, *node.inputs) for node in all_nodes(model.graph)], f"{step.__name__} starts elsewhere"


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
        if not checker_module().may_leave_out(error.step, options, left_out):
            raise
        left_out[error.step] = str(error)
        return False
    return True
