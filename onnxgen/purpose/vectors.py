"""Rules for outputs of one list of numbers for each sample: classes, labels, values, embeddings."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxgen.errors import counted
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import (
    ADDS,
    AVERAGES,
    ELEMENTWISE,
    GLOBAL_POOL,
    JOINS,
    NORM,
    RECTIFIER,
    REDUCTION,
    SAMPLES,
    SCALES,
    SIGMOID,
)
from onnxgen.purpose import names
from onnxgen.purpose.ends import (
    DIVIDES,
    TANH,
    UNIT,
    End,
    behind,
    first_live,
    is_norm_of_channels,
    is_of_length,
    op_of,
    picks,
    squares,
)
from onnxgen.purpose.names import quoted, words
from onnxgen.purpose.network import BUILT, FITS, NAMED, Network, Vote, count, is_float, shown
from onnxgen.shapes.info import info

IMAGENET = (1000, 1001, 21841, 21843)  # numbers of its classes, with one for the background
_LENGTH = 10  # nodes that compute the length of a vector
# coordinates of the points that networks for faces, hands and bodies find
_LANDMARKS = {axes * points for axes in (2, 3) for points in (5, 17, 21, 33, 68, 98, 106, 194, 468, 478)}
_CLASSICAL = {"Classifier": "classification", "Regressor": "regression"}  # by the end of operators' names
_POOLS = (GLOBAL_POOL, AVERAGES, RECTIFIER)
_NARROW, _USUAL = 8, 16  # fewer numbers are rather a place, a direction or a rotation


def classification(net: Network) -> Iterator[Vote]:
    """Exactly one of several classes."""
    yield from _classical(net)
    for end in net.ends:
        if end.is_choice:
            yield from _chosen(end)
        vector = net.vector(end)
        if vector is not None and (vector[1] > 1 or end.is_sigmoid or end.is_linear):
            yield from _classes(net, end, *vector)


def _classes(net: Network, end: End, axis: int, width: int) -> Iterator[Vote]:
    facts = {"output": end.name, "axis": axis, "classes": width, "activation": end.softmax}
    named, rows = _words_of_classes(end), _ends(end, f"with {width} rows")
    if end.is_softmax and end.axis == axis and width > 1:
        is_vague = words(end.name) & names.PARTS or net.is_length(width)
        how = _ends(end, f"over {width} {'positions or classes' if is_vague else 'classes'}")
        yield Vote.on(end, "classification", FITS if is_vague else BUILT, facts, how)
    elif end.is_linear and width > 1 and named:
        same = "no Softmax follows: a network of independent labels looks the same"
        how = f"{rows}, and {quoted(named)} in its name means classes"
        yield Vote.on(end, "classification", NAMED, facts, how, same)
    elif end.is_linear and width in IMAGENET and net.images:
        how = f"{rows}, as many as ImageNet has classes, and the input is an image"
        yield Vote.on(end, "classification", NAMED, facts, how)
    elif _may_be_scores(end, width):
        how = "one number might be the score of one of two classes" if width == 1 else "scores of classes fit"
        yield Vote.on(end, "classification", FITS, facts, f"output {shown(end.value)}: {how}")


def _words_of_classes(end: End) -> set[str]:
    own = words(end.name)
    return own & names.CLASSES if own.isdisjoint(names.PLACES | names.PARTS | names.VECTORS) else set()


def _may_be_scores(end: End, width: int) -> bool:
    return end.is_linear or end.is_a(NORM) or end.is_a(*((SIGMOID,) if width == 1 else _POOLS))


def _classical(net: Network) -> Iterator[Vote]:
    for ending, kind in _CLASSICAL.items():
        for node in net.nodes:
            if node.domain != "ai.onnx.ml" or not op_of(node).endswith(ending):
                continue
            text = f"the node that makes {shown(node.outputs[0])} is a {op_of(node)}"
            if kind == "classification" and _has_labels(net):
                width = (info(node.outputs[-1]).shape or (None, None))[-1]
                yield Vote(kind, BUILT, (text,), {"classes": width} if isinstance(width, int) else {}, whole=True)
            elif kind == "regression" and any(end.node is node for end in net.ends):
                yield Vote(kind, BUILT, (text,), whole=True)


def _has_labels(net: Network) -> bool:
    ranks = {info(v).rank for v in net.outputs if info(v).kind == "tensor"}
    return not ranks.isdisjoint((1, None))


def _chosen(end: End) -> Iterator[Vote]:
    """The number of the largest of several values, for each sample."""
    data = None if end.node is None else end.node.inputs[0]
    shape = info(data).shape or ()
    if len(shape) != 2 or end.axis != 1:
        return
    facts = {"output": end.name, "axis": 1, "activation": "argmax"}
    facts |= {"classes": shape[1]} if isinstance(shape[1], int) else {}
    text = f"output {shown(end.value)} is the ArgMax over axis 1 of {shown(data)}"
    yield Vote.on(end, "classification", BUILT, facts, text)


def multilabel(net: Network) -> Iterator[Vote]:
    """Several labels, each of which may be true."""
    for end in (end for end in net.ends if end.is_sigmoid):
        vector = net.vector(end)
        if vector is None and len(end.dims) == 3:
            yield Vote("multilabel", FITS, (f"output {shown(end.value)}: labels of each step fit",))
        if vector is not None and vector[1] > 1:
            yield _independent(net, end, *vector)


def _independent(net: Network, end: End, axis: int, width: int) -> Vote:
    facts = {"output": end.name, "axis": axis, "classes": width, "activation": "sigmoid"}
    named, how = words(end.name), _ends(end, f"over {width} numbers")
    if named & (names.CLASSES | names.LABELS) and not named & (names.PLACES | names.VECTORS):
        text = f"{how}, and {quoted(named & (names.CLASSES | names.LABELS))} in its name means labels"
        return Vote.on(end, "multilabel", NAMED, facts, text)
    sizes = [number for v in net.inputs if (number := count(info(v).shape)) is not None]
    is_large = bool(net.images or net.tokens) and not any(number <= 2 * width for number in sizes)
    places = names.PLACES | names.VALUES | names.NUMBERS | names.VECTORS
    if is_large and width > 4 and width not in _LANDMARKS and not named & places:
        return Vote.on(end, "multilabel", BUILT, facts, f"{how}, each between 0 and 1, of a much larger input")
    return Vote.on(end, "multilabel", FITS, facts, f"{how}: labels, or values between 0 and 1")


def regression(net: Network) -> Iterator[Vote]:
    """One or more numbers."""
    for end in net.ends:
        vector = net.vector(end)
        if vector is None and end.is_linear and len(end.dims) == 3 and not net.tokens:
            yield Vote("regression", FITS, (f"output {shown(end.value)}: values of each step fit",))
        if vector is not None and not end.is_softmax and not end.is_choice:
            yield from _values(net, end, *vector)


def _values(net: Network, end: End, axis: int, width: int) -> Iterator[Vote]:
    facts = {"output": end.name, "axis": axis, "values": width}
    telling = (
        names.NUMBERS | (names.VALUES if width == 1 else set()) | ({"action", "actions"} if end.op == TANH else set())
    )
    named = words(end.name) & telling
    if named and not words(end.name) & names.CLASSES:
        yield Vote.on(end, "regression", NAMED, facts, f"output {shown(end.value)} has {quoted(named)} in its name")
    elif _is_rescaled(net, end):
        text = f"output {shown(end.value)} is a {end.op} whose result is scaled by a stored number"
        yield Vote.on(end, "regression", BUILT, facts, text)
    elif end.is_linear or end.is_a(NORM) or _is_valued(end):
        yield Vote.on(end, "regression", FITS, facts, _ends(end, f"and has {counted(width, 'value')}: any fit"))


def _is_rescaled(net: Network, end: End) -> bool:
    """Return True for a * sigmoid(x) + b, or with tanh, where a is stored."""
    node, scaled = end.node, False
    while node is not None and is_a(node, ADDS, SCALES) and len(node.inputs) == 2:
        data = first_live(node, net.live)
        if data is None or sum(v in net.live for v in node.inputs) != 1:
            return False
        scaled |= is_a(node, SCALES)
        node = behind(data, (), net.live)[0].producer()
    return scaled and node is not None and (is_a(node, SIGMOID) or op_of(node) == TANH)


def embedding(net: Network) -> Iterator[Vote]:
    """A vector for each sample, or for each position, that says what it is like."""
    for end in net.ends:
        vector = net.vector(end)
        axis, width = vector or (len(end.dims) - 1, end.dims[-1] if len(end.dims) in (2, 3) else None)
        if isinstance(width, int) and width >= _NARROW:
            facts = {"output": end.name, "axis": axis, "width": width, "positions": vector is None}
            facts["normalised"] = _is_normalised(net, end, axis)
            yield from _embedding(net, end, facts, width, vector is not None)


def _embedding(net: Network, end: End, facts: dict[str, object], width: int, single: bool) -> Iterator[Vote]:
    named = words(end.name)
    if facts["normalised"] and (single or net.tokens):
        text = f"output {shown(end.value)} ends in an L2 normalisation over {width} numbers"
        yield Vote.on(end, "embedding", BUILT, facts, text)
    elif named & names.VECTORS or {"last", "hidden", "state"} <= named:
        text = f"output {shown(end.value)} has {quoted(named & (names.VECTORS | {'hidden'}))} in its name"
        yield Vote.on(end, "embedding", NAMED, facts, text)
    elif net.tokens and (norm := headless(net, end)):
        text = f"no layer follows the last norm, {shown(norm.outputs[0])}: {shown(end.value)} is what the encoder says"
        yield Vote.on(end, "embedding", BUILT, facts, text)
    elif single and _is_face(net, end, width):
        text = f"output {shown(end.value)} ends in a {end.op} over {width} numbers, as embeddings of faces do"
        yield Vote.on(end, "embedding", BUILT, facts, text)
    elif facts["normalised"] or width >= _USUAL and (single or end.is_linear or end.is_a(NORM)):
        yield Vote.on(end, "embedding", FITS, facts, f"output {shown(end.value)}: a vector of {width} numbers fits")


def _is_normalised(net: Network, end: End, axis: int) -> bool:
    """Return True if the output is divided by its own length."""
    if end.op != DIVIDES or end.node is None or len(end.node.inputs) != 2:
        return end.op in UNIT and end.axis == axis
    data, length = (None if v is None else behind(v, (), net.live)[0] for v in end.node.inputs)
    squared = False
    for _ in range(_LENGTH):
        node = None if length is None else length.producer()
        if node is None or length is data or not is_of_length(node):
            break
        squared |= squares(node)
        length = first_live(node, net.live)
        length = None if length is None else behind(length, (), net.live)[0]
    return squared and length is not None and length is data


def headless(net: Network, end: End) -> ir.Node | None:
    """Return the last norm if all that follows it picks or averages positions; else None."""
    for node in net.tail(end):
        if is_a(node, NORM) and not is_a(node, SAMPLES):
            return node
        pools = is_a(node, REDUCTION, GLOBAL_POOL, SCALES) or picks(node) or op_of(node) in UNIT
        if not pools and behind(node.outputs[0], (), net.live)[0] is node.outputs[0]:
            return None
    return None


def _is_valued(end: End) -> bool:
    """Return True if the last operator makes numbers of any meaning."""
    return end.op in UNIT or is_float(end.value) and end.is_a(ELEMENTWISE, JOINS)


def _is_face(net: Network, end: End, width: int) -> bool:
    """Return True if the numbers end in a norm of channels, as embeddings of faces do."""
    return bool(net.images) and width % 64 == 0 and end.node is not None and is_norm_of_channels(end.node)


def _ends(end: End, what: str) -> str:
    return f"output {shown(end.value)} ends in {end.op} {what}".replace("Linear with", "a Linear layer with")
