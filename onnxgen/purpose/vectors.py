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
from onnxgen.purpose.network import (
    BUILT,
    CLASSES,
    FITS,
    LABELS,
    NAMED,
    NUMBERS,
    PARTS,
    PLACES,
    VALUES,
    VECTORS,
    Network,
    Vote,
    count,
    quoted,
    shown,
    words,
)
from onnxgen.shapes.info import info

IMAGENET = (1000, 1001, 21841, 21843)  # numbers of its classes, with one for the background
_LENGTH = 10  # nodes that compute the length of a vector
# coordinates of the points that networks for faces, hands and bodies find
_LANDMARKS = {axes * points for axes in (2, 3) for points in (5, 17, 21, 33, 68, 98, 106, 194, 468, 478)}
_CLASSICAL = {"Classifier": "classification", "Regressor": "regression"}  # by the end of operators' names
_NARROW, _USUAL = 8, 16  # fewer numbers are rather a place, a direction or a rotation


def classification(net: Network) -> Iterator[Vote]:
    """Exactly one of several classes."""
    yield from _classical(net)
    for end in net.ends:
        vector = net.vector(end)
        if end.is_choice:
            yield from _chosen(end)
        if vector is None or vector[1] < 2 and not end.is_sigmoid and not end.is_linear:
            continue
        axis, width = vector
        facts = {"output": end.name, "axis": axis, "classes": width, "activation": end.softmax}
        named = words(end.name)
        if end.is_softmax and end.axis == axis and width > 1:
            if named & PARTS or net.is_length(width):
                yield Vote("classification", FITS, (_ends(end, f"over {width} positions or classes"),), facts)
            else:
                how = _ends(end, f"over {width} classes")
                yield Vote("classification", BUILT, (how,), facts, frozenset({end.name}))
        elif end.is_linear and width > 1 and named & CLASSES and not named & (PLACES | PARTS | VECTORS):
            how = f"{_ends(end, f'with {width} rows')}, and {quoted(named & CLASSES)} in its name means classes"
            same = "no Softmax follows: a network of independent labels looks the same"
            yield Vote("classification", NAMED, (how, same), facts, frozenset({end.name}))
        elif end.is_linear and width in IMAGENET and net.images:
            how = f"{_ends(end, f'with {width} rows')}, as many as ImageNet has classes, and the input is an image"
            yield Vote("classification", NAMED, (how,), facts, frozenset({end.name}))
        elif end.is_linear or end.is_sigmoid and width == 1 or is_norm(end) or width > 1 and _is_pooled(end):
            how = "one number might be the score of one of two classes" if width == 1 else "scores of classes fit"
            yield Vote("classification", FITS, (f"output {shown(end.value)}: {how}",), facts)


def _classical(net: Network) -> Iterator[Vote]:
    for ending, kind in _CLASSICAL.items():
        for node in net.nodes:
            if not op_of(node).endswith(ending) or node.domain != "ai.onnx.ml":
                continue
            if kind == "regression" and not any(end.node is node for end in net.ends):
                continue
            ranks = [info(v).rank for v in net.outputs if info(v).kind == "tensor"]
            width = (info(node.outputs[-1]).shape or (None, None))[-1]
            facts = {"classes": width} if kind == "classification" and isinstance(width, int) else {}
            if kind == "regression" or 1 in ranks or None in ranks:
                text = f"the node that makes {shown(node.outputs[0])} is a {op_of(node)}"
                yield Vote(kind, BUILT, (text,), facts, whole=True)


def _chosen(end: End) -> Iterator[Vote]:
    """The number of the largest of several values, for each sample."""
    data = None if end.node is None else info(end.node.inputs[0])
    if data is None or data.shape is None or len(data.shape) != 2 or end.axis != 1:
        return
    facts = {"output": end.name, "axis": 1, "activation": "argmax"}
    facts |= {"classes": data.shape[1]} if isinstance(data.shape[1], int) else {}
    text = f"output {shown(end.value)} is the ArgMax over axis 1 of {shown(end.node.inputs[0] if end.node else None)}"
    yield Vote("classification", BUILT, (text,), facts, frozenset({end.name}))


def multilabel(net: Network) -> Iterator[Vote]:
    """Several labels, each of which may be true."""
    for end in net.ends:
        vector = net.vector(end)
        if end.is_sigmoid and end.shape is not None and len(end.shape) == 3 and vector is None:
            yield Vote("multilabel", FITS, (f"output {shown(end.value)}: labels of each step fit",))
        if vector is None or not end.is_sigmoid or vector[1] < 2:
            continue
        axis, width = vector
        facts = {"output": end.name, "axis": axis, "classes": width, "activation": "sigmoid"}
        named = words(end.name)
        how = _ends(end, f"over {width} numbers")
        sizes = [number for v in net.inputs if (number := count(info(v).shape)) is not None]
        large = bool(net.images or net.tokens) and not any(number <= 2 * width for number in sizes)
        places = PLACES | VALUES | NUMBERS | VECTORS
        if named & (CLASSES | LABELS) and not named & (PLACES | VECTORS):
            text = f"{how}, and {quoted(named & (CLASSES | LABELS))} in its name means labels"
            yield Vote("multilabel", NAMED, (text,), facts, frozenset({end.name}))
        elif large and width > 4 and width not in _LANDMARKS and not named & places:
            text = f"{how}, each between 0 and 1, of a much larger input"
            yield Vote("multilabel", BUILT, (text,), facts, frozenset({end.name}))
        else:
            yield Vote("multilabel", FITS, (f"{how}: labels, or values between 0 and 1",), facts)


def regression(net: Network) -> Iterator[Vote]:
    """One or more numbers."""
    for end in net.ends:
        vector = net.vector(end)
        if vector is None and end.is_linear and end.shape is not None and len(end.shape) == 3 and not net.tokens:
            yield Vote("regression", FITS, (f"output {shown(end.value)}: values of each step fit",))
        if vector is None or end.is_softmax or end.is_choice:
            continue
        axis, width = vector
        facts = {"output": end.name, "axis": axis, "values": width}
        named = words(end.name)
        name_words = named & (NUMBERS | VALUES if width == 1 else NUMBERS)
        name_words |= named & {"action", "actions"} if end.op == TANH else set()
        if name_words and not named & CLASSES:
            text = f"output {shown(end.value)} has {quoted(name_words)} in its name"
            yield Vote("regression", NAMED, (text,), facts, frozenset({end.name}))
        elif _is_rescaled(net, end):
            text = f"output {shown(end.value)} is a {end.op} whose result is scaled by a stored number"
            yield Vote("regression", BUILT, (text,), facts, frozenset({end.name}))
        elif end.is_linear or is_norm(end) or _is_valued(end):
            yield Vote("regression", FITS, (_ends(end, f"and has {counted(width, 'value')}: any fit"),), facts)


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
        shape = end.shape
        wide = None if shape is None or len(shape) not in (2, 3) else shape[-1]
        vector = net.vector(end)
        axis, width = vector if vector is not None else (len(shape or ()) - 1, wide)
        if not isinstance(width, int) or width < _NARROW:
            continue
        facts = {"output": end.name, "axis": axis, "width": width, "positions": vector is None}
        facts["normalised"] = _is_normalised(net, end, axis)
        yield from _embedding(net, end, facts, vector is not None)


def _embedding(net: Network, end: End, facts: dict[str, object], single: bool) -> Iterator[Vote]:
    width, named = facts["width"], words(end.name)
    explained = frozenset({end.name})
    if facts["normalised"] and (single or net.tokens):
        text = f"output {shown(end.value)} ends in an L2 normalisation over {width} numbers"
        yield Vote("embedding", BUILT, (text,), facts, explained)
    elif named & VECTORS or {"last", "hidden", "state"} <= named:
        text = f"output {shown(end.value)} has {quoted(named & (VECTORS | {'hidden'}))} in its name"
        yield Vote("embedding", NAMED, (text,), facts, explained)
    elif net.tokens and (norm := headless(net, end)):
        text = f"no layer follows the last norm, {shown(norm.outputs[0])}: {shown(end.value)} is what the encoder says"
        yield Vote("embedding", BUILT, (text,), facts, explained)
    elif net.images and single and _ends_in_channels(end) and isinstance(width, int) and width % 64 == 0:
        text = f"output {shown(end.value)} ends in a {end.op} over {width} numbers, as embeddings of faces do"
        yield Vote("embedding", BUILT, (text,), facts, explained)
    elif (
        facts["normalised"] or isinstance(width, int) and width >= _USUAL and (single or end.is_linear or is_norm(end))
    ):
        yield Vote("embedding", FITS, (f"output {shown(end.value)}: a vector of {width} numbers fits",), facts)


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
    dtype = info(end.value).dtype
    return end.op in UNIT or dtype is not None and dtype.is_floating_point() and end.is_a(ELEMENTWISE, JOINS)


def _ends_in_channels(end: End) -> bool:
    return end.node is not None and is_norm_of_channels(end.node)


def is_norm(end: End) -> bool:
    return end.is_a(NORM)


def _is_pooled(end: End) -> bool:
    return end.is_a(GLOBAL_POOL, AVERAGES, RECTIFIER)


def _ends(end: End, what: str) -> str:
    return f"output {shown(end.value)} ends in {end.op} {what}".replace("Linear with", "a Linear layer with")
