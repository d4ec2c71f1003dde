"""What a drawn file is held to: onnxruntime's outputs. A file that onnxruntime refuses does not count."""

from __future__ import annotations

import copy
import tempfile
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator

from onnxgen.errors import BUG, OnnxgenError
from onnxgen.options import Options
from onnxgen.verify.compare import MAX_SLACK_PART, Tolerance, compare, slack_of
from tests.hunts.rounding import agrees_on_padding, hangs_on_rounding, opened, overflows
from tests.hunts.running import arguments, generated, headed, unclear

Feed = dict[str, Any]
BAD = ("crash", "wrong")
NUDGE = 2.0**-21  # how much inputs are changed to see how far outputs move of rounding alone
NUDGES = 16


class Unmade(Exception):
    """An exporter refused a module."""


@dataclass(frozen=True)
class Case:
    """A file, and what it is run with.

    Attributes:
        fused: torch's transformers may take their fast path, as in evaluation; else they compute as in training.
        classes: as many of the classes of the head, which is the last layer, are left. 0: all.
        lied: names of passes that are said to change results, so that they are left out.
        doubts: whether the second decision on what is trained is the other one for each tensor.
    """

    seed: int
    model: onnx.ModelProto
    feeds: list[Feed]
    options: Options | None = None
    fused: bool = True
    classes: int = 0
    lied: frozenset[str] = frozenset()
    doubts: bool = False


@dataclass(frozen=True)
class Verdict:
    """How a case went.

    Attributes:
        kind: "right", "refused" (by onnxgen, with a problem of the file), "crash", "wrong", "void" (onnxruntime
            refused), "disputed" (onnx.reference agrees with the module, and onnxruntime with neither), "known" (it
            fails as recorded in `known.txt`).
        what: what failures have in common that have one cause: a message, or the place of an exception.
        detail: all there is to know of a failure.
    """

    kind: str
    what: str = ""
    detail: str = ""

    @property
    def is_bad(self) -> bool:
        return self.kind in BAD


def judge(case: Case) -> Verdict:
    """Generate the file, run it on every feed, and compare with onnxruntime."""
    with tempfile.TemporaryDirectory(prefix="hunt-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            session = opened(case.model)
            case, expected = _accepted(case, session)
        except Exception as error:
            return Verdict("void", " ".join(str(error).split())[:150])
        path = Path(folder) / "graph.onnx"
        onnx.save(case.model, path)
        try:
            torch.backends.mha.set_fastpath_enabled(case.fused)
            model, report = generated(path, case.options, case.lied, case.doubts)
            if case.classes:
                expected = headed(model, case.classes, expected)
        except OnnxgenError as error:
            kind = "crash" if "can't be loaded" in str(error) or BUG in str(error) else "refused"
            return Verdict(kind, " ".join(error.problems[0].what.split())[:100], str(error))
        except Exception as error:
            return _crash(error)
        if said := unclear(report):
            return Verdict("wrong", "a note", said)
        return _compared(case, model, session, expected)


def _accepted(case: Case, session: Any) -> tuple[Case, list[list[Any]]]:
    """The case with the feeds that onnxruntime runs, the first at least: exporters fix sizes that were free."""
    ran = [(case.feeds[0], session.run(None, case.feeds[0]))]
    for feed in case.feeds[1:]:
        with suppress(Exception):
            ran.append((feed, session.run(None, feed)))
    return replace(case, feeds=[feed for feed, _ in ran]), [outputs for _, outputs in ran]


@dataclass(frozen=True)
class Output:
    """One output of the module on a feed, and onnxruntime's.

    Attributes:
        given: what the module takes.
        k: its number.
        slack: how far onnxruntime's moves when inputs change in their last places.
    """

    case: Case
    model: torch.nn.Module
    given: list[Any]
    k: int
    theirs: Any
    got: Any
    tolerance: Tolerance

    def verdict(self, session: Any, feed: Feed) -> Verdict | None:
        """None if the module is right."""
        theirs, got, tolerance = self.theirs, self.got, self.tolerance
        why = compare(theirs, got, tolerance).why
        if not why:
            return None
        if theirs.dtype.kind == "f" and not np.isfinite(theirs).all():
            return Verdict("void", "numbers overflow")
        slack = _slack(session, feed, self.k, theirs) if not self.case.classes else np.zeros_like(theirs)
        if slack is None and got.shape == theirs.shape and got.dtype == theirs.dtype:
            return Verdict("void", "rounding decides what comes out")
        if not compare(theirs, got, tolerance, slack=slack).why:
            return None
        if self._agrees_in_float64():
            return Verdict("void", "rounding decides what comes out")
        if got.shape == theirs.shape and (why_not := self._no_two_agree(feed)):
            return Verdict("void", why_not)
        if not self.case.classes and self._agrees(feed):
            return Verdict("disputed", f"onnx.reference agrees, onnxruntime does not: {why}"[:150])
        what = "shape or dtype" if got.shape != theirs.shape or got.dtype != theirs.dtype else "values"
        return Verdict("wrong", what, f"output {self.k}: {why}")

    def _no_two_agree(self, feed: Feed) -> str:
        """Why two right implementations differ here; "" if they should not."""
        if overflows(self.case.model, feed):
            return "numbers overflow"
        if agrees_on_padding(self.model, self.given, self.k, self.theirs, self.tolerance):
            return "a maximum over padding alone"
        hangs = hangs_on_rounding(self.model, self.given, self.k, self.got, self.tolerance)
        return "rounding decides what comes out" if hangs else ""

    def _agrees_in_float64(self) -> bool:
        """Whether the module computes what onnxruntime does when it rounds less: a step parted them, and nothing
        else."""
        try:
            with torch.no_grad():
                given = [a.double() if a.is_floating_point() else a for a in self.given]
                made = copy.deepcopy(self.model).double()(*given)
        except Exception:
            return False
        got = (made if isinstance(made, tuple) else (made,))[self.k].detach().numpy()
        return not compare(self.theirs, got.astype(self.theirs.dtype), self.tolerance).why

    def _agrees(self, feed: Feed) -> bool:
        """Whether onnx's own evaluator computes what the module does."""
        try:
            with np.errstate(all="ignore"):
                other = ReferenceEvaluator(self.case.model).run(None, dict(feed))[self.k]
        except Exception:
            return False
        return not compare(other, self.got, self.tolerance).why


def _compared(case: Case, model: torch.nn.Module, session: Any, expected: list[list[Any]]) -> Verdict:
    half = any(t.data_type == onnx.TensorProto.FLOAT16 for t in case.model.graph.initializer)
    dtype = case.options.dtype if case.options is not None else None
    tolerance = Tolerance().at_least("float16" if half else "float32").at_least(dtype or "")
    for feed, wanted in zip(case.feeds, expected, strict=True):
        given = arguments(feed, dtype)
        try:
            with torch.no_grad():
                made = model(*given)
        except Exception as error:
            return _crash(error)
        outputs = made if isinstance(made, tuple) else (made,)
        if len(outputs) != len(wanted):
            return Verdict("wrong", "number of outputs", f"{len(outputs)} instead of {len(wanted)}")
        for k, (ours, theirs) in enumerate(zip(outputs, wanted)):
            if not isinstance(ours, torch.Tensor):
                return Verdict("wrong", "no tensor", f"output {k} is a {type(ours).__name__}")
            if dtype and theirs.dtype.kind == "f" and ours.dtype != getattr(torch, dtype):
                return Verdict("wrong", "shape or dtype", f"output {k} is {ours.dtype}, not {dtype}")
            ours = ours.float() if dtype and ours.is_floating_point() else ours
            theirs, got = _finite(theirs), _finite(ours.detach().numpy())
            verdict = Output(case, model, given, k, theirs, got, tolerance).verdict(session, feed)
            if verdict is not None:
                return verdict
    return Verdict("right")


def _finite(array: Any) -> Any:
    """The lowest number for -inf: a maximum over nothing but padding is the one in onnxruntime, and the other in torch,
    and the standard is silent."""
    lowest = np.isneginf(array) if array.dtype.kind == "f" else False
    return np.where(lowest, np.finfo(array.dtype).min, array) if np.any(lowest) else array


def _slack(session: Any, feed: Feed, k: int, theirs: Any) -> Any:
    """How far onnxruntime's own output moves when inputs change in their last places."""
    numbers, others = np.random.default_rng(0), []
    for _ in range(NUDGES):
        nudged = {n: _nudged(a, numbers) for n, a in feed.items()}
        others.append(session.run(None, nudged)[k])
    slack = slack_of(theirs, others, NUDGE)
    if slack is None or slack.max(initial=0) == 0:
        return slack
    most = np.full_like(slack, slack.max())  # an element may be still on every draw where its neighbours move
    return most if np.square(most).sum() <= MAX_SLACK_PART**2 * np.square(theirs.astype(np.float64)).sum() else None


def _nudged(array: Any, numbers: np.random.Generator) -> Any:
    if array.dtype.kind != "f":
        return array
    return np.asarray(array * (1 + NUDGE * numbers.choice([-1, 1], array.shape))).astype(array.dtype)


def _crash(error: Exception) -> Verdict:
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((f for f in reversed(frames) if "/onnxgen/" in f.filename.replace("\\", "/")), frames[-1])
    place = f"{Path(frame.filename).name}:{frame.name}"
    text = " ".join(str(error).split())
    return Verdict("crash", f"{type(error).__name__} in {place}", f"{text[:300]}\n{traceback.format_exc()[-1500:]}")
