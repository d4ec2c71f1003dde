"""Compute the elements of a node's outputs from those of its inputs, for numbers and symbolic dims alike."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import onnx_ir as ir

from onnxgen.graph.catalogue import card
from onnxgen.graph.operators import Operator
from onnxgen.shapes.dims import Sym
from onnxgen.shapes.evaluate_math import Operation, of_kind
from onnxgen.shapes.infer import STANDARD
from onnxgen.shapes.info import Info
from onnxgen.shapes.node_facts import NONSENSE, Array, NodeFacts, numbers_if_possible
from onnxgen.shapes.wrapping import fits

MAX_EVALUATED_ELEMENTS = 65_536  # a result with more elements is not computed


def evaluate(n: NodeFacts, limit: int) -> list[Info]:
    """Return `n.inferred` with the elements that can be computed, at most `limit` of them. Never raises."""
    known = card(n.node.domain, n.op)
    operation = operation_of(known)
    if operation is None or n.node.domain not in STANDARD:
        return n.inferred
    asked = n.inputs[: known.rules.reads]
    if any(i is not None and i.data is None for i in asked):
        return n.inferred
    if not all(_small(facts, min(limit, MAX_EVALUATED_ELEMENTS)) for facts in n.inferred[:1]):
        return n.inferred
    try:
        with np.errstate(all="ignore"):
            inputs = [None if i is None else i.data for i in asked]
            found = [_with_data(f, np.asarray(d)) for f, d in zip(n.inferred, operation(n, *inputs), strict=False)]
    except NONSENSE:
        return n.inferred
    return found + n.inferred[len(found) :]


@cache
def operation_of(known: Operator) -> Operation | None:
    """Return what computes the elements of an operator's outputs; None if nothing does."""
    if known.rules.elements is not None or known.rules.numbers is None:
        return known.rules.elements
    return of_kind(known.traits, known.rules.numbers, known.rules.dims)


def _small(facts: Info, limit: int) -> bool:
    """Return True if a value has at most `limit` elements. A dim that is no number is bounded by the inputs."""
    return facts.shape is not None and math.prod(d for d in facts.shape if not isinstance(d, Sym)) <= limit


def _with_data(facts: Info, data: Array) -> Info:
    """Add elements to the facts, if they agree with the inferred dtype and shape."""
    elements = numbers_if_possible(data, facts.dtype)
    if elements is None or facts.dtype is None or facts.dtype == ir.DataType.STRING:
        return facts
    if elements.dtype == object and facts.dtype.is_integer() and not all(fits(d, facts.dtype) for d in elements.flat):
        return facts
    if elements.dtype != object and elements.dtype != facts.dtype.numpy():
        return facts
    shape = facts.shape
    if shape is not None and (
        len(shape) != elements.ndim
        or any(isinstance(d, int) and d != size for d, size in zip(shape, elements.shape, strict=True))
    ):
        return facts
    elements = np.array(elements)  # a private copy
    elements.flags.writeable = False
    return replace(facts, shape=elements.shape, data=elements)
