"""Compare the graph before and after each pass: changed parts are computed on both sides, on drawn inputs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxgen.graph.domains import DOMAIN
from onnxgen.options import Options
from onnxgen.paranoid.apart import HAS_ONNXRUNTIME
from onnxgen.paranoid.back import altered, lost
from onnxgen.paranoid.claims import Claim, Difference, claims, difference
from onnxgen.paranoid.compare import gaps_of, only_ties, tells, unlike, widened
from onnxgen.paranoid.draws import (
    DRAWN_SIZES,
    ENOUGH_ROWS,
    EVERY,
    FILLED,
    STYLES,
    Style,
    element_count,
    elements,
    facts_of,
    sizes,
)
from onnxgen.paranoid.foreign import MICROSOFT, SHAPES
from onnxgen.paranoid.learns import Learns
from onnxgen.paranoid.picture import Made, Picture, take
from onnxgen.paranoid.promises import EXPAND, broken, known_nodes
from onnxgen.paranoid.quantised import Quantised
from onnxgen.paranoid.region import Broken, Refused, Region, Regions, Unable, Untold, digest
from onnxgen.paranoid.run import Side
from onnxgen.paranoid.single import Single, copies
from onnxgen.paranoid.training import ADDS, untrue
from onnxgen.shapes import propagate
from onnxgen.shapes.info import info

if TYPE_CHECKING:
    from onnxgen.output.compose import Generated

Pass = Callable[[ir.Model, Options], None]
MAX_NODES_SHOWN = 6  # nodes in an error message
MAX_ENLARGEMENTS = 6  # enlargements of a region before a difference is reported
MAX_ELEMENTS_ALL_DRAWS, MAX_ELEMENTS_ONE_DRAW, MAX_ELEMENTS = (
    3_000_000,
    60_000_000,
    400_000_000,
)  # elements of a region; larger ones get fewer draws, or none
MAX_ELEMENTS_MORE_DRAWS, MORE_DRAWS = 10_000, (1, 2)  # elements of a region; smaller ones get these additional draws
FLOAT32_KERNEL_TOLERANCE = 0.05  # allowed difference, as a part of the largest element, of kernels without float64
TRAINABLE = "trainable"
QUANTIZED = "quantized"  # the pass that makes floats of integers, whose numbers differ by design (see `quantised`)


class WrongRewrite(Exception):
    """A pass changed what the network computes: a bug in onnxgen."""


@dataclass
class Counts:
    """The numbers of checked claims, and the reasons why others could not be decided.

    Attributes:
        regions: regions that were computed on both sides.
        repeated: regions that are equal to one that was computed.
        untold: the reasons why regions could not be decided, with their numbers.
        seconds: the time that the checks took.
        oracle: the library that computed the standard operators.
    """

    regions: int = 0
    repeated: int = 0
    untold: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    oracle: str = field(default_factory=lambda: "onnxruntime" if HAS_ONNXRUNTIME else "onnx.reference")

    def __str__(self) -> str:
        untold = "; ".join(f"{why} ({n})" for why, n in self.untold.most_common())
        return (
            f"{self.regions} rewritten regions are the same before and after on drawn inputs, computed by {self.oracle}"
            f" in {self.seconds:.1f} s; {self.repeated} more are like them; of {sum(self.untold.values())} nothing is "
            f"said{': ' if untold else ''}{untold}"
        )


class Checker:
    """Runs the passes of one model, and compares the graph after each with the one before."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.single = Single()
        self.known: set[str] = set()
        self.learns: Learns | None = None
        self.last: Picture | None = None  # after the last pass: nothing else changes the graph

    def run(self, step: Pass, model: ir.Model, options: Options) -> None:
        """Run one pass. Raises `WrongRewrite` if it changed what the network computes."""
        name, before = _name(step), self.last or take(model)
        known = known_nodes(model) if name == EXPAND else frozenset()
        step(model, options)
        start = time.perf_counter()
        after = self.last = take(model)
        if self.learns is not None and name == TRAINABLE:
            _refuse(name, self.learns.faults(before))
        decided = TRAINABLE if name == "propagate" else name
        _refuse(decided, broken(name, model, options, before, after, known, self.single))
        found = difference(before, after)
        if found is not None or name in ADDS and options.restore_batchnorm:
            if wrong := untrue(name, model, options, before, after):
                raise WrongRewrite(f"the pass {name} changed how the network is trained: {wrong}")
        if found is not None:
            _refuse(name, found.faults)
            while name != QUANTIZED and self._sweep(name, found):
                pass
        if name == QUANTIZED and options.quantized != "keep":
            if any(info(value).dtype is None for value in model.graph.inputs):
                self.last = None
                propagate(model.graph, options)  # types and sizes must be inferable again if the pass is correct
            self._check_quantised(before, after, options)
        self.counts.seconds += time.perf_counter() - start

    def _check_quantised(self, before: Picture, after: Picture, options: Options) -> None:
        """Compare a graph whose integers became floats by what the integers represent."""
        held = Quantised(before, after, self.single, rounds=options.quantized != "float")
        _refuse(QUANTIZED, filter(None, [held.fault()]))
        self.counts.untold.update(held.untold.values())
        self.learns = Learns(held, options)

    def _sweep(self, name: str, found: Difference) -> bool:
        """Compare the values of every claim. Returns True if claims were replaced by others, which are then to be
        compared.
        """
        regions, parted = Regions(found), False
        for claim in claims(found):
            verdict = self._verdict(regions, claim)
            if verdict == "":
                regions.holds(claim)
            elif claim.needed and verdict is not None:
                if found.part(claim):
                    parted = True
                    continue
                raise WrongRewrite(
                    f"the pass {name} changed {claim.name!r}, made by {_nodes(regions, claim)}: {verdict}"
                )
        return parted

    def _verdict(self, regions: Regions, claim: Claim) -> str | None:
        """Describe how both sides of a claim differ. Returns "" if they do not, None if that cannot be decided.

        A pass may use how a value is computed, so a difference counts only if it remains when more of the network is
        computed. It does not count if the whole network, from its inputs on, refuses all drawn inputs.
        """
        opened: set[ir.Value] = set()
        verdict, why, differed = "", "", False
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
                    why, refused = why or str(error), isinstance(error, Refused)
                further = regions.deeper(region) - opened
                if not further:
                    verdict = "" if refused else verdict
                    break
                opened |= further if level else set()
        if not verdict and claim.needed:
            self.counts.untold[why or "too large"] += 1
        return verdict or None

    def _compared(self, region: Region, differed: bool) -> str:
        """Describe how both sides differ. More draws are made if a smaller part of the network `differed`."""
        key = digest(region)
        if key is not None and key in self.known and not differed:
            self.counts.repeated += region.claim.needed
            return ""
        verdict = Comparison(region, self.single, FILLED if differed else ()).verdict()
        if not verdict:
            self.counts.regions += region.claim.needed
            if key is not None:
                self.known.add(key)
        return verdict


def hold_way_back(model: ir.Model, generated: Generated) -> None:
    """Check that the generated weights have the file's numbers, or a quantised file's integers. Raises
    `WrongRewrite`.
    """
    for fault in (*lost(model, generated), *altered(generated)):
        raise WrongRewrite(f"the weights are wrong: {fault}")


def _refuse(name: str, faults: Iterable[str]) -> None:
    """Raise `WrongRewrite` if a pass has a fault."""
    for fault in faults:
        raise WrongRewrite(f"the pass {name} is wrong: {fault}")


class Comparison:
    """Compares one region on several draws. `more`: additional draws."""

    def __init__(self, region: Region, single: Single, more: tuple[Style, ...] = ()) -> None:
        self.region, self.single = region, single
        steps = [*region.before.steps, *region.after.steps]
        self.exact = all(_moves(step) for step in steps)
        # kernels outside the standard do not check positions and lengths, so drawn ones must be small; 8-bit integers
        # are not positions
        self.trusts = any(step.domain not in ("", DOMAIN) for step in steps)
        self.styles = [replace(s, integers=STYLES[0].integers, bytes=s.integers) for s in STYLES]
        self.styles = self.styles if self.trusts else list(STYLES)
        self.more = list(more)
        self.fits = any(step.domain == MICROSOFT and step.op in SHAPES for step in region.before.steps)

    def verdict(self) -> str:
        """Describe how both sides differ, or return "". Raises `Untold` if no draw can be computed.

        The second side may refuse some sizes if it runs on at least as many others: the network cannot take these. But
        it must run on sizes that were made to fit.
        """
        why: Untold | None = None
        told, refused, broken = 0, 0, ""
        for turn, numbers in enumerate(sizes(self.region)):
            if told and turn >= len(DRAWN_SIZES):
                break
            try:
                found = self._on(numbers)
            except Broken as error:
                refused, broken = refused + 1, broken or f"it no longer runs: {error}"
                if self.fits and 1 not in numbers.values():
                    return broken
                continue
            except Untold as error:
                why = why or error
                continue
            if found:
                return found
            told += 1
            if told == ENOUGH_ROWS:
                break
        if told == 0 and not broken:
            raise why or Untold("nothing was computed")
        return broken if told < refused else ""

    def _on(self, numbers: dict[str, int]) -> str:
        """Compare both sides on some sizes. Raises `Broken` if only the second side fails on them."""
        cones = self.region.before, self.region.after
        values = ((c.picture, v) for c in cones for v in (*c.cuts, *(v for step in c.steps for v in step.outputs)))
        weight = element_count((facts_of(*value) for value in values), numbers)
        if weight > MAX_ELEMENTS:
            raise Untold(f"more than {MAX_ELEMENTS:,} elements")
        count = len(self.styles) if weight < MAX_ELEMENTS_ALL_DRAWS else 1 if weight < MAX_ELEMENTS_ONE_DRAW else 0
        # most kernels outside the standard have no float64, so there are more draws in their own types
        draws = [(style, False) for style in (self.styles[: max(1, count)] if self.trusts else STYLES[:1])]
        if self.trusts and weight < MAX_ELEMENTS_MORE_DRAWS:
            draws += [(replace(s, name=f"{s.name}, again {n}"), False) for n in MORE_DRAWS for s in self.styles[:2]]
        draws += [(style, not self.exact) for style in (*self.styles[:count], *self.more[: count * EVERY])]
        told, why = False, None
        for style, wide in draws:
            try:
                found, telling = self._once(numbers, style, wide)
            except Untold as error:
                if isinstance(error, Broken) and not wide:
                    raise
                why = why or error
                continue
            if found:
                return f"{found} ({style.name} inputs, {'float64' if wide else 'as it is'})"
            told = told or telling
        if not told:
            raise why or Untold("nothing but NaN on every draw")
        return ""

    def _once(self, numbers: dict[str, int], style: Style, wide: bool) -> tuple[str, bool]:
        """Return how both sides differ on one draw, and whether that draw is conclusive."""
        try:
            expected, got = self._both(numbers, style, wide)
        except Broken:
            self._ask_again(numbers, style, wide, None)
            raise
        found = unlike(expected, got, wide, self.exact)
        if found and self.trusts and style.bytes != STYLES[0].integers and only_ties(expected, got):
            found = ""
        if found and wide:
            self._trust(expected, got, self._both(numbers, style, wide=False))
        elif found and not self.exact and getattr(expected, "shape", 0) == getattr(got, "shape", 1):
            found = unlike(expected, got, wide, self.exact, self._rounding(numbers, style, (expected, got)))
        if found:
            self._ask_again(numbers, style, wide, got)
        return found, tells(expected)

    def _ask_again(self, numbers: dict[str, int], style: Style, wide: bool, got: Any) -> None:
        """Raise `Untold` if another implementation of the first side agrees with the second side or refuses
        the inputs.
        """
        before = self.region.before
        if any(step.domain not in ("", DOMAIN) for step in before.steps):
            return
        side = Side(before.picture, Single(second=True), numbers, wide)
        try:
            with np.errstate(all="ignore"):
                other = side.value(before, elements(self.region, numbers, style, wide))
        except Untold as error:
            if got is None and not isinstance(error, Unable):
                raise Untold(f"onnxruntime alone runs it: {error}") from None
            return
        if got is not None and not unlike(other, got, wide, self.exact):
            raise Untold("onnxruntime and onnx.reference compute something else")

    def _trust(self, expected: Any, got: Any, narrow: tuple[Any, Any]) -> None:
        """Raise `Untold` unless each side computes the same in float64 as in its own types."""
        for one, other in zip((expected, got), narrow):
            if unlike(widened(other), widened(one), wide=False, exact=False):
                raise Untold("an operator computes something else in float64")

    def _rounding(self, numbers: dict[str, int], style: Style, narrow: tuple[Any, Any]) -> Any:
        """Return how far rounding may separate both sides: four times the distance of one side from itself in float64,
        for each row.
        """
        found: Any = 0.0
        drawn = elements(self.region, numbers, style, wide=True)
        for cone, one in zip((self.region.before, self.region.after), narrow):
            with suppress(Untold), np.errstate(all="ignore"):
                other = Side(cone.picture, self.single, numbers, wide=True).value(cone, drawn)
                if getattr(other, "shape", None) == getattr(one, "shape", ()) and one.dtype.kind == "f":
                    found = np.maximum(found, 4 * gaps_of(widened(one), widened(other)))
        if self.trusts and isinstance(narrow[0], np.ndarray) and narrow[0].dtype.kind == "f":
            first = np.abs(widened(narrow[0]))
            found = np.minimum(found, FLOAT32_KERNEL_TOLERANCE * np.max(first, initial=0.0, where=np.isfinite(first)))
        return found

    def _both(self, numbers: dict[str, int], style: Style, wide: bool) -> tuple[Any, Any]:
        """Return the values of both sides. Raises `Broken` if only the first one runs, `Untold` if it does not."""
        drawn = elements(self.region, numbers, style, wide)
        before, after = self.region.before, self.region.after
        with np.errstate(all="ignore"):
            first, second = (Side(cone.picture, self.single, numbers, wide) for cone in (before, after))
            try:
                expected = first.value(before, drawn)
            except Broken as error:
                raise Refused(str(error)) from None
            got = second.value(after, drawn)
            if first.narrowed or second.narrowed:
                raise Untold("an operator computes in float32 alone")
            return expected, got


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


def _moves(step: Made) -> bool:
    return copies(step) and step.domain in ("", DOMAIN)


def _name(step: Pass) -> str:
    return getattr(step, "__name__", str(step)).strip("_")
