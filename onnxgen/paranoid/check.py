"""Compare the graph before and after each pass: changed parts are computed on both sides.

At the end weight provenance is checked: untrained weights must give the file's own numbers, of a
quantised file its integers.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxgen.errors import OnnxgenError, WrongRewrite
from onnxgen.graph.nodes import NAMED
from onnxgen.options import Options
from onnxgen.paranoid.apart import HAS_ONNXRUNTIME
from onnxgen.paranoid.claims import (
    Claim,
    Difference,
    Hopeless,
    Refused,
    Region,
    Regions,
    Untold,
    claims,
    decision,
    difference,
    digest,
)
from onnxgen.paranoid.comparison import Comparison
from onnxgen.paranoid.draws import FILLED
from onnxgen.paranoid.picture import Picture, take
from onnxgen.paranoid.promises import ADDS, EXPAND, broken, known_nodes, mistyped, untrue
from onnxgen.paranoid.single import Single
from onnxgen.record.way_back import WayBack
from onnxgen.shapes import propagate
from onnxgen.shapes.info import info
from onnxgen.weights.dequantised import Dequantised, DequantisedTensor
from onnxgen.weights.provenance import Source, rebuild

if TYPE_CHECKING:
    from onnxgen.output.compose import Generated
    from onnxgen.paranoid.quantised import Learns


HALF_RTOL = 1e-2  # relative precision of an 8-bit mantissa


def lost(model: ir.Model, generated: Generated) -> Iterator[str]:
    """Yield, for float tensors that the file stores as integers, why they would not be written back.

    A tensor that is not trained need not be: it is a constant of the module.
    """
    way_back = WayBack.from_metadata(generated.metadata)
    record, how = way_back.tensors, way_back.quantised
    trained = generated.report.trainable
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if not isinstance(tensor, DequantisedTensor):
            continue
        name = value.name or ""
        if name in record:
            if name not in how or Dequantised.of_record(how[name]) != tensor.how:
                yield f"{name!r}: the weights do not record its integers"
            elif why := _changed(tensor, name, record, generated):
                yield f"{name!r} {why}"
        elif trained.get(name, (False, ""))[0]:
            yield f"{name!r} is trained, but is not written back"


def altered(generated: Generated) -> Iterator[str]:
    """Yield, for tensors that the state dict is made of unchanged, how an export without training would differ."""
    way_back = WayBack.from_metadata(generated.metadata)
    record, how = way_back.tensors, way_back.quantised
    sources = [held for held in generated.tensors.values() if isinstance(held, Source)]
    pieces = {piece.name: piece.tensor for source in sources for piece in (*source.pieces, *source.empty)}
    for name in (record.keys() & pieces.keys()) - how.keys():
        try:
            floats = np.asarray(rebuild(record, name, partial(_numbers, generated), pieces[name].numpy()))
        except (KeyError, OnnxgenError) as error:
            yield f"{name!r} can't be written back: {error}"
            continue
        original = np.asarray(pieces[name].numpy())
        exact = floats.dtype == original.dtype and floats.tobytes() == original.tobytes()
        if not exact and not _is_near(floats, original) or floats.shape != original.shape:
            yield f"{name!r} is written back as other numbers"


def _numbers(generated: Generated, key: str) -> Any:
    source = generated.tensors[key]
    return source.numpy() if isinstance(source, Source) else source


def _is_near(floats: Any, original: Any) -> bool:
    """Return True if the numbers are close. For `--dtype` and folded BatchNorms, exact equality is not expected."""
    if original.dtype.kind not in "fV" or floats.shape != original.shape:
        return False
    held = np.isfinite(floats.astype(np.float64))  # a narrower type may not hold numbers this large
    wide = original.astype(np.float64)[held]
    return bool(np.allclose(floats.astype(np.float64)[held], wide, HALF_RTOL, HALF_RTOL * np.abs(wide).max(initial=0)))


def _changed(tensor: DequantisedTensor, name: str, record: Mapping[str, Any], generated: Generated) -> str:
    """Describe how an export of an untrained tensor would differ; empty if it would not."""
    read: list[Any] = []

    def state(key: str) -> Any:
        read.append(_numbers(generated, key))
        return read[-1]

    def stored(key: str) -> Any:
        return tensor.stored[key].numpy()

    original = np.asarray(tensor.numpy())
    floats = np.asarray(rebuild(record, name, state, original))
    if any(one.dtype.itemsize < original.dtype.itemsize for one in read):  # by `--dtype`: only close
        return "" if _is_near(floats, original) else "is written back as other floats"
    if not np.array_equal(floats, original.astype(floats.dtype), equal_nan=True):  # compares shapes, too
        return "is written back as other floats"
    before = stored(tensor.how.tensor)
    integers = tensor.how.integers(floats, stored, stored)
    same = integers.shape == before.shape and integers.dtype == before.dtype and integers.tobytes() == before.tobytes()
    return "" if same else "is written back as other integers"


Pass = Callable[[ir.Model, Options], None]
MAX_NODES_SHOWN = 6  # nodes in an error message
MAX_ENLARGEMENTS = 6  # enlargements of a region before a difference is reported
TRAINABLE = "trainable"
RETYPE = "retype"
DECIDE = "decide"  # the pass after which the network takes sizes with which it failed before
QUANTIZED = "quantized"  # the pass that makes floats of integers, whose numbers differ by design (see `quantised`)


@dataclass
class Counts:
    """The numbers of checked claims, and the reasons why others could not be decided.

    Attributes:
        regions: regions that were computed on both sides.
        repeated: regions that are equal to one that was computed.
        untold: the reasons why regions could not be decided, with their numbers.
        seconds: the time that the checks took.
        doubts: the tensors of which a second set of rules says otherwise whether they are trained.
        left_out: the passes that were left out, each with what it would have changed.
        oracle: the library that computed the standard operators.
    """

    regions: int = 0
    repeated: int = 0
    untold: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    doubts: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    oracle: str = field(default_factory=lambda: "onnxruntime" if HAS_ONNXRUNTIME else "onnx.reference")

    def __str__(self) -> str:
        untold = "; ".join(f"{why} ({n})" for why, n in self.untold.most_common())
        return (
            f"{self.regions} rewritten regions are the same before and after on drawn inputs, computed by {self.oracle}"
            f" in {self.seconds:.1f} s; {self.repeated} more are like them; of {sum(self.untold.values())} nothing is "
            f"said{': ' if untold else ''}{untold}"
        )


class Checker:
    """Runs the passes of one model, and compares the graph after each with the one before.

    Attributes:
        gives_up: do not compute more of the network for a claim that this seldom decides.
    """

    gives_up = False

    def __init__(self) -> None:
        self.counts = Counts()
        self.single = Single()
        self.known: set[Hashable] = set()
        self.learns: Learns | None = None
        self.last: Picture | None = None  # after the last pass: nothing else changes the graph

    def run(self, step: Pass, model: ir.Model, options: Options) -> None:
        """Run one pass. Raises `WrongRewrite` if it changed what the network computes."""
        name, before = name_of(step), self.last or take(model)
        if name == RETYPE:
            return self.retyped(step, model, options, before)
        known = known_nodes(model) if name == EXPAND else frozenset()
        step(model, options)
        start = time.perf_counter()
        after = self.last = take(model)
        if self.learns is not None and name == TRAINABLE:
            refuse(name, map(str, self.learns.faults(before)))
        decided = TRAINABLE if name == "propagate" else name
        refuse(decided, broken(name, model, options, before, after, known, self.single))
        change = changes(name, before, after)
        if change is not None and before.is_as(model):
            refuse(name, ["without `--paranoid`, what it changed would be overlooked"])
        if change is None and name in ADDS and options.restore_batchnorm:
            self._refuse_untrue(name, model, options, before, after)
        if change is not None:
            self.judge(name, model, options, change)
        if name == QUANTIZED and options.quantized != "keep":
            self.check_quantised(model, before, after, options)
        self.counts.seconds += time.perf_counter() - start

    def retyped(self, step: Pass, model: ir.Model, options: Options, before: Picture, most: int | None = None) -> None:
        """Run the pass that gives floats another type. Raises `WrongRewrite`. `most`: elements of a tensor."""
        step(model, options)
        start = time.perf_counter()
        refuse(RETYPE, mistyped(before, take(model, before), NAMED[str(options.dtype)], most))
        self.counts.seconds += time.perf_counter() - start

    def judge(self, name: str, model: ir.Model, options: Options, change: Difference) -> None:
        """Compare what a pass changed. Raises `WrongRewrite`."""
        self._refuse_untrue(name, model, options, change.before, change.after)
        refuse(name, change.faults)
        while name != QUANTIZED and self._sweep(name, change):
            pass

    def _refuse_untrue(self, name: str, model: ir.Model, options: Options, before: Picture, after: Picture) -> None:
        if wrong := untrue(name, model, options, before, after):
            raise WrongRewrite(f"the pass {name} changed how the network is trained: {wrong}", name)

    def check_quantised(self, model: ir.Model, before: Picture, after: Picture, options: Options) -> None:
        """Compare a graph whose integers became floats by what the integers represent. Raises `WrongRewrite`."""
        from onnxgen.paranoid.quantised import Learns, Quantised

        if any(info(value).dtype is None for value in model.graph.inputs):
            self.last = None
            propagate(model.graph, options)  # types and sizes must be inferable again if the pass is correct
        held = Quantised(before, after, self.single, rounds=options.quantized != "float")
        refuse(QUANTIZED, filter(None, [held.fault()]))
        self.counts.untold.update(held.untold.values())
        self.learns = Learns(held, options)

    def _sweep(self, name: str, change: Difference) -> bool:
        """Compare the values of every claim. Returns True if claims were replaced by others, which are then to be
        compared.
        """
        regions, parted = Regions(change), False
        for claim in claims(change):
            verdict = self._verdict(regions, claim)
            if verdict == "":
                regions.holds(claim)
            elif claim.needed and verdict is not None:
                if change.part(claim):
                    parted = True
                    continue
                where = f"{claim.name!r}, made by {_nodes(regions, claim)}"
                raise WrongRewrite(f"the pass {name} changed {where}: {verdict}", name)
        return parted

    def _verdict(self, regions: Regions, claim: Claim) -> str | None:
        """Describe how both sides of a claim differ. Returns "" if they do not, None if that cannot be decided.

        A pass may use how a value is computed, so a difference counts only if it remains when more of the network is
        computed. It does not count if the whole network, from its inputs on, refuses all drawn inputs.
        """
        opened: set[ir.Value] = set()
        verdict, reasons, differed = "", list[str](), False
        with suppress(Untold):
            for level in range(MAX_ENLARGEMENTS if claim.needed else 1):
                region = regions.levelled(claim, opened) if level == 1 else regions.of(claim, opened)
                refused = False
                try:
                    verdict = self._compared(region, differed)
                    differed = True
                    if not verdict:
                        return ""
                except Untold as error:
                    reasons.append(str(error))
                    refused = isinstance(error, Refused)
                    if self.gives_up and isinstance(error, Hopeless):
                        break
                further = regions.deeper(region) - opened
                if not further:
                    verdict = "" if refused else verdict
                    break
                opened |= further if level else set()
        if not verdict and claim.needed:
            self.counts.untold[[*reasons, "too large"][0]] += 1
        return verdict or None

    def _compared(self, region: Region, differed: bool) -> str:
        """Describe how both sides differ. More draws are made if a smaller part of the network `differed`."""
        key = digest(region)
        if key is not None and key in self.known and not differed:
            self.counts.repeated += region.claim.needed
            return ""
        verdict = self._fresh(region, differed)
        if not verdict:
            self.counts.regions += region.claim.needed
            if key is not None:
                self.known.add(key)
        return verdict

    def _fresh(self, region: Region, differed: bool) -> str:
        """Describe how both sides of a region that is not known differ."""
        return Comparison(region, self.single, FILLED if differed else ()).verdict()


def changes(name: str, before: Picture, after: Picture) -> Difference | None:
    """Return what the pass of a name changed, or None if it changed nothing."""
    return (decision if name == DECIDE else difference)(before, after)


def hold_way_back(model: ir.Model, generated: Generated, of_all: bool) -> None:
    """Check that the generated weights have a quantised file's integers, and `of_all` files the numbers. Raises
    `WrongRewrite`.
    """
    for fault in (*lost(model, generated), *(altered(generated) if of_all else ())):
        raise WrongRewrite(f"the weights are wrong: {fault}")


def refuse(name: str, faults: Iterable[str]) -> None:
    """Raise `WrongRewrite` if a pass has a fault."""
    for fault in faults:
        raise WrongRewrite(f"the pass {name} is wrong: {fault}", name)


def _nodes(regions: Regions, claim: Claim) -> str:
    """Return the names of the nodes that a claim is about."""
    with suppress(Untold):
        names = list(dict.fromkeys(step.name for step in regions.of(claim, set()).before.steps))
        return (
            ", ".join(names[:MAX_NODES_SHOWN])
            + (f" and {len(names) - MAX_NODES_SHOWN} more" if names[MAX_NODES_SHOWN:] else "")
            or "no node"
        )
    return "nodes that are gone"


def name_of(step: Pass) -> str:
    """Return the name of a pass."""
    return getattr(step, "__name__", str(step)).strip("_")
