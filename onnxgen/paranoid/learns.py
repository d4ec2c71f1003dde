"""The trained tensors of a quantised file: the weights that its integers represent, and the learned scales.

A scale is learned if it belongs to one integer tensor: the operator that quantises the tensor uses it, and all that
dequantise it. A scale of several tensors is not learned, since the file stores it once.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from onnxgen.graph.annotations import TRAINABLE
from onnxgen.graph.catalogue import is_a, known
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.gradients import everywhere
from onnxgen.graph.traits import VIEW
from onnxgen.options import Options
from onnxgen.paranoid.picture import Made, Picture
from onnxgen.paranoid.quantised import Quantised
from onnxgen.paranoid.scales import scaled
from onnxgen.paranoid.stands import carries, roots
from onnxgen.paranoid.trained import Doubt

FIXED = {"QLinearSoftmax": 3}  # onnxruntime uses the integer nearest to the inverse of this scale


class Learns:
    """The tensors that are to be trained, as both sides of the pass `quantized` imply.

    Attributes:
        own: stored scales of fake quantisation that belong to one integer tensor.
        shared: stored scales that belong to several, or are never learned.
        weights: stored float tensors.
    """

    def __init__(self, held: Quantised, options: Options) -> None:
        self.options = options
        self.weights = [value for value, _ in held.weights()]
        self.own: set[ir.Value] = set()
        self.shared: set[ir.Value] = set()
        tensors, scales, unsure = _uses(held)
        nodes = held.before.nodes.values()
        fixed = {made.inputs[FIXED[made.op]] for made in nodes if made.op in FIXED}
        for made in held.after.nodes.values():
            scale = made.inputs[1] if made.op == "FakeQuantize" and made.domain == DOMAIN else None
            if scale is None or scale not in held.after.stored or not tensors[scale]:
                continue
            if len(tensors[scale]) > 1 or scale in fixed:
                self.shared.add(scale)
            elif scale not in unsure and all(scales[tensor] <= {scale} for tensor in tensors[scale]):
                self.own.add(scale)

    def faults(self, picture: Picture) -> Iterator[Doubt]:
        """Yield the decisions of the pass `trainable` that differ. `picture`: the graph that it saw."""
        reached, as_weights = _reached(picture), _as_weights(picture)
        learned = self.options.quantized == "qat-learned"
        for scale in (*self.own, *self.shared):
            is_trained, why = TRAINABLE.get(scale)
            wanted = learned and scale in self.own
            if is_trained and not wanted and not self._is_asked(scale, self.options.trainable):
                yield Doubt(scale, f"the scale {scale.name!r} is trained", False)
            if wanted and scale in reached and not is_trained and not self._is_asked(scale, self.options.frozen):
                yield Doubt(scale, f"the scale {scale.name!r} is not trained: {why}", True)
        for value in self.weights:
            is_trained, why = TRAINABLE.get(value)
            unreached = "no output depends" in str(why) or "nobody" in str(why)
            if value in reached and not is_trained and not self._is_asked(value, self.options.frozen):
                if unreached or value in as_weights:
                    yield Doubt(value, f"{value.name!r} is not trained: {why}", True)

    @staticmethod
    def _is_asked(value: ir.Value, pattern: str | None) -> bool:
        return bool(pattern and re.search(pattern, value.name or ""))


def _operands(made: Made) -> Iterable[tuple[int, int]]:
    """Return the positions of integer tensors and their scales in the inputs of a node; -1 is the output."""
    return scaled(known(made.node)) if made.op not in FIXED else ()


def _uses(held: Quantised) -> tuple[dict[ir.Value, set[str]], dict[str, set[ir.Value]], set[ir.Value]]:
    """Return the integer tensors of each scale, the scales of each quantised tensor, and the scales that stay
    undecided.
    """
    tensors: dict[ir.Value, set[str]] = defaultdict(set)
    scales: dict[str, set[ir.Value]] = defaultdict(set)
    unsure: set[ir.Value] = set()
    before = held.before
    for made in before.nodes.values():
        operands = _operands(made)
        for at, by in operands:
            scale, integers = made.input(by), made.outputs[0] if at < 0 else made.input(at)
            if scale is None or integers is None:
                continue
            for root in roots(before, integers):
                tensors[scale].add(before.names[root])
                if root in before.maker and before.maker[root].op != "Constant":
                    scales[before.names[root]].add(scale)
                    unsure |= {scale} if not _operands(before.maker[root]) else set()
        if not operands and not carries(made):
            unsure |= _of_integers(before, made)
    for value, tensor in held.weights():
        for made in held.after.nodes.values():
            if made.op == "FakeQuantize" and made.inputs[0] is value and made.inputs[1] is not None:
                tensors[made.inputs[1]].add(tensor.how.tensor)
    return tensors, scales, unsure


def _of_integers(before: Picture, made: Made) -> set[ir.Value]:
    """Return the scales of integers that something else uses, together with the integers."""
    found: set[ir.Value] = set()
    for value in made.inputs:
        for root in roots(before, value) if value is not None else ():
            maker = before.maker.get(root)
            if maker is not None:
                found.update(filter(None, (maker.input(by) for at, by in _operands(maker) if at < 0)))
    return found


def _reached(picture: Picture) -> set[ir.Value]:
    """Return the values on which a float output depends through operators that pass gradients on."""
    main = next(iter(picture.graphs))
    found = {v for v in picture.graphs[main][1] if _is_float(picture, v)}
    for made in reversed(picture.nodes.values()):
        card = known(made.node)
        is_smooth = card.name and made.domain in ("", DOMAIN) and everywhere(made.domain, made.op) is None
        if not is_smooth or made.graph is not main or found.isdisjoint(made.outputs):
            continue
        flat = (2, 3) if made.op == "FakeQuantize" else {*card.still, *card.chosen}
        found.update(v for i, v in enumerate(made.inputs) if v is not None and i not in flat and _is_float(picture, v))
    return found


def _is_float(picture: Picture, value: ir.Value) -> bool:
    dtype = picture.facts[value].dtype
    dtype = dtype if dtype is not None else value.dtype
    return dtype is not None and dtype.is_floating_point() and dtype.itemsize > 1


def _as_weights(picture: Picture) -> set[ir.Value]:
    """Return the values that are a layer's weight or bias, also through views."""
    found: set[ir.Value] = set()
    for made in reversed(picture.nodes.values()):
        is_alike = is_a(made.node, VIEW) or made.op == "FakeQuantize"
        card = known(made.node)
        layer = () if card.matrix is None or card.bias is None else (card.matrix, card.bias)
        places = (0,) if is_alike and not found.isdisjoint(made.outputs) else layer
        found.update(filter(None, map(made.input, places)))
    return found
