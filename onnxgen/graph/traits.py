"""Kinds of operators, which `@op(..., traits=...)` says of each; `graph.catalogue` answers which operator is what."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Trait(Enum):
    """A property of an operator that holds for all attributes and inputs, unless stated otherwise here.

    Attributes:
        MOVES: every element of the output is an element of the operator's data, or 0 with FILLS, chosen by its place.
        FILLS: puts zeros between its data, if it is given nothing else to put there.
        VIEW: moves, and the output has every element once. RESHAPE: in the same order, too.
        PASSES_ON: a stored tensor behind it is still that tensor, or a part of it, or several.
        PICKS: every element of the first output is an element of the data, chosen by its order among others.
        AVERAGES: every element of the first output lies between the least and the greatest of the data, or 0.
        KEEPS_SIGN: no element of the first output is negative where none of the data is.
        ELEMENTWISE: an element of the output depends only on the elements at the same place.
        BROADCASTS: elementwise, and all inputs broadcast to one shape ("Multidirectional Broadcasting" in ONNX's
            Broadcasting.md).
        COMPARISON: broadcasts two inputs to truth values, by their order.
        ACTIVATION: elementwise, and networks have it between their layers. The further inputs are options.
        RECTIFIER: an activation that follows a layer inside of a network, and not its last one.
        NORM: a layer that normalises, with weights.
        NORMALISES: normalises, perhaps without weights.
        CONVOLUTION: slides a kernel over spatial axes.
        POOL: reduces the windows along spatial axes; GLOBAL_POOL: all of each spatial axis.
        REDUCTION: reduces along the axes that it names, all unless told.
        RECURRENT: a layer that goes along a sequence with a state.
        SAMPLES: the first axis is the batch, of which every sample is computed by itself, with the same further inputs.
        RANDOM: draws its numbers anew in each run.
    """

    MOVES = "moves"
    FILLS = "fills"
    VIEW = "view"
    RESHAPE = "reshape"
    PASSES_ON = "passes on"
    PICKS = "picks"
    AVERAGES = "averages"
    KEEPS_SIGN = "keeps sign"
    ELEMENTWISE = "elementwise"
    BROADCASTS = "broadcasts"
    COMPARISON = "comparison"
    ACTIVATION = "activation"
    RECTIFIER = "rectifier"
    NORM = "norm"
    NORMALISES = "normalises"
    CONVOLUTION = "convolution"
    POOL = "pool"
    GLOBAL_POOL = "global pool"
    REDUCTION = "reduction"
    RECURRENT = "recurrent"
    SAMPLES = "samples"
    RANDOM = "random"

    __hash__ = object.__hash__  # Enum's own goes by the name, and is called for every node


(
    MOVES, FILLS, VIEW, RESHAPE, PASSES_ON, PICKS, AVERAGES, KEEPS_SIGN, ELEMENTWISE, BROADCASTS, COMPARISON,
    ACTIVATION, RECTIFIER, NORM, NORMALISES, CONVOLUTION, POOL, GLOBAL_POOL, REDUCTION, RECURRENT, SAMPLES, RANDOM,
) = Trait  # fmt: skip

# what else is true of whatever has a trait
_IMPLIED = {
    MOVES: {KEEPS_SIGN},
    FILLS: {MOVES},
    PICKS: {KEEPS_SIGN},
    AVERAGES: {KEEPS_SIGN},
    VIEW: {MOVES, PASSES_ON},
    RESHAPE: {VIEW},
    BROADCASTS: {ELEMENTWISE},
    COMPARISON: {BROADCASTS},
    ACTIVATION: {ELEMENTWISE},
    RECTIFIER: {ACTIVATION},
    NORM: {NORMALISES},
    POOL: {SAMPLES},
    GLOBAL_POOL: {SAMPLES},
}


def all_of(traits: Iterable[Trait]) -> frozenset[Trait]:
    """Return the traits, and those that they imply."""
    found = frozenset(traits)
    more = found.union(*(_IMPLIED.get(trait, ()) for trait in found))
    return found if more == found else all_of(more)
