"""The check that every generation makes: each region that a pass rewrote is computed on few drawn inputs.

What seems to differ is compared as with `--paranoid`. If it differs there too, the graph is read again, and the pass is
left out (see `pipeline`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxgen.errors import WrongRewrite, is_strict
from onnxgen.graph.annotations import DECIDED
from onnxgen.graph.annotations import TRAINABLE as DECISION
from onnxgen.options import Options
from onnxgen.paranoid.check import (
    DECIDE,
    QUANTIZED,
    RETYPE,
    TRAINABLE,
    Checker,
    Counts,
    Pass,
    changes,
    hold_way_back,
    name_of,
    refuse,
)
from onnxgen.paranoid.claims import Claim, Difference, Region, Regions, Untold
from onnxgen.paranoid.comparison import Comparison
from onnxgen.paranoid.draws import FILLED
from onnxgen.paranoid.picture import Picture, take
from onnxgen.paranoid.promises import broken
from onnxgen.paranoid.single import Single
from onnxgen.paranoid.trained import SECOND, Doubt, wrong_decisions

if TYPE_CHECKING:
    from onnxgen.output.compose import Generated

PARANOID = "ONNXGEN_PARANOID"  # environment variable that has the effect of `Options.paranoid`
FEW, MANY = 48_000_000, 64_000_000  # elements of a region that are computed, and of one of which a part differs
FOLLOWED = "; a second set of rules says otherwise, and was followed"
MOST = 20_000  # elements that onnx's evaluator, which is slow, is given; those of a tensor that are looked at
# Passes after which facts are other ones: types and sizes, or what is trained, on which depends which values move.
FACTS = frozenset("trainable propagate decide".split())
UNCOMPARED = frozenset(("propagate",))  # it finds facts

# By options: what was asked for is not left out. Without `trainable`, nobody decides what is trained, and without
# `dynamic`, it decides otherwise. Without `text`, later stages take text for numbers.
NEEDED = frozenset(("dynamic_batch", "restore_batchnorm", "dynamic", "text", QUANTIZED, RETYPE, TRAINABLE))
OWES = frozenset(("dynamic_batch", "text"))  # passes that must do something where they are asked for, or meet text


def is_paranoid(options: Options) -> bool:
    """Return True if everything is checked that can be."""
    return options.paranoid or os.environ.get(PARANOID, "") not in ("", "0")


def checker_for(options: Options, left_out: Mapping[str, str]) -> Checker:
    """Return what runs the passes. `left_out`: those that do not run, each with the reason."""
    return Checker() if is_paranoid(options) else QuickChecker(left_out)


def may_leave_out(step: str, options: Options, left_out: Mapping[str, str]) -> bool:
    """Return True if a pass that is wrong is to be left out; else the generation fails."""
    return not (is_strict() or is_paranoid(options) or step in NEEDED or step in left_out)


def hold_weights(model: ir.Model, generated: Generated, options: Options) -> None:
    """Check that the generated weights have the file's numbers. Raises `WrongRewrite`."""
    hold_way_back(model, generated, is_paranoid(options))


class QuickChecker(Checker):
    """Runs the passes of one model, and compares what they rewrote."""

    gives_up = True

    def __init__(self, left_out: Mapping[str, str]) -> None:
        super().__init__()
        self.counts = Counts(left_out=dict(left_out), oracle="numpy")
        self.single, self.quick = Single(most=MOST), Single(quick=True, most=MOST)
        self.is_dated = False  # the last picture is from before a pass that is not compared
        self.is_sure = False  # compare as with `--paranoid`
        self.is_choice = False  # compare what the pass that chooses branches did, for all sizes: one says little
        self.mute = ""  # why nothing could be told of a choice: then nothing is asked of the pass's others
        self.waiting: list[tuple[str, Difference]] = []  # what could not be told before types were known

    def run(self, step: Pass, model: ir.Model, options: Options) -> None:
        """Run one pass, unless it is left out. Raises `WrongRewrite` if it changed what the network computes."""
        name = name_of(step)
        if name in self.counts.left_out:
            return
        if name in UNCOMPARED:
            step(model, options)
            if not DECIDED.has(model):
                DECIDED.set(model, True)
                if self._doubt(model, options):
                    step(model, options)
                self._again(model, options)
        elif name == RETYPE:
            self.retyped(step, model, options, take(model, self.last), MOST)
        else:
            start = time.perf_counter()
            if self.last is None or self.is_dated:
                self.last, self.is_dated = take(model, self.last), False
            before = self.last
            self.counts.seconds += time.perf_counter() - start
            step(model, options)
            start = time.perf_counter()
            self.last = before if before.is_as(model) else take(model, before)
            with self._checking(name):
                self._compare(name, model, options, before, self.last)
            self.counts.seconds += time.perf_counter() - start
        self.is_dated |= name in FACTS

    def _compare(self, name: str, model: ir.Model, options: Options, before: Picture, after: Picture) -> None:
        """Check what a pass did. Raises `WrongRewrite`."""
        is_changed, is_quantised = after is not before, options.quantized != "keep"
        if name == TRAINABLE or name == QUANTIZED and not is_quantised:
            refuse(name, ["it changed the graph"] * is_changed)
        if name == TRAINABLE and self.learns is not None:
            self._doubted(self.learns.faults(before))
        if is_changed or name in OWES:
            refuse(name, broken(name, model, options, before, after, frozenset(), self.single))
        if is_changed and (change := changes(name, before, after)) is not None:
            self.judge(name, model, options, change)
        if name == QUANTIZED and is_quantised:
            self.check_quantised(model, before, after, options)

    def _again(self, model: ir.Model, options: Options) -> None:
        """Compare what was left untold by passes that ran before types were known. Raises `WrongRewrite`."""
        start = time.perf_counter()
        for name, change in self.waiting:
            with self._checking(name):
                super().judge(name, model, options, change)
        self.waiting.clear()
        self.counts.seconds += time.perf_counter() - start

    @contextmanager
    def _checking(self, name: str) -> Iterator[None]:
        """Refuse a pass whose check fails, as nobody knows what it did. Only count it if the pass is needed, or memory
        is short.
        """
        try:
            yield
        except WrongRewrite:
            raise
        except Exception as error:
            is_short = isinstance(error, MemoryError)  # drawn sizes may be too large for any machine
            if is_strict() and not is_short:
                raise
            why = f"the check failed: {type(error).__name__}"
            self.counts.untold[why] += 1
            if name == TRAINABLE:
                self.counts.doubts.append(why)
            elif name not in NEEDED and not is_short:
                raise WrongRewrite(f"the pass {name} can't be compared: {why}", name) from error

    def _doubt(self, model: ir.Model, options: Options) -> bool:
        """Decide a second time which tensors are trained. Returns True if other ones are now."""
        is_other = False
        with self._checking(TRAINABLE):
            is_other = self._doubted(wrong_decisions(model, options, MOST))
        return is_other

    def _doubted(self, doubts: Iterable[Doubt]) -> bool:
        """Count doubts about what is trained, which tests refuse. Follow the second decision, which is silent unless it
        is sure. Returns True if it followed one.
        """
        doubtful = list(doubts)
        self.counts.doubts += [f"{doubt}{FOLLOWED if doubt.wanted is not None else ''}" for doubt in doubtful]
        refuse(TRAINABLE, map(str, doubtful) if is_strict() else [])
        for doubt in doubtful:
            if doubt.wanted is not None:
                DECISION.set(doubt.value, (doubt.wanted, SECOND))
        return any(doubt.wanted is not None for doubt in doubtful)

    def _verdict(self, regions: Regions, claim: Claim) -> str | None:
        """Compare quickly; what differs however much of the network is computed is compared as with `--paranoid`.

        So is what two quick draws say nothing of: few drawn lengths and positions fit some kernels.
        """
        self.is_sure, untold = False, self.counts.untold.copy()
        if self.is_choice:
            return self._of_choice(regions, claim)
        verdict = super()._verdict(regions, claim)
        if verdict == "" or not claim.needed:
            return verdict
        self.is_sure, self.counts.untold = True, untold
        return super()._verdict(regions, claim)

    def _of_choice(self, regions: Regions, claim: Claim) -> str | None:
        """As `_verdict`. All of the network behind the choice is in the region already, so that only for what differs
        more is computed.
        """
        try:
            if self.mute:
                raise Untold(self.mute)
            region = regions.of(claim, set())
            if Comparison(region, self.quick).is_same(FEW, everywhere=True) or not super()._fresh(region, False):
                self.counts.regions += claim.needed
                return ""
        except Untold as error:
            self.mute = str(error)
            self.counts.untold[self.mute] += claim.needed
            return None
        self.is_sure = True
        return super()._verdict(regions, claim)

    def judge(self, name: str, model: ir.Model, options: Options, change: Difference) -> None:
        untold, self.is_choice, self.mute = self.counts.untold.copy(), name == DECIDE, ""
        super().judge(name, model, options, change)
        if not DECIDED.has(model) and self.counts.untold != untold:
            self.counts.untold = untold
            self.waiting.append((name, change))

    def _fresh(self, region: Region, differed: bool) -> str:
        if self.is_sure:
            return super()._fresh(region, differed)
        compared = Comparison(region, self.quick, FILLED if differed else ())  # a part that hides nothing differed
        return "" if compared.is_same(MANY if differed else FEW) else "it seems to differ"
