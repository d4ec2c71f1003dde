"""The check that every generation makes: each region that a pass rewrote is computed on few drawn inputs.

What seems to differ is compared as with `--paranoid`. If it differs there too, the graph is read again, and the pass is
left out (see `pipeline`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import onnx_ir as ir

from onnxgen.errors import WrongRewrite, is_strict
from onnxgen.graph.annotations import DECIDED
from onnxgen.options import Options
from onnxgen.paranoid.check import Checker, Counts, Pass, name_of
from onnxgen.paranoid.claims import Claim, Difference, difference
from onnxgen.paranoid.comparison import Comparison
from onnxgen.paranoid.picture import take
from onnxgen.paranoid.region import Region, Regions
from onnxgen.paranoid.single import Single
from onnxgen.paranoid.trained import wrong_decisions

PARANOID = "ONNXGEN_PARANOID"  # environment variable that has the effect of `Options.paranoid`
FEW, MANY = 48_000_000, 64_000_000  # elements of a region that are computed, and of one of which a part differs
MOST = 20_000  # elements that onnx's evaluator, which is slow, is given; those of a tensor that are looked at
# Passes that decide what others do, or change numbers by design; `--paranoid` checks these, too.
UNCOMPARED = frozenset("gradient quantized trainable propagate decide infer_missing_scopes".split())

FOREIGN = ("contrib",)  # passes that rewrite operators outside of the standard


def is_paranoid(options: Options) -> bool:
    """Return True if everything is checked that can be."""
    return options.paranoid or os.environ.get(PARANOID, "") not in ("", "0")


def checker_for(options: Options, left_out: Mapping[str, str]) -> Checker:
    """Return what runs the passes. `left_out`: those that do not run, each with the reason."""
    return Checker() if is_paranoid(options) else QuickChecker(left_out)


class QuickChecker(Checker):
    """Runs the passes of one model, and compares what they rewrote."""

    gives_up = True

    def __init__(self, left_out: Mapping[str, str]) -> None:
        super().__init__()
        self.counts = Counts(left_out=dict(left_out), oracle="numpy")
        self.single, self.quick = Single(most=MOST), Single(quick=True, most=MOST)
        self.is_dated = False  # the last picture is from before a pass that is not compared
        self.is_sure = False  # compare as with `--paranoid`
        self.rewriting = ""  # the pass that is compared

    def run(self, step: Pass, model: ir.Model, options: Options) -> None:
        """Run one pass, unless it is left out. Raises `WrongRewrite` if it changed what the network computes."""
        name = name_of(step)
        if name in self.counts.left_out:
            return
        if name in UNCOMPARED:
            step(model, options)
            self.is_dated = True
            if name == "propagate" and not DECIDED.has(model):
                DECIDED.set(model, True)
                self._doubt(model, options)
            return
        start = time.perf_counter()
        if self.last is None or self.is_dated:
            self.last, self.is_dated = take(model, self.last), False
        before = self.last
        self.counts.seconds += time.perf_counter() - start
        step(model, options)
        start = time.perf_counter()
        self.last = before if before.is_as(model) else take(model, before)
        if self.last is not before and (found := difference(before, self.last)) is not None:
            with self._checking():
                self.judge(name, model, options, found)
        self.counts.seconds += time.perf_counter() - start

    @contextmanager
    def _checking(self) -> Iterator[None]:
        """Count what the check itself can't do: that is no reason to write nothing."""
        try:
            yield
        except WrongRewrite:
            raise
        except Exception as error:
            if is_strict():
                raise
            self.counts.untold[f"the check failed: {type(error).__name__}"] += 1

    def _doubt(self, model: ir.Model, options: Options) -> None:
        """Decide a second time which tensors are trained, and count those about which the pass thinks otherwise."""
        with self._checking():
            self.counts.doubts = list(wrong_decisions(model, options, MOST))

    def _verdict(self, regions: Regions, claim: Claim) -> str | None:
        """Compare quickly; what differs however much of the network is computed is compared as with `--paranoid`.

        So is an operator outside of the standard that two quick draws say nothing of: few drawn lengths and positions
        fit such a kernel.
        """
        self.is_sure = False
        verdict = super()._verdict(regions, claim)
        is_untold = verdict is None and self.rewriting in FOREIGN
        if not claim.needed or not (verdict or is_untold):
            return verdict
        self.is_sure = True
        return super()._verdict(regions, claim)

    def judge(self, name: str, model: ir.Model, options: Options, found: Difference) -> None:
        self.rewriting = name
        super().judge(name, model, options, found)

    def _fresh(self, region: Region, differed: bool) -> str:
        if self.is_sure:
            return super()._fresh(region, differed)
        return "" if Comparison(region, self.quick).is_same(MANY if differed else FEW) else "it seems to differ"
