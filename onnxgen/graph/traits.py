"""Kinds of operators. `@op(..., traits=...)` declares them for each operator; `graph.operators` looks them up."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Trait(Enum):
    """A property of an operator that holds for all attributes and inputs, unless stated otherwise here.

    Attributes:
        EXACT: computes nothing: each element is one of the data, bit for bit, or follows from sizes or attributes.
        MOVES: copies each output element from the data, chosen by its position; with FILLS it may also be 0.
        FILLS: moves, and puts other elements between the data: zeros by default.
        VIEW: moves, and the output has every element exactly once. RESHAPE: also keeps their order.
        STRIDES: moves, and torch's result is a view with strides of its own, where it is no copy.
        SHUFFLES: moves, between the channels and the places of maps.
        JOINS: moves, and puts all of its inputs side by side along an axis.
        PASSES_ON: its result still counts as the stored tensor that it takes, or a part of it, or several.
        SAME: each element of the first output stands for the number at the same position of the data, perhaps in
            another type, quantised, or dropped in training.
        SIZES: its result says the sizes of the data, whatever the elements are.
        TEXTS: its function takes text as it is, as arrays of strings.
        SELECTS: chooses among many elements, boxes or places, or says which are chosen.
        PICKS: copies each element of the first output from the data, chosen by its order among others.
        AVERAGES: each element of the first output lies between the minimum and maximum of the data, or is 0.
        KEEPS_SIGN: if no element of the data is negative, none of the first output is.
        ELEMENTWISE: each output element depends only on the input elements at the same position.
        BROADCASTS: elementwise, and all inputs broadcast to one shape ("Multidirectional Broadcasting" in ONNX's
            Broadcasting.md).
        ADDS: the sum of all inputs, which broadcast, or the difference of two.
        SCALES: the product or the quotient of two inputs, which broadcast.
        COMMUTES: broadcasts, and its two inputs may change places.
        WHOLE: of whole numbers it makes whole numbers, as sums and products do.
        WEIGHT: its result counts as the weight that it takes, which it computes from stored tensors.
        STANDARDISES: the data minus stored numbers, multiplied by stored numbers, as they were measured.
        COMPARISON: compares two inputs, which broadcast, by order; the results are booleans.
        ACTIVATION: elementwise, and used between the layers of networks. Further inputs are options.
        RECTIFIER: an activation that follows an inner layer of a network, not its last one.
        SIGMOID: an activation that grows from 0 to 1.
        SOFTMAX: positive numbers that sum to 1 along the attribute `axis`, or their logarithms.
        NORM: a normalisation layer with weights.
        NORMALISES: normalises, perhaps without weights.
        PRODUCT: multiplies the data by a matrix or a kernel, and may add a bias.
        CONVOLUTION: slides a kernel over spatial axes.
        POOL: reduces windows along spatial axes; GLOBAL_POOL: reduces spatial axes as a whole.
        RESAMPLES: makes the data larger or smaller along some axes, by the nearest elements or interpolation.
        REDUCTION: reduces along the axes that it names; by default along all.
        RECURRENT: a layer that processes a sequence with a state.
        SAMPLES: the first axis is the batch. Each sample is computed independently, with the same further inputs.
        QUANTISED: takes or gives integers that stand for floats, and computes with them as with any integers.
        QUANTISES: rounds floats to such integers, or gives the floats.
        RANDOM: draws new numbers in each run.
    """

    EXACT = "exact"
    MOVES = "moves"
    FILLS = "fills"
    VIEW = "view"
    RESHAPE = "reshape"
    STRIDES = "strides"
    SHUFFLES = "shuffles"
    JOINS = "joins"
    PASSES_ON = "passes on"
    SAME = "same"
    SIZES = "sizes"
    TEXTS = "texts"
    SELECTS = "selects"
    PICKS = "picks"
    AVERAGES = "averages"
    KEEPS_SIGN = "keeps sign"
    ELEMENTWISE = "elementwise"
    BROADCASTS = "broadcasts"
    ADDS = "adds"
    SCALES = "scales"
    COMMUTES = "commutes"
    WHOLE = "whole"
    WEIGHT = "weight"
    STANDARDISES = "standardises"
    COMPARISON = "comparison"
    ACTIVATION = "activation"
    RECTIFIER = "rectifier"
    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"
    NORM = "norm"
    NORMALISES = "normalises"
    PRODUCT = "product"
    CONVOLUTION = "convolution"
    POOL = "pool"
    GLOBAL_POOL = "global pool"
    RESAMPLES = "resamples"
    REDUCTION = "reduction"
    RECURRENT = "recurrent"
    SAMPLES = "samples"
    QUANTISED = "quantised"
    QUANTISES = "quantises"
    RANDOM = "random"

    __hash__ = object.__hash__  # faster than Enum's, which hashes the name; it is called for every node


(
    EXACT, MOVES, FILLS, VIEW, RESHAPE, STRIDES, SHUFFLES, JOINS, PASSES_ON, SAME, SIZES, TEXTS, SELECTS, PICKS,
    AVERAGES, KEEPS_SIGN, ELEMENTWISE, BROADCASTS, ADDS, SCALES, COMMUTES, WHOLE, WEIGHT, STANDARDISES, COMPARISON,
    ACTIVATION, RECTIFIER, SIGMOID, SOFTMAX, NORM, NORMALISES, PRODUCT, CONVOLUTION, POOL, GLOBAL_POOL, RESAMPLES,
    REDUCTION, RECURRENT, SAMPLES, QUANTISED, QUANTISES, RANDOM,
) = Trait  # fmt: skip

# the traits that each trait implies
_IMPLIED = {
    MOVES: {EXACT, KEEPS_SIGN},
    SIZES: {EXACT},
    FILLS: {MOVES},
    PICKS: {KEEPS_SIGN},
    AVERAGES: {KEEPS_SIGN},
    VIEW: {MOVES, PASSES_ON},
    RESHAPE: {VIEW},
    STRIDES: {MOVES},
    SHUFFLES: {MOVES},
    JOINS: {MOVES},
    BROADCASTS: {ELEMENTWISE},
    ADDS: {BROADCASTS, WHOLE},
    SCALES: {BROADCASTS, KEEPS_SIGN},
    COMMUTES: {BROADCASTS},
    COMPARISON: {BROADCASTS},
    ACTIVATION: {ELEMENTWISE},
    RECTIFIER: {ACTIVATION},
    SIGMOID: {ACTIVATION},
    NORM: {NORMALISES},
    POOL: {SAMPLES},
    GLOBAL_POOL: {SAMPLES},
    QUANTISES: {QUANTISED},
}


def all_of(traits: Iterable[Trait]) -> frozenset[Trait]:
    """Return the traits, and those that they imply."""
    own = frozenset(traits)
    more = own.union(*(_IMPLIED.get(trait, ()) for trait in own))
    return own if more == own else all_of(more)
