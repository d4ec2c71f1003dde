"""Check the pass `quantized` by what a quantised graph represents (see `stands`).

The graphs before and after the pass are computed, and must give the same numbers. Numbers do not
show everything, so the structure is checked too: no needless operator on integers is left, each
stored integer tensor is now a float tensor with the right name, and, for fake quantisation, each of
these is rounded.

`Learns` checks the trained tensors of a quantised file: the weights that its integers represent,
and the learned scales. A scale is learned if it belongs to one integer tensor: the operator that
quantises the tensor uses it, and all that dequantise it. A scale of several tensors is not learned,
since the file stores it once.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import TRAINABLE
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import everywhere, is_a, known
from onnxgen.graph.traits import QUANTISED, VIEW
from onnxgen.options import Options
from onnxgen.paranoid import stands_rules  # noqa: F401  # imported to register its operators
from onnxgen.paranoid.claims import Broken, Untold
from onnxgen.paranoid.comparison import CANCELLATION_ERROR, gap_of, unlike
from onnxgen.paranoid.comparison import RTOL_BY_TYPE as NARROW
from onnxgen.paranoid.draws import DRAWN_SIZES, STYLES, Style, drawn, element_count, facts_of, scaled, shape_counts
from onnxgen.paranoid.picture import Made, Picture
from onnxgen.paranoid.single import Single
from onnxgen.paranoid.stands import STANDS_RULES, Kind, Stands, carries, roots
from onnxgen.paranoid.trained import Doubt
from onnxgen.shapes import own
from onnxgen.shapes.dims import symbols
from onnxgen.shapes.info import info
from onnxgen.weights.dequantised import BITS, TABLE, DequantisedTensor

MAX_ELEMENTS = 40_000_000  # elements of all values; larger graphs are not computed
EIGHTS = frozenset((ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16))
# allowed difference of two float32 sums in another order, as a part of the largest number. A wrong rounding shows as a
# tenth of a step, of which there are 255 between the smallest and the largest number.
MAX_SUM_ERROR = 1e-4
PRODUCTS = ("MatMulInteger", "ConvInteger")
ROUNDED = frozenset(("FakeQuantize", "FakeQuantizeDynamic"))
# suffixes that quantisers append to a tensor's name, perhaps with a number
ENDS = (
    "_quantized",
    "_Transposed_quantized",
    "_quant",
    "_Bnb4",
    "_int8",
    "_qnt8",
    "_q8",
    "_q",
    "_DequantizeLinear_Output",
)
NUMBERED = ("_DQ_Q", "_Q")
NOT_STORED = "no stored tensor has the floats of {!r}, so they can't be written back"


class Quantised:
    """Both sides of the pass.

    Attributes:
        untold: the reasons why outputs could not be compared, by name.
        broken: the reasons why only the second side cannot compute outputs, by index.
    """

    def __init__(self, before: Picture, after: Picture, single: Single, rounds: bool) -> None:
        self.before, self.after, self.single, self.rounds = before, after, single, rounds
        self.untold: dict[str, str] = {}
        self.broken: dict[int, str] = {}
        self.has_checked_stored = False  # stored tensors are the same on every draw, so they are checked once
        # floats stored in 16 bits differ slightly from what the integers represent
        self.near = max([MAX_SUM_ERROR, *(NARROW.get(tensor.dtype, 0.0) for tensor in before.stored.values())])

    def fault(self) -> str:
        """Describe what is wrong; "" if nothing is known to be wrong."""
        return next(iter(self._structure()), "") or self._numbers()

    # ---- numbers -------------------------------------------------------------------------------------------------

    def _numbers(self) -> str:
        """Compute both graphs on drawn inputs, of sizes that the first one accepts, and describe a difference."""
        pairs = self._outputs()
        compared: set[int] = set()
        for numbers in self._sizes():
            for style in self._styles():
                self.untold.clear()
                try:
                    sides = self._computed(numbers, style)
                except Untold as error:
                    self.untold.update({self.before.names[a]: str(error) for a, _ in pairs})
                    break
                if fault := next(iter(self._unlike(*sides, pairs, compared)), ""):
                    return f"{fault} ({style.name} inputs)"
            if compared:
                break
        for i in compared:
            self.untold.pop(self.before.names[pairs[i][0]], None)
        return next((text for i, text in self.broken.items() if i not in compared), "")

    def _outputs(self) -> list[tuple[ir.Value, ir.Value]]:
        main = next(iter(self.before.graphs))
        return list(zip(self.before.graphs[main][1], self.after.graphs[main][1]))

    def _inputs(self) -> list[ir.Value]:
        main = next(iter(self.before.graphs))
        return [v for v in self.before.graphs[main][0] if v not in self.before.stored]

    def _styles(self) -> list[Style]:
        """Return the styles of drawing. Kernels outside the standard do not check positions and lengths, so these must
        be small.
        """
        trusts = any(step.domain not in ("", DOMAIN) for step in self.before.nodes.values())
        return [replace(s, integers=STYLES[0].integers) for s in STYLES] if trusts else list(STYLES)

    def _sizes(self) -> Iterator[dict[str, int]]:
        names: dict[str, None] = {}
        for value in self._inputs():
            for dim in info(value).shape or ():
                names.update(dict.fromkeys(symbols(dim)))
        for row in DRAWN_SIZES if names else DRAWN_SIZES[:1]:
            yield {name: row[i % len(row)] for i, name in enumerate(names)}

    def _computed(self, numbers: Mapping[str, int], style: Style) -> tuple[Stands, Stands]:
        if element_count(shape_counts(map(info, filter(None, self.after.maker))), numbers) > MAX_ELEMENTS:
            raise Untold(f"more than {MAX_ELEMENTS:,} elements")
        feeds = {v: drawn(facts_of(self.before, v), numbers, style, True, i) for i, v in enumerate(self._inputs())}
        sides = [Stands(p, self.single, numbers, self.rounds) for p in (self.before, self.after)]
        for side in sides:
            side.compute(feeds)
        return sides[0], sides[1]

    def _unlike(
        self, before: Stands, after: Stands, pairs: list[tuple[ir.Value, ir.Value]], compared: set[int]
    ) -> Iterator[str]:
        for i, (old, new) in enumerate(pairs):
            name = self.before.names[old]
            if old in before.why or new in after.why:
                self.untold[name] = str(before.why.get(old) or after.why[new])
                if old not in before.why and isinstance(after.why[new], Broken):
                    self.broken[i] = f"{name!r} can no longer be computed: {after.why[new]}"
                continue
            fault = _unlike(before, after, old, new, self.near)
            if fault:
                yield f"it changed {name!r}: {fault}"
            compared.add(i)
        if compared and not self.has_checked_stored:
            self.has_checked_stored = True
            yield from self._unlike_stored(before, after)

    def _unlike_stored(self, before: Stands, after: Stands) -> Iterator[str]:
        yield from (f"{name!r} dequantises values that need not be integers" for name in after.needless)
        yield from self._lost(before)
        for value, tensor in self.weights() if self.rounds else ():
            for step in self.after.nodes.values():
                if step.op == "FakeQuantize" and step.inputs[0] is value and not _as_stored(step, after, tensor):
                    yield f"{self.after.names[value]!r} is not rounded as the file's numbers are"

    # ---- stored tensors ------------------------------------------------------------------------------------------

    def _lost(self, before: Stands) -> Iterator[str]:
        """Yield dequantised stored tensors that did not become float tensors with the same numbers."""
        rebuilt: dict[str, list[Any]] = {}
        for _, tensor in self.weights():
            rebuilt.setdefault(tensor.how.tensor, []).append(tensor.numpy())
        for value, expected in before.floats.items():
            name = self.before.names[value]
            if not all(any(_same(floats, one) for one in rebuilt.get(name, ())) for floats in expected):
                yield NOT_STORED.format(name)

    def _of_products(self) -> Iterator[str]:
        """Yield weights of former integer products that are not stored as floats."""
        dequantised = {tensor.how.tensor for _, tensor in self.weights()}
        for node, step in self.before.nodes.items():
            weight = step.inputs[1] if step.op in PRODUCTS and node not in self.after.nodes else None
            if weight is not None and weight in self.before.stored and self.before.names[weight] not in dequantised:
                yield NOT_STORED.format(self.before.names[weight])

    def weights(self) -> Iterator[tuple[ir.Value, DequantisedTensor]]:
        """Yield every stored float tensor that the file stores as integers."""
        for value, tensor in self.after.stored.items():
            if isinstance(tensor, DequantisedTensor):
                yield value, tensor

    # ---- structure -----------------------------------------------------------------------------------------------

    def _of_integers(self) -> Iterator[str]:
        """Yield nodes on integers, and nodes that round, which should have become others."""
        for step in self.after.nodes.values():
            if step.op in STANDS_RULES and step.domain != DOMAIN and not is_a(step.node, QUANTISED):
                yield f"{step.name!r} is still a {step.op}"
            if not self.rounds and step.domain == DOMAIN and step.op in ROUNDED:
                yield f"{step.name!r} rounds, in a graph of floats"
            if step.op in PRODUCTS and self._is_product(step):
                yield f"{step.name!r} is a product of floats, but is still one of integers"

    def _structure(self) -> Iterator[str]:
        yield from self._of_integers()
        file: dict[str, Any] = {self.before.names[v]: tensor for v, tensor in self.before.stored.items()}
        constants = [step.outputs[0] for step in self.before.nodes.values() if step.op == "Constant"]
        file.update({self.before.names[value]: None for value in constants})
        for value, tensor in self.weights():
            name = self.after.names[value]
            for part, one in tensor.stored.items():
                if part not in file and one.size > 1 or file.get(part, one) not in (None, one):  # one: what a Pad has
                    yield f"{name!r} has another tensor for the file's {part!r}"
            yield from self._misnamed(name, tensor.how.tensor)
            if self.rounds:
                yield from self._unrounded(value, name, tensor)
        yield from self._of_products()

    def _misnamed(self, name: str, file: str) -> Iterator[str]:
        """Yield a problem unless the tensor has its name from before quantisation: the name of its integers without the
        suffix.
        """
        begin = name if file.startswith(name) else name.rstrip("_")
        rest = file[len(begin) :]
        known = rest in ("", *ENDS) or rest.startswith(NUMBERED)
        if file and not (file.startswith(begin) and known) or not rest and begin.endswith(ENDS) and begin not in ENDS:
            yield f"the floats of {file!r} are called {name!r}"
        elif begin != name and not self._is_taken(begin, file):
            yield f"the floats of {file!r} are called {name!r}, although there is no other {begin!r}"

    def _is_taken(self, begin: str, file: str) -> bool:
        """Return True if another tensor has the name: neither the integers nor their floats."""
        for value, one in self.before.names.items():
            maker = self.before.maker.get(value)
            if one == begin != file and not (maker is not None and maker.op == "DequantizeLinear"):
                return True
        return any(self.after.names[value] == begin for value, _ in self.weights())

    def _unrounded(self, value: ir.Value, name: str, tensor: DequantisedTensor) -> Iterator[str]:
        """Yield uses of a tensor that are not rounded, except biases and codes of a table."""
        if tensor.how.form == TABLE or tensor.stored[tensor.how.tensor].dtype == ir.DataType.INT32:
            return
        for step in self.after.nodes.values():
            if value in step.inputs and not (step.op == "FakeQuantize" and step.inputs.index(value) == 0):
                yield f"{step.name!r} uses {name!r}, which is not rounded"
        if any(value is new for _, new in self._outputs()):
            yield f"the output {name!r} is not rounded"

    def _is_product(self, step: Made) -> bool:
        """Return True if an integer product is only cast and multiplied by the scales of both operands."""
        cast = self._only_user(step.outputs[0], "Cast")
        scaled = None if cast is None else self._only_user(cast.outputs[0], "Mul")
        quantiser = self.after.maker.get(step.inputs[0], step)
        if cast is None or scaled is None or quantiser.op not in ("DynamicQuantizeLinear", "QuantizeLinear"):
            return False
        is_dynamic = quantiser.op == "DynamicQuantizeLinear"
        own = quantiser.outputs[1] if is_dynamic else quantiser.inputs[1]
        factors = self._factors(scaled.inputs, but=cast.outputs[0])
        if not ir.DataType(int(cast.attributes["to"].value)).is_floating_point() or len(factors) != 2:
            return False
        if own is None or own not in factors or factors[1 - factors.index(own)] not in self.after.stored:
            return False
        return is_dynamic or own in self.after.stored and self.after.stored[own].size == 1

    def _only_user(self, value: ir.Value, op: str) -> Made | None:
        users = [step for step in self.after.nodes.values() if value in step.inputs]
        outputs = {v for _, ends in self.after.graphs.values() for v in ends}
        return users[0] if len(users) == 1 and users[0].op == op and value not in outputs else None

    def _factors(self, values: Iterable[ir.Value | None], but: ir.Value | None = None) -> list[ir.Value]:
        """Return what products of products multiply, without one of the first factors."""
        factors: list[ir.Value] = []
        for value in values:
            maker = None if value is None else self.after.maker.get(value)
            if maker is not None and maker.op == "Mul" and value is not but:
                factors += self._factors(maker.inputs)
            elif value is not None and value is not but:
                factors.append(value)
        return factors


NO_KIND = Kind(None)


def _unlike(before: Stands, after: Stands, old: ir.Value, new: ir.Value, near: float) -> str:
    """Describe how an output differs. An 8- or 16-bit output with one scale is compared by what it represents."""
    kind, expected, got = before.kinds.get(old, NO_KIND), before.values[old], after.values[new]
    wanted, dtype = kind.dtype, after.kinds.get(new, NO_KIND).dtype
    grid = kind.single_grid
    if wanted in EIGHTS and grid is not None and grid.stored:
        expected, wanted = grid.real(expected), None
    if wanted != dtype:
        names = ["floats" if t is None else t.name for t in (wanted, dtype)]
        return f"it should be {names[0]}, but is {names[1]}"
    fault = unlike(expected, got, wide=True, exact=False)
    if not fault or not isinstance(expected, np.ndarray) or expected.shape != np.shape(got):
        return fault
    finite = np.isfinite(expected)
    if expected.dtype.kind != "f" or not np.array_equal(finite, np.isfinite(got)):
        return fault
    gap, size = gap_of(expected, got), np.abs(expected[finite]).max(initial=0)
    return fault if gap > near * size + CANCELLATION_ERROR else ""


def _as_stored(step: Made, after: Stands, tensor: DequantisedTensor) -> bool:
    """Return True if a trained weight, perhaps past its range, is rounded to what the file can store."""
    how, numbers = tensor.how, tensor.stored[tensor.how.tensor]
    dtype, low, high = ir.DataType(numbers.dtype), step.attribute("low", -128), step.attribute("high", 127)
    if how.form == BITS:
        begin = 0 if how.zero else -(2 ** (how.bits - 1))
        return (low, high) == (begin, begin + 2**how.bits - 1) and "to" not in step.attributes
    if dtype.is_floating_point():
        return int(step.attribute("to", 0)) == int(dtype)
    if "to" in step.attributes:
        return False
    if step.inputs[1] not in after.values or (len(step.inputs) > 2 and step.inputs[2] not in after.values):
        return True
    scale = math.prod(np.asarray(tensor.stored[name].numpy(), np.float64) for name in how.scales)
    zero = np.asarray(tensor.stored[how.zero].numpy() if how.zero else 0).astype(np.float64)
    whole = np.asarray(numbers.numpy()).astype(np.float64)
    steps, shift = (own.spread(np.asarray(v), whole, how.axis, how.block) for v in (scale, zero))
    reach = 0.6 * (int(dtype.max) - int(dtype.min))
    trained = whole + np.random.default_rng(0).uniform(-reach, reach, whole.shape)
    expected = (np.clip(np.round(trained - shift) + shift, int(dtype.min), int(dtype.max)) - shift) * steps
    operands = [after.values[v] for v in step.inputs[1:] if v is not None]
    options = {name: one.value for name, one in step.attributes.items()}
    with np.errstate(all="ignore"):
        got = np.where(steps == 0, expected, own.FakeQuantize((trained - shift) * steps, *operands, **options))
    return bool(np.allclose(got, expected, 1e-6, 1e-9))


def _same(a: Any, b: Any) -> bool:
    if a.size != b.size:
        return False
    a, b = np.asarray(a, np.float64).reshape(-1), np.asarray(b, np.float64).reshape(-1)
    return bool(np.allclose(a, b, 2e-3 if b.size == 0 else 1e-6, 1e-6 * np.abs(a).max(initial=0)))


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
        fixed = {step.inputs[FIXED[step.op]] for step in nodes if step.op in FIXED}
        for step in held.after.nodes.values():
            scale = step.inputs[1] if step.op == "FakeQuantize" and step.domain == DOMAIN else None
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
        yield from self._untrained(reached, as_weights)

    def _untrained(self, reached: set[ir.Value], as_weights: set[ir.Value]) -> Iterator[Doubt]:
        """Yield weights that are not trained, though a gradient reaches them."""
        for value in self.weights:
            is_trained, why = TRAINABLE.get(value)
            unreached = "no output depends" in str(why) or "nobody" in str(why)
            if value in reached and not is_trained and not self._is_asked(value, self.options.frozen):
                if unreached or value in as_weights:
                    yield Doubt(value, f"{value.name!r} is not trained: {why}", True)

    @staticmethod
    def _is_asked(value: ir.Value, pattern: str | None) -> bool:
        return bool(pattern and re.search(pattern, value.name or ""))


def _operands(step: Made) -> Iterable[tuple[int, int]]:
    """Return the positions of integer tensors and their scales in the inputs of a node; -1 is the output."""
    return scaled(known(step.node)) if step.op not in FIXED else ()


def _uses(held: Quantised) -> tuple[dict[ir.Value, set[str]], dict[str, set[ir.Value]], set[ir.Value]]:
    """Return the integer tensors of each scale, the scales of each quantised tensor, and the scales that stay
    undecided.
    """
    tensors: dict[ir.Value, set[str]] = defaultdict(set)
    scales: dict[str, set[ir.Value]] = defaultdict(set)
    unsure: set[ir.Value] = set()
    before = held.before
    for step in before.nodes.values():
        operands = _operands(step)
        for at, by in operands:
            scale, integers = step.input(by), step.outputs[0] if at < 0 else step.input(at)
            if scale is None or integers is None:
                continue
            for root in roots(before, integers):
                tensors[scale].add(before.names[root])
                if root in before.maker and before.maker[root].op != "Constant":
                    scales[before.names[root]].add(scale)
                    unsure |= {scale} if not _operands(before.maker[root]) else set()
        if not operands and not carries(step):
            unsure |= _of_integers(before, step)
    for scale, name in _rounded_weights(held):
        tensors[scale].add(name)
    return tensors, scales, unsure


def _rounded_weights(held: Quantised) -> Iterator[tuple[ir.Value, str]]:
    """Yield each scale that rounds a weight, with the file's tensor that the weight was."""
    names = {value: tensor.how.tensor for value, tensor in held.weights()}
    for step in held.after.nodes.values():
        if step.op == "FakeQuantize" and step.inputs[0] in names and step.inputs[1] is not None:
            yield step.inputs[1], names[step.inputs[0]]


def _of_integers(before: Picture, step: Made) -> set[ir.Value]:
    """Return the scales of integers that something else uses, together with the integers."""
    scales: set[ir.Value] = set()
    for value in step.inputs:
        for root in roots(before, value) if value is not None else ():
            maker = before.maker.get(root)
            if maker is not None:
                scales.update(filter(None, (maker.input(by) for at, by in _operands(maker) if at < 0)))
    return scales


def _reached(picture: Picture) -> set[ir.Value]:
    """Return the values on which a float output depends through operators that pass gradients on."""
    main = next(iter(picture.graphs))
    reached = {v for v in picture.graphs[main][1] if _is_float(picture, v)}
    for step in reversed(picture.nodes.values()):
        card = known(step.node)
        is_smooth = card.name and step.domain in ("", DOMAIN) and everywhere(step.domain, step.op) is None
        if not is_smooth or step.graph is not main or reached.isdisjoint(step.outputs):
            continue
        flat = (2, 3) if step.op == "FakeQuantize" else {*card.still, *card.chosen}
        reached.update(
            v for i, v in enumerate(step.inputs) if v is not None and i not in flat and _is_float(picture, v)
        )
    return reached


def _is_float(picture: Picture, value: ir.Value) -> bool:
    dtype = picture.facts[value].dtype
    dtype = dtype if dtype is not None else value.dtype
    return dtype is not None and dtype.is_floating_point() and dtype.itemsize > 1


def _as_weights(picture: Picture) -> set[ir.Value]:
    """Return the values that are a layer's weight or bias, also through views."""
    weights: set[ir.Value] = set()
    for step in reversed(picture.nodes.values()):
        is_alike = is_a(step.node, VIEW) or step.op == "FakeQuantize"
        card = known(step.node)
        layer = () if card.matrix is None or card.bias is None else (card.matrix, card.bias)
        places = (0,) if is_alike and not weights.isdisjoint(step.outputs) else layer
        weights.update(filter(None, map(step.input, places)))
    return weights
